"""A conversation that one real agent begins and another one continues."""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex

import pytest
from support.builtin_agent import BuiltinAgent
from support.installed_agents import mark_of
from support.model_scripts import sent_json, tool_results_json
from support.real_agents import USAGE, RealAgent
from support.stream_checks import check_streams

import corral
from corral._sessions import store
from corral._sessions.fallback import WORK_CONTINUES
from corral.events import Done, Event, ToolUse
from corral.run_kwargs import RunKwargs
from corral.testing import Call, ModelServer, Turn, fail, say

pytestmark = pytest.mark.timeout(400)

SECRET_FACT = "The launch code is 4711-blue."
YES = Turn(text="Yes.", repeat="forever")
PAIRS = (
    ("gemini-cli", "claude-cli"),
    ("claude-cli", "codex-cli"),
    ("opencode-cli", "corral"),
    ("corral", "gemini-cli"),
    ("gemini-cli", "claude-acp"),
    ("claude-acp", "qwen-cli"),
    ("qwen-acp", "copilot-cli"),
    ("copilot-acp", "corral"),
)


class OwnAgent(BuiltinAgent):
    """The built-in agent with the interface of a real one."""

    name = "corral"

    def write(self, path: str, content: str) -> Call:
        return Call("write_file", {"file_path": path, "content": content})

    def read(self, path: str) -> Call:
        return Call("read_file", {"file_path": path})

    def shell(self, command: str) -> Call:
        return Call("shell", {"command": command})


def case(first: str, second: str) -> object:
    marks = [getattr(pytest.mark, mark_of(name)) for name in (first, second) if name != "corral"]
    return pytest.param(first, second, id=f"{first}-to-{second}", marks=marks)


@pytest.mark.deep
@pytest.mark.usefixtures("two_agents")
@pytest.mark.parametrize(("first", "second"), [case(*pair) for pair in PAIRS])
async def test_the_second_agent_knows_what_the_first_did_and_uses_its_file(
    first: str,
    second: str,
    model_server: ModelServer,
    workspace: Path,
    request: pytest.FixtureRequest,
) -> None:
    """What the second agent's model received is read at the scripted model."""

    def agent_of(name: str) -> RealAgent | OwnAgent:
        test = f"{request.node.nodeid}-{name}"
        if name == "corral":
            return OwnAgent(model_server, workspace, test)
        return RealAgent(name, model_server, workspace, test)

    one, two = agent_of(first), agent_of(second)
    script = [Turn(calls=[one.write("made.txt", "made by one\n")]), say(SECRET_FACT)]
    started = await corral.run(one.name, "Write made.txt", **one.options(script, policy="all"))
    assert started.error is None
    assert started.resume_token is not None

    command = "cat made.txt made.txt > twice.txt && cat twice.txt"
    script = [Turn(calls=[two.shell(command)]), say("It continues.")]
    options: RunKwargs = two.options(script, policy="all", resume=started.resume_token)
    result = await corral.run(two.name, "Use the file", **options)

    assert result.error is None
    assert (result.agent, result.final_text) == (two.name, "It continues.")
    assert result.continued_from == started.resume_token
    assert (workspace / "twice.txt").read_text() == "made by one\n" * 2
    asked, answered = [each for each in two.requests if each.tools and not each.aside][:2]
    sent = sent_json([asked])
    for fact in (SECRET_FACT, "Write made.txt", "made by one", "created made.txt"):
        assert fact in sent
    assert asked.last_text.strip().endswith("Use the file")
    assert "made by one" in tool_results_json(answered)
    if second == "corral":
        events = store.find(started.resume_token).events()
        names = [event.name for event in events if isinstance(event, ToolUse)]
        assert [call.name for call in asked.tool_calls] == names
        assert SECRET_FACT in asked.texts
    else:
        assert f"| {SECRET_FACT}" in "\n".join(asked.texts)

    stored = store.find(result.resume_token or "").meta
    assert (stored.continued_from, stored.agent) == (started.resume_token, two.name)
    third = await corral.run(  # the second agent has it in its own conversation now
        two.name, "And?", **two.options([YES], policy="all", resume=result.resume_token)
    )
    assert third.final_text == "Yes."
    last = [each for each in two.requests if each.tools and not each.aside][-1]
    assert SECRET_FACT in "\n".join(last.texts)
    assert "\n".join(last.texts).count("continues with you") == 1


SPENT = fail(
    429, "spent", quota_id="GenerateRequestsPerDayPerProjectPerModel-FreeTier", times="forever"
)
"""The daily quota of Gemini."""


@pytest.mark.deep
@pytest.mark.usefixtures("two_agents")
@pytest.mark.parametrize(
    ("following", "name"),
    [
        pytest.param(
            "claude-cli", "claude-cli", marks=[pytest.mark.gemini_cli, pytest.mark.claude]
        ),
        pytest.param("openai:gpt-5", "corral", marks=pytest.mark.gemini_cli),
    ],
)
async def test_a_limited_agent_is_continued_by_another_one(
    following: str,
    name: str,
    model_server: ModelServer,
    workspace: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gemini CLI writes a file and meets its daily quota; the next agent gets both and uses it."""
    one = RealAgent("gemini-cli", model_server, workspace, f"{request.node.nodeid}-1")
    two: RealAgent | OwnAgent = OwnAgent(model_server, workspace, f"{request.node.nodeid}-2")
    command = "cat made.txt made.txt > twice.txt && cat twice.txt"
    if name != "corral":
        two = RealAgent(name, model_server, workspace, f"{request.node.nodeid}-2")
        programs = os.path.dirname(two.program)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    script = [Turn(calls=[two.shell(command)], usage=USAGE), Turn(text="Continued.", usage=USAGE)]
    own = two.options(script) if isinstance(two, RealAgent) else two.options(script, "openai")
    first = [
        Turn(text=SECRET_FACT, calls=[one.write("made.txt", "made by one\n")], usage=USAGE),
        SPENT,
    ]
    options = one.options(first, policy="all", on_limit=f"fallback:{following}")
    # Limits are shared by all runs of this process with the same key.
    key = {"GEMINI_API_KEY": f"key-{token_hex(16)}"}
    options["env"] = {**own.get("env", {}), **options.get("env", {}), **key}
    events: list[Event] = []
    prompt = "Make and use the file"
    result = await corral.run(one.name, prompt, on_event=events.append, **options)
    assert result.error is None
    parts = check_streams(events)

    assert (result.agent, result.final_text) == (name, "Continued.")
    assert (workspace / "twice.txt").read_text() == "made by one\n" * 2
    assert {Path(file.path).name for file in result.files} == {"made.txt", "twice.txt"}
    assert len(result.usage_by_model) == 2
    assert [part[0].agent for part in parts] == ["gemini-cli", name]
    assert isinstance(end := parts[0][-1], Done)
    assert (result.usage.input or 0) > (end.usage.input or 0) > 0
    asked = next(each for each in two.requests if each.tools and not each.aside)
    sent = sent_json([asked])
    assert SECRET_FACT in sent
    assert "created made.txt" in sent
    assert asked.last_text.strip().endswith(f"Make and use the file\n\n{WORK_CONTINUES}")
    assert store.find(result.continued_from or "").meta.agent == "gemini-cli"
