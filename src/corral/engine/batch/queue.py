"""The durable queue of a batch: each task is a separate workflow (``batch/task``).

Theory of operation
-------------------
A batch has *rounds*. The first round has the batch's name as id; tasks that are retried
(``--retry-failed``) or changed (``--accept-changed``) run in another round (``batch#2/task``), and
earlier results stay as they are. What the tasks of a round share (graph, options, digests) is the
input of one more workflow, with the round's id, that does nothing.

Who calls: ``Batch`` (``api``), through ``QueueRunner``. No workflow waits for the tasks: the
process that runs the batch submits a window of tasks, polls for those that have ended, and submits
more. All database calls run in one thread (``BatchStoreThread``).

States of a task: not submitted -> queued -> running -> ended. They are read from the database,
never from a file of corral; ``resume`` decides from them what is still to do.

Guarantees
* A task that has ended in a round is never run again in that round.
* A window of tasks is submitted in one transaction: all or none.
* The same call continues after any crash; the results file has each result once.

Crashes
* The process that runs the batch dies: nothing is lost. Detached tasks continue in their agent
  host; others wait until the same command is run again and takes them over (``take_over``).
* A worker of the queue dies: every ``TAKE_OVER`` seconds without a result the runner checks the
  executors of its tasks, and puts tasks of dead ones back on the queue.
* A task kills its process: deaths are counted per task (label ``CRASHES``). From ``SUSPECT`` deaths
  on it runs alone, when all others are done, so that no other task is blamed; after ``POISON``
  deaths it fails as ``dead_letter``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from corral.engine.agent_host import client as agent_host_client
from corral.engine.batch.command_line import LABEL, BatchCommand
from corral.engine.batch.results import BatchKind, BatchReport, BatchStatus, BatchSummary
from corral.engine.batch.runner import visit_of
from corral.engine.batch.tasks import BatchTask
from corral.engine.dbos.client import (
    CHUNK,
    NO_WORKERS,
    Client,
    Submission,
    WorkflowInfo,
    responsible_executor,
)
from corral.engine.dbos.database import (
    Database,
    UnreadableRecord,
    reading,
    storage_errors,
)
from corral.engine.dbos.leases import ExecutorLiveness
from corral.engine.dbos.states import OPEN_STATES
from corral.engine.payloads import BATCH_WORKFLOW, NODE_WORKFLOW, NodeInput, RunInput, pack, unpack
from corral.engine.worker import executor
from corral.errors import ConfigError
from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph
from corral.pipelines.nodes.item import UPDATE
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.system import clock
from corral.values import Json, as_texts, int_or_none

if TYPE_CHECKING:
    from corral.metering.budget import Budget

T = TypeVar("T")

FIRST_POLL, LAST_POLL = 0.03, 0.5
"""Seconds between two polls for results: after a result, and at most."""
TAKE_OVER = 5.0
"""Seconds without a result until the executors of the tasks are checked."""
SUSPECT = 2
"""Deaths of its process after which a task runs alone: tasks that run beside it would be blamed
too."""
POISON = 5
"""Deaths of its process after which a task fails."""
CRASHES = "revived"
KIND = "kind"
CLOSED = "closed"
"""The label of a round that has ended: the summary of the batch."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    run_input: RunInput

    @property
    def id(self) -> str:
        return self.run_input.run_id

    @property
    def all_ids(self) -> list[str]:
        """The ids of the rounds up to this one."""
        name = self.id.removesuffix(f"#{self.number}") if self.number > 1 else self.id
        return [round_id(name, number) for number in range(1, self.number + 1)]

    @property
    def digests(self) -> dict[str, str]:
        return unpack(self.run_input.values.get("digests", {}), dict[str, str])

    @property
    def redo(self) -> set[str]:
        """Tasks that are run again in it, whatever their earlier results."""
        return set(as_texts(self.run_input.values.get("redo")))


def round_id(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"


def batch_kind(graph: Graph) -> BatchKind:
    """Whether a batch with this graph is a comparison of agents."""
    kinds = {node.kind for node in graph.nodes.values()}
    return "compare" if node_kinds.COMPARE_ATTEMPT.name in kinds else "batch"


def resource_of(name: str) -> str:
    """The resource of the subqueue that limits how many tasks of the batch run at once."""
    return f"batch-{name}"


class BatchStore:
    """The batches of a database. Its calls block; it is created and closed in one thread."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.client = Client(database.url)

    def close(self) -> None:
        self.client.close()

    def rounds(self, name: str) -> list[Round]:
        """The rounds of a batch. Raises ``ConfigError`` if the name is that of a run."""
        found: list[Round] = []
        while True:
            number = len(found) + 1
            row = self.client.get_workflow(round_id(name, number))
            if row is None:
                return found
            if row.name != BATCH_WORKFLOW:
                raise ConfigError(f"{name!r} is the name of a run", hint="Choose another name.")
            with reading(row.id):
                found.append(Round(number=number, run_input=unpack(row.input, RunInput)))

    def begin(self, run_input: RunInput, output: str) -> None:
        """Store what the tasks of a round share, unless it is stored. ``output``: the file of
        results, for lists."""
        self.client.ensure_queue(run_input.queue)
        self.client.submit(
            Submission(
                name=BATCH_WORKFLOW,
                id=run_input.run_id,
                queue=run_input.queue,
                payload=pack(run_input),
                labels={"output": output, KIND: batch_kind(run_input.graph)},
            )
        )

    def set_command(self, name: str, number: int, command: BatchCommand) -> None:
        """Store the command line that runs this round of a batch."""
        self.client.set_labels(round_id(name, number), {LABEL: command.label()})

    def close_round(
        self, round_id: str, report: BatchReport, *, status: BatchStatus | None = None
    ) -> None:
        """Store the summary of the batch with its last round, for lists."""
        closed = BatchSummary(
            status=status or report.stopped or ("success" if report.ok else "fail"),
            at=clock.now(),
            total=report.total,
            succeeded=report.succeeded,
            failed=report.failed,
            cost_usd=report.cost_usd,
        )
        self.client.set_labels(round_id, {CLOSED: pack(closed)})
        # Its workflow stores what the tasks share, and does nothing. If the batch was faster than
        # the queue, it is still there.
        self.client.cancel([round_id])

    def reopen_round(self, round_id: str) -> None:
        """The round continues."""
        self.client.set_labels(round_id, {CLOSED: None})

    def tasks(self, round: Round) -> dict[str, WorkflowInfo]:
        """The submitted tasks of a round by id, without their outputs."""
        prefix = f"{round.id}/"
        found = self.client.list_workflows(prefix=prefix, name=NODE_WORKFLOW)
        return {each.id.removeprefix(prefix): each for each in found}

    def enqueue(self, round: Round, tasks: Sequence[BatchTask], queue: str) -> None:
        """Submit tasks in one transaction: all or none."""
        self.client.submit_all(
            [
                Submission(
                    name=NODE_WORKFLOW,
                    id=f"{round.id}/{task.id}",
                    queue=queue,
                    payload=pack(
                        NodeInput(run_id=round.id, visit=visit_of(task, round.number), alone=True)
                    ),
                )
                for task in tasks
            ]
        )

    def outcomes_of(self, workflows: Sequence[str]) -> dict[str, Outcome]:
        """Of these, the outcomes of those that have ended."""
        return {row.id: _outcome(row) for row in self.client.get_outputs(workflows)}

    def take_over(
        self, workflows: Sequence[str], queue: str, *, counts_crashes: bool
    ) -> tuple[list[str], list[str]]:
        """Put tasks whose executor is dead on this queue. Returns those that are suspected of
        killing it, which stay where they are, and those that were given up. ``counts_crashes``:
        whether the tasks run in the process of their executor, so that they can kill it."""
        suspects: list[str] = []
        abandoned: list[str] = []
        restarted: list[str] = []
        with closing(ExecutorLiveness(self.database)) as liveness:
            for each in self._open_workflows(workflows):
                executor_id = responsible_executor(each)
                if executor_id is None or liveness.is_alive(executor_id):
                    continue
                crashes = _crashes(each)
                if counts_crashes and (each.state == "running" or each.recoveries):
                    crashes += 1
                    self.client.set_labels(each.id, {CRASHES: crashes})
                    # Counted once: until it starts again, another check must not count it.
                    self.client.resume([each.id], NO_WORKERS)
                if crashes >= POISON:
                    abandoned.append(each.id)
                elif crashes >= SUSPECT:
                    suspects.append(each.id)
                else:
                    restarted.append(each.id)
        self.client.resume(restarted, queue)
        self.client.cancel(abandoned)
        return suspects, abandoned

    def _open_workflows(self, workflows: Sequence[str]) -> list[WorkflowInfo]:
        return [
            each
            for at in range(0, len(workflows), CHUNK)
            for each in self.client.list_workflows(
                ids=list(workflows[at : at + CHUNK]), states=OPEN_STATES
            )
        ]

    def release(self, workflow: str, queue: str) -> None:
        self.client.resume([workflow], queue)

    def cancel(self, workflows: Sequence[str]) -> None:
        self.client.cancel(workflows)


def _outcome(row: WorkflowInfo) -> Outcome:
    """The outcome of a workflow that has ended in any way."""
    if row.state == "succeeded":
        try:
            return unpack(row.output, Outcome)
        except UnreadableRecord as error:  # the other tasks have their results
            return failed_outcome("engine", f"its record cannot be read: {error}")
    reasons = {
        "cancelled": ("cancelled", "it was cancelled from outside"),
        "dead_letter": (
            "dead_letter",
            "its worker died too many times while it ran",
        ),
    }
    code, reason = reasons.get(row.state, ("engine", f"the engine failed: {row.error}"))
    if _crashes(row) >= POISON:
        code, reason = "dead_letter", f"its process died {POISON} times while it ran"
    return failed_outcome(code, reason)


def _crashes(row: WorkflowInfo) -> int:
    return int_or_none(row.labels.get(CRASHES)) or 0


def failed_outcome(code: str, reason: str) -> Outcome:
    return msgspec.structs.replace(
        failed(reason, retryable=False), context_updates={UPDATE: {"code": code}}
    )


@dataclass(frozen=True, kw_only=True)
class RunnerSetup:
    """What a runner needs to know of a round."""

    store_thread: BatchStoreThread
    round: Round
    taken: Mapping[str, str]
    """Tasks that were submitted before and have not ended: task -> workflow."""
    concurrency: int
    queue: str
    is_limited: bool
    """Whether the queue limits how many tasks run at once; otherwise the window does."""
    counts_crashes: bool
    """Whether the tasks run in the process of their executor, so that they can kill it."""
    budget: Budget | None = None


class QueueRunner:
    """Runs the tasks of one round on a queue."""

    def __init__(self, setup: RunnerSetup) -> None:
        self.budget = setup.budget
        self.window = 2 * setup.concurrency + 8 if setup.is_limited else setup.concurrency
        self._store_thread, self._round = setup.store_thread, setup.round
        self._queue, self._counts_crashes = setup.queue, setup.counts_crashes
        self._in_flight: dict[str, str] = {value: key for key, value in setup.taken.items()}
        """Workflow -> task."""
        self._suspects: list[str] = []
        self._pause = FIRST_POLL

    async def take_over(self) -> None:
        self._since_check = clock.Stopwatch()
        waiting = [each for each in self._in_flight if each not in self._suspects]
        suspects, _ = await self._store_thread.call(
            lambda store: store.take_over(waiting, self._queue, counts_crashes=self._counts_crashes)
        )
        self._suspects += suspects

    async def submit(self, tasks: Sequence[BatchTask]) -> None:
        await self._store_thread.call(lambda store: store.enqueue(self._round, tasks, self._queue))
        self._in_flight |= {f"{self._round.id}/{task.id}": task.id for task in tasks}

    async def finished(self) -> list[tuple[str, Outcome]]:
        while True:
            await self._release_suspect()
            if found := await self._look():
                self._pause, self._since_check = FIRST_POLL, clock.Stopwatch()
                return found
            here = executor.running()
            if here is not None and here.failed is not None:
                raise here.failed
            if self._since_check.seconds > TAKE_OVER:
                await self.take_over()
            await self._wait()

    async def _look(self) -> list[tuple[str, Outcome]]:
        """Tasks that have ended."""
        asked = [each for each in self._in_flight if each not in self._suspects]
        found = await self._store_thread.call(partial(BatchStore.outcomes_of, workflows=asked))
        for workflow in found:
            self._on_ended(workflow)
        await self._settle_budget(found)
        return [(self._in_flight.pop(key), each) for key, each in found.items()]

    def _on_ended(self, workflow: str) -> None:
        """The database says that it has ended."""

    async def _wait(self) -> None:
        """Until the next look."""
        await asyncio.sleep(self._next_pause())

    def _next_pause(self) -> float:
        pause, self._pause = self._pause, min(self._pause * 1.4, LAST_POLL)
        return pause

    async def leave(self) -> None:
        """The process ends or stops the batch. Its tasks stay on the queue."""

    async def _settle_budget(self, ended: Iterable[str]) -> None:
        """What a process that died has left reserved counts as spent."""
        names = self._round.run_input.config.budgets
        if names:
            from corral.engine import budgets

            database = self._store_thread.database
            for workflow in ended:
                await asyncio.to_thread(budgets.settle, names, workflow, database)

    async def _release_suspect(self) -> None:
        """Start one suspect when all other tasks have ended."""
        if self._suspects and len(self._suspects) == len(self._in_flight):
            chosen = self._suspects.pop(0)
            await self._store_thread.call(lambda store: store.release(chosen, self._queue))

    async def close(self, report: BatchReport) -> None:
        """All tasks have ended: close the agent hosts and store the summary. A command that failed,
        on a full disk say, has not closed those of its round."""
        for each in self._round.all_ids:
            await asyncio.to_thread(agent_host_client.close, each, cancel=True)
        await self._store_thread.call(lambda store: store.close_round(self._round.id, report))


class BatchStoreThread:
    """A batch store in its own thread; calls run one at a time."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="corral-batch")
        self._store: BatchStore | None = None

    async def call(self, action: Callable[[BatchStore], T]) -> T:
        """Raises ``StorageFailed`` or ``ConfigError`` where the database fails."""

        def run() -> T:
            with storage_errors(self.database):
                if self._store is None:
                    self._store = BatchStore(self.database)
                return action(self._store)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    async def close(self) -> None:
        """Waits for a running call, also if its caller was cancelled."""

        def close_store() -> None:
            if self._store is not None:
                self._store.close()
                self._store = None

        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, close_store))
        self._thread.shutdown(wait=False)


def make_round(
    run_input: RunInput, digests: Mapping[str, str], number: int, redo: Sequence[str]
) -> Round:
    """A round with these tasks."""
    values: dict[str, Json] = {"digests": dict(digests)}
    if redo:
        values["redo"] = list(redo)
    folder = run_input.config.folder if number == 1 else f"{run_input.config.folder}#{number}"
    return Round(
        number=number,
        run_input=msgspec.structs.replace(
            run_input,
            run_id=round_id(run_input.run_id, number),
            values=values,
            config=msgspec.structs.replace(run_input.config, folder=folder),
        ),
    )
