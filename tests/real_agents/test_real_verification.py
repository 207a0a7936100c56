"""The real Gemini CLI does its task, or only says so; corral finds out."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.real_agents import RealAgent, for_agents
from support.verified_runs import RIGHT, UNITTEST, git, make_project

from corral.testing import call, say


@pytest.mark.timeout(300)
@for_agents(lambda record: record.name == "gemini-cli")
async def test_the_work_of_a_real_agent_is_verified(agent: RealAgent, workspace: Path) -> None:
    make_project(workspace)
    liar = [
        call("shell", command="echo '' > tests/test_calc.py; echo '# done' >> README.md"),
        say("All tests pass."),
    ]
    result = await agent.run(liar, policy="all", verify=UNITTEST)
    assert result.ok, result.error
    assert result.verdict == "gaps", result.receipt
    assert "exited with 1" in result.gaps[0]
    git(workspace, "checkout", "-q", ".")
    script = [call("write_file", path="calc.py", content=RIGHT), say("Fixed.")]
    result = await agent.run(script, policy="all", verify=UNITTEST)
    assert result.verdict == "verified", result.gaps
    receipt = result.receipt
    assert receipt is not None
    assert receipt.run.agent == "gemini-cli"
    assert receipt.run.agent_version == result.agent_version
    assert [file.path for file in receipt.changed] == ["calc.py"]
