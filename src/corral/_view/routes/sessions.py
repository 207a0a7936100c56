"""Sessions: details, conversation, raw events, diffs, what a person does to a running one (answer,
cancel, steer, raise its budget), and diagnostic bundles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from msgspec.structs import asdict
from starlette.responses import Response, StreamingResponse

from corral._export import bundle
from corral._publishing import control
from corral._runs import act, stored_run
from corral._system import fs
from corral._view import diffs, log_pages, pipeline_view
from corral._view.calls import BY, DB, ApiCall, Endpoints, Param, event_stream
from corral._view.records import (
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
from corral._view.session_view import PERSON_QUESTION, log_path, open_session
from corral._view.stream import follow_session
from corral.errors import ConfigError
from corral.values import slug

ENDPOINTS = Endpoints()
PAGE_PARAM = Param("page", "The number of the page, from 0; `last` is the default.")


@ENDPOINTS.get("/api/sessions/{id}", "A session.")
async def session(call: ApiCall) -> SessionDetail:
    live_runs = await call.catalog.live()
    id = call.path("id")
    detail = await asyncio.to_thread(
        lambda: call.catalog.sessions.detail(open_session(id), live_runs)
    )
    if not detail.log.turns_complete:
        call.catalog.search_turns(log_path(id))
    return detail


@ENDPOINTS.get("/api/sessions/{id}/items", "One page of a conversation.", PAGE_PARAM)
async def session_items(call: ApiCall) -> ItemPage:
    id, page = call.path("id"), call.number("page", -1)
    return await call.read_log(lambda: log_path(id), lambda log: log_pages.item_page(log, page))


@ENDPOINTS.get("/api/sessions/{id}/items/{key}", "A complete item.")
async def session_item(call: ApiCall) -> ItemBody:
    id, key = call.path("id"), call.path_number("key")
    return await call.read_log(lambda: log_path(id), lambda log: log_pages.item_body(log, key))


@ENDPOINTS.get(
    "/api/sessions/{id}/events",
    "Events as they are stored: one page, or those that contain a text.",
    PAGE_PARAM,
    Param("q", "A text. The search begins at `page`."),
)
async def session_events(call: ApiCall) -> RawPage:
    id, query = call.path("id"), call.text("q")
    page = call.number("page", -1 if query is None else 0)
    return await call.read_log(
        lambda: log_path(id), lambda log: log_pages.raw_page(log, page, query)
    )


@ENDPOINTS.get(
    "/api/sessions/{id}/stream",
    "A conversation as it goes on.",
    Param("after", "The cursor: `last_byte` of a page, or the last event's id."),
    events=(ItemsUpdate, StateUpdate, EndUpdate),
)
async def session_stream(call: ApiCall) -> Response:
    id = call.path("id")
    await asyncio.to_thread(open_session, id)
    return event_stream(follow_session(call.catalog, id, call.cursor, call.services.closing))


@ENDPOINTS.get("/api/sessions/{id}/diff/{turn}", "How a turn changed files, in two columns.")
async def session_diff(call: ApiCall) -> Diff:
    id, turn = call.path("id"), call.path_number("turn")

    def read() -> Diff:
        text = open_session(id).diff(turn)
        if not text:
            raise NotFound(f"no diff of turn {turn} is stored")
        return diffs.side_by_side(text)

    return await asyncio.to_thread(read)


@ENDPOINTS.post(
    "/api/sessions/{id}/permissions/{request_id}",
    "Answer a permission request. The first answer counts.",
)
async def decide(call: ApiCall, body: DecisionBody) -> Done:
    id, request_id = call.path("id"), call.path("request_id")
    await asyncio.to_thread(control.answer, id, body.decision, request_id=request_id, by=BY)
    return Done(message=f"answered: {body.decision}")


@ENDPOINTS.post("/api/sessions/{id}/answer", "Answer a session that waits for a person.")
async def answer_session(call: ApiCall, body: TextBody) -> Done:
    id = (await asyncio.to_thread(open_session, call.path("id"))).meta.id
    # The question of an agent that is a person has no id of its own.
    gate = "" if body.gate in (None, PERSON_QUESTION) else body.gate
    await asyncio.to_thread(control.answer, id, text=body.text, request_id=gate, by=BY)
    return Done(message="answered")


@ENDPOINTS.post("/api/sessions/{id}/cancel", "Cancel a session.")
async def cancel_session(call: ApiCall) -> Done:
    await asyncio.to_thread(control.cancel, call.path("id"))
    return Done(message="cancelled")


@ENDPOINTS.post("/api/sessions/{id}/steer", "Send a text to an agent while it works.")
async def steer_session(call: ApiCall, body: TextBody) -> Done:
    await asyncio.to_thread(control.steer, call.path("id"), body.text)
    return Done(message="sent")


@ENDPOINTS.post(
    "/api/sessions/{id}/budget",
    "Raise the limits of a running session's budget. One that is paused on it goes on.",
)
async def add_budget(call: ApiCall, body: BudgetBody) -> Done:
    id = call.path("id")
    await asyncio.to_thread(control.add_budget, id, **asdict(body))
    return Done(message="the budget was raised")


@ENDPOINTS.post(
    "/api/answers/{token}",
    "Answer one request with the one-time token of a notification. Needs no other token.",
)
async def answer_with_token(call: ApiCall, body: AnswerBody) -> Done:
    if (body.decision is None) == (body.text is None):
        raise ConfigError("give a decision or a text")
    await act.answer_with_token(
        call.path("token"),
        decision=body.decision,
        answer=body.text or "",
        comment=body.comment,
        by="a link",
    )
    return Done(message="answered")


PIECE = 256 * 1024
"""Bytes that are sent at once."""


@ENDPOINTS.get(
    "/api/sessions/{id}/bundle",
    "A diagnostic bundle without secrets, as `corral runs export --format bundle` writes it.",
    media="application/zip",
)
async def session_bundle(call: ApiCall) -> Response:
    id = call.path("id")
    return await _respond(id, lambda: stored_run.of_session(open_session(id)))


@ENDPOINTS.get(
    "/api/pipelines/{id}/bundle",
    "A diagnostic bundle without secrets, as `corral runs export --format bundle` writes it.",
    DB,
    media="application/zip",
)
async def pipeline_bundle(call: ApiCall) -> Response:
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
