"""Tasks of a batch that run in the process of the batch, without a queue.

Theory of operation
-------------------
A queue only delays tasks that no other process would take. So the process of the batch claims its
tasks when it submits them (``claims``), makes the first attempt of each as a task of its
engine, and stores the outcomes of all that ended meanwhile in one transaction. In the database
they look like tasks that the engine has taken from the queue.

Everything that is not the usual case is left to the queue (``QueueRunner``), where the engine runs
the task as a workflow:

* an attempt that is to be repeated after a pause: its result is stored as the first step of the
  workflow, which continues with the pause;
* tasks that another process left behind, and those that are suspected of killing it.

Crashes: an attempt without a stored outcome is made again, by the workflow, when the batch
continues. If it runs in an agent host, the running or finished job is found there.

Tasks that are cancelled from outside are noticed within ``CHECK`` seconds. If the batch itself is
interrupted, its tasks are put on a queue without workers: they wait until the batch is continued.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

from corral.engine.batch.queue import BatchStore, QueueRunner, RunnerSetup
from corral.engine.batch.runner import NODE, visit_of
from corral.engine.batch.tasks import BatchTask
from corral.engine.dbos.claims import Claim, Claims
from corral.engine.dbos.client import NO_WORKERS
from corral.engine.node_runner import AttemptResult, DueAttempt
from corral.engine.payloads import NODE_WORKFLOW, NodeInput, pack
from corral.engine.worker import node_workflow
from corral.engine.worker.executor import CLOSE, Executor
from corral.errors import StorageFailed
from corral.pipelines.scheduler.commands import RunNode
from corral.pipelines.scheduler.outcome import Outcome
from corral.system import clock
from corral.values import Json

CHECK = 1.0
"""Seconds between two checks whether tasks were cancelled."""
GATHER = 0.002
"""Seconds to wait for more outcomes when there is one: they are stored together."""


class LocalRunner(QueueRunner):
    """Runs the tasks of one round in the engine of this process."""

    def __init__(self, setup: RunnerSetup, here: Executor) -> None:
        super().__init__(setup)
        self.window = setup.concurrency
        self._here = here
        self._claims: Claims | None = None
        self._running: dict[str, asyncio.Future[AttemptResult]] = {}
        """Workflow -> its attempt."""
        self._never_started: set[str] = set()
        """Workflows that were claimed when the batch was interrupted."""
        self._attempts: set[asyncio.Task[AttemptResult]] = set()
        """Used in the event loop of the engine only."""
        self._is_leaving = False
        self._since_look = clock.Stopwatch()

    async def submit(self, tasks: Sequence[BatchTask]) -> None:
        visits = {
            f"{self._round.id}/{each.id}": visit_of(each, self._round.number) for each in tasks
        }
        claims = [
            Claim(
                name=NODE_WORKFLOW,
                id=workflow,
                queue=self._queue,
                payload=pack(NodeInput(run_id=self._round.id, visit=visit, alone=True)),
            )
            for workflow, visit in visits.items()
        ]
        self._in_flight |= {workflow: visit.id for workflow, visit in visits.items()}
        started = await self._begin(claims)
        # Another process may run this batch, too: what it has started is only watched.
        for workflow in started:
            attempt = self._here.call(self._attempt(visits[workflow]))
            self._running[workflow] = asyncio.wrap_future(attempt)

    async def _begin(self, claims: Sequence[Claim]) -> set[str]:
        beginning = asyncio.ensure_future(
            self._store_thread.call(lambda store: self._claimed(store).begin(claims))
        )
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The thread goes on. What it claims belongs to this process, until ``leave``.
            self._never_started |= await beginning
            raise

    def _claimed(self, store: BatchStore) -> Claims:
        if self._claims is None:
            self._claims = store.client.claims(self._here.id)
        return self._claims

    async def _attempt(self, visit: RunNode) -> AttemptResult:
        """In the event loop of the engine."""
        attempt = asyncio.create_task(
            node_workflow.attempt(
                self._round.run_input, DueAttempt(visit=visit), lambda: self._is_leaving
            )
        )
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)
        return await attempt

    # Outcomes.

    async def _look(self) -> list[tuple[str, Outcome]]:
        found = await self._record([key for key, each in self._running.items() if each.done()])
        pause = self._pause if len(self._running) < len(self._in_flight) else CHECK
        if self._since_look.seconds > pause:
            self._since_look = clock.Stopwatch()
            found += await super()._look()
        return found

    async def _wait(self) -> None:
        if not self._running:
            await super()._wait()
            return
        pause = min(self._next_pause(), CHECK)
        waiting = self._running.values()
        done, _ = await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        if done and len(done) < len(self._running):
            await asyncio.sleep(GATHER)

    async def _record(self, workflows: Sequence[str]) -> list[tuple[str, Outcome]]:
        """Store what has ended. Returns the outcomes that were stored."""
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
            stored = await self._store_thread.call(
                lambda store: self._claimed(store).complete(outputs)
            )
            await self._settle_budget(stored)
        for workflow, result in repeated.items():
            await self._store_thread.call(partial(self._repeat, workflow=workflow, result=result))
        for workflow in (*outcomes, *repeated):  # not before: they may be interrupted until here
            self._running.pop(workflow, None)
        return [(self._in_flight.pop(key), outcomes[key]) for key in outcomes if key in stored]

    def _repeat(self, store: BatchStore, *, workflow: str, result: AttemptResult) -> None:
        """Leave the pause and the next attempts to the engine."""
        name = node_workflow.attempt_name(NODE, 1)
        self._claimed(store).record_step(workflow, name, pack(result))
        store.release(workflow, self._queue)

    def _on_ended(self, workflow: str) -> None:
        """It was cancelled from outside, or another process has taken it over."""
        attempt = self._running.pop(workflow, None)
        if attempt is not None:
            attempt.cancel()

    # The end.

    async def leave(self) -> None:
        """Stop what still runs, and leave it to the next process that continues the batch."""
        self._is_leaving = True
        with contextlib.suppress(RuntimeError, TimeoutError):  # the engine has ended
            stopped = self._here.call(self._stop())
            await asyncio.wait_for(asyncio.wrap_future(stopped), CLOSE)
        left = [*self._running, *self._never_started]
        if left and self._here.failed is None:
            with contextlib.suppress(StorageFailed):  # found by its dead executor, too
                await self._store_thread.call(lambda store: store.client.resume(left, NO_WORKERS))

    async def _stop(self) -> None:
        """In the event loop of the engine."""
        attempts = list(self._attempts)
        for each in attempts:
            each.cancel()
        if attempts:
            await asyncio.wait(attempts)
