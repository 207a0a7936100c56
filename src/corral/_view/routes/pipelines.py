"""Runs of pipelines and batches: graph, path, events, progress, failures, and what a person does to
them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import asdict
from starlette.responses import Response

from corral._core.spending import LIMITS, Raise
from corral._publishing import control
from corral._system import clock
from corral._view import databases, live_runs, log_pages, pipeline_view
from corral._view.calls import BY, DB, ApiCall, Endpoints, Param, event_stream
from corral._view.live_runs import ACTIVE
from corral._view.pipeline_view import PipelineRun
from corral._view.records import (
    BatchDetail,
    BudgetBody,
    Done,
    EndUpdate,
    GateAnswerBody,
    ItemBody,
    ItemPage,
    NodeBody,
    NotFound,
    PipelineCheckpoint,
    PipelineContext,
    PipelineDetail,
    PipelineEvents,
    StartBody,
    StateUpdate,
)
from corral._view.stream import Pauses, message
from corral.errors import ConfigError
from corral.values import convert_to

ENDPOINTS = Endpoints()
FIRST_PAUSE, SHARE = 1.0, 20
"""Seconds between two looks at a run, and how many times longer than a look they are at least."""
START_SECONDS = 20.0
"""How long to wait for a new run to appear."""


async def _read(call: ApiCall) -> tuple[PipelineRun, str | None]:
    """The run of a request, and its database. Raises ``NotFound``."""
    db = await call.database()
    live = await call.catalog.live()
    return await pipeline_view.read(call.path("id"), db, live), db


async def _read_durable(call: ApiCall) -> tuple[PipelineRun, str | None]:
    """The same, of a run that can be continued. Raises ``ConfigError`` for others."""
    found, db = await _read(call)
    if not found.durable:
        raise ConfigError(
            f"{found.id} was run in memory: it cannot be continued",
            hint="Answer where it was started, or run it without --no-durable.",
        )
    return found, db


@ENDPOINTS.get(
    "/api/pipelines/{id}", "A run of a pipeline: its graph, its path, its questions.", DB
)
async def pipeline(call: ApiCall) -> PipelineDetail:
    detail, live = await pipeline_view.detail(*await _read(call)), await call.catalog.live()
    detail.questions += live.pending_within(call.path("id"))
    detail.summary = live_runs.with_parts(detail.summary, live)
    return detail


@ENDPOINTS.get(
    "/api/pipelines/{id}/checkpoint",
    "What a run has done so far, as its run folder has it in `checkpoint.json`.",
    DB,
)
async def pipeline_checkpoint(call: ApiCall) -> PipelineCheckpoint:
    found, _ = await _read(call)
    return await asyncio.to_thread(pipeline_view.checkpoint_of, found)


@ENDPOINTS.get("/api/pipelines/{id}/context", "The context of a run: what its nodes have set.", DB)
async def pipeline_context(call: ApiCall) -> PipelineContext:
    return PipelineContext(context=(await pipeline_checkpoint(call)).context)


@ENDPOINTS.post(
    "/api/pipelines",
    "Start a run of a pipeline, in the background. Its `id` is in the response.",
    DB,
)
async def start_pipeline(call: ApiCall, body: StartBody) -> Done:
    """A command runs it, which goes on when this server ends."""
    from corral._engine import pipeline_runs, service
    from corral._engine.dbos.database import require
    from corral._engine.run_options import workspace_path

    db = await call.database()
    require()
    cwd = workspace_path(body.cwd)
    file = cwd / body.file
    # What is wrong with the pipeline is said here: the command has no one to tell it to.
    graph = await asyncio.to_thread(
        partial(
            pipeline_runs.prepare,
            file,
            values=body.values,
            goal=body.goal,
            model=body.model,
            workspace=cwd,
        )
    )
    run = service.new_id(graph.name)
    words = ["pipeline", "run", str(file), "--run-id", run, "--cwd", str(cwd)]
    for name in ("goal", "agent", "model", "approve", *LIMITS, "on_budget"):
        if (value := getattr(body, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    for key, value in body.values.items():
        words += ["--set", f"{key}:={msgspec.json.encode(value).decode()}"]
    words += ["--simulate"] if body.simulate else []
    await call.start_command(*words, *_database_option(db))
    return Done(message="the run is being started", id=run)


@ENDPOINTS.get(
    "/api/pipelines/{id}/events",
    "The events of a run, for replay.",
    Param("after", "`next` of the response before.", "integer"),
    DB,
)
async def pipeline_events(call: ApiCall) -> PipelineEvents:
    found, _ = await _read(call)
    return _events_after(found, max(0, call.number("after", 0)))


def _events_after(found: PipelineRun, after: int) -> PipelineEvents:
    steps = pipeline_view.narrate(found.graph, found.events)
    new = [each for each in steps if each.seq > after][: pipeline_view.MAX_EVENTS]
    return PipelineEvents(events=new, next=new[-1].seq if new else after)


@ENDPOINTS.get(
    "/api/pipelines/{id}/stream",
    "A run as it goes on.",
    Param("after", "The cursor: `seq` of the last event.", "integer"),
    DB,
    events=(PipelineEvents, StateUpdate, EndUpdate),
)
async def pipeline_stream(call: ApiCall) -> Response:
    await _read(call)
    return event_stream(follow_pipeline(call))


async def follow_pipeline(call: ApiCall) -> AsyncGenerator[bytes]:
    """The events and the state of a run."""
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
        pending = await pipeline_view.questions_of(found, db)
        summary = pipeline_view.summary_of(found, len(pending), db)
        live = await call.catalog.live()
        pending += live.pending_within(found.id)
        summary = live_runs.with_parts(summary, live)
        update = message("state", StateUpdate(summary=summary, pending=pending))
        if update != shown:
            shown = update
            pauses.sent()
            yield update
        # A durable run that was interrupted can be continued; nothing more happens to others.
        can_continue = found.durable and not found.has_ended
        if summary.state not in ACTIVE and not summary.live and not can_continue:
            yield message("end", EndUpdate(reason="the run has ended"))
            return
        yield await pauses.wait(max(FIRST_PAUSE, SHARE * watch.seconds))


async def _visit_log(call: ApiCall) -> Path:
    run, _ = await _read(call)
    return pipeline_view.visit_log(run, call.path("visit"))


@ENDPOINTS.get(
    "/api/pipelines/{id}/visits/{visit}/items",
    "One page of what the agent of a node did.",
    Param("page", "The number of the page, from 0; `last` is the default."),
    DB,
)
async def visit_items(call: ApiCall) -> ItemPage:
    page, path = call.number("page", -1), await _visit_log(call)
    return await call.read_log(lambda: path, lambda log: log_pages.item_page(log, page))


@ENDPOINTS.get("/api/pipelines/{id}/visits/{visit}/items/{key}", "A complete item.", DB)
async def visit_item(call: ApiCall) -> ItemBody:
    key, path = call.path_number("key"), await _visit_log(call)
    return await call.read_log(lambda: path, lambda log: log_pages.item_body(log, key))


@ENDPOINTS.post(
    "/api/pipelines/{id}/answer",
    "Answer an open question. A run that no process executes is continued.",
    DB,
)
async def answer_pipeline(call: ApiCall, body: GateAnswerBody) -> Done:
    from corral._engine import existing_runs
    from corral._pipelines.scheduler.commands import Answer

    run = call.path("id")
    found, db = await _read_durable(call)
    reply = Answer(value=body.text, text=body.comment)
    await existing_runs.answer(run, reply, gate=body.gate, by=BY, db=db)
    if found.status != "interrupted":
        return Done(message="answered", id=run)
    await call.start_command("runs", "resume", run, *_database_option(db))
    return Done(message="answered; the run goes on in the background", id=run)


@ENDPOINTS.post("/api/pipelines/{id}/cancel", "Cancel a run.", DB)
async def cancel_pipeline(call: ApiCall) -> Done:
    run = call.path("id")
    found, db = await _read(call)
    if found.has_ended:
        raise ConfigError(f"{run} has already ended: {found.status}")
    if found.durable:
        from corral._engine import service

        await service.cancel(run, reason=f"cancelled on {BY}", db=db)
    else:
        await asyncio.to_thread(control.cancel, run)
    return Done(message="cancelled", id=run)


@ENDPOINTS.post(
    "/api/pipelines/{id}/budget",
    "Raise the limits of a run's budget. One that is paused on it goes on.",
    DB,
)
async def add_pipeline_budget(call: ApiCall, body: BudgetBody) -> Done:
    run = call.path("id")
    found, db = await _read(call)
    if not found.durable:
        await asyncio.to_thread(control.add_budget, run, **asdict(body))
        return Done(message="the budget was raised", id=run)
    from corral._engine import service

    await service.add_budget(run, convert_to(asdict(body), Raise), db=db)
    found = (await _read(call))[0]
    if found.status == "interrupted":
        await call.start_command("runs", "resume", run, *_database_option(db))
        return Done(message="the budget was raised; the run goes on in the background", id=run)
    return Done(message="the budget was raised", id=run)


@ENDPOINTS.post("/api/pipelines/{id}/retry", "Start a new run that continues from a node.", DB)
async def retry_pipeline(call: ApiCall, body: NodeBody) -> Done:
    from corral._engine import run_list

    run = call.path("id")
    found, db = await _read_durable(call)
    if body.node not in found.graph.nodes:
        raise NotFound(f"the pipeline has no node {body.node!r}")

    async def ids() -> set[str]:
        return {each.id for each in await run_list.list_runs(db=db, limit=50)}

    before = await ids()
    await call.start_command("runs", "fork", run, "--from", body.node, *_database_option(db))
    new: set[str] = set()
    watch = clock.Stopwatch()
    while not new and watch.seconds < START_SECONDS:
        await asyncio.sleep(0.3)
        new = await ids() - before
    text = "a new run continues from there" if new else "a new run is being started"
    return Done(message=text, id=max(new, default=None))


def _database_option(db: str | None) -> tuple[str, ...]:
    return () if db is None else ("--db", db)


@ENDPOINTS.get(
    "/api/batches/{id}",
    "A batch: its progress, its failures, and a page of its tasks.",
    Param("cursor", "`next` of the page before.", "integer"),
    Param("failed", "Any value: only tasks that failed."),
    DB,
)
async def batch(call: ApiCall) -> BatchDetail:
    return await databases.batch_detail(
        call.path("id"),
        await call.database(),
        start=max(0, call.number("cursor", 0)),
        only_failed=call.text("failed") is not None,
    )


@ENDPOINTS.post(
    "/api/batches/{id}/retry", "Run the tasks again that failed, and those that were left.", DB
)
async def retry_batch(call: ApiCall) -> Done:
    """Run the tasks again that have no success: those that failed, and those that were left."""
    name, db = call.path("id"), await call.database()
    found = await databases.read_batch(name, db)
    if found.overview.status in ("running", "paused"):
        raise ConfigError(f"{name} is running")
    await call.start_command("runs", "resume", name, *_database_option(db))
    return Done(message="the batch goes on in the background", id=name)


@ENDPOINTS.post("/api/batches/{id}/cancel", "Cancel the tasks that have not ended.", DB)
async def cancel_batch(call: ApiCall) -> Done:
    from corral._engine.batch import query

    name, db = call.path("id"), await call.database()
    found = await databases.read_batch(name, db)
    if found.overview.status in query.ENDED:
        raise ConfigError(f"{name} has already ended: {found.overview.status}")
    count = await query.cancel_batch(name, db=db)
    return Done(message=f"cancelled, with {count:,} tasks", id=name)


@ENDPOINTS.post(
    "/api/batches/{id}/budget",
    "Raise the limits of a batch's budget. One that is paused on it goes on.",
    DB,
)
async def add_batch_budget(call: ApiCall, body: BudgetBody) -> Done:
    from corral._engine import service

    name, db = call.path("id"), await call.database()
    await databases.read_batch(name, db)
    await service.add_budget(name, convert_to(asdict(body), Raise), db=db)
    return Done(message="the budget was raised", id=name)
