"""Answers of a type and Python functions as tools, with the real CLI in both its modes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from support.real_gemini import Gemini

import corral
from corral import errors
from corral.sessions.tools.mcp_server import ToolServer
from corral.testing import Call, Turn, call, say

pytestmark = pytest.mark.gemini_cli


@dataclass
class Review:
    summary: str
    problems: int


GOOD = '```json\n{"summary": "fine", "problems": 2}\n```'


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@pytest.mark.parametrize("agent", ["gemini-cli", "gemini-acp"])
async def test_an_answer_that_does_not_fit_is_repaired_in_the_same_session(
    agent: str, gemini: Gemini
) -> None:
    options = gemini.options([say('{"summary": "fine", "problems": "two"}'), say(GOOD)])
    result = await corral.run(agent, "review it", output=Review, check=True, **options)
    assert result.output == Review("fine", 2)
    repaired = gemini.requests[-1]
    assert "problems: expected an integer" in repaired.last_text
    assert len(repaired.history) == 3


async def test_an_answer_that_never_fits_is_an_error_with_its_text(gemini: Gemini) -> None:
    options = gemini.options([Turn(text="I would rather not.", repeat="forever")])
    result = await corral.run("gemini-acp", "review it", output=Review, repairs=1, **options)
    assert (result.status, result.output) == ("error", None)
    with pytest.raises(errors.SchemaNotMet) as raised:
        result.raise_for_status()
    assert raised.value.frame == "I would rather not."


@pytest.mark.parametrize("agent", ["gemini-cli", "gemini-acp"])
async def test_with_tools_the_value_is_handed_in_by_one_of_them(agent: str, gemini: Gemini) -> None:
    script = [
        call("mcp_corral_add", a=40, b=2),
        call("mcp_corral_submit_result", summary="", problems="many"),
        call("mcp_corral_submit_result", summary="added", problems=0),
        say("Handed in."),
    ]
    options = gemini.options(script, policy="edits")
    result = await corral.run(agent, "add", tools=[add], output=Review, check=True, **options)
    assert result.output == Review("added", 0)
    answers = [str(answer) for _, answer in gemini.requests[-1].tool_results]
    assert "42" in answers[0]
    assert "problems must be integer" in answers[1]  # the CLI checks our schema itself


async def test_a_server_that_refuses_the_agents_token_is_an_error(
    gemini: Gemini, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"Authorization": "Bearer wrong"}

    def forged(self: ToolServer) -> corral.McpServer:
        return corral.McpServer(name="corral", url=self.url, headers=wrong, own=True)

    monkeypatch.setattr(ToolServer, "mcp_server", property(forged))
    options = gemini.options([Turn(text="I have no tools.", repeat="forever")], policy="edits")
    result = await corral.run("gemini-acp", "add", tools=[add], **options)
    assert result.error is not None
    assert result.error.code == "tool_failed"
    assert "did not list the tools" in result.error.message


async def test_hooks_stand_between_the_agent_and_the_function(
    gemini: Gemini, workspace: Path
) -> None:
    calls = [Turn(calls=[Call("mcp_corral_add", {"a": n, "b": 0})]) for n in range(2)]
    tools = corral.Tools([add], hooks=[corral.call_budget(1)])
    options = gemini.options([*calls, say("done")], policy="edits")
    result = await corral.run("gemini-acp", "add twice", tools=tools, check=True, **options)
    assert result.ok
    first, second = (str(answer) for _, answer in gemini.requests[-1].tool_results)
    assert "error" not in first
    assert "all 1 tool calls of this run are made" in second
