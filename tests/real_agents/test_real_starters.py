"""The ready workflows of ``corral workflow new`` with real agents.

``make test`` runs one of them; the others are marked ``deep`` (``make test-all``).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.model_scripts import Script
from support.real_agents import RealAgent, for_agents
from support.starter_runs import CHECKS

from corral.run_kwargs import RunKwargs


@pytest.mark.deep
@pytest.mark.timeout(300)
@for_agents("gemini-cli", "claude-cli", "codex-cli")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "fix-test" else pytest.mark.deep)
        for name in sorted(CHECKS)
    ],
)
def test_a_ready_workflow_does_its_work(
    name: str, agent: RealAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(agent.program).parent}{os.pathsep}{os.environ['PATH']}")

    def connect(answer: Script) -> RunKwargs:
        options = agent.options(answer)
        del options["cwd"], options["program"]
        return options

    CHECKS[name](tmp_path, agent.name, connect)
    assert agent.failures == []
