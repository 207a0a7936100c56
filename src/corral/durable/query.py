"""Looking at runs: a list of them, one of them, and its events as they come. Runs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from corral.durable.dbos import adapter, queues
from corral.durable.dbos import client as dbos_client
from corral.durable.dbos.database import find, is_there
from corral.durable.history import AgentEventReader, Replay
from corral.durable.payloads import RunInput, RunOutput, unpack
from corral.durable.worker import run_workflow
from corral.durable.workspace import workspaces
from corral.pipelines.events import RunEvent
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import Question
from corral.pipelines.scheduler.state import State

if TYPE_CHECKING:
    from dbos import DBOSClient
    from dbos._sys_db import WorkflowStatus

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
    pool: str = ""
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
        return workspaces.here(self.begun.setting).folder

    @property
    def workspace(self) -> str:
        """On this machine."""
        return workspaces.here(self.begun.setting).workspace


async def list_runs(*, db: str | None = None, limit: int | None = 50) -> list[Overview]:
    """Newest first; without the runs that are nodes of others."""
    database = find(db)
    if not await asyncio.to_thread(is_there, database):
        return []

    def ask(client: DBOSClient) -> list[Overview]:
        with closing(dbos_client.ExecutorLiveness(database)) as lives:
            found = adapter.list_workflows(client, name=run_workflow.NAME, limit=limit, top=True)
            return [_overview(each, lives) for each in found]

    return await dbos_client.with_client(database, ask)


def _overview(row: WorkflowStatus, lives: dbos_client.ExecutorLiveness) -> Overview:
    labels = row.attributes or {}
    return Overview(
        id=row.workflow_id,
        status=_status(row, lives),
        pipeline=str(labels.get("pipeline", "")),
        goal=str(labels.get("goal", "")),
        folder=workspaces.folder_here(str(labels.get("folder", ""))),
        asks=int(labels.get("asks", 0)) if row.status not in adapter.ENDED else 0,
        pool=row.queue_name or "",
        created=(row.created_at or 0) / 1000,
        ended=row.completed_at / 1000 if row.completed_at else None,
        executor=row.executor_id or "",
    )


def _status(row: WorkflowStatus, lives: dbos_client.ExecutorLiveness) -> Status:
    match row.status:
        case "PENDING":
            return "running" if lives(row.executor_id) else "interrupted"
        case "CANCELLED":
            return "cancelled"
        case "SUCCESS":
            match (row.attributes or {}).get("status"):
                case "cancelled":
                    return "cancelled"
                case "fail":
                    return "fail"
                case _:
                    return "success"
        case "ENQUEUED" | "DELAYED":
            owner = queues.owner(row.queue_name or "")
            return "queued" if owner is None or lives(owner) else "interrupted"
        case _:
            return "fail"


async def show(run: str, *, db: str | None = None) -> Shown:
    """Where it stands, as its journal has it. Raises ``ConfigError`` where there is none."""
    database = find(db)
    if not await asyncio.to_thread(is_there, database):
        raise dbos_client.missing(run)

    def ask(client: DBOSClient) -> Shown:
        row, replay = replayed(client, run)
        closed = dbos_client.closed(client, run)
        with closing(dbos_client.ExecutorLiveness(database)) as lives:
            return Shown(
                id=run,
                status=_status(row, lives),
                begun=replay.begun,
                state=replay.plan.state,
                questions=[] if closed else replay.questions,
                events=list(replay.events),
                closed=closed,
                created=(row.created_at or 0) / 1000,
                ended=row.completed_at / 1000 if row.completed_at else None,
            )

    return await dbos_client.with_client(database, ask)


def replayed(client: DBOSClient, run: str) -> tuple[WorkflowStatus, Replay]:
    """Blocking. Raises ``ConfigError``."""
    row = adapter.get_workflow(client, run)
    if row is None or row.name != run_workflow.NAME or row.input is None:
        raise dbos_client.missing(run)
    replay = Replay(unpack(row.input["args"][0], RunInput))
    for step in adapter.journal(client, run):
        replay.feed(step)
    return row, replay


async def follow(run: str, *, db: str | None = None) -> AsyncGenerator[RunEvent]:
    """Its events from the first on, as they come, until it has ended."""
    database = find(db)
    async with dbos_client.open_client(database) as door:
        row = await asyncio.to_thread(adapter.get_workflow, door, run)
        if row is None or row.input is None:
            raise dbos_client.missing(run)
        replay = Replay(unpack(row.input["args"][0], RunInput))
        diaries = AgentEventReader(replay)
        told = 0
        seen: set[int] = set()
        pause = FIRST_LOOK
        while True:
            is_over = await asyncio.to_thread(_is_over, door, run)
            offset = max(0, len(seen) - LATE)
            found = await asyncio.to_thread(adapter.journal, door, run, offset=offset)
            steps = [step for step in found if step["function_id"] not in seen]
            for step in steps:
                seen.add(step["function_id"])
                replay.feed(step)
            news = replay.events[told:]
            told += len(news)
            is_quiet = not steps
            for event in diaries.between(news):
                is_quiet = False
                yield event
            if is_over:
                return
            pause = min(pause * 1.4, LAST_LOOK) if is_quiet else FIRST_LOOK
            await asyncio.sleep(pause)


def _is_over(client: DBOSClient, run: str) -> bool:
    found = adapter.list_workflows(client, ids=[run])
    return not found or found[0].status in adapter.ENDED
