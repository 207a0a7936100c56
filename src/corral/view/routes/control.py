"""What a person does to a running session: answer, cancel, steer, raise its budget."""

from __future__ import annotations

import asyncio

from msgspec.structs import asdict

from corral import live
from corral.engine.dbos.database import is_installed
from corral.errors import ConfigError
from corral.view.calls import Call, Endpoint
from corral.view.records import AnswerBody, BudgetBody, DecisionBody, Done, TextBody
from corral.view.session_view import PERSON_QUESTION, open_session

BY = "the page of corral view"


async def decide(call: Call) -> Done:
    id, request_id = call.path("id"), call.path("request_id")
    body = await call.body(DecisionBody)
    await asyncio.to_thread(live.answer, id, body.decision, request_id=request_id, by=BY)
    return Done(message=f"answered: {body.decision}")


async def answer(call: Call) -> Done:
    body = await call.body(TextBody)
    id = (await asyncio.to_thread(open_session, call.path("id"))).meta.id
    # The question of an agent that is a person has no id of its own.
    gate = "" if body.gate in (None, PERSON_QUESTION) else body.gate
    await asyncio.to_thread(live.answer, id, text=body.text, request_id=gate, by=BY)
    return Done(message="answered")


async def cancel(call: Call) -> Done:
    await call.body(Done)
    await asyncio.to_thread(live.cancel, call.path("id"))
    return Done(message="cancelled")


async def steer(call: Call) -> Done:
    body = await call.body(TextBody)
    await asyncio.to_thread(live.steer, call.path("id"), body.text)
    return Done(message="sent")


async def add_budget(call: Call) -> Done:
    body = await call.body(BudgetBody)
    id = call.path("id")
    await asyncio.to_thread(live.add_budget, id, **asdict(body))
    return Done(message="the budget was raised")


async def answer_with_token(call: Call) -> Done:
    body = await call.body(AnswerBody)
    if (body.decision is None) == (body.text is None):
        raise ConfigError("give a decision or a text")
    token, text = call.path("token"), body.text or ""
    if is_installed():
        from corral.engine import existing_runs

        await existing_runs.answer_with_token(
            token, decision=body.decision, answer=text, by="a link"
        )
    else:
        await asyncio.to_thread(
            live.answer_with_token, token, decision=body.decision, answer=text, by="a link"
        )
    return Done(message="answered")


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/api/sessions/{id}/permissions/{request_id}",
        "decide",
        "Answer a permission request. The first answer counts.",
        decide,
        Done,
        DecisionBody,
    ),
    Endpoint(
        "POST",
        "/api/sessions/{id}/answer",
        "answer_session",
        "Answer a session that waits for a person.",
        answer,
        Done,
        TextBody,
    ),
    Endpoint(
        "POST", "/api/sessions/{id}/cancel", "cancel_session", "Cancel a session.", cancel, Done
    ),
    Endpoint(
        "POST",
        "/api/sessions/{id}/steer",
        "steer_session",
        "Send a text to an agent while it works.",
        steer,
        Done,
        TextBody,
    ),
    Endpoint(
        "POST",
        "/api/sessions/{id}/budget",
        "add_budget",
        "Raise the limits of a running session's budget. One that is paused on it goes on.",
        add_budget,
        Done,
        BudgetBody,
    ),
    Endpoint(
        "POST",
        "/api/answers/{token}",
        "answer_with_token",
        "Answer one request with the one-time token of a notification. Needs no other token.",
        answer_with_token,
        Done,
        AnswerBody,
    ),
)
