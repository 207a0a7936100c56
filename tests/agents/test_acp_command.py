"""A command line as the agent: a known program gets its own spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral._agents import registry
from corral._agents.spec import AgentSpec
from corral._system import programs
from corral.errors import ConfigError, NotInstalled


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("gemini --acp", "gemini-acp"),
        ("opencode acp", "opencode-acp"),
        ("qwen --acp", "qwen-acp"),
        ("copilot --acp", "copilot-acp"),
        ("/opt/x/gemini", "gemini-acp"),
        ("/opt/x/gemini --acp", "gemini-acp"),
        ("./claude", "claude-cli"),
        ("/opt/x/codex", "codex-cli"),
        ("/opt/x/claude-agent-acp", "claude-acp"),
    ],
)
def test_a_command_of_a_known_program_is_that_agent(command: str, name: str) -> None:
    found = registry.find(command)
    known = registry.find(name)
    assert (found.name, found.launch, found.supports) == (name, known.launch, known.supports)
    program = command.split(maxsplit=1)[0]
    assert found.program == (program if "/" in program else None)


@pytest.mark.parametrize("command", ["my-agent --acp", "/opt/x/agent", "npx gemini --acp", "x/y z"])
def test_any_other_command_is_a_program_that_speaks_acp(command: str) -> None:
    assert registry.find(command).name == command


@pytest.mark.parametrize("command", ["gemini --acp --yolo", "/opt/x/claude -p", "codex exec"])
def test_other_arguments_of_a_known_program_are_refused(command: str) -> None:
    with pytest.raises(ConfigError, match="whose arguments corral sets itself") as caught:
        registry.find(command)
    assert "--agent" in (caught.value.hint or "")


def test_the_named_program_is_used(tmp_path: Path) -> None:
    program = tmp_path / "gemini"
    agent = registry.find(str(program))
    with pytest.raises(NotInstalled, match=str(program)):
        programs.locate(agent, None)
    program.write_text("#!/bin/sh\necho 0.61.0\n")
    program.chmod(0o700)
    assert programs.locate(agent, None).path == str(program)


@pytest.mark.parametrize("agent", [*registry.all_agents()], ids=lambda agent: agent.name)
def test_the_vendor_of_an_agent_is_known(agent: AgentSpec) -> None:
    from corral._models.registry import find_provider

    assert not agent.vendor or find_provider(agent.vendor).name == agent.vendor
