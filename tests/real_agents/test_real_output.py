"""Typed output with real agents: a value of a type, repaired or handed in by a tool."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.model_scripts import sent_json
from support.real_agents import EVERY_DAY, RealAgent, for_agents

import corral
from corral import errors
from corral.events import Done, Event
from corral.testing import Call, Turn, call, say

pytestmark = pytest.mark.timeout(400)


class Review(msgspec.Struct, forbid_unknown_fields=True):
    summary: str
    problems: int


GOOD = '```json\n{"summary": "fine", "problems": 2}\n```'


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@for_agents(lambda record: record.spec.native_schema is None)
async def test_an_answer_that_does_not_fit_is_repaired_in_the_same_session(
    agent: RealAgent,
) -> None:
    script = [
        Turn(text=GOOD, pattern="expected an integer", repeat="forever"),
        Turn(text='{"summary": "fine", "problems": "two"}', repeat="forever"),
    ]
    options = agent.options(script)
    result = await corral.run(agent.name, "review it", output=Review, check=True, **options)
    assert result.output == Review("fine", 2)
    repaired = agent.turns[-1]
    assert "problems: expected an integer" in repaired.last_text
    response = [text for m in repaired.history if m.role == "model" for text in m.texts]
    assert response == ['{"summary": "fine", "problems": "two"}']


@for_agents("gemini-acp", "claude-cli")
async def test_an_answer_that_never_fits_is_an_error(agent: RealAgent) -> None:
    options = agent.options([Turn(text="I would rather not.", repeat="forever")])
    result = await corral.run(agent.name, "review it", output=Review, repairs=1, **options)
    assert result.status == "error"
    with pytest.raises(errors.SchemaNotMet):
        assert result.output
    with pytest.raises(errors.SchemaNotMet) as caught:
        result.raise_for_status()
    if agent.name == "gemini-acp":
        assert caught.value.frame == "I would rather not."


@for_agents("gemini-acp")
async def test_a_pool_repairs_the_answer_in_the_session_of_its_prompt(agent: RealAgent) -> None:
    """An answer that never fits is an error."""
    script = [
        Turn(text="I would rather not.", match="never mind", repeat="forever"),
        Turn(text=GOOD, pattern="expected an integer", repeat="forever"),
        Turn(text='{"summary": "fine", "problems": "two"}', repeat="forever"),
    ]
    ends: list[Done] = []

    def watch(event: Event) -> None:
        if isinstance(event, Done):
            ends.append(event)

    async with corral.pool(agent.name, **agent.options(script)) as pool:
        result = await pool.run("review it", output=Review, on_event=watch)
        assert result.output == Review("fine", 2)
        assert [end.output for end in ends] == [None, {"summary": "fine", "problems": 2}]
        response = [text for m in agent.turns[-1].history if m.role == "model" for text in m.texts]
        assert response == ['{"summary": "fine", "problems": "two"}']
        failed = await pool.run("review it", output=list[Review], repairs=0)
        with pytest.raises(errors.SchemaNotMet):
            assert failed.output
        refused = await pool.run("never mind", output=Review, repairs=0)
        assert refused.status == "error"
        with pytest.raises(errors.SchemaNotMet) as caught:
            refused.raise_for_status()
        assert caught.value.frame == "I would rather not."


@for_agents("claude-cli")
async def test_a_prompt_of_a_session_uses_the_agents_own_tool_for_the_value(
    agent: RealAgent,
) -> None:
    handed_in = Turn(calls=[Call("StructuredOutput", {"summary": "fine", "problems": 5})])
    options = agent.options([say("Hello."), handed_in])
    async with corral.session(agent.name, **options) as session:
        assert (await session.run("say hello")).text == "Hello."
        assert (await session.run("how many?", output=Review)).output == Review("fine", 5)
    assert "StructuredOutput" not in agent.turns[0].tools
    assert "StructuredOutput" in agent.turns[-1].tools


@for_agents("gemini-cli", "gemini-acp")
async def test_with_tools_the_value_is_handed_in_by_a_tool(agent: RealAgent) -> None:
    script = [
        Turn(calls=[agent.mcp_tool("corral", "add", a=40, b=2)]),
        Turn(calls=[agent.mcp_tool("corral", "submit_result", summary="", problems="many")]),
        Turn(calls=[agent.mcp_tool("corral", "submit_result", summary="added", problems=0)]),
        say("Handed in."),
    ]
    options = agent.options(script, policy="edits")
    result = await corral.run(agent.name, "add", tools=[add], output=Review, check=True, **options)
    assert result.output == Review("added", 0)
    answers = [str(answer) for _, answer in agent.turns[-1].tool_results]
    assert "42" in answers[0]
    assert "problems must be integer" in answers[1]  # the CLI checks our schema itself


@for_agents("claude-cli")
async def test_the_agents_own_tool_submits_the_value(agent: RealAgent) -> None:
    """It is asked again where the model did not call the tool."""
    name = "StructuredOutput"
    handed_in = Turn(calls=[Call(name, {"summary": "fine", "problems": 5})])
    options = agent.options([say("I will not."), say("No."), handed_in])
    result = await corral.run(agent.name, "how many?", output=Review, **options)
    assert result.output == Review("fine", 5)
    assert name in agent.turns[0].tools


@for_agents(
    lambda record: record.name != "codex-acp", spine=EVERY_DAY - {"codex-acp", "opencode-acp"}
)
async def test_one_script_with_a_value_works_with_every_agent(agent: RealAgent) -> None:
    script = [call("write_file", path="new.txt", content="x"), say("It is:\n", GOOD)]
    options = agent.options(script, policy="all")
    result = await corral.run(agent.name, "review it", output=Review, **options)
    assert result.output == Review("fine", 2)
    assert len(agent.turns) == 2


@for_agents("codex-cli")
@pytest.mark.deep
async def test_a_strict_schema_is_sent_to_the_model_and_any_other_is_described(
    agent: RealAgent,
) -> None:
    options = agent.options([say('{"summary": "a", "problems": 2}')])
    result = await corral.run(agent.name, "report", output=Review, **options)
    assert result.output == Review("a", 2)
    (request,) = agent.turns
    sent = msgspec.convert(request.body["text"], dict[str, Any])["format"]
    assert (sent["type"], sent["strict"]) == ("json_schema", True)
    assert request.last_text == "report"

    loose = corral.schema_of({"type": "object", "properties": {"title": {"type": "string"}}})
    options = agent.options([say('```json\n{"title": "a"}\n```')])
    described = await corral.run(agent.name, "report", output=loose, **options)
    assert described.output == {"title": "a"}
    assert "json_schema" not in sent_json(agent.requests)
