"""The state of a batch when it starts or continues: what is done, in flight, and still to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral._core import stored_formats
from corral._core.stored_formats import JOURNAL
from corral._engine import process_engine
from corral._engine.agent_host import client as agent_host_client
from corral._engine.batch.batch_store import (
    COMMAND,
    BatchCommand,
    BatchStore,
    BatchStoreThread,
    Round,
    make_round,
    resource_of,
    round_id,
)
from corral._engine.batch.journal import DurableTaskJournal, TaskJournal
from corral._engine.batch.results import BatchReport, BatchResult, OutputFile, result_of
from corral._engine.batch.spec import BatchOptions, BatchSpec
from corral._engine.batch.tasks import BatchTask, difference
from corral._engine.dbos import database
from corral._engine.dbos.client import DEFAULT_QUEUE, QueueLimit, subqueue
from corral._engine.payloads import BATCH_CLOSED, RunInput
from corral._engine.process_engine import EngineUser
from corral._engine.worker.executor import Executor
from corral._system import clock, paths
from corral.errors import BudgetExceeded, ConfigError
from corral.values import Json

if TYPE_CHECKING:
    from corral._core.spending import Spent
    from corral._engine.dbos.database import Database
    from corral._metering.budget import Budget


class TaskWorkflows(msgspec.Struct, kw_only=True):
    ended: dict[str, tuple[str, int]]
    """Task -> its workflow and the number of its round."""
    in_flight: dict[str, str]
    """Task -> its workflow, running or queued."""
    stale: list[str]
    """Workflows in flight whose task has changed or was removed."""


def find_workflows(
    store: BatchStore, rounds: Sequence[Round], digests: Mapping[str, str]
) -> TaskWorkflows:
    """The workflows of the tasks with these digests (by task id). Blocking."""
    found = TaskWorkflows(ended={}, in_flight={}, stale=[])
    for round in rounds:
        for name in round.redo:
            # Its earlier result does not count any more.
            found.ended.pop(name, None)
        for name, row in store.tasks(round).items():
            fits = name in digests and round.digests.get(name) == digests[name]
            if row.has_ended:
                if fits:
                    found.ended[name] = (row.id, round.number)
            elif fits:
                found.in_flight[name] = row.id
            else:
                found.stale.append(row.id)
    return found


class ResumeState(msgspec.Struct, kw_only=True):
    known: dict[str, BatchResult]
    """Results so far, in the order of the tasks."""
    written: dict[str, BatchResult]
    """Those of them that are in the file, in the order of the file."""
    todo: list[BatchTask]
    in_flight: dict[str, str] = {}
    """Task -> workflow."""
    round: int = 1
    runs_on: bool = False
    """Whether running tasks continue when this process ends."""
    runner: TaskJournal
    close: Callable[[BatchReport], Awaitable[None]] | None = None
    leave: Callable[[], Awaitable[None]] | None = None


def memory_state(
    options: BatchOptions, spec: BatchSpec, out: OutputFile | None, runner: TaskJournal
) -> ResumeState:
    """The state of a batch in memory, from its file of results. Raises ``ConfigError``."""
    written_before = {} if out is None else out.known
    _check_changes(options, spec, [], written_before)
    unchanged = {
        name: line
        for name, line in written_before.items()
        if _is_current(spec, line) and not _is_repeated(options, line)
    }
    if runner.budget is not None:
        runner.budget.record(_spent(unchanged.values()))
    return ResumeState(
        known=_in_order(spec, unchanged),
        written={} if out is None else _remove_other_lines(out, unchanged),
        todo=_tasks_to_run(spec, unchanged, {}),
        runner=runner,
    )


@asynccontextmanager
async def durable_state(
    options: BatchOptions,
    spec: BatchSpec,
    out: OutputFile | None,
    command: BatchCommand | None,
    user: EngineUser,
    restarts_jobs: bool = False,
) -> AsyncGenerator[ResumeState]:
    """The state of a durable batch, with the engine running. ``command`` is stored with it.
    ``restarts_jobs``: of ``service.resume``. Raises ``ConfigError``."""
    what = f"the batch {spec.name!r}"
    await asyncio.to_thread(database.check_not_elsewhere, user.database, what, spec.name)
    await asyncio.to_thread(database.prepare, user.database)
    store_thread = BatchStoreThread(user.database)
    state: ResumeState | None = None

    async def end() -> None:
        if state is not None and state.leave is not None:
            await state.leave()
        await store_thread.close()

    async def end_for_dead_user() -> None:
        """So that the same batch can be continued, while the engine of this process goes on."""
        await end()
        if out is not None:
            out.close()

    user.on_death.append(end_for_dead_user)
    try:
        if restarts_jobs:
            for earlier in await store_thread.call(partial(BatchStore.rounds, name=spec.name)):
                await asyncio.to_thread(agent_host_client.retire, earlier.id, at_once=True)
        state = await _resume(store_thread, options, spec, out)
        if command is not None:
            label: dict[str, Json] = {COMMAND: command.label()}
            id = round_id(spec.name, state.round)
            await store_thread.call(lambda store: store.set_labels(id, label))
        yield state
    finally:
        await end()


async def _resume(
    store_thread: BatchStoreThread, options: BatchOptions, spec: BatchSpec, out: OutputFile | None
) -> ResumeState:
    rounds = await store_thread.call(partial(BatchStore.rounds, name=spec.name))
    for earlier in rounds:
        if earlier.format != JOURNAL:
            raise stored_formats.unsupported(f"the batch {spec.name!r}", earlier.format, JOURNAL)
    written_before = None if out is None else out.known
    changed = _check_changes(options, spec, rounds, written_before or {})
    queue, is_limited, here = await _choose_queue(options, spec, store_thread.database)
    history = await store_thread.call(
        partial(_read_history, rounds=rounds, spec=spec, written_before=written_before)
    )
    redo = history.repeated_tasks(options)
    names, budget = await asyncio.to_thread(_open_budget, store_thread.database, spec, history)
    # The last round can be continued if its tasks have this budget.
    has_round = bool(rounds) and rounds[-1].run_input.config.budgets == names
    if changed or redo or not has_round:
        detached = store_thread.database.path is not None and options.queue is None
        run_config = spec.run_config(names, detached=detached)
        run_input = RunInput(
            run_id=spec.name,
            graph=spec.graph,
            config=run_config,
            queue=queue,
            at=clock.now(),
        )
        round = make_round(run_input, spec.digests, len(rounds) + 1, redo)
        output = "" if out is None else str(out.path.absolute())
        await store_thread.call(lambda store: store.begin(round.run_input, output))
    else:
        round = rounds[-1]
        await store_thread.call(lambda store: store.set_labels(round.id, {BATCH_CLOSED: None}))
    known = {name: each for name, each in history.known.items() if name not in redo}
    written = {} if out is None else await asyncio.to_thread(_remove_other_lines, out, known)
    if history.stale:
        await store_thread.call(partial(BatchStore.cancel, workflow_ids=history.stale))
    runner = DurableTaskJournal(
        store_thread=store_thread,
        round=round,
        in_flight={workflow: task for task, workflow in history.in_flight.items()},
        # What waits on a limited queue need not wait for this process when there is room again.
        window=2 * spec.concurrency + 8 if is_limited and here is None else spec.concurrency,
        queue=subqueue(queue, resource_of(spec.name)) if is_limited else queue,
        counts_crashes=not round.run_input.config.detached and options.queue is None,
        here=here,
        budget=budget,
    )
    with contextlib.suppress(OSError):  # if it matters, the tasks fail with it
        # Prompts and answers are readable by the owner only.
        await asyncio.to_thread(paths.make_dir, Path(round.run_input.config.folder))
    round_ids = [each.id for each in rounds]
    await store_thread.call(
        partial(BatchStore.take_over, workflows=round_ids, queue=queue, counts_crashes=False)
    )
    await runner.take_over()
    return ResumeState(
        known=_in_order(spec, known),
        written=written,
        todo=_tasks_to_run(spec, known, history.in_flight),
        in_flight=history.in_flight,
        round=round.number,
        runs_on=bool(round.run_input.config.detached),
        runner=runner,
        close=runner.close,
        leave=runner.leave,
    )


def _remove_other_lines(
    out: OutputFile, known: Mapping[str, BatchResult]
) -> dict[str, BatchResult]:
    """Remove all lines from the file but those of the known results; returns these. Blocking."""
    written = {name: line for name, line in out.known.items() if known.get(name) == line}
    if written.keys() != out.known.keys():
        out.replace(written)
    return written


def _is_repeated(options: BatchOptions, result: BatchResult) -> bool:
    """Whether a task is run again because of its result: it failed, or the budget was spent."""
    return not result.ok and (options.retry_failed or result.code == BudgetExceeded.code)


def _open_budget(
    database: Database, spec: BatchSpec, history: _History
) -> tuple[tuple[str, ...], Budget | None]:
    """The names of the stores of the batch, and its budget. Blocking. Raises
    ``StorageFailed``."""
    if not spec.limits.exist:
        return (), None
    from corral._engine import limits

    names = limits.create_budget(database, spec.name, spec.limits, _spent(history.known.values()))
    return names, limits.open_budget(names, spec.name, database)


def _spent(results: Iterable[BatchResult]) -> Spent:
    from corral._core.spending import Spent

    known = list(results)
    cost = sum(each.cost_usd or 0.0 for each in known)
    return Spent(cost, sum(each.tokens or 0 for each in known))


def _in_order(spec: BatchSpec, results: Mapping[str, BatchResult]) -> dict[str, BatchResult]:
    """The results in the order of the tasks."""
    return {name: results[name] for name in spec.tasks if name in results}


def _tasks_to_run(
    spec: BatchSpec, known: Mapping[str, BatchResult], in_flight: Mapping[str, str]
) -> list[BatchTask]:
    return [
        task for name, task in spec.tasks.items() if name not in known and name not in in_flight
    ]


async def _choose_queue(
    options: BatchOptions, spec: BatchSpec, target: Database
) -> tuple[str, bool, Executor | None]:
    """The queue for the tasks; whether a subqueue limits how many run at once, otherwise the window
    does; and the engine of this process, if no other takes the tasks."""
    if options.queue is not None:
        return options.queue, False, None
    resource = resource_of(spec.name)
    limit = QueueLimit(resource=resource, each=spec.concurrency)
    here = await process_engine.opened(target, limits=[limit])
    queue = here.own or DEFAULT_QUEUE
    is_limited = subqueue(queue, resource) in here.all_queues
    return queue, is_limited, here if here.own is not None else None


class _History(msgspec.Struct, kw_only=True):
    known: dict[str, BatchResult]
    in_flight: dict[str, str]
    stale: list[str]
    """Workflows in flight whose task has changed or was removed."""
    is_complete: bool
    """Whether the last round has finished the tasks that it repeats. If not, no new round
    starts."""

    def repeated_tasks(self, options: BatchOptions) -> list[str]:
        """The tasks to run again in a new round; none while the last round is not complete."""
        if not self.is_complete:
            return []
        return [name for name, each in self.known.items() if _is_repeated(options, each)]


def _read_history(
    store: BatchStore,
    *,
    rounds: list[Round],
    spec: BatchSpec,
    written_before: dict[str, BatchResult] | None,
) -> _History:
    known: dict[str, BatchResult] = {}
    found = find_workflows(store, rounds, spec.digests)
    ended, in_flight = found.ended, found.in_flight
    since = {name: round.number for round in rounds for name in round.redo}
    for name, line in (written_before or {}).items():
        if _is_current(spec, line) and line.round >= since.get(name, 1) and name not in in_flight:
            known[name] = line
            ended.pop(name, None)
    # A round has ended when its results are recorded. If the command was killed before, running it
    # again must finish that round, not start another.
    recorded = {*known} if written_before is not None else {*known, *ended}
    outcomes = store.outcomes_of([workflow for workflow, _ in ended.values()])
    for name, (workflow, number) in ended.items():
        if workflow in outcomes:
            known[name] = result_of(spec.tasks[name], outcomes[workflow], number)
    wanted = rounds[-1].redo if rounds else set[str]()
    return _History(
        known=known,
        in_flight=in_flight,
        stale=found.stale,
        is_complete=all(name in recorded for name in wanted if name in spec.tasks),
    )


def _is_current(spec: BatchSpec, line: BatchResult) -> bool:
    task = spec.tasks.get(line.id)
    return task is not None and task.digest == line.digest


def _check_changes(
    options: BatchOptions,
    spec: BatchSpec,
    rounds: Sequence[Round],
    written_before: dict[str, BatchResult],
) -> bool:
    """Whether the tasks have changed, and that was accepted. Raises ``ConfigError`` if it was
    not."""
    now = spec.digests
    if rounds:
        changes = difference(rounds[-1].digests, now)
    else:
        recorded = {name: line.digest for name, line in written_before.items()}
        changes = difference(recorded, {name: now[name] for name in now if name in recorded})
    if changes and not options.accept_changed:
        raise ConfigError(
            f"this is not the batch that was started as {spec.name!r}: {changes}",
            hint="With --accept-changed new and changed tasks are run, and unchanged results are"
            " kept. Or choose another --output.",
        )
    return bool(changes)
