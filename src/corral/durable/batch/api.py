"""``corral.batch``: many tasks through one prompt, each result as it comes, and a report.

::

    report = await corral.batch(tasks, "Summarise {{file}}", agent="gemini", concurrency=8)

    async with corral.batch(tasks, "Summarise {{file}}", results="results.jsonl") as batch:
        async for result in batch:
            print(result.id, result.text)
    print(batch.report)

Durable unless told otherwise: a task that is done is never done twice, whatever dies
meanwhile; the same call goes on where the last one was. In memory (``durable=False``) the
file of results is all that is kept, and what is in it is not done again either.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Unpack, cast

import msgspec

from corral.durable import api
from corral.durable.batch import spec
from corral.durable.batch.output_file import Output
from corral.durable.batch.results import (
    BatchReport,
    BatchResult,
    Tally,
    as_json,
    line_of,
    result_of,
)
from corral.durable.batch.resume import ResumeState, durable_standing, standing_of
from corral.durable.batch.runner import InMemory, Working
from corral.durable.batch.spec import BatchSpec
from corral.durable.batch.tasks import Given
from corral.durable.dbos import adapter
from corral.errors import ConfigError
from corral.options import RunKwargs
from corral.protocol.schema.build import Schema
from corral.sessions.api import blocking

__all__ = ["Batch", "BatchReport", "BatchResult", "as_json", "batch", "batch_sync", "line_of"]


def batch(
    tasks: Iterable[Given] | str | os.PathLike[str],
    prompt: str = "{{task}}",
    *,
    agent: str | None = None,
    output: Any = None,
    results: str | os.PathLike[str] | None = None,
    name: str | None = None,
    concurrency: int = 4,
    in_order: bool = False,
    retry_failed: bool = False,
    accept_changed: bool = False,
    attempts: int = 3,
    worktree: bool = False,
    patch: bool = False,
    simulate: bool = False,
    durable: bool = True,
    db: str | None = None,
    queue: str | None = None,
    on_result: Callable[[BatchResult, BatchReport], None] | None = None,
    **options: Unpack[RunKwargs],
) -> Batch:
    """Put every task to an agent: ``await`` it for the report, or ``async with`` it and read
    the results as they come.

    ``tasks`` are dicts, texts, or a file of them (JSON a line, or ``.csv``); ``prompt`` has a
    hole ``{{field}}`` for each field it needs, ``{{task}}`` for a text. ``output``, a type or a
    JSON Schema, makes every success a value of it. ``results`` is a file, a line each, from
    which, or by ``name``, the same call goes on after a crash; ``retry_failed`` tries those
    again that failed. ``max_budget_usd`` is for the whole batch: beyond it no task is begun.
    ``worktree`` gives each task a git worktree at HEAD, and keeps what it did as a branch.
    ``attempts`` are made at a task whose failure may pass. ``options`` are those of
    ``corral.run``. What is wrong with the call is raised when it is begun, before anything is
    spent; a task that fails is no error.
    """
    given = {
        "agent": agent,
        "name": name,
        "concurrency": concurrency,
        "attempts": attempts,
        "worktree": worktree,
        "patch": patch,
        "simulate": simulate,
    }
    return Batch(
        tasks,
        prompt,
        given,
        cast("dict[str, Any]", options),
        output=output,
        results=None if results is None else Path(results),
        in_order=in_order,
        retry_failed=retry_failed,
        accept_changed=accept_changed,
        durable=durable,
        db=db,
        queue=queue,
        on_result=on_result,
    )


def batch_sync(
    tasks: Iterable[Given] | str | os.PathLike[str], prompt: str = "{{task}}", **given: Any
) -> BatchReport:
    """``map`` for code that is not async; the same arguments."""
    return blocking(batch(tasks, prompt, **given).run_to_end())


class Batch:
    """Made by ``corral.batch``."""

    def __init__(
        self,
        tasks: Iterable[Given] | str | os.PathLike[str],
        prompt: str,
        given: dict[str, Any],
        options: dict[str, Any],
        *,
        output: Any,
        results: Path | None,
        in_order: bool,
        retry_failed: bool,
        accept_changed: bool,
        durable: bool,
        db: str | None,
        queue: str | None,
        on_result: Callable[[BatchResult, BatchReport], None] | None,
    ) -> None:
        self._tasks, self._prompt = tasks, prompt
        self._given, self._options = given, options
        self._wanted, self._results = output, results
        self._in_order = in_order
        self.retry_failed, self.accept_changed = retry_failed, accept_changed
        self.durable, self.db, self.queue = durable, db, queue
        self._on_result = on_result
        self.name = ""
        """Once it is begun."""
        self.lingers = False
        """Whether what is under way goes on when this process ends."""
        self.collects = True
        """Whether the report is to hold the results."""
        self._began = time.monotonic()
        self._tally = Tally("", 0)
        self._stopped: Literal["", "budget"] = ""
        self._collected: dict[str, BatchResult] = {}
        self._unread: deque[BatchResult] = deque()
        self._news = asyncio.Event()
        self._driving: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._order: Iterable[str] = ()
        self._schema: Schema[Any] | None = None

    # How it is used.

    def __await__(self) -> Generator[Any, None, BatchReport]:
        return self.run_to_end().__await__()

    async def run_to_end(self) -> BatchReport:
        """To its end."""
        await self._drive()
        return self.report

    async def __aenter__(self) -> Batch:
        self._driving = asyncio.create_task(self._drive())
        await self._begun.wait()
        if self._driving.done():
            self._driving.result()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._driving is not None:
            self._driving.cancel()
            await asyncio.wait({self._driving})
            if not self._driving.cancelled():
                self._driving.exception()  # told to whoever reads, or nobody does

    async def __aiter__(self) -> AsyncIterator[BatchResult]:
        if self._driving is None:
            raise RuntimeError("open the batch first: async with corral.batch(...) as batch")
        while True:
            while self._unread:
                yield self._unread.popleft()
            if self._driving.done():
                if not self._unread:
                    self._driving.result()
                    return
                continue
            self._news.clear()
            await self._news.wait()

    @property
    def report(self) -> BatchReport:
        """As far as it is; whole when the batch has ended."""
        order = {task: self._collected[task] for task in self._order if task in self._collected}
        return self._tally.report(
            seconds=time.monotonic() - self._began, stopped=self._stopped, results=order
        )

    @property
    def keeps(self) -> bool:
        """Whether there is a file of results."""
        return self._results is not None

    # How it goes.

    async def _drive(self) -> None:
        try:
            await self._through()
        finally:
            # When whoever waits is woken, the task that this is has ended.
            for event in (self._begun, self._news):
                asyncio.get_running_loop().call_soon(event.set)

    async def _through(self) -> None:
        self._began = time.monotonic()
        if self.durable:
            adapter.require()
        elif self.db is not None or self.queue is not None:
            raise ConfigError("a batch in memory has no database and no queue")
        terms = await asyncio.to_thread(self._agree)
        self.name, self._tally = terms.name, Tally(terms.name, len(terms.tasks))
        self._order = terms.tasks
        self._schema = terms.schema
        async with AsyncExitStack() as stack:
            out: Output | None = None
            if self._results is not None:
                out = Output(self._results)
                stack.callback(out.close)
            if self.durable:
                await stack.enter_async_context(api.engine())
                standing = await stack.enter_async_context(durable_standing(self, terms, out))
            else:
                standing = standing_of(self, terms, out)
                hands = InMemory(
                    terms.graph,
                    terms.name,
                    desk=terms.desk(),
                    workspace=terms.workspace,
                    concurrency=terms.concurrency,
                )
                standing.hands = await stack.enter_async_context(hands)
            await self._run(terms, standing, out)

    def _agree(self) -> BatchSpec:
        schema = None
        if self._wanted is not None:
            from corral.sessions.structured_output import answer_schema

            schema = answer_schema(self._wanted)
        return spec.agree(
            self._tasks,
            self._prompt,
            schema=schema,
            results=self._results,
            elsewhere=self.queue is not None,
            options=self._options,
            **self._given,
        )

    async def _run(self, terms: BatchSpec, standing: ResumeState, out: Output | None) -> None:
        line = _Line(terms, out, standing, in_order=self._in_order)
        self.lingers = standing.lingers
        self._begun.set()
        for result in standing.known.values():
            self._tell(result, earlier=True)
        await asyncio.to_thread(line.begin)
        todo = deque(standing.todo)
        flying = set(standing.flying)
        spent = sum(each.cost_usd or 0.0 for each in standing.known.values())
        hands = cast("Working", standing.hands)
        while todo or flying:
            if terms.budget is not None and spent >= terms.budget:
                if todo:
                    self._stopped = "budget"
                todo.clear()
            room = (terms.concurrency if terms.budget else hands.window) - len(flying)
            more = [todo.popleft() for _ in range(min(room, len(todo)))]
            if more:
                flying |= {task.id for task in more}
                await hands.submit(more)
            if not flying:
                break
            fresh: list[BatchResult] = []
            for task, outcome in await hands.finished():
                flying.discard(task)
                result = result_of(terms.tasks[task], outcome, standing.round)
                spent += result.cost_usd or 0.0
                fresh.append(result)
            self._show(await asyncio.to_thread(line.add, fresh))
        self._show(await asyncio.to_thread(line.end))
        if standing.close is not None:
            await standing.close(self.report)

    def _show(self, results: Iterable[BatchResult]) -> None:
        for result in results:
            self._tell(result)

    def _tell(self, result: BatchResult, *, earlier: bool = False) -> None:
        self._tally.add(result, earlier=earlier)
        if self._schema is not None and result.ok:
            value, _ = self._schema.fit(result.output)
            result = msgspec.structs.replace(result, output=value)
        if self.collects:
            self._collected[result.id] = result
        if self._on_result is not None:
            self._on_result(result, self._tally.report(seconds=time.monotonic() - self._began))
        if self._driving is not None:
            self._unread.append(result)
            self._news.set()


class _Line:
    """Results on their way into the file, and in what order."""

    def __init__(
        self, terms: BatchSpec, out: Output | None, standing: ResumeState, *, in_order: bool
    ) -> None:
        self._tasks = list(terms.tasks)
        self._out = out
        self._in_order = in_order
        self._waiting: dict[str, BatchResult] = {}
        self._at = 0
        self._written = dict(standing.written)
        self._known = standing.known
        there = list(standing.written)
        self._sorts = in_order and there != self._tasks[: len(there)]
        """The file has gaps, as some are tried again: it is sorted at the end."""

    def begin(self) -> None:
        """What the file lacks of what is known."""
        self.add([each for key, each in self._known.items() if key not in self._written])

    def add(self, results: list[BatchResult]) -> list[BatchResult]:
        """On the disk what may be by now; returns what of it is new."""
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
        """The rest, where some before them will not come."""
        left = self._put([self._waiting[name] for name in self._tasks if name in self._waiting])
        if self._sorts and self._out is not None:
            self._out.replace({n: self._written[n] for n in self._tasks if n in self._written})
        return left

    def _put(self, results: list[BatchResult]) -> list[BatchResult]:
        if self._out is not None:
            self._out.write(results)
            if self._sorts:
                self._written |= {each.id: each for each in results}
        return [each for each in results if each.id not in self._known]
