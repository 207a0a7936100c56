"""Agents that a file declares: commands of your own, and those that a registry lists."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

import corral
from corral._agents.report import compile_for
from corral._sessions.prepare import prepare
from corral._system import config
from corral.errors import ConfigError, PolicyNotEnforceable, UnknownAgent
from corral.events import Error, ToolUse
from corral.options import RunOptions
from corral.run_kwargs import RunKwargs
from corral.testing import check_agent

PLAIN = Path(__file__).parents[1] / "programs" / "plain_acp.py"
ACP = shlex.join([sys.executable, str(PLAIN)])

LINES = """
import json, os, sys
def say(**event): print(json.dumps(event), flush=True)
prompt = sys.stdin.read()
say(type="init", session_id="s-1", model="own")
say(type="tool_use", call_id="1", name="look", kind="read")
say(type="tool_result", call_id="1", status="success", output="seen")
for word in prompt.split():
    say(type="text", delta=word + " ")
print("a line that is no JSON")
say(type="text", delta=" ".join(sys.argv[1:]))
if "fail" in prompt:
    error = {"type": "error", "code": "rate_limit", "message": "too many"}
    say(type="done", status="error", error=error)
elif "silent" not in prompt:
    say(type="done", status="success", usage={"input": 5, "output": 2})
if "die" in prompt:
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trusted file, and a program that writes our events."""
    program = tmp_path / "lines.py"
    program.write_text(LINES)
    lines = shlex.join([sys.executable, str(program)])
    path = tmp_path / "corral.toml"
    path.write_text(
        f"""
[agents.mine]
command = {json.dumps(ACP)}
title = "My own"
timeout = 7

[agents.lines]
command = {json.dumps(lines)}
transport = "stream"
model_flag = "--model"
resume_flag = "--resume"
"""
    )
    monkeypatch.setenv("CORRAL_CONFIG", str(path))
    return path


async def test_a_declared_command_is_an_agent_like_any_other(
    declare: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CORRAL_PROBE")
    result = await corral.run("mine", "hi", cwd=workspace)
    assert (result.status, result.text, result.agent) == ("success", "hello", "mine")
    found = config.find_agent("mine")
    assert (found.title, config.load("mine")) == ("My own", {"timeout": 7})
    assert "mine" in [agent.name for agent in config.all_agents()]
    assert (await check_agent("mine")).ok


async def test_lines_of_our_own_events_are_read_as_a_stream(declare: Path, workspace: Path) -> None:
    events: list[corral.Event] = []
    result = await corral.run(
        "lines", "one two", cwd=workspace, model="m", policy=corral.Policy.native(),
        on_event=events.append,
    )  # fmt: skip
    assert (result.status, result.text.strip()) == ("success", "one two --model m")
    assert (result.usage.input, result.session_id) == (5, "s-1")
    assert [event.name for event in events if isinstance(event, ToolUse)] == ["look"]


async def test_a_stream_agent_is_resumed_with_its_own_flag(declare: Path, workspace: Path) -> None:
    native = corral.Policy.native()
    first = await corral.run("lines", "hi", cwd=workspace, policy=native)
    second = await corral.run(
        "lines", "hi", cwd=workspace, policy=native, resume=first.resume_token
    )
    assert "--resume s-1" in second.text


async def test_the_error_of_a_stream_agent_comes_from_its_done_event(
    declare: Path, workspace: Path
) -> None:
    native = corral.Policy.native()
    failed = await corral.run("lines", "fail", cwd=workspace, policy=native)
    assert isinstance(failed.error, Error)
    assert (failed.error.code, failed.error.message) == ("rate_limit", "too many")
    silent = await corral.run("lines", "silent", cwd=workspace, policy=native)
    assert silent.status == "incomplete"


async def test_a_stream_that_is_killed_after_its_answer_is_an_error(
    declare: Path, workspace: Path
) -> None:
    died = await corral.run("lines", "die", cwd=workspace, policy=corral.Policy.native())
    assert (died.status, died.text.strip()) == ("error", "die")
    assert died.error is not None
    assert died.error.facts["signal"] == 9


async def test_a_policy_that_cannot_be_enforced_is_refused(declare: Path, workspace: Path) -> None:
    with pytest.raises(PolicyNotEnforceable, match="cannot restrict"):
        await corral.run("lines", "hi", cwd=workspace, policy="edits")
    events: list[corral.Event] = []
    loose = await corral.run(
        "lines", "hi", cwd=workspace, policy="edits", strict=False, on_event=events.append
    )
    assert loose.ok
    (warned,) = [event for event in events if isinstance(event, Error)]
    assert (warned.code, warned.level, warned.recoverable) == (
        "policy_not_enforced", "warning", True,
    )  # fmt: skip
    assert warned.message.startswith(
        "nothing enforces read=allow, write=allow, write=deny for protected names, shell=deny,"
    )


@pytest.mark.parametrize(
    ("policy", "rows"),
    [
        (
            corral.Policy.edits(),
            {
                "write": "allow (not enforced) · protected names: deny (not enforced)",
                "shell": "deny (not enforced)",
            },
        ),
        (
            corral.Policy(write="allow", shell="allow", network="allow", deny_tools=("web_fetch",),
                          shell_rules=("deny rm *",)),
            {
                "write": "allow (native) · protected names: deny (not enforced)",
                "shell": "allow (native) · rm *: deny (not enforced)",
            },
        ),
        (corral.Policy.all(), {"write": "allow (native)", "shell": "allow (native)"}),
    ],
)  # fmt: skip
def test_the_report_says_what_nothing_enforces(
    declare: Path, policy: corral.Policy, rows: dict[str, str]
) -> None:
    run = RunOptions(agent="lines", policy=policy, strict=False)
    report = compile_for(config.find_agent("lines"), run).report
    assert {row.capability: row.decision for row in report if row.capability in rows} == rows


def test_what_nothing_enforces_is_not_called_denied(declare: Path, workspace: Path) -> None:
    options: RunKwargs = {"cwd": workspace, "strict": False}
    assert prepare("lines", options, has_asker=False).denied_without_asking(asks=False) == ()


async def test_a_file_in_the_current_directory_declares_nothing(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CORRAL_CONFIG", raising=False)
    monkeypatch.chdir(workspace)
    (workspace / "corral.toml").write_text(f"[agents.mine]\ncommand = {json.dumps(ACP)}\n")
    with pytest.raises(UnknownAgent):
        config.find_agent("mine")
    with pytest.raises(ConfigError, match="may not declare the agent 'mine'"):
        config.load("gemini-acp")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('command = ""', "command is empty"),
        ("command = 3", "Expected `str`"),
        ('command = "x"\ntransport = "pigeon"', "pigeon"),
        ('command = "x \'y"', "not a command line"),
    ],
)
def test_an_invalid_table_is_an_error(
    table: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corral.toml").write_text(f"[agents.mine]\n{table}\n")
    monkeypatch.setenv("CORRAL_CONFIG", str(tmp_path / "corral.toml"))
    with pytest.raises(ConfigError, match=expected):
        config.find_agent("mine")


def test_a_known_agents_name_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corral.toml").write_text('[agents.gemini]\ncommand = "x --acp"\n')
    monkeypatch.setenv("CORRAL_CONFIG", str(tmp_path / "corral.toml"))
    with pytest.raises(ConfigError, match="is the name of a known agent"):
        config.find_agent("gemini")


REGISTRY = {
    "version": "1.0.0",
    "agents": [
        {
            "id": "npm-one",
            "name": "One",
            "distribution": {"npx": {"package": "one@1.2.3", "args": ["--acp"]}},
        },
        {"id": "py-one", "distribution": {"uvx": {"package": "two==1"}}},
        {"id": "archive", "distribution": {"binary": {"linux-x86_64": {"cmd": "./x"}}}},
        {"id": "nothing"},
    ],
}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "registry.json"
    path.write_text(json.dumps(REGISTRY))
    monkeypatch.setenv("CORRAL_ACP_REGISTRY", str(path))
    return path


@pytest.mark.parametrize(
    ("name", "programs"), [("acp:npm-one", ("npx",)), ("acp:py-one", ("uvx",))]
)
def test_a_registry_on_disk_lists_agents(
    name: str, programs: tuple[str, ...], registry: Path
) -> None:
    found = config.find_agent(name)
    assert (found.name, found.programs, found.transport.kind) == (name, programs, "acp")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("acp:archive", "a program to download"),
        ("acp:nothing", "does not say how it is started"),
        ("acp:elsewhere", "lists no agent"),
    ],
)
def test_an_entry_that_cannot_be_started_is_an_error(
    name: str, expected: str, registry: Path
) -> None:
    with pytest.raises(ConfigError, match=expected):
        config.find_agent(name)


def test_a_missing_or_broken_registry_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_ACP_REGISTRY", str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="no registry of agents"):
        config.find_agent("acp:x")
    (tmp_path / "none.json").write_text("[")
    with pytest.raises(ConfigError, match=r"none\.json"):
        config.find_agent("acp:x")
