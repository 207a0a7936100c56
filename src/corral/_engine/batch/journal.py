"""What starts the tasks of a batch and delivers their outcomes, for the loop in ``Batch``.

Theory of operation
-------------------
The loop submits tasks to a ``TaskJournal`` and takes the outcomes that come of it. There are two:
``MemoryTaskJournal`` runs tasks of this event loop, and nothing survives the process; the tasks of
a ``DurableTaskJournal`` are workflows of a database (``store`` explains them).

The workflows of a durable batch wait on a queue, and workers or the engine of this process take
them. But a queue only delays tasks that no other process would take. So the process of a batch
without workers claims its tasks when it submits them (``claims``), makes the first attempt of each
as a task of its engine, and stores the outcomes of all that ended meanwhile in one transaction. In
the database they look like tasks that the engine has taken from the queue. Everything that is not
the usual case is left to the queue, where the engine runs the task as a workflow:

* an attempt that is to be repeated after a pause: its result is stored as the first step of the
  workflow, which continues with the pause;
* tasks that another process left behind, and those that are suspected of killing it.

Crashes: an attempt without a stored outcome is made again, by the workflow, when the batch
continues. If it runs in an agent host, the running or finished job is found there.

Tasks that are cancelled from outside are noticed within ``CHECK`` seconds. If the batch itself is
interrupted, its claimed tasks are put on a queue without workers: they wait until the batch is
continued.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from corral._core.spending import Raise
from corral._engine.agent_host import client as agent_host_client
from corral._engine.batch.batch_store import BatchStore, BatchStoreThread, Round
from corral._engine.batch.results import BatchReport
from corral._engine.batch.tasks import NODE, BatchTask, task_visit
from corral._engine.dbos.claims import Claims
from corral._engine.dbos.client import NO_WORKERS
from corral._engine.node_runner import AttemptResult, DueAttempt, NodeRunner
from corral._engine.payloads import pack
from corral._engine.worker import executor, node_workflow
from corral._engine.worker.executor import CLOSE, Executor
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.graph import Graph
from corral._pipelines.scheduler.commands import RunNode
from corral._pipelines.scheduler.outcome import Outcome
from corral._system import clock
from corral.errors import ConfigError, StorageFailed
from corral.values import Json

if TYPE_CHECKING:
    from corral._metering.budget import Budget

FIRST_POLL, LAST_POLL = 0.03, 0.5
"""Seconds between two polls for results: after a result, and at most."""
TAKE_OVER = 5.0
"""Seconds without a result until the executors of the tasks are checked."""
CHECK = 1.0
"""Seconds between two checks whether claimed tasks were cancelled."""
GATHER = 0.002
"""Seconds to wait for more outcomes when there is one: they are stored together."""


class TaskJournal(Protocol):
    @property
    def budget(self) -> Budget | None:
        """What the model calls of all tasks together may use."""
        ...

    @property
    def window(self) -> int:
        """How many tasks may be submitted and not ended."""
        ...

    async def submit(self, tasks: Sequence[BatchTask]) -> None: ...

    async def finished(self) -> list[tuple[str, Outcome]]:
        """Outcomes of tasks that have ended, by task id; waits until there is one."""
        ...


class MemoryTaskJournal:
    """A context manager: when it exits, all tasks that it started have ended."""

    def __init__(
        self,
        graph: Graph,
        name: str,
        *,
        resources: NodeResources,
        workspace: Path,
        concurrency: int,
        budget: Budget | None = None,
    ) -> None:
        self.window = concurrency
        self.budget = budget
        self._resources = resources
        self._runner = NodeRunner(
            graph=graph, run_id=name, resources=resources, workspace=workspace, budget=budget
        )
        self._tasks: dict[asyncio.Task[Outcome], str] = {}

    async def __aenter__(self) -> MemoryTaskJournal:
        await self._resources.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._resources.__aexit__()
        self._runner.close()

    async def submit(self, tasks: Sequence[BatchTask]) -> None:
        for task in tasks:
            running = self._runner.run(task_visit(task), on_retry=lambda _retrying: None)
            self._tasks[asyncio.create_task(running)] = task.id

    def add_budget(self, more: Raise) -> None:
        """Raise the limits of the batch by these amounts. Raises ``ConfigError``."""
        if self.budget is None:
            raise ConfigError("the batch has no budget")
        self.budget.raise_limits(more)

    async def finished(self) -> list[tuple[str, Outcome]]:
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        return [(self._tasks.pop(task), task.result()) for task in done]


@dataclass(kw_only=True)
class DurableTaskJournal:
    """The tasks of one round. ``here``: the engine of this process, if no other takes the tasks."""

    store_thread: BatchStoreThread
    round: Round
    in_flight: dict[str, str]
    """Workflow -> task: those that have not ended, also if they were submitted before."""
    window: int
    queue: str
    counts_crashes: bool
    """Whether the tasks run in the process of their executor, so that they can kill it."""
    here: Executor | None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        self._suspects: list[str] = []
        self._pause = FIRST_POLL
        self._since_look = self._since_check = clock.Stopwatch()
        self._claims: Claims | None = None
        self._running: dict[str, asyncio.Future[AttemptResult]] = {}
        """Workflow -> its attempt, if it is made here."""
        self._never_started: set[str] = set()
        """Workflows that were claimed when the batch was interrupted."""
        self._attempts: set[asyncio.Task[AttemptResult]] = set()
        """Used in the event loop of the engine only."""
        self._is_leaving = False

    async def take_over(self) -> None:
        """Put tasks whose executor has died on the queue again, except those that are suspected of
        killing it."""
        self._since_check = clock.Stopwatch()
        waiting = [each for each in self.in_flight if each not in self._suspects]
        suspects, _ = await self.store_thread.call(
            lambda store: store.take_over(waiting, self.queue, counts_crashes=self.counts_crashes)
        )
        self._suspects += suspects

    # Start.

    async def submit(self, tasks: Sequence[BatchTask]) -> None:
        submissions = [self.round.submission(task, self.queue) for task in tasks]
        by_workflow = {each.id: task for each, task in zip(submissions, tasks, strict=True)}
        self.in_flight |= {workflow: task.id for workflow, task in by_workflow.items()}
        if self.here is None:
            await self.store_thread.call(lambda store: store.submit_all(submissions))
            return
        beginning = asyncio.ensure_future(
            self.store_thread.call(lambda store: self._open_claims(store).begin(submissions))
        )
        try:
            started = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The thread goes on. What it claims belongs to this process, until ``leave``.
            self._never_started |= await beginning
            raise
        # Another process may run this batch, too: what it has started is only watched.
        for workflow in started:
            visit = task_visit(by_workflow[workflow], self.round.number)
            attempt = self.here.call(self._attempt(visit))
            self._running[workflow] = asyncio.wrap_future(attempt)

    def _open_claims(self, store: BatchStore) -> Claims:
        if self._claims is None:
            if self.here is None:
                raise RuntimeError("the tasks of a queue are not claimed")
            self._claims = store.claims(self.here.id)
        return self._claims

    async def _attempt(self, visit: RunNode) -> AttemptResult:
        """In the event loop of the engine."""
        attempt = asyncio.create_task(
            node_workflow.attempt(
                self.round.run_input, DueAttempt(visit=visit), lambda: self._is_leaving
            )
        )
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)
        return await attempt

    # Outcomes.

    async def finished(self) -> list[tuple[str, Outcome]]:
        while True:
            if self._suspects and len(self._suspects) == len(self.in_flight):
                # All other tasks have ended: one suspect is started, alone.
                suspect = self._suspects.pop(0)
                resume = partial(BatchStore.resume, workflow_ids=[suspect], queue=self.queue)
                await self.store_thread.call(resume)
            ended = await self._record([key for key, each in self._running.items() if each.done()])
            pause = self._pause if len(self._running) < len(self.in_flight) else CHECK
            if self.here is None or self._since_look.seconds > pause:
                self._since_look = clock.Stopwatch()
                ended += await self._read_ended()
            if ended:
                self._pause, self._since_check = FIRST_POLL, clock.Stopwatch()
                return ended
            engine = executor.running()
            if engine is not None and engine.failed is not None:
                raise engine.failed
            if self._since_check.seconds > TAKE_OVER:
                await self.take_over()
            pause, self._pause = self._pause, min(self._pause * 1.4, LAST_POLL)
            if not self._running:
                await asyncio.sleep(pause)
                continue
            done, _ = await asyncio.wait(
                self._running.values(),
                timeout=min(pause, CHECK),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if done and len(done) < len(self._running):
                await asyncio.sleep(GATHER)

    async def _read_ended(self) -> list[tuple[str, Outcome]]:
        """Tasks that have ended by what the database says."""
        waiting = [each for each in self.in_flight if each not in self._suspects]
        outcomes = await self.store_thread.call(lambda store: store.outcomes_of(waiting))
        for workflow in outcomes:
            # One that runs here was cancelled from outside, or another process has taken it over.
            attempt = self._running.pop(workflow, None)
            if attempt is not None:
                attempt.cancel()
        await self._settle_budget(outcomes)
        return [(self.in_flight.pop(key), outcome) for key, outcome in outcomes.items()]

    async def _record(self, workflows: Sequence[str]) -> list[tuple[str, Outcome]]:
        """Store what has ended here. Returns the outcomes that were stored."""
        outcomes: dict[str, Outcome] = {}
        repeated: dict[str, AttemptResult] = {}
        for workflow in workflows:
            attempt = self._running[workflow]
            if attempt.cancelled():  # the engine is closing, or the task was cancelled
                del self._running[workflow]
                continue
            result = attempt.result()
            if result.pause is None:
                outcomes[workflow] = result.outcome
            else:
                repeated[workflow] = result
        stored: set[str] = set()
        if outcomes:
            outputs: dict[str, Json] = {key: pack(each) for key, each in outcomes.items()}
            stored = await self.store_thread.call(
                lambda store: self._open_claims(store).complete(outputs)
            )
            await self._settle_budget(stored)

        def leave_to_engine(store: BatchStore) -> None:
            """The pauses and the next attempts."""
            for workflow, result in repeated.items():
                name = node_workflow.attempt_name(NODE, 1)
                self._open_claims(store).record_step(workflow, name, pack(result))
                store.resume([workflow], self.queue)

        if repeated:
            await self.store_thread.call(leave_to_engine)
        for workflow in (*outcomes, *repeated):  # not before: they may be interrupted until here
            self._running.pop(workflow, None)
        return [(self.in_flight.pop(key), outcomes[key]) for key in outcomes if key in stored]

    async def _settle_budget(self, ended: Iterable[str]) -> None:
        """What a process that died has left reserved counts as spent."""
        names = self.round.run_input.config.budgets
        if names:
            from corral._engine import limits

            database = self.store_thread.database
            for workflow in ended:
                await asyncio.to_thread(limits.settle_budget, names, workflow, database)

    # The end.

    async def close(self, report: BatchReport) -> None:
        """All tasks have ended: close the agent hosts and store the summary. A command that failed,
        on a full disk say, has not closed those of its round."""
        for each in self.round.all_ids:
            await asyncio.to_thread(agent_host_client.close, each, cancel=True)
        await self.store_thread.call(lambda store: store.close_round(self.round.id, report))

    async def leave(self) -> None:
        """The process ends or stops the batch. Tasks on a queue stay there. What still runs here is
        stopped, and left to the next process that continues the batch."""
        if self.here is None:
            return
        self._is_leaving = True
        with contextlib.suppress(RuntimeError, TimeoutError):  # the engine has ended
            stopped = self.here.call(self._stop())
            await asyncio.wait_for(asyncio.wrap_future(stopped), CLOSE)
        left = [*self._running, *self._never_started]
        if left and self.here.failed is None:
            with contextlib.suppress(StorageFailed):  # found by its dead executor, too
                await self.store_thread.call(lambda store: store.resume(left, NO_WORKERS))

    async def _stop(self) -> None:
        """In the event loop of the engine."""
        attempts = list(self._attempts)
        for each in attempts:
            each.cancel()
        if attempts:
            await asyncio.wait(attempts)
