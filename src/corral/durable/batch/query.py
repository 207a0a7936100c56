"""Looking at batches: a list of them, and one of them. Runs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeVar

import msgspec

from corral.durable.agent_host import client as agent_host_client
from corral.durable.batch.queue import CLOSED, BatchStore, Round
from corral.durable.batch.results import BatchClosed, BatchReport, BatchStatus, Tally, result_of
from corral.durable.batch.resume import survey
from corral.durable.batch.tasks import BatchTask
from corral.durable.dbos import adapter, queues
from corral.durable.dbos.client import WorkflowInfo
from corral.durable.dbos.database import find, is_there, storage_errors
from corral.durable.dbos.leases import ExecutorLiveness
from corral.durable.payloads import unpack
from corral.durable.worker import node_workflow
from corral.errors import ConfigError
from corral.system import paths
from corral.system.process.registry import ProcessRegistry as Processes

T = TypeVar("T")

OVER: tuple[BatchStatus, ...] = ("success", "fail", "cancelled")
"""Of batches that have ended."""


class BatchOverview(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    status: BatchStatus
    total: int
    succeeded: int
    failed: int
    left: int
    cost_usd: float = 0.0
    created: float = 0.0
    """Seconds since the epoch."""
    ended: float | None = None
    output: str = ""
    """The file of its results."""
    rounds: tuple[str, ...] = ()
    """The ids that its tasks were begun under."""


class BatchShown(msgspec.Struct, frozen=True, kw_only=True):
    """One batch, whole."""

    overview: BatchOverview
    report: BatchReport
    prompt: str
    agent: str
    model: str
    folder: str


async def list_batches(*, db: str | None = None, limit: int | None = 50) -> list[BatchOverview]:
    """Newest first. What has ended is told as it was told then; the rest is counted."""
    if not await asyncio.to_thread(is_there, find(db)):
        return []

    def look(ledger: BatchStore) -> list[BatchOverview]:
        with closing(ExecutorLiveness(ledger.database)) as lives:
            known = families(ledger)
            return [_overview(ledger, rows, lives) for rows in list(known.values())[:limit]]

    return await _asked(db, look)


async def show_batch(name: str, *, db: str | None = None) -> BatchShown:
    """Raises ``ConfigError`` where there is none."""

    def look(ledger: BatchStore) -> BatchShown:
        rows = families(ledger).get(name)
        if rows is None:
            raise _none(name)
        with closing(ExecutorLiveness(ledger.database)) as lives:
            overview = _overview(ledger, rows, lives)
        rounds = ledger.rounds(name)
        begun = rounds[-1].begun
        (node,) = begun.graph.nodes.values()
        return BatchShown(
            overview=overview,
            report=_counted(ledger, name, rounds),
            prompt=node.text("prompt"),
            agent=begun.setting.agent,
            model=begun.setting.model,
            folder=begun.setting.folder,
        )

    return await _asked(db, look, name)


async def cancel_batch(name: str, *, db: str | None = None) -> int:
    """End what is under way of it; returns how many tasks that was. It has ended then; the
    command that began it can still go on with it."""

    def end(ledger: BatchStore) -> int:
        rows = families(ledger).get(name)
        if rows is None:
            raise _none(name)
        left = open_tasks(ledger, rows)
        ledger.cancel([each.id for each in left])
        for row in rows:
            agent_host_client.close(row.id, cancel=True)
        Processes(paths.ledger()).reap()  # what its engine left, when it was killed
        rounds = ledger.rounds(name)
        ledger.close_round(rounds[-1].id, _counted(ledger, name, rounds), status="cancelled")
        return len(left)

    return await _asked(db, end, name)


def families(ledger: BatchStore) -> dict[str, list[WorkflowInfo]]:
    """Name → the rounds of the batch, the first one first; the newest batch first."""
    found: dict[str, list[WorkflowInfo]] = {}
    for row in reversed(ledger.client.list_workflows(name=node_workflow.BATCH)):
        found.setdefault(row.id.partition("#")[0], []).append(row)
    return dict(reversed(found.items()))


def open_tasks(ledger: BatchStore, rows: Sequence[WorkflowInfo]) -> list[WorkflowInfo]:
    return [
        each
        for row in rows
        for each in ledger.client.list_workflows(prefix=f"{row.id}/", states=adapter.OPEN)
    ]


def _overview(
    ledger: BatchStore, rows: Sequence[WorkflowInfo], lives: ExecutorLiveness
) -> BatchOverview:
    name = rows[0].id
    labels = rows[-1].labels
    if labels.get(CLOSED):
        closed = unpack(labels[CLOSED], BatchClosed)
    else:
        report = _counted(ledger, name, ledger.rounds(name))
        closed = BatchClosed(
            status="running" if _is_at_work(ledger, rows, lives) else "interrupted",
            total=report.total,
            succeeded=report.succeeded,
            failed=report.failed,
            cost_usd=report.cost_usd,
        )
    return BatchOverview(
        name=name,
        status=closed.status,
        total=closed.total,
        succeeded=closed.succeeded,
        failed=closed.failed,
        left=closed.total - closed.succeeded - closed.failed,
        cost_usd=closed.cost_usd,
        created=rows[0].created,
        ended=closed.at,
        output=str(labels.get("output", "")),
        rounds=tuple(each.id for each in rows),
    )


def _is_at_work(ledger: BatchStore, rows: Sequence[WorkflowInfo], lives: ExecutorLiveness) -> bool:
    owners = {queues.owner(row.queue) for row in rows}
    for each in open_tasks(ledger, rows):
        executor_id = queues.responsible(each)
        if executor_id is None:
            return True  # a worker of its queue will take it
        owners.add(executor_id)
    return any(lives.is_alive(each) for each in owners)


def _counted(ledger: BatchStore, name: str, rounds: Sequence[Round]) -> BatchReport:
    """From what is kept of its tasks."""
    digests = rounds[-1].digests
    known = survey(ledger, rounds, digests)
    outcomes = ledger.ended([workflow for workflow, _ in known.ended.values()])
    tally = Tally(name, len(digests))
    for task, (workflow, number) in known.ended.items():
        if workflow in outcomes:
            asked = BatchTask(id=task, fields={}, digest=digests[task])
            tally.add(result_of(asked, outcomes[workflow], number))
    return tally.report(seconds=0.0)


def _none(name: str) -> ConfigError:
    return ConfigError(f"there is no batch {name!r}", hint="corral batches list shows them.")


async def _asked(db: str | None, question: Callable[[BatchStore], T], name: str = "") -> T:
    database = find(db)

    def whole() -> T:
        if not is_there(database):
            raise _none(name)
        with storage_errors(database), closing(BatchStore(database)) as ledger:
            return question(ledger)

    return await asyncio.to_thread(whole)
