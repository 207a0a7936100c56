"""Questions of an agent: one at a time to the caller's ``ask``, with a limit on the time."""

from __future__ import annotations

import asyncio

import pytest

from corral import Policy
from corral._core.question_replies import AnswerLike, QuestionReply
from corral._protocol.ndjson import RawEvent
from corral._sessions.event_normalizer import EventNormalizer
from corral._sessions.permissions import Asker, PermissionBroker, PermissionQuestions
from corral.events import (
    AgentQuestion,
    Init,
    PermissionRequest,
    QuestionAnswer,
    QuestionField,
    QuestionOption,
)

NAME = QuestionField("name", "Who?")


def question(number: int = 1) -> AgentQuestion:
    return AgentQuestion(str(number), fields=(NAME,), call_id=f"call-{number}")


async def reply_of(ask: Asker | None, timeout: float = 300.0) -> QuestionReply:
    return await PermissionBroker(Policy(), ask, timeout).answer_question(question())


async def test_sync_and_async_functions_answer() -> None:
    async def slow(request: PermissionRequest | AgentQuestion) -> AnswerLike:
        await asyncio.sleep(0)
        return {"name": request.type}

    assert await reply_of(lambda _request: "me") == QuestionReply(
        "answered", {"name": "me"}, "asked"
    )
    assert (await reply_of(slow)).answers == {"name": "question"}


async def test_no_one_to_ask_and_no_answer_in_time_are_refusals() -> None:
    async def never(_request: PermissionRequest | AgentQuestion) -> AnswerLike:
        await asyncio.sleep(3600)
        return ""

    assert (await reply_of(None)).outcome == "no_person"
    assert await reply_of(never, 0.01) == QuestionReply("timeout", reason="no answer in 0.01 s")


def _raise(_request: object) -> AnswerLike:
    raise KeyError("title")


def _allow(_request: object) -> AnswerLike:
    return "allow_once"


@pytest.mark.parametrize(
    ("ask", "reason"),
    [(_raise, "the question failed"), (_allow, "permission request")],
)
async def test_a_function_that_gives_no_answer_declines(ask: Asker, reason: str) -> None:
    reply = await reply_of(ask)
    assert reply.outcome == "declined"
    assert reason in reply.reason


async def test_a_person_is_asked_one_thing_at_a_time() -> None:
    running: list[str] = []

    async def ask(request: PermissionRequest | AgentQuestion) -> AnswerLike:
        assert not running
        running.append(request.request_id)
        await asyncio.sleep(0)
        running.clear()
        return "allow_once" if isinstance(request, PermissionRequest) else "me"

    broker = PermissionBroker(Policy(), ask)
    answers = await asyncio.gather(
        broker.answer_question(question()),
        broker.ask_person(PermissionRequest("2")),
        broker.answer_question(question(3)),
    )
    assert answers[0].outcome == answers[2].outcome == "answered"
    assert answers[1].is_allowed


async def test_a_question_taken_back_gets_no_reply() -> None:
    emitted: list[RawEvent] = []
    replies: list[QuestionReply] = []
    started = asyncio.Event()

    async def ask(_request: PermissionRequest | AgentQuestion) -> AnswerLike:
        started.set()
        await asyncio.sleep(3600)
        return ""

    questions = PermissionQuestions(PermissionBroker(Policy(), ask), emitted.append, set())
    questions.put_question(question(), replies.append)
    await started.wait()
    assert questions.is_asking
    assert questions.withdraw("1")
    await questions.close()
    assert not questions.is_asking
    assert emitted == replies == []


async def test_with_no_one_to_ask_the_refusal_is_immediate() -> None:
    emitted: list[RawEvent] = []
    replies: list[QuestionReply] = []
    questions = PermissionQuestions(PermissionBroker(Policy()), emitted.append, set())
    questions.put_question(question(), replies.append)
    assert [reply.outcome for reply in replies] == ["no_person"]
    assert emitted == [QuestionAnswer("1", "no_person", call_id="call-1", reason="no one to ask")]


def test_every_question_gets_one_answer_in_the_stream() -> None:
    normalizer = EventNormalizer(Init(run_id="r", agent="a"), started=0.0)
    options = (QuestionOption("a"), QuestionOption("b"))
    first = AgentQuestion("1", fields=(QuestionField("x", "Which?", options=options),))
    events = normalizer.take(
        [
            first,
            QuestionAnswer("1", "answered", {"x": "b"}, reason="asked"),
            QuestionAnswer("1", "cancelled"),
            QuestionAnswer("unknown", "cancelled"),
            AgentQuestion("2", title="Go on?"),
        ],
        1.0,
    )
    events += normalizer.close(2.0, None)
    kinds = [event.type for event in events]
    assert kinds == ["init", "question", "question_answer", "question", "question_answer", "done"]
    done = events[-1]
    assert done.type == "done"
    assert [(each.text, each.outcome, each.answer) for each in done.questions] == [
        ("Which?", "answered", "b"),
        ("Go on?", "cancelled", None),
    ]
