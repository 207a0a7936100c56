"""Batches of a database: list them, find one, show it, cancel it. Runs nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Literal, TypeVar

import msgspec

from corral._core.lookup import find_id
from corral._engine import service
from corral._engine.batch.results import (
    BatchKind,
    BatchReport,
    BatchResult,
    BatchStatus,
    BatchSummary,
    BatchTally,
    result_of,
)
from corral._engine.batch.rounds import (
    KIND,
    Round,
    read_ends,
    read_rounds,
    set_summary,
)
from corral._engine.batch.task_scheduler import BatchTask
from corral._engine.dbos.client import DatabaseClient, WorkflowInfo, with_client
from corral._engine.dbos.database import (
    UnreadableRecord,
    check_not_elsewhere,
    find,
    is_there,
    reading,
)
from corral._engine.dbos.leases import ExecutorLiveness
from corral._engine.payloads import BATCH_CLOSED, BATCH_WORKFLOW, unpack
from corral._engine.run_list import OpenBudget, open_budgets, run_status
from corral._metering.budget_stores import StoredBudget
from corral.errors import ConfigError, FormatUnsupported
from corral.values import as_text

T = TypeVar("T")

_log = logging.getLogger("corral.engine")

ENDED: tuple[BatchStatus, ...] = ("success", "fail", "cancelled")
"""Statuses of batches that have ended."""


class BatchOverview(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    status: BatchStatus
    kind: BatchKind = "batch"
    goal: str = ""
    """The beginning of its prompt."""
    started_in: str = ""
    """The folder in which a person has started it."""
    label: str = ""
    scripted: bool = False
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
    """The ids of its runs."""


class BatchDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One batch in detail."""

    overview: BatchOverview
    report: BatchReport
    prompt: str
    agent: str
    model: str
    folder: str
    budget: StoredBudget | None = None
    """Of a batch that has not ended."""


class BatchTaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a batch."""

    id: str
    state: Literal["left", "running", "ended"]
    result: BatchResult | None = None
    """Of a task that has ended."""


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some tasks of a batch, in the order of the batch."""

    rows: list[BatchTaskRow]
    running: int
    """Tasks of the batch that run."""
    next: int | None
    """Where the next page begins; None on the last."""


async def list_batches(*, db: str | None = None, limit: int | None = 50) -> list[BatchOverview]:
    """The batches of a database, newest first. Those that have ended have a stored summary; for the
    others the results are counted. One whose record cannot be read is left out and logged."""
    database = find(db)
    if not await asyncio.to_thread(is_there, database):
        return []

    def read(client: DatabaseClient) -> list[BatchOverview]:
        batches = dict([*batch_rounds(client).items()][:limit])
        open_ones = [name for name, rows in batches.items() if not _is_closed(rows)]
        budgets = open_budgets(database, open_ones)
        overviews: list[BatchOverview] = []
        with closing(ExecutorLiveness(database)) as liveness:
            for name, rows in batches.items():
                try:
                    overviews.append(_overview(client, rows, liveness, budgets.get(name)))
                except (UnreadableRecord, FormatUnsupported) as error:
                    _log.warning("%s", error)
        return overviews

    return await with_client(database, read)


async def find_batch(name: str, *, db: str | None = None) -> str:
    """The name of a batch, given a unique beginning of it. Raises ``ConfigError`` if several begin
    with it. A name that fits none is returned as it is."""
    database = find(db)
    if await asyncio.to_thread(is_there, database):
        names = await with_client(database, lambda client: [*batch_rounds(client)])
        batch = find_id(name, names, "batches")
        if batch is not None:
            return batch
    await asyncio.to_thread(check_not_elsewhere, database, f"the batch {name!r}", name)
    return name


async def show_batch(name: str, *, db: str | None = None) -> BatchDetails:
    """One batch in detail. Raises ``ConfigError`` if there is no such batch."""
    database = find(db)

    def read(client: DatabaseClient) -> BatchDetails:
        rows, rounds = _rows_of(client, name), read_rounds(client, name)
        budget = None if _is_closed(rows) else open_budgets(database, [name]).get(name)
        with closing(ExecutorLiveness(database)) as liveness:
            overview = _overview(client, rows, liveness, budget)
        run_input = rounds[-1].run_input
        with reading(name):
            (node,) = run_input.graph.nodes.values()
        return BatchDetails(
            overview=overview,
            report=_count_results(client, name, rounds),
            prompt=node.text("prompt"),
            agent=run_input.config.agent,
            model=run_input.config.model,
            folder=run_input.config.folder,
            budget=None if budget is None else budget.state,
        )

    return await _call(db, read, name)


async def list_tasks(
    name: str, *, start: int = 0, limit: int = 100, only_failed: bool = False, db: str | None = None
) -> TaskPage:
    """A page of the tasks of a batch. Raises ``ConfigError`` if there is no such batch."""

    def read(client: DatabaseClient) -> TaskPage:
        _rows_of(client, name)
        rounds = read_rounds(client, name)
        results = _results(client, rounds)
        running = _running(rounds[-1], results)
        tasks = [
            BatchTaskRow(
                id=task,
                state="ended" if task in results else "running" if task in running else "left",
                result=results.get(task),
            )
            for task in rounds[-1].tasks
        ]
        shown = [
            position
            for position, row in enumerate(tasks)
            if position >= start and (not only_failed or (row.result and not row.result.ok))
        ]
        following = shown[limit] if len(shown) > limit else None
        rows = [tasks[position] for position in shown[:limit]]
        return TaskPage(rows=rows, running=len(running), next=following)

    return await _call(db, read, name)


async def cancel_batch(name: str, *, db: str | None = None) -> int:
    """Cancel its tasks that run; returns how many. ``resume`` can still continue it."""

    def read(client: DatabaseClient) -> tuple[str, int]:
        _rows_of(client, name)
        rounds = read_rounds(client, name)  # first: what cannot be read is not changed
        return rounds[-1].id, len(_running(rounds[-1], _results(client, rounds)))

    def close(client: DatabaseClient) -> None:
        report = _count_results(client, name, read_rounds(client, name))
        set_summary(client, run, report, "cancelled")

    run, count = await _call(db, read, name)
    await service.cancel(run, db=db)
    await _call(db, close, name)
    return count


def batch_rounds(client: DatabaseClient) -> dict[str, list[WorkflowInfo]]:
    """Name -> the rounds of the batch, the first one first; the newest batch first."""
    batches: dict[str, list[WorkflowInfo]] = {}
    for row in reversed(client.list_workflows(name=BATCH_WORKFLOW)):
        batches.setdefault(row.id.partition("#")[0], []).append(row)
    return dict(reversed(batches.items()))


def _rows_of(client: DatabaseClient, name: str) -> list[WorkflowInfo]:
    rows = batch_rounds(client).get(name)
    if rows is None:
        raise _not_found(name)
    return rows


def _is_closed(rows: Sequence[WorkflowInfo]) -> bool:
    return bool(rows[-1].labels.get(BATCH_CLOSED))


def _running(last: Round, results: dict[str, BatchResult]) -> set[str]:
    """The tasks that run, or are about to, in the last round."""
    batch = last.run_input.batch
    if last.row.has_ended or batch is None:
        return set()
    waiting = [
        task.id
        for task in last.tasks.values()
        if task.fields is not None
        and (task.id not in results or results[task.id].round < last.number)
    ]
    return {*waiting[: batch.concurrency]}


def _overview(
    client: DatabaseClient,
    rows: Sequence[WorkflowInfo],
    liveness: ExecutorLiveness,
    budget: OpenBudget | None,
) -> BatchOverview:
    name, last, labels = rows[0].id, rows[-1], rows[-1].labels
    if _is_closed(rows):
        with reading(name):
            summary = unpack(last.labels[BATCH_CLOSED], BatchSummary)
    else:
        report = _count_results(client, name, read_rounds(client, name))
        now = run_status(last, liveness, budget)
        # Its results are written when the same command runs again.
        status: BatchStatus = "interrupted"
        if now in ("paused", "cancelled"):
            status = now
        elif now in ("queued", "running"):
            status = "running"
        summary = BatchSummary(
            status=status,
            total=report.total,
            succeeded=report.succeeded,
            failed=report.failed,
            cost_usd=report.cost_usd,
        )
    return BatchOverview(
        name=name,
        status=summary.status,
        kind="compare" if labels.get(KIND) == "compare" else "batch",
        goal=as_text(labels.get("goal")),
        started_in=as_text(labels.get("started_in")) or as_text(labels.get("workspace")),
        label=as_text(labels.get("label")),
        scripted=labels.get("scripted") is True,
        total=summary.total,
        succeeded=summary.succeeded,
        failed=summary.failed,
        left=summary.total - summary.succeeded - summary.failed,
        cost_usd=summary.cost_usd,
        created=rows[0].created,
        ended=summary.at,
        output=str(last.labels.get("output", "")),
        rounds=tuple(each.id for each in rows),
    )


def _results(client: DatabaseClient, rounds: Sequence[Round]) -> dict[str, BatchResult]:
    """The results that the journals have of its tasks."""
    digests = rounds[-1].digests
    ends = read_ends(client, rounds, digests)
    return {
        task: result_of(BatchTask(id=task, fields={}, digest=digests[task]), outcome, number)
        for task, (outcome, number) in ends.outcomes.items()
    }


def _count_results(client: DatabaseClient, name: str, rounds: Sequence[Round]) -> BatchReport:
    tally = BatchTally(name, len(rounds[-1].tasks))
    for result in _results(client, rounds).values():
        tally.add(result)
    return tally.report(seconds=0.0)


def _not_found(name: str) -> ConfigError:
    return ConfigError(f"there is no batch {name!r}", hint="`corral runs list` shows them.")


async def _call(db: str | None, action: Callable[[DatabaseClient], T], name: str) -> T:
    database = find(db)
    if not await asyncio.to_thread(is_there, database):
        raise _not_found(name)
    return await with_client(database, action)
