"""Runs of pipelines: graph, path, events, and what a person does to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from corral import live
from corral.errors import ConfigError
from corral.runs.log_windows import LogFile
from corral.system import clock
from corral.view import log_pages, state
from corral.view.calls import Call, Endpoint, Param, event_stream
from corral.view.records import (
    Done,
    EndUpdate,
    ItemBody,
    ItemPage,
    NodeBody,
    NotFound,
    PipelineDetail,
    PipelineEvents,
    StateUpdate,
    Summary,
    TextBody,
)
from corral.view.stream import Pauses, message

if TYPE_CHECKING:
    from corral.view.pipeline_runs import PipelineRun

DB = Param("db", "The database, if it is not the default one.")
FIRST_PAUSE, SHARE = 1.0, 20
"""Seconds between two looks at a run, and how many times longer than a look they are at least."""
START_SECONDS = 20.0
"""How long to wait for a new run to appear."""
BY = "the page of corral view"


async def _read(call: Call) -> tuple[PipelineRun, str | None]:
    """The run of a request, and its database. Raises ``NotFound``."""
    from corral.view import pipeline_runs

    db = await call.database()
    live = await call.catalog.live()
    return await pipeline_runs.read(call.path("id"), db, live), db


async def _read_durable(call: Call) -> tuple[PipelineRun, str | None]:
    """The same, of a run that can be continued. Raises ``ConfigError`` for others."""
    found, db = await _read(call)
    if not found.durable:
        raise ConfigError(
            f"{found.id} was run in memory: it cannot be continued",
            hint="Answer where it was started, or run it without --no-durable.",
        )
    return found, db


async def show_pipeline(call: Call) -> PipelineDetail:
    from corral.view import pipeline_view

    return await pipeline_view.detail(*await _read(call))


async def pipeline_events(call: Call) -> PipelineEvents:
    found, _ = await _read(call)
    return _events_after(found, max(0, call.number("after", 0)))


def _events_after(found: PipelineRun, after: int) -> PipelineEvents:
    from corral.view import pipeline_view

    steps = pipeline_view.narrate(found.graph, found.events)
    new = [each for each in steps if each.seq > after][: pipeline_view.MAX_EVENTS]
    return PipelineEvents(events=new, next=new[-1].seq if new else after)


async def stream_pipeline(call: Call) -> Response:
    await _read(call)
    return event_stream(_follow(call))


async def _follow(call: Call) -> AsyncGenerator[bytes]:
    from corral.view import pipeline_runs

    pauses = Pauses(call.services.closing)
    after = call.cursor or 0
    shown = b""
    yield b"retry: 1000\n\n"
    while not pauses.is_over:
        watch = clock.Stopwatch()
        found, db = await _read(call)
        new = _events_after(found, after)
        if new.events:
            after = new.next
            pauses.sent()
            yield message("events", new, after)
        pending = await pipeline_runs.questions_of(found, db)
        summary = pipeline_runs.summary_of(found, len(pending), db)
        update = message("state", StateUpdate(summary=summary, pending=pending))
        if update != shown:
            shown = update
            pauses.sent()
            yield update
        if _is_over(found, summary):
            yield message("end", EndUpdate(reason="the run has ended"))
            return
        yield await pauses.wait(max(FIRST_PAUSE, SHARE * watch.seconds))


def _is_over(found: PipelineRun, summary: Summary) -> bool:
    """Whether nothing more can happen. A durable run that was interrupted can be continued."""
    can_continue = found.durable and not found.has_ended
    return summary.state not in state.ACTIVE and not summary.live and not can_continue


async def _with_log(call: Call, read: Callable[[LogFile], msgspec.Struct]) -> msgspec.Struct:
    from corral.view import pipeline_view

    found, _ = await _read(call)
    path = pipeline_view.visit_log(found, call.path("visit"))

    def run() -> msgspec.Struct:
        with LogFile(path) as log:
            return read(log)

    return await asyncio.to_thread(run)


async def visit_items(call: Call) -> msgspec.Struct:
    page = call.number("page", -1)
    return await _with_log(call, lambda log: log_pages.item_page(log, page))


async def visit_item(call: Call) -> msgspec.Struct:
    key = call.path_number("key")
    return await _with_log(call, lambda log: log_pages.item_body(log, key))


async def answer(call: Call) -> Done:
    from corral.engine import existing_runs

    run, body = call.path("id"), await call.body(TextBody)
    found, db = await _read_durable(call)
    await existing_runs.answer(run, body.text, gate=body.gate, by=BY, db=db)
    if found.status != "interrupted":
        return Done(message="answered", id=run)
    await call.start_command("pipeline", "resume", run, *_database_option(db))
    return Done(message="answered; the run goes on in the background", id=run)


async def cancel(call: Call) -> Done:
    run = call.path("id")
    await call.body(Done)
    found, db = await _read(call)
    if found.has_ended:
        raise ConfigError(f"{run} has already ended: {found.status}")
    if found.durable:
        from corral.engine import existing_runs

        await existing_runs.cancel(run, reason=f"cancelled on {BY}", db=db)
    else:
        await asyncio.to_thread(live.cancel, run)
    return Done(message="cancelled", id=run)


async def retry(call: Call) -> Done:
    from corral.engine import run_list

    run, body = call.path("id"), await call.body(NodeBody)
    found, db = await _read_durable(call)
    if body.node not in found.graph.nodes:
        raise NotFound(f"the pipeline has no node {body.node!r}")

    async def ids() -> set[str]:
        return {each.id for each in await run_list.list_runs(db=db, limit=50)}

    before = await ids()
    words = ("pipeline", "fork", run, "--from", body.node, *_database_option(db))
    await call.start_command(*words)
    new = await _new_one(ids, before)
    text = "a new run continues from there" if new else "a new run is being started"
    return Done(message=text, id=new)


async def _new_one(ids: Callable[[], Awaitable[set[str]]], before: set[str]) -> str | None:
    watch = clock.Stopwatch()
    while watch.seconds < START_SECONDS:
        await asyncio.sleep(0.3)
        if new := await ids() - before:
            return max(new)
    return None


def _database_option(db: str | None) -> tuple[str, ...]:
    return () if db is None else ("--db", db)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/api/pipelines/{id}",
        "pipeline",
        "A run of a pipeline: its graph, its path, its questions.",
        show_pipeline,
        PipelineDetail,
        params=(DB,),
    ),
    Endpoint(
        "GET",
        "/api/pipelines/{id}/events",
        "pipeline_events",
        "The events of a run, for replay.",
        pipeline_events,
        PipelineEvents,
        params=(Param("after", "`next` of the response before.", "integer"), DB),
    ),
    Endpoint(
        "GET",
        "/api/pipelines/{id}/stream",
        "pipeline_stream",
        "A run as it goes on.",
        stream_pipeline,
        params=(Param("after", "The cursor: `seq` of the last event.", "integer"), DB),
        media="text/event-stream",
        events=(PipelineEvents, StateUpdate, EndUpdate),
    ),
    Endpoint(
        "GET",
        "/api/pipelines/{id}/visits/{visit}/items",
        "visit_items",
        "One page of what the agent of a node did.",
        visit_items,
        ItemPage,
        params=(Param("page", "The number of the page, from 0; `last` is the default."), DB),
    ),
    Endpoint(
        "GET",
        "/api/pipelines/{id}/visits/{visit}/items/{key}",
        "visit_item",
        "A complete item.",
        visit_item,
        ItemBody,
        params=(DB,),
    ),
    Endpoint(
        "POST",
        "/api/pipelines/{id}/answer",
        "answer_pipeline",
        "Answer an open question. A run that no process executes is continued.",
        answer,
        Done,
        TextBody,
        params=(DB,),
    ),
    Endpoint(
        "POST",
        "/api/pipelines/{id}/cancel",
        "cancel_pipeline",
        "Cancel a run.",
        cancel,
        Done,
        params=(DB,),
    ),
    Endpoint(
        "POST",
        "/api/pipelines/{id}/retry",
        "retry_pipeline",
        "Start a new run that continues from a node.",
        retry,
        Done,
        NodeBody,
        params=(DB,),
    ),
)
