"""The batches of a database: each task is a separate workflow (``batch/task``).

Theory of operation
-------------------
A batch has *rounds*. The first round has the batch's name as id; tasks that are retried
(``--retry-failed``) or changed (``--accept-changed``) run in another round (``batch#2/task``), and
earlier results stay as they are. What the tasks of a round share (graph, options, digests) is the
input of one more workflow, with the round's id, that does nothing.

Who calls: ``Batch`` (``api``), through a ``DurableTaskJournal``. No workflow waits for the tasks:
the process that runs the batch submits a window of tasks, polls for those that have ended, and
submits more. All database calls run in one thread (``BatchStoreThread``).

States of a task: not submitted -> queued -> running -> ended. They are read from the database,
never from a file of corral; ``resume`` decides from them what is still to do.

Guarantees
* A task that has ended in a round is never run again in that round.
* A window of tasks is submitted in one transaction: all or none.
* The same call continues after any crash; the results file has each result once.

Crashes
* The process that runs the batch dies: nothing is lost. Detached tasks continue in their agent
  host; others wait until the same command is run again and takes them over (``take_over``).
* A worker of the queue dies: every ``TAKE_OVER`` seconds without a result the journal checks the
  executors of its tasks, and puts tasks of dead ones back on the queue.
* A task kills its process: deaths are counted per task (label ``CRASHES``). From ``SUSPECT`` deaths
  on it runs alone, when all others are done, so that no other task is blamed; after ``POISON``
  deaths it fails as ``dead_letter``.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from typing import TypeVar

import msgspec

from corral._core.stored_formats import JOURNAL
from corral._engine.batch.results import BatchKind, BatchReport, BatchStatus, BatchSummary
from corral._engine.batch.tasks import BatchTask, task_visit
from corral._engine.dbos.client import (
    NO_WORKERS,
    DatabaseClient,
    WorkflowInfo,
    chunks,
    responsible_executor,
)
from corral._engine.dbos.database import (
    OPEN_STATES,
    Database,
    UnreadableRecord,
    WorkflowSubmission,
    reading,
    storage_errors,
)
from corral._engine.dbos.leases import ExecutorLiveness
from corral._engine.payloads import (
    BATCH_CLOSED,
    BATCH_WORKFLOW,
    NODE_WORKFLOW,
    NodeInput,
    RunInput,
    pack,
    unpack,
)
from corral._pipelines import node_kinds
from corral._pipelines.graph import Graph
from corral._pipelines.nodes.item import UPDATE
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._system import clock
from corral.errors import ConfigError
from corral.values import Json, as_object, as_texts, int_or_none

T = TypeVar("T")

SUSPECT = 2
"""Deaths of its process after which a task runs alone: tasks that run beside it would be blamed
too."""
POISON = 5
"""Deaths of its process after which a task fails."""
COMMAND = "command"
CRASHES = "revived"
KIND = "kind"
"""Labels of workflows: the command of a batch, the deaths of a task, the kind of a batch."""


class BatchCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command line that runs a batch. It is stored with the batch, so that it can be continued
    by its name: the tasks that were not submitted yet are nowhere else but in the files that it
    names."""

    words: list[str]
    """The arguments of ``corral``, without the database: its URL may contain a password."""
    cwd: str

    @classmethod
    def of(cls, words: Sequence[str], cwd: str) -> BatchCommand:
        kept: list[str] = []
        rest = iter(words)
        for word in rest:
            if word == "--db":
                next(rest, None)
            elif not word.startswith("--db="):
                kept.append(word)
        return cls(words=kept, cwd=cwd)

    @classmethod
    def from_label(cls, label: Json) -> BatchCommand | None:
        """None if no command line started the batch. Raises ``UnreadableRecord`` if the command is
        not one that starts a batch."""
        if not label:
            return None
        stored = unpack(label, cls)
        words = iter(stored.words)
        subcommand = ""  # the first word that is no option of ``corral`` itself
        for word in words:
            if word == "--config":
                next(words, None)
            elif not word.startswith("-"):
                subcommand = word
                break
        if subcommand not in ("batch", "compare"):
            raise UnreadableRecord(f"`corral {shlex.join(stored.words)}` does not start a batch")
        return stored

    def label(self) -> Json:
        return as_object(msgspec.to_builtins(self))


class Round(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    run_input: RunInput
    format: int = JOURNAL

    @property
    def id(self) -> str:
        return self.run_input.run_id

    @property
    def all_ids(self) -> list[str]:
        """The ids of the rounds up to this one."""
        name = self.id.removesuffix(f"#{self.number}") if self.number > 1 else self.id
        return [round_id(name, number) for number in range(1, self.number + 1)]

    def submission(self, task: BatchTask, queue: str) -> WorkflowSubmission:
        """The workflow that runs this task."""
        visit = task_visit(task, self.number)
        return WorkflowSubmission(
            name=NODE_WORKFLOW,
            id=f"{self.id}/{task.id}",
            queue=queue,
            payload=pack(NodeInput(run_id=self.id, visit=visit, alone=True)),
        )

    @property
    def digests(self) -> dict[str, str]:
        return unpack(self.run_input.values.get("digests", {}), dict[str, str])

    @property
    def redo(self) -> set[str]:
        """Tasks that are run again in it, whatever their earlier results."""
        return set(as_texts(self.run_input.values.get("redo")))


def round_id(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"


GOAL = 200
"""Characters of a prompt that are stored for lists."""


def batch_kind(graph: Graph) -> BatchKind:
    """Whether a batch with this graph is a comparison of agents."""
    kinds = {node.kind for node in graph.nodes.values()}
    return "compare" if node_kinds.COMPARE_ATTEMPT.name in kinds else "batch"


def resource_of(name: str) -> str:
    """The resource of the subqueue that limits how many tasks of the batch run at once."""
    return f"batch-{name}"


class BatchStore(DatabaseClient):
    """The batches of a database. Its calls block; it is created and closed in one thread."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.url)
        self.database = database

    def rounds(self, name: str) -> list[Round]:
        """The rounds of a batch. Raises ``ConfigError`` if the name is that of a run."""
        found: list[Round] = []
        while True:
            number = len(found) + 1
            row = self.get_workflow(round_id(name, number))
            if row is None:
                return found
            if row.name != BATCH_WORKFLOW:
                raise ConfigError(f"{name!r} is the name of a run", hint="Choose another name.")
            with reading(row.id, row.format):
                found.append(
                    Round(
                        number=number,
                        run_input=unpack(row.input, RunInput),
                        format=row.format,
                    )
                )

    def begin(self, run_input: RunInput, output: str) -> None:
        """Store what the tasks of a round share, unless it is stored. ``output``: the file of
        results, for lists."""
        self.ensure_queue(run_input.queue)
        self.submit(
            WorkflowSubmission(
                name=BATCH_WORKFLOW,
                id=run_input.run_id,
                queue=run_input.queue,
                payload=pack(run_input),
                labels={
                    "output": output,
                    "workspace": run_input.config.workspace,
                    "goal": "\n".join(
                        node.text("prompt") for node in run_input.graph.nodes.values()
                    )[:GOAL],
                    KIND: batch_kind(run_input.graph),
                    **run_input.config.labels,
                },
            )
        )

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
        self.set_labels(round_id, {BATCH_CLOSED: pack(closed)})
        # Its workflow stores what the tasks share, and does nothing. If the batch was faster than
        # the queue, it is still there.
        self.cancel([round_id])

    def tasks(self, round: Round) -> dict[str, WorkflowInfo]:
        """The submitted tasks of a round by id, without their outputs."""
        prefix = f"{round.id}/"
        found = self.list_workflows(prefix=prefix, name=NODE_WORKFLOW)
        return {each.id.removeprefix(prefix): each for each in found}

    def outcomes_of(self, workflows: Sequence[str]) -> dict[str, Outcome]:
        """Of these, the outcomes of those that have ended."""
        return {row.id: _stored_outcome(row) for row in self.get_outputs(workflows)}

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
            for each in chain.from_iterable(
                self.list_workflows(ids=ids, states=OPEN_STATES) for ids in chunks(workflows)
            ):
                executor_id = responsible_executor(each)
                if executor_id is None or liveness.is_alive(executor_id):
                    continue
                crashes = _crashes(each)
                if counts_crashes and (each.state == "running" or each.recoveries):
                    crashes += 1
                    self.set_labels(each.id, {CRASHES: crashes})
                    # Counted once: until it starts again, another check must not count it.
                    self.resume([each.id], NO_WORKERS)
                if crashes >= POISON:
                    abandoned.append(each.id)
                elif crashes >= SUSPECT:
                    suspects.append(each.id)
                else:
                    restarted.append(each.id)
        self.resume(restarted, queue)
        self.cancel(abandoned)
        return suspects, abandoned


def _stored_outcome(row: WorkflowInfo) -> Outcome:
    """The outcome of a workflow that has ended in any way."""
    if row.state == "succeeded":
        try:
            return unpack(row.output, Outcome)
        except UnreadableRecord as error:  # the other tasks have their results
            return failed_outcome("engine", f"its record cannot be read: {error}")
    reasons = {
        "cancelled": ("cancelled", "it was cancelled from outside"),
        "dead_letter": ("dead_letter", "its worker died too many times while it ran"),
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
