"""Cline: one tool call has several commands, which no other agent has."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.files import file_names
from support.model_scripts import steps
from support.real_agents import RealAgent, denied_tools, for_agents

from corral import Policy
from corral.testing import Call

pytestmark = pytest.mark.timeout(300)


def commands(*lines: str) -> Call:
    return Call("run_commands", {"commands": [*lines]})


@for_agents("cline-acp")
async def test_one_command_that_a_rule_denies_stops_all_commands_of_its_call(
    agent: RealAgent, workspace: Path
) -> None:
    policy = Policy(shell="allow", network="allow", shell_rules=("deny touch bad*",))
    script = steps(commands("touch good", "touch bad"), commands("touch fine"))
    result = await agent.run(script, policy=policy)
    assert denied_tools(result) == ["run_commands"]
    assert file_names(workspace) == ["fine"]
