"""Durable batches: the runs that execute their tasks, and what is still to do.

Theory of operation
-------------------
A batch has *rounds*, each of which is a run of the engine (``BatchScheduler``). The first one has
the batch's name as id. Tasks that are repeated (``--retry-failed``), changed (``--accept-changed``)
or left at a budget run in another one (``batch#2``), and earlier results stay as they are. A round
has the ids and digests of all tasks, and the fields of those that it runs.

The process that runs the batch starts a round, or resumes the one that has not ended, and follows
its journal: each end of a visit is a result, which it writes to the file. So states of tasks are
read from journals and from the file of results, and nowhere else.

Guarantees
* A task that has ended in a round is never run again in that round.
* The same call continues after any crash; the results file has each result once.

Crashes
* The process that runs the batch dies: its run is resumed when the same command is run again.
  Detached tasks continue in their agent host meanwhile.
* A worker of the queue dies: another one takes over the run, or its tasks.
* A task kills its process: ``worker.node_workflow.LocalNodes`` explains it.

A round whose results were all written has the label ``BATCH_CLOSED``: only then failed tasks are
repeated in another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from corral._core import stored_formats
from corral._core.lookup import try_id
from corral._core.stored_formats import JOURNAL
from corral._engine import service
from corral._engine.batch.results import (
    BatchReport,
    BatchResult,
    BatchStatus,
    BatchSummary,
    OutputFile,
    result_of,
)
from corral._engine.batch.task_scheduler import CONCURRENCY, NODE, BatchRound, RoundTask, is_left
from corral._engine.batch.tasks import difference
from corral._engine.dbos import database
from corral._engine.dbos.client import (
    NO_WORKERS,
    DatabaseClient,
    WorkflowInfo,
    open_client,
    with_client,
)
from corral._engine.dbos.database import OPEN_STATES, reading, storage_errors
from corral._engine.payloads import BATCH_CLOSED, BATCH_WORKFLOW, RunInput, pack, unpack
from corral._engine.query import JournalReader, ends_in, follow_ends, run_output
from corral._engine.worker import executor, run_workflow
from corral._engine.worker.executor import CLOSE
from corral._pipelines.scheduler.commands import Steered
from corral._pipelines.scheduler.outcome import Outcome
from corral._system import clock, paths
from corral.errors import BudgetExceeded, ConfigError, FormatUnsupported, StorageFailed
from corral.values import Json

if TYPE_CHECKING:
    from corral._core.spending import Spent
    from corral._engine.batch.spec import BatchOptions, BatchSpec
    from corral._engine.dbos.database import Database
    from corral._engine.process_engine import EngineUser

T = TypeVar("T")

KIND = "kind"
"""The label of rounds that says whether they are a comparison's."""
MAX_TASKS = 400_000_000
"""Characters of all tasks together: they are one value in the database."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    row: WorkflowInfo
    run_input: RunInput
    tasks: dict[str, RoundTask]
    """All tasks of the batch, by id; those without fields are not run in it."""

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def number(self) -> int:
        return 1 if self.run_input.batch is None else self.run_input.batch.number

    @property
    def digests(self) -> dict[str, str]:
        return {task.id: task.digest for task in self.tasks.values()}

    @property
    def is_closed(self) -> bool:
        """Whether all its results were reported."""
        return bool(self.row.labels.get(BATCH_CLOSED))


def read_rounds(client: DatabaseClient, name: str) -> list[Round]:
    """The rounds of a batch. Blocking. Raises ``ConfigError`` if the name is that of a run, and
    ``FormatUnsupported`` if an earlier corral has stored it."""
    rounds: list[Round] = []
    while (row := client.get_workflow(try_id(name, len(rounds) + 1))) is not None:
        if row.name != BATCH_WORKFLOW:
            raise ConfigError(f"{name!r} is the name of a run", hint="Choose another name.")
        with reading(row.id, row.format):
            run_input = unpack(row.input, RunInput)
            batch = run_input.batch
            tasks = [] if batch is None else [*batch.all_tasks()]
        if batch is None:
            what = f"the batch {name!r}"
            if row.format != JOURNAL:
                raise stored_formats.unsupported(what, row.format, JOURNAL)
            raise FormatUnsupported(
                f"{what} was stored by an earlier corral: use that one, or another --name with the"
                " same --output"
            )
        by_id = {task.id: task for task in tasks}
        run_input = run_input.without_tasks()
        rounds.append(Round(row=row, run_input=run_input, tasks=by_id))
    return rounds


class TaskEnds(msgspec.Struct, kw_only=True):
    """What the journals of a batch say about its tasks."""

    outcomes: dict[str, tuple[Outcome, int]]
    """Task -> its outcome and the number of its round."""
    reader: JournalReader
    """Of the last round: what it reads next is not in the outcomes."""


def read_ends(
    client: DatabaseClient, rounds: Sequence[Round], digests: Mapping[str, str]
) -> TaskEnds:
    """The outcomes of the tasks with these digests. Blocking."""
    found: dict[str, tuple[Outcome, int]] = {}
    reader = JournalReader(client, rounds[-1].id if rounds else "")
    for round in rounds:
        for task in round.tasks.values():
            if task.fields is not None and digests.get(task.id) == task.digest:
                found.pop(task.id, None)  # its earlier result does not count any more
        reader = JournalReader(client, round.id)
        while entries := reader.read_new():
            with reading(round.id, round.row.format):
                ends = [end for entry in entries for end in ends_in(entry)]
            for end in ends:
                asked = round.tasks.get(end.id)
                fits = asked is not None and digests.get(end.id) == asked.digest
                if fits and not is_left(end.outcome):
                    found[end.id] = (end.outcome, round.number)
    return TaskEnds(outcomes=found, reader=reader)


class ResumeState(msgspec.Struct, kw_only=True):
    """What is done, and what comes."""

    known: dict[str, BatchResult]
    """Results so far, in the order of the tasks."""
    written: dict[str, BatchResult]
    """Those of them that are in the file, in the order of the file."""
    round: BatchRound | None = None
    """The tasks that run now."""
    run: str = ""
    """The run that executes them, if the batch is durable."""
    ends: AsyncGenerator[list[tuple[str, Outcome]]] | None = None
    runs_on: bool = False
    """Whether running tasks continue when this process ends."""
    is_over: bool = False
    """Whether the run has ended."""


def plan_memory(options: BatchOptions, spec: BatchSpec, out: OutputFile | None) -> ResumeState:
    """The state of a batch in memory, from its file of results. Raises ``ConfigError``."""
    written_before = {} if out is None else out.known
    _check_changes(options, spec, [], written_before)
    known = {
        name: line
        for name, line in written_before.items()
        if _is_current(spec, line) and not _is_repeated(options, line)
    }
    return ResumeState(
        known=_in_order(spec, known),
        written=_remove_other_lines(out, known),
        round=_new_round(options, spec, spec.tasks.keys() - known.keys(), 1),
    )


@asynccontextmanager
async def durable_round(
    options: BatchOptions,
    spec: BatchSpec,
    out: OutputFile | None,
    user: EngineUser,
    restarts_jobs: bool = False,
) -> AsyncGenerator[ResumeState]:
    """The state of a durable batch, whose run is executed meanwhile. ``restarts_jobs``: of
    ``service.resume``. Raises ``ConfigError``."""
    target, name = user.database, spec.name
    await asyncio.to_thread(database.check_not_elsewhere, target, f"the batch {name!r}", name)
    await asyncio.to_thread(database.prepare, target)
    state: ResumeState | None = None

    async def stop() -> None:
        if options.queue is None and state is not None and state.ends and not state.is_over:
            await leave(target, state.run)

    async def end_for_dead_user() -> None:
        """So that the same batch can be continued, while the engine of this process goes on."""
        await stop()
        if out is not None:
            out.close()

    user.on_death.append(end_for_dead_user)
    async with open_client(target) as client:
        try:
            state = await _begin(target, client, options, spec, out, restarts_jobs)
            yield state
        finally:
            await stop()


async def leave(target: Database, run: str) -> None:
    """Stop to execute a run in this process: it waits until it is resumed."""
    here = executor.running()
    if here is None or here.database != target or here.failed is not None:
        return  # its executor is dead, or it has failed

    def put_back(client: DatabaseClient) -> None:
        if client.state(run) in OPEN_STATES:
            client.resume([run], NO_WORKERS)

    with contextlib.suppress(RuntimeError, TimeoutError, StorageFailed):
        stopped = here.call(run_workflow.leave(run))
        await asyncio.wait_for(asyncio.wrap_future(stopped), CLOSE)
        await with_client(target, put_back)


async def _begin(
    target: Database,
    client: DatabaseClient,
    options: BatchOptions,
    spec: BatchSpec,
    out: OutputFile | None,
    restarts_jobs: bool,
) -> ResumeState:
    """Start a round, or resume the one that has not ended."""

    async def call(action: Callable[[DatabaseClient], T]) -> T:
        with storage_errors(target):
            return await asyncio.to_thread(action, client)

    rounds = await call(partial(read_rounds, name=spec.name))
    for earlier in rounds:
        earlier.row.check_format()
    written_before = None if out is None else out.known
    changed = _check_changes(options, spec, rounds, written_before or {})
    ends = await call(partial(read_ends, rounds=rounds, digests=spec.digests))
    known = _known_results(spec, rounds, ends, written_before or {})
    names = await asyncio.to_thread(_create_budget, target, spec, known)
    last = rounds[-1] if rounds else None
    is_open = last is not None and not last.row.has_ended
    labels: dict[str, Json] = {}
    reader, db = ends.reader, options.db
    if last is not None and is_open and not changed and last.run_input.config.budgets == names:
        round, config, run = last.run_input.batch, last.run_input.config, last.id
        if round is not None and round.concurrency != options.concurrency:
            message = pack(Steered(updates={CONCURRENCY: options.concurrency}))
            await call(lambda client: client.send(run, message))
        await call(lambda client: client.set_labels(run, {BATCH_CLOSED: None}))
        written = await asyncio.to_thread(_remove_other_lines, out, known)
        await service.resume(run, db=db, queue=options.queue, restarts_jobs=restarts_jobs)
    else:
        if last is not None and is_open:
            await service.cancel(last.id, db=db, reason="the batch has changed")
        can_repeat = last is None or last.is_closed
        known = {
            name: each
            for name, each in known.items()
            if not _is_repeated(options, each, can_repeat=can_repeat)
        }
        executed = spec.tasks.keys() - known.keys()
        run = try_id(spec.name, len(rounds) + 1)
        round = _new_round(options, spec, executed, len(rounds) + 1)
        detached = target.path is not None and options.queue is None
        config = spec.run_config(run, names, detached=detached)
        written = await asyncio.to_thread(_remove_other_lines, out, known)
        if executed or changed or last is None:
            with contextlib.suppress(OSError):  # if it matters, the tasks fail with it
                # Prompts and answers are readable by the owner only.
                await asyncio.to_thread(paths.make_dir, Path(config.folder))
            labels["goal"] = spec.graph.nodes[NODE].text("prompt")[: service.GOAL]
            labels[KIND] = "compare" if options.agents else "batch"
            labels["output"] = "" if out is None else str(out.path.absolute())
            run_input = RunInput(run_id=run, graph=spec.graph_of_run, config=config, batch=round)
            await service.start(run_input, db=db, queue=options.queue, labels=labels)
            reader = JournalReader(client, run)
        else:  # all has been done
            run = last.id
    state = ResumeState(
        known=_in_order(spec, known),
        written=written,
        round=None if round is None else msgspec.structs.replace(round, tasks=""),
        run=run,
        runs_on=bool(config.detached),
    )
    state.ends = _follow(reader, client, target, state)
    return state


async def _follow(
    reader: JournalReader, client: DatabaseClient, target: Database, state: ResumeState
) -> AsyncGenerator[list[tuple[str, Outcome]]]:
    """The outcomes of tasks that are not known yet, as they come."""
    seen = {*state.known}
    loop, has_news = asyncio.get_running_loop(), asyncio.Event()

    def listen() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(has_news.set)

    async def wait(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(has_news.wait(), seconds)
        has_news.clear()

    with run_workflow.listened(state.run, listen):
        async for ends in follow_ends(reader, client, target, state.run, wait):
            fresh = {end.id: end.outcome for end in ends if end.id not in seen}
            seen |= fresh.keys()
            if fresh:
                yield [*fresh.items()]
    state.is_over = True


async def close(target: Database, state: ResumeState, report: BatchReport) -> None:
    """All results were written: store the summary. Raises ``ConfigError`` if the engine ended the
    run before all tasks were done."""

    def store(client: DatabaseClient) -> None:
        output = run_output(client, state.run)
        is_left = report.left and not report.stopped
        if is_left and output is not None and output.status == "fail":
            raise ConfigError(f"{report.left:,} tasks were not run: {output.reason}")
        set_summary(client, state.run, report, "cancelled" if is_left else None)

    await with_client(target, store)


def set_summary(
    client: DatabaseClient, run: str, report: BatchReport, status: BatchStatus | None = None
) -> None:
    """Store the summary of a batch with its last round. Blocking."""
    summary = BatchSummary(
        status=status or report.stopped or ("success" if report.ok else "fail"),
        at=clock.now(),
        total=report.total,
        succeeded=report.succeeded,
        failed=report.failed,
        cost_usd=report.cost_usd,
    )
    client.set_labels(run, {BATCH_CLOSED: pack(summary)})


def _new_round(
    options: BatchOptions, spec: BatchSpec, executed: Collection[str], number: int
) -> BatchRound:
    """Raises ``ConfigError`` if the tasks are too large."""
    text = BatchRound.text_of(spec.tasks.values(), executed)
    if len(text) > MAX_TASKS:
        raise ConfigError(
            f"the tasks have {len(text):,} characters together, more than {MAX_TASKS:,}",
            hint="Leave {{content}} out of the prompt, or make several batches.",
        )
    return BatchRound(
        tasks=text,
        number=number,
        concurrency=options.concurrency,
        has_own_limits=any(options.task.values()) or bool(options.agents),
    )


def _known_results(
    spec: BatchSpec,
    rounds: Sequence[Round],
    ends: TaskEnds,
    written_before: Mapping[str, BatchResult],
) -> dict[str, BatchResult]:
    """The results that count, by task: those in the file, and those that only a journal has."""
    since: dict[str, int] = {}
    for round in rounds:
        for task in round.tasks.values():
            if task.fields is not None and spec.digests.get(task.id) == task.digest:
                since[task.id] = round.number
    known = {
        name: line
        for name, line in written_before.items()
        if _is_current(spec, line) and line.round >= since.get(name, 1)
    }
    for name, (outcome, number) in ends.outcomes.items():
        if name not in known:
            known[name] = result_of(spec.tasks[name], outcome, number)
    return known


def _remove_other_lines(
    out: OutputFile | None, known: Mapping[str, BatchResult]
) -> dict[str, BatchResult]:
    """Remove all lines from the file but those of the known results; returns these. Blocking."""
    if out is None:
        return {}
    written = {name: line for name, line in out.known.items() if known.get(name) == line}
    if written.keys() != out.known.keys():
        out.replace(written)
    return written


def _is_repeated(options: BatchOptions, result: BatchResult, *, can_repeat: bool = True) -> bool:
    """Whether a task is run again because of its result: it failed, or the budget was spent."""
    is_spent = result.code == BudgetExceeded.code
    return not result.ok and (is_spent or (options.retry_failed and can_repeat))


def _create_budget(
    database: Database, spec: BatchSpec, known: Mapping[str, BatchResult]
) -> tuple[str, ...]:
    """The names of the stores that all rounds share. Blocking. Raises ``StorageFailed``."""
    if not spec.limits.exist:
        return ()
    from corral._engine import limits

    return limits.create_budget(database, spec.name, spec.limits, spent_by(known.values()))


def spent_by(results: Iterable[BatchResult]) -> Spent:
    from corral._core.spending import Spent

    known = list(results)
    cost = sum(each.cost_usd or 0.0 for each in known)
    return Spent(cost, sum(each.tokens or 0 for each in known))


def _in_order(spec: BatchSpec, results: Mapping[str, BatchResult]) -> dict[str, BatchResult]:
    """The results in the order of the tasks."""
    return {name: results[name] for name in spec.tasks if name in results}


def _is_current(spec: BatchSpec, line: BatchResult) -> bool:
    task = spec.tasks.get(line.id)
    return task is not None and task.digest == line.digest


def _check_changes(
    options: BatchOptions,
    spec: BatchSpec,
    rounds: Sequence[Round],
    written_before: Mapping[str, BatchResult],
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
