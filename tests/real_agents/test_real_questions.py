"""Questions of real agents, and of their MCP servers, to a person; the answers reach the model."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.model_scripts import steps, tool_results_json
from support.real_agents import RealAgent, for_agents

from corral import AskedQuestion, McpServer, Policy, result_from_events
from corral._core.question_replies import NO_PERSON, AnswerLike
from corral.events import AgentQuestion, Decision, PermissionRequest, QuestionAnswer
from corral.testing import Call, Turn
from corral.values import Json

pytestmark = pytest.mark.timeout(300)

SERVER = Path(__file__).parents[1] / "programs" / "asking_server.py"
QUESTIONS: list[Json] = [
    {
        "question": "Which database?",
        "header": "Database",
        "multiSelect": False,
        "options": [
            {"label": "SQLite", "description": "one file"},
            {"label": "Postgres", "description": "a server"},
        ],
    },
    {
        "question": "Which checks?",
        "header": "Checks",
        "multiSelect": True,
        "options": [
            {"label": "lint", "description": "fast"},
            {"label": "types", "description": "strict"},
        ],
    },
]
ASK = Call("AskUserQuestion", {"questions": QUESTIONS})
ONE = Call("AskUserQuestion", {"questions": [QUESTIONS[0]]})


def questions_in(events: list[object]) -> list[AgentQuestion]:
    return [event for event in events if isinstance(event, AgentQuestion)]


def outcomes_in(events: list[object]) -> list[str]:
    return [event.outcome for event in events if isinstance(event, QuestionAnswer)]


@for_agents("claude-cli")
async def test_the_answers_of_a_callback_reach_the_model(agent: RealAgent) -> None:
    asked: list[AgentQuestion] = []

    async def ask(request: PermissionRequest | AgentQuestion) -> AnswerLike:
        assert isinstance(request, AgentQuestion)
        asked.append(request)
        await asyncio.sleep(0)
        return {"Which database?": "Postgres", "Which checks?": ["lint", "spelling, too"]}

    events = await agent.events(steps(ASK), ask=ask, policy=Policy.reads())
    result = result_from_events(events)
    assert result.ok
    assert result.text == "done"
    first, second = asked[0].fields
    assert (first.text, first.header, first.multiple) == ("Which database?", "Database", False)
    assert [option.label for option in first.options] == ["SQLite", "Postgres"]
    assert first.options[0].description == "one file"
    assert first.free_text
    assert second.multiple
    sent = tool_results_json(agent.requests[-1])
    assert "Postgres" in sent
    assert "lint, spelling, too" in sent
    assert outcomes_in([*events]) == ["answered"]
    assert result.questions == (
        AskedQuestion(
            "Which database? Which checks?",
            "answered",
            answer="Database: Postgres; Checks: lint, spelling, too",
            reason="asked",
            call_id=asked[0].call_id,
        ),
    )


@for_agents("claude-cli")
async def test_a_function_for_permissions_declines_questions(agent: RealAgent) -> None:
    def ask(_request: PermissionRequest) -> Decision:
        return "allow_once"

    result = await agent.run(steps(ONE), ask=ask, policy=Policy.reads())
    assert result.ok
    assert [each.outcome for each in result.questions] == ["declined"]
    assert "did not answer" in tool_results_json(agent.requests[-1])


@for_agents("claude-cli")
async def test_without_a_person_the_tool_is_not_offered(agent: RealAgent) -> None:
    result = await agent.run(steps(ONE), policy=Policy.reads())
    assert result.ok
    assert result.questions == ()
    assert "AskUserQuestion" not in agent.requests[0].tools


@for_agents("claude-cli")
async def test_without_a_person_a_question_is_refused_at_once(agent: RealAgent) -> None:
    """With the agent's own defaults the tool is offered."""
    result = await agent.run(steps(ONE), policy=Policy.native())
    assert result.ok
    assert [each.outcome for each in result.questions] == ["no_person"]
    assert NO_PERSON in tool_results_json(agent.requests[-1])


@for_agents("claude-cli")
async def test_a_question_without_an_answer_in_time_is_refused(agent: RealAgent) -> None:
    async def ask(_request: PermissionRequest | AgentQuestion) -> AnswerLike:
        await asyncio.sleep(3600)
        return "SQLite"

    result = await agent.run(steps(ONE), ask=ask, answer_timeout=0.2)
    assert result.ok
    assert [each.outcome for each in result.questions] == ["timeout"]
    assert "no answer in 0.2 s" in tool_results_json(agent.requests[-1])


@for_agents("claude-cli")
async def test_cancel_stops_the_turn(agent: RealAgent) -> None:
    result = await agent.run(steps(ONE), ask=lambda _request: "cancel")
    assert not result.ok
    assert [each.outcome for each in result.questions] == ["cancelled"]
    assert len(agent.requests) == 1


@for_agents("codex-acp")
async def test_a_text_beside_the_options_reaches_the_model(agent: RealAgent) -> None:
    given: Json = {
        "id": "db",
        "header": "Database",
        "question": "Which database do you want?",
        "options": [
            {"label": "SQLite", "description": "one file"},
            {"label": "Postgres", "description": "a server"},
        ],
    }
    asked: list[AgentQuestion] = []

    def ask(request: PermissionRequest | AgentQuestion) -> AnswerLike:
        assert isinstance(request, AgentQuestion)
        asked.append(request)
        return "2" if len(asked) == 1 else "a text file"

    call = Call("request_user_input", {"questions": [given]})
    result = await agent.run(_matched(call, call), ask=ask, policy="reads")
    assert result.ok
    (field,) = asked[0].fields
    assert (field.key, field.text) == ("db", "Which database do you want?")
    assert field.header == "Database"
    assert [option.label for option in field.options] == ["SQLite", "Postgres"]
    assert field.free_text
    assert [each.answer for each in result.questions] == ["Postgres", "a text file"]
    results = [result for request in agent.requests for _, result in request.tool_results]
    assert '"Postgres"' in str(results[0])
    assert "a text file" in str(results[-1])


@for_agents("codex-acp")
async def test_without_a_person_codex_does_not_ask(agent: RealAgent) -> None:
    call = Call("request_user_input", {"questions": []})
    result = await agent.run(_matched(call), policy="reads")
    assert result.ok
    assert result.questions == ()


@for_agents("claude-cli", "codex-acp")
async def test_the_answers_to_an_mcp_server_reach_it(agent: RealAgent) -> None:
    asked: list[AgentQuestion] = []

    def ask(request: PermissionRequest | AgentQuestion) -> AnswerLike:
        assert isinstance(request, AgentQuestion)
        asked.append(request)
        return {"color": "Green"}

    server = McpServer("walls", command=(sys.executable, str(SERVER)))
    script = _matched(agent.mcp_tool("walls", "paint"))
    policy = Policy(write="allow", mcp="allow")
    result = await agent.run(script, ask=ask, policy=policy, mcp_servers=(server,))
    assert result.ok
    assert asked[0].title == "Which paint?"
    fields = {field.key: field for field in asked[0].fields}
    assert [option.label for option in fields["color"].options] == ["Red", "Green"]
    coats = fields["coats"]
    assert (coats.type, coats.required, coats.default) == ("integer", False, 2)
    sent = "".join(map(tool_results_json, agent.requests))
    assert "accept" in sent
    assert '\\"color\\": \\"g\\"' in sent.replace("\\\\", "\\")
    (listed,) = result.questions
    assert listed.outcome == "answered"
    assert "The color: Green" in (listed.answer or "")


def _matched(*calls: Call) -> list[Turn]:
    """``steps``, for an agent that also asks the model for a title."""
    turns = [Turn(calls=[call], match="do it") for call in calls]
    return [*turns, Turn(text="done", repeat="forever")]
