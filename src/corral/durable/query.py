"""List runs, show one, and follow its events. Runs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Literal, TypeAlias

import msgspec

from corral.durable.dbos.client import Client, WorkflowInfo, open_client, queue_owner, with_client
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
"""``interrupted``: nobody runs it now; ``resume`` does, or a worker of its queue."""

FIRST_POLL, LAST_POLL = 0.05, 0.5
"""Seconds between two reads of a followed run: after an event, and at most."""

LATE = 8
"""How many journal entries may be written after one with a higher number: a received message is
written when it arrives, but the end of the wait for it, with a higher number, before."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list. Its input and output are not read."""

    id: str
    status: Status
    pipeline: str = ""
    goal: str = ""
    folder: str = ""
    asks: int = 0
    """Number of open questions."""
    queue: str = ""
    created: float = 0.0
    """Seconds since the epoch."""
    ended: float | None = None
    executor: str = ""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The full state of a run."""

    id: str
    status: Status
    run_input: RunInput
    state: State
    questions: list[Question]
    events: list[RunEvent]
    closed: RunOutput | None = None
    created: float = 0.0
    ended: float | None = None

    @property
    def graph(self) -> Graph:
        return self.run_input.graph

    @property
    def folder(self) -> str:
        """The path on this machine."""
        return run_worktree.local_config(self.run_input.config).folder

    @property
    def workspace(self) -> str:
        """The path on this machine."""
        return run_worktree.local_config(self.run_input.config).workspace


async def list_runs(*, db: str | None = None, limit: int | None = 50) -> list[Overview]:
    """The runs of a database, newest first, without nested runs."""
    database = find(db)
    if not await asyncio.to_thread(is_there, database):
        return []

    def read(client: Client) -> list[Overview]:
        with closing(ExecutorLiveness(database)) as liveness:
            found = client.list_workflows(name=run_workflow.NAME, limit=limit, top=True)
            return [_overview(each, liveness) for each in found]

    return await with_client(database, read)


def _overview(row: WorkflowInfo, liveness: ExecutorLiveness) -> Overview:
    labels = row.labels
    return Overview(
        id=row.id,
        status=_status(row, liveness),
        pipeline=str(labels.get("pipeline", "")),
        goal=str(labels.get("goal", "")),
        folder=run_worktree.local_folder(str(labels.get("folder", ""))),
        asks=int(str(labels.get("asks", 0))) if not row.has_ended else 0,
        queue=row.queue,
        created=row.created,
        ended=row.ended,
        executor=row.executor,
    )


def _status(row: WorkflowInfo, liveness: ExecutorLiveness) -> Status:
    match row.state:
        case "PENDING":
            return "running" if liveness.is_alive(row.executor) else "interrupted"
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
            owner = queue_owner(row.queue)
            return "queued" if owner is None or liveness.is_alive(owner) else "interrupted"
        case _:
            return "fail"


async def show(run: str, *, db: str | None = None) -> Shown:
    """The state of a run, from its journal. Raises ``ConfigError`` if there is no such run."""
    database = find(db)
    if not await asyncio.to_thread(is_there, database):
        raise run_not_found(run)

    def read(client: Client) -> Shown:
        row, replay = replay_run(client, run)
        closed = run_output(client, run)
        with closing(ExecutorLiveness(database)) as liveness:
            return Shown(
                id=run,
                status=_status(row, liveness),
                run_input=replay.run_input,
                state=replay.scheduler.state,
                questions=[] if closed else replay.questions,
                events=list(replay.events),
                closed=closed,
                created=row.created,
                ended=row.ended,
            )

    return await with_client(database, read)


def replay_run(client: Client, run: str) -> tuple[WorkflowInfo, Replay]:
    """The workflow of a run, and its history. Blocking. Raises ``ConfigError``."""
    row = client.get_workflow(run)
    if row is None or row.name != run_workflow.NAME or row.input is None:
        raise run_not_found(run)
    replay = Replay(unpack(row.input, RunInput))
    for entry in client.journal(run):
        replay.feed(entry)
    return row, replay


async def follow(run: str, *, db: str | None = None) -> AsyncGenerator[RunEvent]:
    """The events of a run from the first one, as they come, until it has ended."""
    database = find(db)
    async with open_client(database) as client:
        row = await asyncio.to_thread(client.get_workflow, run)
        if row is None or row.input is None:
            raise run_not_found(run)
        replay = Replay(unpack(row.input, RunInput))
        agent_events = AgentEventReader(replay)
        reported = 0
        read_numbers: set[int] = set()
        pause = FIRST_POLL
        while True:
            is_over = await asyncio.to_thread(_is_over, client, run)
            offset = max(0, len(read_numbers) - LATE)
            found = await asyncio.to_thread(client.journal, run, offset=offset)
            entries = [entry for entry in found if entry.number not in read_numbers]
            for entry in entries:
                read_numbers.add(entry.number)
                replay.feed(entry)
            events = replay.events[reported:]
            reported += len(events)
            is_quiet = not entries
            for event in agent_events.merge(events):
                is_quiet = False
                yield event
            if is_over:
                return
            pause = min(pause * 1.4, LAST_POLL) if is_quiet else FIRST_POLL
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
