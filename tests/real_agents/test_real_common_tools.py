"""One script for all agents: its tool names are translated to those of the agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.real_agents import RealAgent, for_agents

import corral
from corral.testing import Call, Turn, call, say


@pytest.mark.timeout(600)
@for_agents(lambda record: record.name != "codex-acp")
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


@pytest.mark.timeout(600)
@for_agents(lambda record: not record.needs_model)
async def test_the_variables_of_the_server_are_enough(agent: RealAgent, workspace: Path) -> None:
    """Without a model: the agent's own choice may have other tools, as with Codex."""
    asked: list[str] = []

    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "sunny"

    (workspace / "old.txt").write_text("one\nthe first line\n")
    has_tools = agent.record.supports("mcp_servers")
    calls = [
        Call("read_file", {"path": "old.txt"}),
        Call("edit_file", {"path": "old.txt", "old": "first", "new": "second"}),
        Call("shell", {"command": "cat old.txt > copy.txt"}),
        *([Call("weather", {"city": "Ghent"})] if has_tools else []),
    ]
    options = agent.options([*(Turn(calls=[call]) for call in calls), say("a scripted answer")])
    options["env"] = {**options.get("env", {}), **agent.lane.env}
    options["model"], options["policy"] = None, "all"
    tools = [weather] if has_tools else []
    result = await corral.run(agent.name, "do it", tools=tools, **options)
    assert (result.ok, result.text) == (True, "a scripted answer"), result.error
    assert (workspace / "copy.txt").read_text() == "one\nthe second line\n"
    assert asked == (["Ghent"] if has_tools else [])
