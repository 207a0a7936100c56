"""One script for all agents: its tool names are translated to those of the agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.real_agents import RealAgent, for_agents

from corral.testing import call, say


@pytest.mark.timeout(600)
@for_agents(
    lambda record: record.name != "codex-acp",
    every_day=("gemini-cli", "gemini-acp", "claude-cli", "codex-cli", "opencode-acp"),
)
async def test_one_script_works_with_every_agent(agent: RealAgent, workspace: Path) -> None:
    script = [
        call("write_file", path="new.txt", content="first line\n"),
        call("edit_file", path="new.txt", old="first line", new="second line"),
        call("shell", command="cat new.txt > copy.txt"),
        say("done"),
    ]
    result = await agent.run(script, policy="all")
    assert result.ok, result.error
    seen = str(agent.turns[-1].tool_calls) + str(agent.turns[-1].tool_results)
    assert (workspace / "new.txt").exists(), seen
    assert (workspace / "new.txt").read_text() == "second line\n", seen
    assert (workspace / "copy.txt").read_text() == "second line\n"
