"""A conversation that one real agent begins and another one continues."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builtin_agent import BuiltinAgent
from support.installed_agents import mark_of
from support.model_scripts import sent_json, tool_results_json
from support.real_agents import RealAgent

import corral
from corral.run_kwargs import RunKwargs
from corral.sessions import store
from corral.testing import Call, ModelServer, Turn, say

pytestmark = pytest.mark.timeout(400)

SECRET_FACT = "The launch code is 4711-blue."
PAIRS = (
    ("gemini-cli", "claude-cli"),
    ("claude-cli", "codex-cli"),
    ("opencode-cli", "corral"),
    ("corral", "gemini-cli"),
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
        assert [call.name for call in asked.tool_calls] == [one.write("a", "").name]
        assert SECRET_FACT in asked.texts
    else:
        assert f"| {SECRET_FACT}" in "\n".join(asked.texts)

    stored = store.find(result.resume_token or "").meta
    assert (stored.continued_from, stored.agent) == (started.resume_token, two.name)
    third = await corral.run(  # the second agent has it in its own conversation now
        two.name, "And?", **two.options([say("Yes.")], policy="all", resume=result.resume_token)
    )
    assert third.final_text == "Yes."
    last = [each for each in two.requests if each.tools and not each.aside][-1]
    assert SECRET_FACT in "\n".join(last.texts)
    assert "\n".join(last.texts).count("continues with you") == 1
