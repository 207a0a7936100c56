"""List batches, show one, and cancel one. Runs nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Literal, TypeVar

import msgspec

from corral._core.lookup import find_id
from corral._engine.agent_host import client as agent_host_client
from corral._engine.batch.batch_store import COMMAND, KIND, BatchCommand, BatchStore, Round
from corral._engine.batch.results import (
    BatchKind,
    BatchReport,
    BatchResult,
    BatchStatus,
    BatchSummary,
    BatchTally,
    result_of,
)
from corral._engine.batch.resume import find_workflows
from corral._engine.batch.tasks import BatchTask
from corral._engine.dbos.client import WorkflowInfo, queue_owner, responsible_executor
from corral._engine.dbos.database import (
    OPEN_STATES,
    UnreadableRecord,
    check_not_elsewhere,
    find,
    is_there,
    reading,
    storage_errors,
)
from corral._engine.dbos.leases import ExecutorLiveness
from corral._engine.payloads import BATCH_CLOSED, BATCH_WORKFLOW, unpack
from corral._metering.budget_stores import StoredBudget
from corral._system import paths
from corral._system.process.tree import ProcessRegistry as Processes
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
    """The ids of its rounds."""


class BatchDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One batch in detail."""

    overview: BatchOverview
    report: BatchReport
    prompt: str
    agent: str
    model: str
    folder: str
    command: BatchCommand | None = None
    """The command line that continues it; None if it was started from Python."""
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
    """Tasks of the batch that run or are queued."""
    next: int | None
    """Where the next page begins; None on the last."""


async def list_batches(*, db: str | None = None, limit: int | None = 50) -> list[BatchOverview]:
    """The batches of a database, newest first. Those that have ended have a stored summary; for the
    others the results are counted. One whose record cannot be read is left out and logged."""
    if not await asyncio.to_thread(is_there, find(db)):
        return []

    def read(store: BatchStore) -> list[BatchOverview]:
        with closing(ExecutorLiveness(store.database)) as liveness:
            overviews: list[BatchOverview] = []
            found = dict(list(batch_rounds(store).items())[:limit])
            budgets = _open_budgets(store, found)
            for name, rows in found.items():
                try:
                    overviews.append(_overview(store, rows, liveness, budgets.get(name)))
                except (UnreadableRecord, FormatUnsupported) as error:
                    _log.warning("%s", error)
            return overviews

    return await _with_store(db, read)


async def find_batch(name: str, *, db: str | None = None) -> str:
    """The name of a batch, given a unique beginning of it. Raises ``ConfigError`` if several begin
    with it. A name that fits none is returned as it is."""
    database = find(db)

    def read(store: BatchStore) -> str | None:
        return find_id(name, list(batch_rounds(store)), "batches")

    if await asyncio.to_thread(is_there, database):
        batch = await _with_store(db, read)
        if batch is not None:
            return batch
    what = f"the batch {name!r}"
    await asyncio.to_thread(check_not_elsewhere, database, what, name)
    return name


async def show_batch(name: str, *, db: str | None = None) -> BatchDetails:
    """One batch in detail. Raises ``ConfigError`` if there is no such batch."""

    def read(store: BatchStore) -> BatchDetails:
        rows = batch_rounds(store).get(name)
        if rows is None:
            raise _not_found(name)
        budget = _open_budgets(store, {name: rows}).get(name)
        with closing(ExecutorLiveness(store.database)) as liveness:
            overview = _overview(store, rows, liveness, budget)
        rounds = store.rounds(name)
        run_input = rounds[-1].run_input
        with reading(name):
            (node,) = run_input.graph.nodes.values()
            command = BatchCommand.from_label(rows[-1].labels.get(COMMAND))
        return BatchDetails(
            overview=overview,
            report=_count_results(store, name, rounds),
            prompt=node.text("prompt"),
            agent=run_input.config.agent,
            model=run_input.config.model,
            folder=run_input.config.folder,
            command=command,
            budget=budget,
        )

    return await _with_store(db, read, name)


async def list_tasks(
    name: str, *, start: int = 0, limit: int = 100, only_failed: bool = False, db: str | None = None
) -> TaskPage:
    """A page of the tasks of a batch. Raises ``ConfigError`` if there is no such batch."""

    def read(store: BatchStore) -> TaskPage:
        if batch_rounds(store).get(name) is None:
            raise _not_found(name)
        rounds = store.rounds(name)
        digests = rounds[-1].digests
        known = find_workflows(store, rounds, digests)
        rows: list[BatchTaskRow] = []
        names = [*digests]
        position = start
        while position < len(names) and len(rows) < limit:
            part = names[position : position + limit]
            ended = {task: known.ended[task] for task in part if task in known.ended}
            outcomes = store.outcomes_of([workflow for workflow, _ in ended.values()])
            for task in part:
                position += 1
                workflow, number = ended.get(task, ("", 0))
                row = BatchTaskRow(id=task, state="running" if task in known.in_flight else "left")
                if workflow in outcomes:
                    asked = BatchTask(id=task, fields={}, digest=digests[task])
                    result = result_of(asked, outcomes[workflow], number)
                    row = BatchTaskRow(id=task, state="ended", result=result)
                if not only_failed or (row.result is not None and not row.result.ok):
                    rows.append(row)
                if len(rows) == limit:
                    break
        following = position if position < len(names) else None
        return TaskPage(rows=rows, running=len(known.in_flight), next=following)

    return await _with_store(db, read, name)


async def cancel_batch(name: str, *, db: str | None = None) -> int:
    """Cancel its tasks that have not ended; returns how many. The command that started the batch
    can still continue it."""

    def end(store: BatchStore) -> int:
        rows = batch_rounds(store).get(name)
        if rows is None:
            raise _not_found(name)
        rounds = store.rounds(name)  # first: what cannot be read is not changed
        tasks = open_tasks(store, rows)
        store.cancel([each.id for each in tasks])
        for row in rows:
            agent_host_client.close(row.id, cancel=True)
        Processes(paths.process_registry()).reap()  # processes of an engine that was killed
        store.close_round(rounds[-1].id, _count_results(store, name, rounds), status="cancelled")
        return len(tasks)

    return await _with_store(db, end, name)


def batch_rounds(store: BatchStore) -> dict[str, list[WorkflowInfo]]:
    """Name -> the rounds of the batch, the first one first; the newest batch first."""
    found: dict[str, list[WorkflowInfo]] = {}
    for row in reversed(store.list_workflows(name=BATCH_WORKFLOW)):
        found.setdefault(row.id.partition("#")[0], []).append(row)
    return dict(reversed(found.items()))


def open_tasks(store: BatchStore, rows: Sequence[WorkflowInfo]) -> list[WorkflowInfo]:
    return [
        each
        for row in rows
        for each in store.list_workflows(prefix=f"{row.id}/", states=OPEN_STATES)
    ]


def _open_budgets(
    store: BatchStore, batches: Mapping[str, Sequence[WorkflowInfo]]
) -> dict[str, StoredBudget]:
    """The budgets of those of these batches that have not ended."""
    is_open = [name for name, rows in batches.items() if not rows[-1].labels.get(BATCH_CLOSED)]
    if not is_open:
        return {}
    from corral._engine import limits

    return limits.read_stores(store.database, is_open)


def _overview(
    store: BatchStore,
    rows: Sequence[WorkflowInfo],
    liveness: ExecutorLiveness,
    budget: StoredBudget | None,
) -> BatchOverview:
    name = rows[0].id
    labels = rows[-1].labels
    if labels.get(BATCH_CLOSED):
        with reading(name):
            closed = unpack(labels[BATCH_CLOSED], BatchSummary)
    else:
        report = _count_results(store, name, store.rounds(name))
        owners = {queue_owner(row.queue) for row in rows}
        executors = {responsible_executor(task) for task in open_tasks(store, rows)}
        # Without a responsible executor a worker of the queue will take the task.
        is_at_work = None in executors or any(map(liveness.is_alive, owners | executors))
        status: BatchStatus = "running" if is_at_work else "interrupted"
        if is_at_work and budget is not None and budget.is_paused():
            status = "paused"
        closed = BatchSummary(
            status=status,
            total=report.total,
            succeeded=report.succeeded,
            failed=report.failed,
            cost_usd=report.cost_usd,
        )
    return BatchOverview(
        name=name,
        status=closed.status,
        kind="compare" if labels.get(KIND) == "compare" else "batch",
        goal=as_text(labels.get("goal")),
        started_in=as_text(labels.get("started_in")) or as_text(labels.get("workspace")),
        label=as_text(labels.get("label")),
        scripted=labels.get("scripted") is True,
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


def _count_results(store: BatchStore, name: str, rounds: Sequence[Round]) -> BatchReport:
    """A report counted from the stored outcomes of its tasks."""
    digests = rounds[-1].digests
    known = find_workflows(store, rounds, digests)
    outcomes = store.outcomes_of([workflow for workflow, _ in known.ended.values()])
    tally = BatchTally(name, len(digests))
    for task, (workflow, number) in known.ended.items():
        if workflow in outcomes:
            asked = BatchTask(id=task, fields={}, digest=digests[task])
            tally.add(result_of(asked, outcomes[workflow], number))
    return tally.report(seconds=0.0)


def _not_found(name: str) -> ConfigError:
    return ConfigError(f"there is no batch {name!r}", hint="`corral batches list` shows them.")


async def _with_store(db: str | None, action: Callable[[BatchStore], T], name: str = "") -> T:
    database = find(db)

    def run() -> T:
        if not is_there(database):
            raise _not_found(name)
        with storage_errors(database), closing(BatchStore(database)) as store:
            return action(store)

    return await asyncio.to_thread(run)
