"""The built-in agent asks a person."""

from __future__ import annotations

from support.builtin_agent import KEY, BuiltinAgent
from support.model_scripts import steps, tool_results_json

from corral._core.question_replies import AnswerLike
from corral.events import AgentQuestion, PermissionRequest, QuestionOption
from corral.testing import Call
from corral.values import Json

pytest_plugins = ("support.builtin_agent_fixture",)

OPTIONS: Json = [{"label": "SQLite", "description": "one file"}, {"label": "Postgres"}]
ASK = Call("ask_user", {"question": "Which database?", "options": OPTIONS})


async def test_the_answer_is_the_result_of_the_tool(ours: BuiltinAgent) -> None:
    asked: list[AgentQuestion] = []

    async def ask(request: PermissionRequest | AgentQuestion) -> AnswerLike:
        assert isinstance(request, AgentQuestion)
        asked.append(request)
        return "postgres"

    result = await ours.run(steps(ASK), ask=ask, policy="reads")
    assert result.ok
    (field,) = asked[0].fields
    assert field.options == (QuestionOption("SQLite", "one file"), QuestionOption("Postgres"))
    assert field.free_text
    assert "Postgres" in tool_results_json(ours.requests[-1])
    assert [(each.text, each.answer) for each in result.questions] == [
        ("Which database?", "Postgres")
    ]


def decline(_request: PermissionRequest | AgentQuestion) -> AnswerLike:
    return None


def cancel(_request: PermissionRequest | AgentQuestion) -> AnswerLike:
    return "cancel"


async def test_several_options_and_another_text(ours: BuiltinAgent) -> None:
    many = Call("ask_user", {"question": "Which?", "options": OPTIONS, "multiple": True})
    replies: list[AnswerLike] = [{"answer": ["SQLite", "Postgres"]}, "neither, please"]
    answers = iter(replies)

    def ask(_request: PermissionRequest | AgentQuestion) -> AnswerLike:
        return next(answers)

    result = await ours.run(steps(many, ASK), ask=ask)
    sent = tool_results_json(ours.requests[-1])
    assert "SQLite" in sent
    assert "neither, please" in sent
    assert [each.answer for each in result.questions] == ["SQLite, Postgres", "neither, please"]


async def test_a_declined_question_tells_the_model_to_decide(ours: BuiltinAgent) -> None:
    result = await ours.run(steps(ASK), ask=decline)
    assert result.ok
    assert "Decide yourself" in tool_results_json(ours.requests[-1])
    assert [each.outcome for each in result.questions] == ["declined"]


async def test_cancel_ends_the_turn(ours: BuiltinAgent) -> None:
    result = await ours.run(steps(ASK), ask=cancel)
    assert result.status == "interrupted"
    assert len(ours.requests) == 1


async def test_the_tool_is_offered_only_if_someone_can_answer(ours: BuiltinAgent) -> None:
    result = await ours.run(steps(ASK))
    assert result.ok
    assert result.questions == ()
    assert "ask_user" not in ours.requests[0].tools
    await ours.run(steps(), ask=decline, policy="reads")
    assert "ask_user" in ours.requests[0].tools


async def test_arguments_that_do_not_fit_are_an_error_for_the_model(ours: BuiltinAgent) -> None:
    result = await ours.run(steps(Call("ask_user", {"options": []})), ask=decline)
    assert result.questions == ()
    assert "do not fit ask_user" in tool_results_json(ours.requests[-1])


async def test_a_key_in_a_question_is_redacted(ours: BuiltinAgent) -> None:
    asked: list[str] = []

    def ask(request: PermissionRequest | AgentQuestion) -> AnswerLike:
        assert isinstance(request, AgentQuestion)
        asked.append(request.fields[0].text)
        return None

    await ours.run(steps(Call("ask_user", {"question": f"Is {KEY} right?"})), ask=ask)
    assert len(asked) == 1
    assert KEY not in asked[0]
