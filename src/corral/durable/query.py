"""Looking at runs: a list of them, one of them, and its events as they come. Runs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Literal, TypeAlias

import msgspec

from corral.durable.dbos import queues
from corral.durable.dbos.client import Client, WorkflowInfo, open_client, with_client
from corral.durable.dbos.database import find, is_there
from corral.durable.dbos.leases import ExecutorLiveness
from corral.durable.history import AgentEventReader, Replay
from corral.durable.payloads import RunInput, RunOutput, unpack
from corral.durable.worker import run_workflow
from corral.durable.workspace import run_worktree
from corral.errors import ConfigError
from corral.pipelines.events import RunEvent
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import Question
from corral.pipelines.scheduler.state import State

Status: TypeAlias = Literal["queued", "running", "interrupted", "success", "fail", "cancelled"]
"""``interrupted``: nobody runs it; ``resume`` does, or a worker of its pool."""

FIRST_LOOK, LAST_LOOK = 0.05, 0.5
"""Seconds between two looks at a run that is followed: after news, and after a while."""

LATE = 8
"""Entries of a journal that may be written after a later one: a receipt is entered when it
comes, behind the deadline for it, which has the higher number."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as a list shows it. Nothing that a run wrote itself is read for it."""

    id: str
    status: Status
    pipeline: str = ""
    goal: str = ""
    folder: str = ""
    asks: int = 0
    """Open questions."""
    queue: str = ""
    created: float = 0.0
    """Seconds since the epoch."""
    ended: float | None = None
    executor: str = ""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One run, whole."""

    id: str
    status: Status
    begun: RunInput
    state: State
    questions: list[Question]
    events: list[RunEvent]
    closed: RunOutput | None = None
    created: float = 0.0
    ended: float | None = None

    @property
    def graph(self) -> Graph:
        return self.begun.graph

    @property
    def folder(self) -> str:
        """On this machine."""
        return run_worktree.local_config(self.begun.setting).folder

    @property
    def workspace(self) -> str:
        """On this machine."""
        return run_worktree.local_config(self.begun.setting).workspace


async def list_runs(*, db: str | None = None, limit: int | None = 50) -> list[Overview]:
    """Newest first; without the runs that are nodes of others."""
    database = find(db)
    if not await asyncio.to_thread(is_there, database):
        return []

    def ask(client: Client) -> list[Overview]:
        with closing(ExecutorLiveness(database)) as lives:
            found = client.list_workflows(name=run_workflow.NAME, limit=limit, top=True)
            return [_overview(each, lives) for each in found]

    return await with_client(database, ask)


def _overview(row: WorkflowInfo, lives: ExecutorLiveness) -> Overview:
    labels = row.labels
    return Overview(
        id=row.id,
        status=_status(row, lives),
        pipeline=str(labels.get("pipeline", "")),
        goal=str(labels.get("goal", "")),
        folder=run_worktree.local_folder(str(labels.get("folder", ""))),
        asks=int(str(labels.get("asks", 0))) if not row.has_ended else 0,
        queue=row.queue,
        created=row.created,
        ended=row.ended,
        executor=row.executor,
    )


def _status(row: WorkflowInfo, lives: ExecutorLiveness) -> Status:
    match row.state:
        case "PENDING":
            return "running" if lives.is_alive(row.executor) else "interrupted"
        case "CANCELLED":
            return "cancelled"
        case "SUCCESS":
            match row.labels.get("status"):
                case "cancelled":
                    return "cancelled"
                case "fail":
                    return "fail"
                case _:
                    return "success"
        case "ENQUEUED" | "DELAYED":
            owner = queues.owner(row.queue)
            return "queued" if owner is None or lives.is_alive(owner) else "interrupted"
        case _:
            return "fail"


async def show(run: str, *, db: str | None = None) -> Shown:
    """Where it stands, as its journal has it. Raises ``ConfigError`` where there is none."""
    database = find(db)
    if not await asyncio.to_thread(is_there, database):
        raise run_not_found(run)

    def ask(client: Client) -> Shown:
        row, replay = replayed(client, run)
        closed = run_output(client, run)
        with closing(ExecutorLiveness(database)) as lives:
            return Shown(
                id=run,
                status=_status(row, lives),
                begun=replay.begun,
                state=replay.plan.state,
                questions=[] if closed else replay.questions,
                events=list(replay.events),
                closed=closed,
                created=row.created,
                ended=row.ended,
            )

    return await with_client(database, ask)


def replayed(client: Client, run: str) -> tuple[WorkflowInfo, Replay]:
    """Blocking. Raises ``ConfigError``."""
    row = client.get_workflow(run)
    if row is None or row.name != run_workflow.NAME or row.input is None:
        raise run_not_found(run)
    replay = Replay(unpack(row.input, RunInput))
    for entry in client.journal(run):
        replay.feed(entry)
    return row, replay


async def follow(run: str, *, db: str | None = None) -> AsyncGenerator[RunEvent]:
    """Its events from the first on, as they come, until it has ended."""
    database = find(db)
    async with open_client(database) as client:
        row = await asyncio.to_thread(client.get_workflow, run)
        if row is None or row.input is None:
            raise run_not_found(run)
        replay = Replay(unpack(row.input, RunInput))
        diaries = AgentEventReader(replay)
        told = 0
        seen: set[int] = set()
        pause = FIRST_LOOK
        while True:
            is_over = await asyncio.to_thread(_is_over, client, run)
            offset = max(0, len(seen) - LATE)
            found = await asyncio.to_thread(client.journal, run, offset=offset)
            entries = [entry for entry in found if entry.number not in seen]
            for entry in entries:
                seen.add(entry.number)
                replay.feed(entry)
            news = replay.events[told:]
            told += len(news)
            is_quiet = not entries
            for event in diaries.between(news):
                is_quiet = False
                yield event
            if is_over:
                return
            pause = min(pause * 1.4, LAST_LOOK) if is_quiet else FIRST_LOOK
            await asyncio.sleep(pause)


def _is_over(client: Client, run: str) -> bool:
    found = client.list_workflows(ids=[run])
    return not found or found[0].has_ended


def run_not_found(run: str) -> ConfigError:
    return ConfigError(
        f"there is no run {run!r}",
        hint="`corral pipeline runs` lists the runs; --db or CORRAL_DB selects another database.",
    )


def run_output(client: Client, run: str) -> RunOutput | None:
    """The output of the run; None while it has not ended. Raises ``ConfigError``. Blocking."""
    found = client.list_workflows(ids=[run])
    if not found:
        raise run_not_found(run)
    if not found[0].has_ended:
        return None
    if found[0].state == "CANCELLED":
        reason = found[0].labels.get("reason")
        return RunOutput(status="cancelled", reason=str(reason or "cancelled"))
    ended = client.get_workflow(run)
    if ended is None or ended.output is None:
        return RunOutput(status="fail", reason=f"the engine failed: {ended and ended.error}")
    return unpack(ended.output, RunOutput)
