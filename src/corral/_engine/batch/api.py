"""``corral.batch``: many tasks with one prompt; results one by one, and a report.

::

    report = await corral.batch(tasks, "Summarise {{file}}", agent="gemini", concurrency=8)

    async with corral.batch(tasks, "Summarise {{file}}", results="results.jsonl") as batch:
        async for result in batch:
            print(result.id, result.text)
    print(batch.report)

Batches are durable by default: a finished task is never run twice, whatever crashes, and the same
call continues where the last one stopped. In memory (``durable=False``) only the file of results is
written; tasks in it are not run again either. Both are runs of the engine: ``task_scheduler``
decides which task runs next, and ``rounds`` explains what a batch has in a database.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Unpack

import msgspec

from corral._core.spending import LimitKwargs
from corral._engine import process_engine
from corral._engine.batch.batch_spans import BatchSpans, batch_spans
from corral._engine.batch.results import (
    BatchReport,
    BatchResult,
    BatchTally,
    OutputFile,
    as_json,
    line_of,
    result_of,
)
from corral._engine.batch.rounds import (
    ResumeState,
    close,
    durable_round,
    plan_memory,
    spent_by,
)
from corral._engine.batch.spec import BatchKwargs, BatchOptions, BatchSpec, build_spec
from corral._engine.batch.stored_call import StoredCall
from corral._engine.batch.task_scheduler import is_left
from corral._engine.batch.tasks import TaskInput
from corral._engine.dbos.database import Database, require
from corral._engine.memory_runner import MemoryRun
from corral._engine.run_options import split_options
from corral._engine.worker.executor import unpack_options
from corral._pipelines.scheduler.outcome import Outcome
from corral._protocol.schema import Schema
from corral._publishing import published
from corral._system.clock import Stopwatch
from corral._system.threads import short_traceback_async, sync_twin
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs
from corral.values import Output, OutputT, T_co, convert_to

if TYPE_CHECKING:
    pass

__all__ = ["Batch", "BatchReport", "BatchResult", "as_json", "batch", "batch_sync", "line_of"]


def batch(
    tasks: Iterable[TaskInput] | str | os.PathLike[str],
    prompt: str = "{{task}}",
    *,
    output: Output[OutputT] | None = None,
    on_result: Callable[[BatchResult[OutputT], BatchReport[OutputT]], None] | None = None,
    **options: Unpack[BatchKwargs],
) -> Batch[OutputT]:
    """Run every task with an agent: ``await`` it for the report, or use ``async with`` and read the
    results one by one.

    ``tasks``: dicts, texts, or a file of them (one JSON value per line, or ``.csv``). ``prompt``:
    a template with ``{{field}}`` for each field, ``{{task}}`` for a text. ``output``: a type or a
    JSON Schema; every success then has a value of it. ``on_result`` is called with each result and
    the report so far. See ``BatchKwargs`` and ``RunKwargs`` for the ``options``: those of
    ``corral.run`` are for each task, and the limits among them for all tasks together.

    Errors in the call are raised at the start, before anything is spent; a failed task is not an
    error.

    ::

        report = await corral.batch(["a.py", "b.py"], "Summarize {{task}}", agent="gemini-cli")
        print(report.succeeded, report.failed)
    """
    own, run = split_options(options, BatchKwargs)
    chosen = BatchOptions(output=output, on_result=on_result, **own, run=run)
    return Batch(tasks, prompt, chosen)


batch_sync: Final = sync_twin(batch)
batch_sync.__doc__ = """
    ``batch`` for code that is not async, with the same arguments: runs to the end.

    ::

        report = corral.batch_sync(["a.py", "b.py"], "Summarise {{task}}", agent="gemini-cli")
        print(report.succeeded, report.failed)
    """


def stored_batch(
    name: str,
    *,
    db: str | None,
    concurrency: int | None,
    retry_failed: bool,
    on_result: Callable[[BatchResult, BatchReport], None] | None,
    **options: Unpack[RunKwargs],
) -> Batch[Any]:
    """A durable batch as it was called the last time, with these options besides. Raises
    ``ConfigError`` if its call is not stored on this machine."""
    call = StoredCall.read(name)

    chosen = BatchOptions(
        agent=call.agent,
        output=call.schema,
        results=call.results,
        name=name,
        concurrency=concurrency or call.concurrency,
        in_order=call.in_order,
        retry_failed=retry_failed,
        attempts=call.attempts,
        worktree=call.worktree,
        patch=call.patch,
        simulate=call.simulate,
        db=db,
        queue=call.queue,
        task=convert_to(call.task_limits, LimitKwargs),
        on_result=on_result,
        run={**unpack_options(call.options), **options},
    )
    return Batch(call.tasks, call.prompt, chosen)


class Batch(Generic[T_co]):
    """A batch; created by ``corral.batch``. ``Batch[Review]`` is one with ``output=Review``.

    ::

        async with corral.batch(["a.py", "b.py"], "Summarize {{task}}") as batch:
            async for result in batch:
                print(result.id, result.text)
        print(batch.report)
    """

    def __init__(
        self,
        tasks: Iterable[TaskInput] | str | os.PathLike[str],
        prompt: str,
        options: BatchOptions,
    ) -> None:
        self._tasks, self._prompt, self._options = tasks, prompt, options
        self.name: str = ""
        """Set when the batch has started."""
        self.runs_on: bool = False
        """Whether running tasks continue when this process ends."""
        self.collects = True
        """Whether the report contains the results."""
        self.restarts_jobs = False
        """Of ``service.resume``."""
        self._stopwatch = Stopwatch()
        self._tally = BatchTally("", 0)
        self._stopped: Literal["", "budget"] = ""
        self._collected: dict[str, BatchResult[T_co]] = {}
        self._unread: deque[BatchResult[T_co]] = deque()
        self._has_results = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._task_ids: Iterable[str] = ()
        self._schema: Schema[object] | None = None
        self._spans: BatchSpans | None = None

    # Public.

    def __await__(self) -> Generator[Any, None, BatchReport[T_co]]:
        return self.run_to_end().__await__()

    @short_traceback_async
    async def run_to_end(self) -> BatchReport[T_co]:
        """Run the batch to its end."""
        await self._drive()
        return self.report

    @short_traceback_async
    async def __aenter__(self) -> Batch[T_co]:
        self._task = asyncio.create_task(self._drive())
        await self._started.wait()
        if self._task.done():
            self._task.result()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()  # retrieved, so that asyncio does not log it

    async def __aiter__(self) -> AsyncIterator[BatchResult[T_co]]:
        if self._task is None:
            raise RuntimeError("open the batch first: async with corral.batch(...) as batch")
        while True:
            while self._unread:
                yield self._unread.popleft()
            if self._task.done():
                if not self._unread:
                    self._task.result()
                    return
                continue
            self._has_results.clear()
            await self._has_results.wait()

    @property
    def report(self) -> BatchReport[T_co]:
        """The report so far; complete when the batch has ended."""
        order = {task: self._collected[task] for task in self._task_ids if task in self._collected}
        return self._tally.report(
            seconds=self._stopwatch.seconds, stopped=self._stopped, results=order
        )

    @property
    def is_durable(self) -> bool:
        return self._options.durable

    @property
    def has_results_file(self) -> bool:
        """Whether results are written to a file."""
        return self._options.results is not None

    # Execution.

    async def _drive(self) -> None:
        try:
            await self._run_batch()
        finally:
            # Set by the loop later, when this task has ended.
            for event in (self._started, self._has_results):
                asyncio.get_running_loop().call_soon(event.set)

    async def _run_batch(self) -> None:
        self._stopwatch = Stopwatch()
        options = self._options
        if options.durable:
            require(or_in_memory=True)
        elif options.db is not None or options.queue is not None:
            raise ConfigError("db and queue need a durable batch")
        spec = await asyncio.to_thread(build_spec, self._tasks, self._prompt, options)
        self.name, self._tally = spec.name, BatchTally(spec.name, len(spec.tasks))
        self._task_ids = spec.tasks
        self._schema = spec.schema
        async with AsyncExitStack() as stack:
            out: OutputFile | None = None
            if options.results is not None:
                out = OutputFile(Path(options.results))
                stack.callback(out.close)
            own: MemoryRun | None = None
            target: Database | None = None
            if options.durable:
                user = await stack.enter_async_context(process_engine.used(options.db))
                target = user.database
                state = await stack.enter_async_context(
                    durable_round(options, spec, out, user, self.restarts_jobs)
                )
                if not options.agents:  # a call that was refused changes no stored one
                    call = StoredCall.of(spec, self._prompt, options)
                    await asyncio.to_thread(call.save, spec.name)
            else:
                state = plan_memory(options, spec, out)
                own = await stack.enter_async_context(_memory_run(spec, state))
            db = None if target is None else target.shown
            cwd = str(spec.workspace)
            title = self._prompt
            with published("batch", spec.name, title=title, cwd=cwd, db=db, budget=own):
                self._spans = await stack.enter_async_context(batch_spans(spec))
                await self._run(spec, state, out)
            if target is not None:
                await close(target, state, self.report)
        await self._notify(cwd, db)

    async def _notify(self, cwd: str, db: str | None) -> None:
        """Send the message of ``notify``, if it is wanted."""
        target = self._options.run.get("notify")
        if target is not None:
            from corral._publishing import notify

            report = self.report
            facts = notify.RunFacts(kind="batch", id=self.name, cwd=cwd, db=db)
            ended = notify.RunEnd(
                status=report.stopped or ("success" if report.ok else "fail"),
                text=f"{report.succeeded:,} of {report.total:,} tasks succeeded,"
                f" {report.failed:,} failed",
                seconds=report.seconds,
                cost_usd=report.cost_usd,
            )
            on = self._options.run.get("notify_on")
            await notify.send_messages(target, on, [notify.end_message(facts, ended)])

    async def _run(self, spec: BatchSpec, state: ResumeState, out: OutputFile | None) -> None:
        ordered = _ResultOrder(spec, out, state, in_order=self._options.in_order)
        self.runs_on = state.runs_on
        self._started.set()
        for result in state.known.values():
            self._report(result, earlier=True)
        await asyncio.to_thread(ordered.begin)
        round = state.round
        if round is not None and state.ends is not None:
            async for ends in state.ends:
                fresh: list[BatchResult] = []
                for task, outcome in ends:
                    if round.spends_budget(outcome):
                        self._stopped = "budget"
                    if is_left(outcome):
                        continue
                    fresh.append(result_of(spec.tasks[task], outcome, round.number))
                    if self._spans is not None:
                        self._spans.end(fresh[-1], spec.tasks[task])
                self._report_all(await asyncio.to_thread(ordered.add, fresh))
        self._report_all(await asyncio.to_thread(ordered.end))

    def _report_all(self, results: Iterable[BatchResult]) -> None:
        for result in results:
            self._report(result)

    def _report(self, result: BatchResult, *, earlier: bool = False) -> None:
        self._tally.add(result, earlier=earlier)
        if self._schema is not None:
            value = self._schema.fit(result.output)[0] if result.ok else msgspec.UNSET
            result = msgspec.structs.replace(result, _output=value)
        if self.collects:
            self._collected[result.id] = result
        if self._options.on_result is not None:
            self._options.on_result(result, self._tally.report(seconds=self._stopwatch.seconds))
        if self._task is not None:
            self._unread.append(result)
            self._has_results.set()


@asynccontextmanager
async def _memory_run(spec: BatchSpec, state: ResumeState) -> AsyncGenerator[MemoryRun]:
    """The run of a batch in memory, whose outcomes are ``state.ends``. It has ended after the
    block."""
    outcomes: asyncio.Queue[tuple[str, Outcome] | None] = asyncio.Queue()

    async def take() -> AsyncGenerator[list[tuple[str, Outcome]]]:
        is_over = False
        while not is_over:
            ended = [await outcomes.get()]
            while not outcomes.empty():  # they are written together
                ended.append(outcomes.get_nowait())
            is_over = None in ended
            yield [each for each in ended if each is not None]
        await driving

    async with spec.resources() as resources:
        run = MemoryRun(
            spec.graph,
            resources=resources,
            workspace=spec.workspace,
            run_id=spec.name,
            batch=state.round,
            on_outcome=lambda task, outcome: outcomes.put_nowait((task, outcome)),
        )
        if run.budget is not None:
            run.budget.record(spent_by(state.known.values()))
        driving = asyncio.create_task(run.drive())
        driving.add_done_callback(lambda _: outcomes.put_nowait(None))
        state.ends = take()
        try:
            yield run
        finally:
            driving.cancel()
            await asyncio.wait({driving})


class _ResultOrder:
    """Writes results to the file, in the order that was asked for."""

    def __init__(
        self, spec: BatchSpec, out: OutputFile | None, state: ResumeState, *, in_order: bool
    ) -> None:
        self._tasks = list(spec.tasks)
        self._out = out
        self._in_order = in_order
        self._waiting: dict[str, BatchResult] = {}
        self._at = 0
        self._written = dict(state.written)
        self._known = state.known
        there = list(state.written)
        self._sorts = in_order and there != self._tasks[: len(there)]
        """The file has gaps because some tasks are run again: it is sorted at the end."""

    def begin(self) -> None:
        """Write known results that are not in the file."""
        self.add([each for key, each in self._known.items() if key not in self._written])

    def add(self, results: list[BatchResult]) -> list[BatchResult]:
        """Write the results whose turn it is; returns those that are new."""
        if not self._in_order or self._sorts:
            return self._put(results)
        self._waiting |= {each.id: each for each in results}
        ready: list[BatchResult] = []
        while self._at < len(self._tasks):
            name = self._tasks[self._at]
            if name in self._waiting:
                ready.append(self._waiting.pop(name))
            elif name not in self._written:
                break
            self._at += 1
        return self._put(ready)

    def end(self) -> list[BatchResult]:
        """Write the rest: results before them are missing and will not arrive."""
        rest = self._put([self._waiting[name] for name in self._tasks if name in self._waiting])
        if self._sorts and self._out is not None:
            self._out.replace({n: self._written[n] for n in self._tasks if n in self._written})
        return rest

    def _put(self, results: list[BatchResult]) -> list[BatchResult]:
        if self._out is not None:
            self._out.write(results)
            if self._sorts:
                self._written |= {each.id: each for each in results}
        return [each for each in results if each.id not in self._known]
