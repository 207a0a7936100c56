"""Sessions: details, conversation, raw events, diffs, what a person does to a running one (answer,
cancel, steer, raise its budget), and diagnostic bundles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from msgspec.structs import asdict
from starlette.responses import Response, StreamingResponse

from corral import live
from corral.engine.dbos.database import is_installed
from corral.errors import ConfigError
from corral.export import bundle
from corral.runs import stored_run
from corral.system import fs
from corral.values import slug
from corral.view import diffs, log_pages
from corral.view.calls import BY, DB, ApiCall, ApiEndpoint, Param, event_stream
from corral.view.records import (
    AnswerBody,
    BudgetBody,
    DecisionBody,
    Diff,
    Done,
    EndUpdate,
    ItemBody,
    ItemPage,
    ItemsUpdate,
    NotFound,
    RawPage,
    SessionDetail,
    StateUpdate,
    TextBody,
)
from corral.view.session_view import PERSON_QUESTION, log_path, open_session
from corral.view.stream import follow_session

PAGE_PARAM = Param("page", "The number of the page, from 0; `last` is the default.")


async def show_session(call: ApiCall) -> SessionDetail:
    live_runs = await call.catalog.live()
    id = call.path("id")
    detail = await asyncio.to_thread(
        lambda: call.catalog.sessions.detail(open_session(id), live_runs)
    )
    if not detail.log.turns_complete:
        call.catalog.search_turns(log_path(id))
    return detail


async def session_items(call: ApiCall) -> ItemPage:
    id, page = call.path("id"), call.number("page", -1)
    return await call.read_log(lambda: log_path(id), lambda log: log_pages.item_page(log, page))


async def session_item(call: ApiCall) -> ItemBody:
    id, key = call.path("id"), call.path_number("key")
    return await call.read_log(lambda: log_path(id), lambda log: log_pages.item_body(log, key))


async def session_events(call: ApiCall) -> RawPage:
    id, query = call.path("id"), call.text("q")
    page = call.number("page", -1 if query is None else 0)
    return await call.read_log(
        lambda: log_path(id), lambda log: log_pages.raw_page(log, page, query)
    )


async def stream_session(call: ApiCall) -> Response:
    id = call.path("id")
    await asyncio.to_thread(open_session, id)
    return event_stream(follow_session(call.catalog, id, call.cursor, call.services.closing))


async def session_diff(call: ApiCall) -> Diff:
    id, turn = call.path("id"), call.path_number("turn")

    def read() -> Diff:
        text = open_session(id).diff(turn)
        if not text:
            raise NotFound(f"no diff of turn {turn} is stored")
        return diffs.side_by_side(text)

    return await asyncio.to_thread(read)


async def decide(call: ApiCall) -> Done:
    id, request_id = call.path("id"), call.path("request_id")
    body = await call.body(DecisionBody)
    await asyncio.to_thread(live.answer, id, body.decision, request_id=request_id, by=BY)
    return Done(message=f"answered: {body.decision}")


async def answer(call: ApiCall) -> Done:
    body = await call.body(TextBody)
    id = (await asyncio.to_thread(open_session, call.path("id"))).meta.id
    # The question of an agent that is a person has no id of its own.
    gate = "" if body.gate in (None, PERSON_QUESTION) else body.gate
    await asyncio.to_thread(live.answer, id, text=body.text, request_id=gate, by=BY)
    return Done(message="answered")


async def cancel(call: ApiCall) -> Done:
    await call.body(Done)
    await asyncio.to_thread(live.cancel, call.path("id"))
    return Done(message="cancelled")


async def steer(call: ApiCall) -> Done:
    body = await call.body(TextBody)
    await asyncio.to_thread(live.steer, call.path("id"), body.text)
    return Done(message="sent")


async def add_budget(call: ApiCall) -> Done:
    body = await call.body(BudgetBody)
    id = call.path("id")
    await asyncio.to_thread(live.add_budget, id, **asdict(body))
    return Done(message="the budget was raised")


async def answer_with_token(call: ApiCall) -> Done:
    body = await call.body(AnswerBody)
    if (body.decision is None) == (body.text is None):
        raise ConfigError("give a decision or a text")
    token, text = call.path("token"), body.text or ""
    if is_installed():
        from corral.engine import existing_runs

        await existing_runs.answer_with_token(
            token, decision=body.decision, answer=text, comment=body.comment, by="a link"
        )
    else:
        await asyncio.to_thread(
            live.answer_with_token, token, decision=body.decision, answer=text, by="a link"
        )
    return Done(message="answered")


PIECE = 256 * 1024
"""Bytes that are sent at once."""


async def session_bundle(call: ApiCall) -> Response:
    id = call.path("id")
    return await _respond(id, lambda: stored_run.of_session(open_session(id)))


async def pipeline_bundle(call: ApiCall) -> Response:
    from corral.view import pipeline_view

    id, db = call.path("id"), await call.database()
    found = await pipeline_view.read(id, db, await call.catalog.live())
    folder = Path(found.folder)
    return await _respond(id, lambda: stored_run.at(folder))


async def _respond(id: str, find: Callable[[], stored_run.StoredRun]) -> Response:
    """Write the bundle to a file without a name, which is gone when it was sent."""

    def write() -> IO[bytes]:
        file = fs.temporary_file()
        try:
            bundle.write(find(), file.write)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def pieces(file: IO[bytes]) -> Iterator[bytes]:
        with file:
            while data := file.read(PIECE):
                yield data

    file = await asyncio.to_thread(write)
    name = slug(id, limit=100, allowed="_-.", default="run")
    headers = {"Content-Disposition": f'attachment; filename="corral-{name}.zip"'}
    return StreamingResponse(pieces(file), media_type="application/zip", headers=headers)


ENDPOINTS: tuple[ApiEndpoint, ...] = (
    ApiEndpoint("GET", "/api/sessions/{id}", "session", "A session.", show_session, SessionDetail),
    ApiEndpoint(
        "GET",
        "/api/sessions/{id}/items",
        "session_items",
        "One page of a conversation.",
        session_items,
        ItemPage,
        params=(PAGE_PARAM,),
    ),
    ApiEndpoint(
        "GET",
        "/api/sessions/{id}/items/{key}",
        "session_item",
        "A complete item.",
        session_item,
        ItemBody,
    ),
    ApiEndpoint(
        "GET",
        "/api/sessions/{id}/events",
        "session_events",
        "Events as they are stored: one page, or those that contain a text.",
        session_events,
        RawPage,
        params=(PAGE_PARAM, Param("q", "A text. The search begins at `page`.")),
    ),
    ApiEndpoint(
        "GET",
        "/api/sessions/{id}/stream",
        "session_stream",
        "A conversation as it goes on.",
        stream_session,
        params=(Param("after", "The cursor: `last_byte` of a page, or the last event's id."),),
        media="text/event-stream",
        events=(ItemsUpdate, StateUpdate, EndUpdate),
    ),
    ApiEndpoint(
        "GET",
        "/api/sessions/{id}/diff/{turn}",
        "session_diff",
        "How a turn changed files, in two columns.",
        session_diff,
        Diff,
    ),
    ApiEndpoint(
        "POST",
        "/api/sessions/{id}/permissions/{request_id}",
        "decide",
        "Answer a permission request. The first answer counts.",
        decide,
        Done,
        DecisionBody,
    ),
    ApiEndpoint(
        "POST",
        "/api/sessions/{id}/answer",
        "answer_session",
        "Answer a session that waits for a person.",
        answer,
        Done,
        TextBody,
    ),
    ApiEndpoint(
        "POST", "/api/sessions/{id}/cancel", "cancel_session", "Cancel a session.", cancel, Done
    ),
    ApiEndpoint(
        "POST",
        "/api/sessions/{id}/steer",
        "steer_session",
        "Send a text to an agent while it works.",
        steer,
        Done,
        TextBody,
    ),
    ApiEndpoint(
        "POST",
        "/api/sessions/{id}/budget",
        "add_budget",
        "Raise the limits of a running session's budget. One that is paused on it goes on.",
        add_budget,
        Done,
        BudgetBody,
    ),
    ApiEndpoint(
        "POST",
        "/api/answers/{token}",
        "answer_with_token",
        "Answer one request with the one-time token of a notification. Needs no other token.",
        answer_with_token,
        Done,
        AnswerBody,
    ),
    ApiEndpoint(
        "GET",
        "/api/sessions/{id}/bundle",
        "session_bundle",
        "A diagnostic bundle without secrets, as `corral export --format bundle` writes it.",
        session_bundle,
        media="application/zip",
    ),
    ApiEndpoint(
        "GET",
        "/api/pipelines/{id}/bundle",
        "pipeline_bundle",
        "A diagnostic bundle without secrets, as `corral export --format bundle` writes it.",
        pipeline_bundle,
        media="application/zip",
        params=(DB,),
    ),
)
