"""The conformance kit through ``corral acp``: corral's own client drives it, as any ACP command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.installed_agents import installed

from corral._agents import acp_command, registry
from corral._agents.spec import AgentSpec
from corral._testing.conformance.scenarios import SCENARIOS
from corral.testing import check_agent

CORRAL = (sys.executable, "-m", "corral", "acp")


def served(monkeypatch: pytest.MonkeyPatch, base: AgentSpec, *arguments: str) -> str:
    """The command, as an agent whose model can be scripted as that of ``base``."""
    make = acp_command.agent_for

    def scripted(command: str) -> AgentSpec:
        spec = make(command)
        home = ("CORRAL_HOME", *base.env_names)
        known = (*spec.capabilities, "usage")
        return replace(
            spec,
            probe=base.probe,
            env_names=home,
            secret_env=base.secret_env,
            capabilities=known,
        )

    monkeypatch.setattr(acp_command, "agent_for", scripted)
    return shlex.join([*CORRAL, *arguments])


@pytest.mark.deep
async def test_the_builtin_agent_passes_every_scenario_through_corral_acp(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = registry.find("corral")
    assert base.probe
    command = served(monkeypatch, base, "--model", base.probe.model or "")
    report = await check_agent(command, options={"strict": False, "startup_timeout": 90})
    assert [row.outcome for row in report.rows] == ["pass"] * len(SCENARIOS), str(report)


@pytest.mark.deep
@pytest.mark.gemini_cli
@pytest.mark.timeout(400)
async def test_the_gemini_cli_passes_every_scenario_through_corral_acp(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = registry.find("gemini-acp")
    program = installed("gemini-acp")
    command = served(monkeypatch, base, "--agent", "gemini-acp", "--program", program)
    report = await check_agent(command, options={"strict": False, "startup_timeout": 90})
    assert [row.outcome for row in report.rows] == ["pass"] * len(SCENARIOS), str(report)
