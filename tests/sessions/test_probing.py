"""Probes of real agents whose program was changed, of real agents as they are, and faults."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.installed_agents import installed, mark_of

import corral
from corral import errors
from corral._agents import registry
from corral._sessions.proof import stored_verdict
from corral._system import programs
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
        "edits: write outside",
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
        'words=[*arguments_without(words, "--policy", "--admin-policy", "--approval-mode"),'
        ' "--approval-mode=yolo"]',
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
        "asked: shell",
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
    argv = programs.locate(registry.find(agent), installed(agent)).argv
    path = folder / "bin" / name
    path.parent.mkdir()
    code = [
        f"#!{sys.executable} -I",
        CHANGED.read_text(),
        f"words, P, A, program = sys.argv[1:], Prompts(), Allows(), {[*argv]!r}",
        'if words == ["--version"]:',
        "    os.execv(program[0], [*program, *words])",
        f"run(program, **{{'words': words, **dict({change})}})",
    ]
    path.write_text("\n".join([*code, ""]))
    path.chmod(0o755)
    return agent, str(path)


def marks(name: str) -> list[pytest.MarkDecorator]:
    real = [getattr(pytest.mark, mark_of(CHANGES[name][0])), pytest.mark.real_agent]
    return real if name in QUICK else [*real, pytest.mark.slow]


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
