"""Probes of real agents whose program was changed, of real agents as they are, and faults."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.installed_agents import installed, mark_of
from support.pipeline_command import CORRAL
from support.pipeline_command import corral as corral_command
from support.processes import processes_matching

import corral
from corral import errors
from corral._agents import registry
from corral._sessions import probing
from corral._sessions.proof import stored_verdict
from corral._system import paths, programs
from corral._testing.probe import ProbeTooSlow, probe_agent
from corral.run_kwargs import RunKwargs
from corral.testing import ModelServer, Turn

CHANGED = Path(__file__).parents[1] / "programs" / "changed_agent.py"

STREAM_RESULT = '{"type": "result", "status": "success", "stats": {}}'
CLAUDE_RESULT = (
    '{"type": "result", "subtype": "success", "is_error": False, "result": "Done.",'
    ' "session_id": "s", "num_turns": 1, "usage": {"input_tokens": 1234, "output_tokens": 1}}'
)
CHANGES: dict[str, tuple[str, str, str]] = {
    # Name → the agent, the check that fails, and what is changed.
    "codex-event-renamed": (
        "codex-cli",
        "a tool call is reported once, with its result",
        'received=renamed("item.completed", "item.done")',
    ),
    "codex-default-permission": (
        "codex-cli",
        "default: write inside",
        'words=["danger-full-access" if word in ("read-only", "workspace-write") else word'
        " for word in words]",
    ),
    "codex-usage-lost": (
        "codex-cli",
        "token usage is reported",
        'received=without("usage", of="turn.completed")',
    ),
    "codex-other-model": (
        "codex-cli",
        "the named model is asked",
        'words=other_model(words, "gpt-5.4")',
    ),
    "codex-other-default-model": (
        "codex-cli",
        "a known default model is asked",
        'words=words if "--model" in words else [words[0], "--model", "gpt-dear", *words[1:]]',
    ),
    "gemini-event-renamed": (
        "gemini-cli",
        "a tool call is reported once, with its result",
        'received=renamed("tool_result", "tool_output")',
    ),
    "gemini-text-renamed": (
        "gemini-cli",
        "the answer arrives complete",
        'received=renamed("message", "chunk")',
    ),
    "gemini-usage-lost": (
        "gemini-cli",
        "token usage is reported",
        'received=without("stats", of="result")',
    ),
    "gemini-early-result": (
        "gemini-cli",
        "the answer arrives complete",
        f'received=ends_at("type", "tool_use", {STREAM_RESULT})',
    ),
    "gemini-default-permission": (
        "gemini-cli",
        "edits: shell",
        "words=allowing(words)",
    ),
    "gemini-resume-lost": (
        "gemini-cli",
        "a resumed conversation is sent to the model",
        'words=arguments_without(words, "--resume")',
    ),
    "gemini-servers-lost": (
        "gemini-cli",
        "a tool of an MCP server is called",
        'words=[*arguments_without(words, "--allowed-mcp-server-names"),'
        ' "--allowed-mcp-server-names", "none"]',
    ),
    "gemini-acp-event-renamed": (
        "gemini-acp",
        "the answer arrives complete",
        'received=renamed("session/update", "session/changed", "method")',
    ),
    "gemini-acp-early-result": (
        "gemini-acp",
        "the answer arrives complete",
        "sent=P.sent, received=P.received",
    ),
    "claude-event-renamed": (
        "claude-cli",
        "a tool call is reported once, with its result",
        'received=renamed("assistant", "message")',
    ),
    "claude-early-result": (
        "claude-cli",
        "the answer arrives complete",
        f'received=ends_at("type", "user", {CLAUDE_RESULT})',
    ),
    "claude-permission-not-asked": (
        "claude-cli",
        "edits: write outside",
        "received=A.received, replies=A.replies",
    ),
    "claude-resume-lost": (
        "claude-cli",
        "a resumed conversation is sent to the model",
        'words=arguments_without(words, "--resume")',
    ),
    "opencode-usage-lost": (
        "opencode-cli",
        "token usage is reported",
        'received=without("tokens", of="step_finish")',
    ),
    "opencode-acp-permission-not-asked": (
        "opencode-acp",
        "asked: write inside",
        "received=A.received, replies=A.replies",
    ),
    "opencode-acp-servers-lost": (
        "opencode-acp",
        "a tool of an MCP server is called",
        'sent=sent_without("mcpServers")',
    ),
    "codex-acp-resume-lost": (
        "codex-acp",
        "a resumed conversation is sent to the model",
        "sent=new_session_for_load",
    ),
}
QUICK = ("codex-event-renamed", "codex-default-permission")
"""Codex starts fastest."""


def changed_program(folder: Path, name: str) -> tuple[str, str]:
    """The agent, and its real program with a change."""
    agent, _, change = CHANGES[name]
    found = programs.locate(registry.find(agent), installed(agent))
    path = folder / "bin" / name
    path.parent.mkdir()
    code = [
        f"#!{sys.executable} -I",
        CHANGED.read_text(),
        f"words, P, A, program = sys.argv[1:], Prompts(), Allows(), {[*found.argv]!r}",
        'if words == ["--version"]:',
        f"    sys.exit(print({found.version!r}))",
        f"run(program, **{{'words': words, **dict({change})}})",
    ]
    path.write_text("\n".join([*code, ""]))
    path.chmod(0o755)
    return agent, str(path)


def marks(name: str) -> list[pytest.MarkDecorator]:
    real = [getattr(pytest.mark, mark_of(CHANGES[name][0])), pytest.mark.real_agent]
    return real if name in QUICK else [*real, pytest.mark.deep, pytest.mark.timeout(400)]


@pytest.mark.deep
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in CHANGES])
async def test_a_changed_program_is_stopped_before_a_real_call(
    name: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CORRAL_PROBE")
    agent, program = changed_program(tmp_path, name)
    probe = registry.find(agent).probe
    assert probe is not None
    async with ModelServer(lambda _: Turn(text="Nothing to do.")) as real:
        options: RunKwargs = {
            "cwd": workspace,
            "program": program,
            "policy": "edits",
            "env": probe.env(real.url, "canary-key-0123456789"),
        }
        if probe.model_env or not name.endswith("default-model"):
            options["model"] = probe.model
        with pytest.raises((errors.NotProven, errors.PolicyNotEnforceable)) as raised:
            await corral.run(agent, "There is nothing to do.", **options)
        assert real.requests == []
    if isinstance(raised.value, errors.NotProven):
        found = programs.locate(registry.find(agent), program)
        assert str(found.version) in raised.value.message
    verdict = stored_verdict(registry.find(agent), programs.locate(registry.find(agent), program))
    assert verdict is not None
    assert CHANGES[name][1] in {check.check for check in verdict.failed}


@pytest.fixture
def waiting_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A program that never answers, and the file in which each of its starts is a line."""
    monkeypatch.delenv("CORRAL_PROBE")
    starts = tmp_path / "starts"
    program = tmp_path / "codex"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo 0.999.0 && exit\n'
        f"echo >> {starts}\nsh -c 'sleep 1000; :' {tmp_path}\n"
    )
    program.chmod(0o755)
    return str(program), starts


def options_of(program: str, workspace: Path) -> RunKwargs:
    env = {"OPENAI_API_KEY": "canary-key-0123456789"}
    return {"cwd": workspace, "program": program, "policy": "edits", "model": "m", "env": env}


def what_is_left(folder: Path) -> list[object]:
    """Folders and processes of a probe."""
    return [*folder.glob("corral-probe-*"), *processes_matching(f"{folder}")]


def is_about(program: str, pid: int) -> bool:
    """Whether a process has the program in its command line."""
    return program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_an_interrupted_probe_leaves_nothing_and_stores_nothing(
    waiting_program: tuple[str, Path],
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, starts = waiting_program
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    running = asyncio.create_task(corral.run("codex-cli", "hi", **options_of(program, workspace)))
    while not starts.exists():
        await asyncio.sleep(0.05)
        assert not running.done()
    assert what_is_left(tmp_path)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert what_is_left(tmp_path) == []
    assert list((paths.home() / "proofs").rglob("*.json")) == []


TOO_LONG = {
    "LONGEST": r"it did not end within \d+ s",
    "LONGEST_PART": r"a denied command and a resumed conversation did not end within \d+ s",
}


@pytest.mark.parametrize("limit", TOO_LONG)
async def test_a_probe_or_a_part_of_it_that_takes_too_long_is_a_clear_error(
    waiting_program: tuple[str, Path],
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
) -> None:
    program, _ = waiting_program
    monkeypatch.setattr(probing, limit, 1.0)
    with pytest.raises(errors.NotProven, match=TOO_LONG[limit]) as raised:
        await corral.run("codex-cli", "hi", **options_of(program, workspace))
    assert "Codex 0.999.0" in raised.value.message
    assert "corral agents install codex" in (raised.value.hint or "")
    assert processes_matching(program) == []
    assert list((paths.home() / "proofs").rglob("*.json")) == []


async def test_a_program_that_is_slow_to_start_fails_no_check(
    waiting_program: tuple[str, Path],
) -> None:
    program, _ = waiting_program
    options: RunKwargs = {"program": program, "startup_timeout": 0.2, "idle_timeout": 0.2}
    with pytest.raises(ProbeTooSlow, match="did not end within 2 s"):
        await probe_agent("codex-cli", options, part_seconds=2.0)


async def test_a_probe_whose_process_is_killed_stores_nothing_and_leaves_no_process(
    waiting_program: tuple[str, Path], workspace: Path
) -> None:
    program, starts = waiting_program
    running = asyncio.create_task(corral.run("codex-cli", "hi", **options_of(program, workspace)))
    while not starts.exists():
        await asyncio.sleep(0.05)
        assert not running.done()
    (prober,) = [pid for pid in processes_matching(probing.MODULE) if is_about(program, pid)]
    os.kill(prober, signal.SIGKILL)
    with pytest.raises(errors.NotProven, match=r"could not be probed: .*signal 9"):
        await running
    assert processes_matching(program) == []
    assert list((paths.home() / "proofs").rglob("*.json")) == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.deep_but_first
def test_a_run_that_is_interrupted_or_killed_in_a_probe_stores_nothing(
    waiting_program: tuple[str, Path],
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sent: signal.Signals,
) -> None:
    program, starts = waiting_program
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "canary-key-0123456789")
    words = ("run", "--agent", "codex-cli", "--program", program, "hi")
    process = subprocess.Popen([CORRAL, *words], cwd=workspace, stderr=subprocess.PIPE)
    while not starts.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(sent)
    _, stderr = process.communicate()
    if sent == signal.SIGINT:
        assert process.returncode == 130, stderr
        assert what_is_left(tmp_path) == []
    else:  # the kernel ends what it can, and the next corral process the rest
        corral_command("agents", "doctor", "--reap", cwd=workspace)
        assert processes_matching(program) == []
        assert processes_matching(f"sleep 1000; : {tmp_path}") == []
    assert list((paths.home() / "proofs").rglob("*.json")) == []


@pytest.fixture
def garbage_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program whose stream cannot be read."""
    monkeypatch.delenv("CORRAL_PROBE")
    program = tmp_path / "codex"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 0.999.0 && exit\necho garbage\n')
    program.chmod(0o755)
    return program


@pytest.mark.deep
async def test_many_runs_wait_for_one_probe_and_its_verdict(
    garbage_program: Path, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "corral.probe")
    options = options_of(str(garbage_program), workspace)
    running = [corral.run("codex-cli", "hi", **options) for _ in range(50)]
    found = await asyncio.gather(*running, return_exceptions=True)
    assert [type(each) for each in found] == [errors.NotProven] * 50
    (message,) = {str(each) for each in found}
    assert "Codex 0.999.0" in message
    assert "corral agents install codex" in message
    with pytest.raises(errors.NotProven):
        await corral.run("codex-cli", "hi", **options)
    assert len(caplog.messages) == 1  # the verdict was stored


@pytest.mark.deep
def test_a_line_on_stderr_says_that_a_program_is_probed(
    garbage_program: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-key-0123456789")
    words = ("run", "--agent", "codex-cli", "--program", str(garbage_program), "hi")
    begin = "probing Codex 0.999.0, once: "
    done = corral_command(*words, "--json", cwd=workspace)
    lines = [line for line in done.stderr.splitlines() if begin in line]
    assert len(lines) == 1, done.stderr
    assert begin not in done.stdout
    assert begin not in corral_command(*words, cwd=workspace).stderr  # its verdict is stored
    garbage_program.write_text(f"{garbage_program.read_text()}# another\n")
    assert begin not in corral_command(*words, "--quiet", cwd=workspace).stderr
    assert len([*(paths.home() / "proofs").rglob("*.json")]) == 2
    asked = ("agents", "probe", "codex-cli", "--program", str(garbage_program))
    assert "probing Codex 0.999.0 (about" in corral_command(*asked, cwd=workspace).stderr


async def test_where_nothing_can_be_stored_nothing_is_probed(
    waiting_program: tuple[str, Path],
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, starts = waiting_program
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(errors.StorageFailed, match="cannot be stored"):
        await corral.run("codex-cli", "hi", **options_of(program, workspace))
    assert not starts.exists()


VERSIONS = (
    ("gemini-cli", "@google/gemini-cli", "0.58.0"),
    ("gemini-cli", "@google/gemini-cli", "0.59.0"),
    ("gemini-cli", "@google/gemini-cli", "0.60.0"),
    ("codex-cli", "@openai/codex", "0.169.0"),
    ("claude-cli", "@anthropic-ai/claude-code", "2.1.312"),
    ("claude-cli", "@anthropic-ai/claude-code", "2.1.323"),
    ("claude-cli", "@anthropic-ai/claude-code", "2.1.327"),
    ("opencode-cli", "opencode-ai", "1.18.19"),
    ("opencode-cli", "opencode-ai", "1.18.26"),
    ("opencode-cli", "opencode-ai", "1.18.33"),
)
"""Older and newer than those that ``corral agents install`` installs."""


@pytest.mark.deep
@pytest.mark.timeout(900)  # npm loads up to 350 MB
@pytest.mark.parametrize(("name", "package", "version"), VERSIONS)
async def test_another_real_version_passes(name: str, package: str, version: str) -> None:
    agent = registry.find(name)
    folder = Path(__file__).parents[2] / ".cache" / "versions" / f"{name}-{version}"
    binary = agent.package.binaries.get(programs.machine())
    program = folder / "node_modules" / (binary or f".bin/{agent.programs[0]}")
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        words = ("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix")
        subprocess.run([*words, str(folder), f"{package}@{version}"], check=True)
    verdict = await probing.probe(agent, programs.locate(agent, str(program)))
    assert (verdict.version, verdict.failed) == (version, ())
