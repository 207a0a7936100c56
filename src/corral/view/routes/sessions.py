"""Sessions: details, conversation, raw events, diffs."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from corral.runs.log_windows import LogFile
from corral.view import diffs, log_pages
from corral.view.calls import Call, Endpoint, Param, event_stream
from corral.view.records import (
    Diff,
    EndUpdate,
    ItemBody,
    ItemPage,
    ItemsUpdate,
    NotFound,
    RawPage,
    SessionDetail,
    StateUpdate,
)
from corral.view.session_view import log_path, open_session
from corral.view.stream import follow_session

PAGE_PARAM = Param("page", "The number of the page, from 0; `last` is the default.")


async def show_session(call: Call) -> SessionDetail:
    live = await call.catalog.live()
    id = call.path("id")
    detail = await asyncio.to_thread(call.catalog.sessions.detail, id, live)
    if not detail.log.turns_complete:
        call.catalog.search_turns(log_path(id))
    return detail


async def session_items(call: Call) -> ItemPage:
    page = call.number("page", -1)
    id = call.path("id")

    def read() -> ItemPage:
        with LogFile(log_path(id)) as log:
            return log_pages.item_page(log, page)

    return await asyncio.to_thread(read)


async def session_item(call: Call) -> ItemBody:
    id, key = call.path("id"), call.path_number("key")

    def read() -> ItemBody:
        with LogFile(log_path(id)) as log:
            return log_pages.item_body(log, key)

    return await asyncio.to_thread(read)


async def session_events(call: Call) -> RawPage:
    id, query = call.path("id"), call.text("q")
    page = call.number("page", -1 if query is None else 0)

    def read() -> RawPage:
        with LogFile(log_path(id)) as log:
            return log_pages.raw_page(log, page, query)

    return await asyncio.to_thread(read)


async def stream_session(call: Call) -> Response:
    id = call.path("id")
    await asyncio.to_thread(open_session, id)
    return event_stream(follow_session(call.catalog, id, call.cursor, call.services.closing))


async def session_diff(call: Call) -> Diff:
    id, turn = call.path("id"), call.path_number("turn")

    def read() -> Diff:
        text = open_session(id).diff(turn)
        if not text:
            raise NotFound(f"no diff of turn {turn} is stored")
        return diffs.side_by_side(text)

    return await asyncio.to_thread(read)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/api/sessions/{id}", "session", "A session.", show_session, SessionDetail),
    Endpoint(
        "GET",
        "/api/sessions/{id}/items",
        "session_items",
        "One page of a conversation.",
        session_items,
        ItemPage,
        params=(PAGE_PARAM,),
    ),
    Endpoint(
        "GET",
        "/api/sessions/{id}/items/{key}",
        "session_item",
        "A complete item.",
        session_item,
        ItemBody,
    ),
    Endpoint(
        "GET",
        "/api/sessions/{id}/events",
        "session_events",
        "Events as they are stored: one page, or those that contain a text.",
        session_events,
        RawPage,
        params=(PAGE_PARAM, Param("q", "A text. The search begins at `page`.")),
    ),
    Endpoint(
        "GET",
        "/api/sessions/{id}/stream",
        "session_stream",
        "A conversation as it goes on.",
        stream_session,
        params=(Param("after", "The cursor: `last_byte` of a page, or the last event's id."),),
        media="text/event-stream",
        events=(ItemsUpdate, StateUpdate, EndUpdate),
    ),
    Endpoint(
        "GET",
        "/api/sessions/{id}/diff/{turn}",
        "session_diff",
        "How a turn changed files, in two columns.",
        session_diff,
        Diff,
    ),
)
