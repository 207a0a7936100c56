"""The durable queue under a batch: each task a workflow of its own, ``batch/task``.

What the tasks share is the input of one more, with the batch's id, that does nothing. No
workflow waits for them: whoever runs the batch gives it tasks a window at a time, and asks
for those that have ended. Tasks that are tried again, or changed, go on in another *round*
(``batch#2/task``): what was done before stays as it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TypeVar, cast

import msgspec

from corral.durable.agent_host import client as agent_host_client
from corral.durable.batch.results import BatchClosed, BatchReport, BatchStatus
from corral.durable.batch.runner import visit_of
from corral.durable.batch.tasks import BatchTask
from corral.durable.dbos import adapter, queues
from corral.durable.dbos.client import CHUNK, Client, Submission, WorkflowInfo
from corral.durable.dbos.database import Database
from corral.durable.dbos.leases import ExecutorLiveness
from corral.durable.payloads import NodeInput, RunInput, pack, unpack
from corral.durable.worker import executor, node_workflow
from corral.errors import ConfigError
from corral.events import Json
from corral.pipelines.nodes.item import UPDATE
from corral.pipelines.scheduler.outcome import Outcome, failed

T = TypeVar("T")

FIRST_LOOK, LAST_LOOK = 0.03, 0.5
"""Seconds between two looks for what has ended: after news, and after a while."""
TAKE_UP = 5.0
"""Seconds without news until it is asked whether somebody died meanwhile."""
SUSPECT = 2
"""Times that the process died while a task ran, until the task runs alone: others that run
beside it would be blamed for it too."""
POISON = 5
"""Times until it is given up."""
REVIVED = "revived"
CLOSED = "closed"
"""Label of a round that has ended: what the batch came to."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    begun: RunInput

    @property
    def id(self) -> str:
        return self.begun.run_id

    @property
    def digests(self) -> dict[str, str]:
        return cast("dict[str, str]", self.begun.values.get("digests", {}))

    @property
    def again(self) -> set[str]:
        """Tasks that are done anew in it, whatever came of them before."""
        return set(cast("list[str]", self.begun.values.get("again", [])))


def round_id(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"


def resource_of(name: str) -> str:
    """Of the queue that limits how many tasks of the batch run at once."""
    return f"batch-{name}"


class BatchStore:
    """What the database knows of a batch. Its calls block; made and closed in one thread."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.client = Client(database.url)

    def close(self) -> None:
        self.client.close()

    def rounds(self, name: str) -> list[Round]:
        """Raises ``ConfigError`` where something else has this name."""
        found: list[Round] = []
        while True:
            number = len(found) + 1
            row = self.client.get_workflow(round_id(name, number))
            if row is None:
                return found
            if row.name != node_workflow.BATCH:
                raise ConfigError(f"{name!r} is a run already", hint="Give the batch another name.")
            found.append(Round(number=number, begun=unpack(row.input, RunInput)))

    def begin(self, begun: RunInput, output: str) -> None:
        """Keep the terms of a round, where they are not yet kept. ``output``: for people."""
        self.client.ensure_queue(begun.queue)
        self.client.submit(
            Submission(
                name=node_workflow.BATCH,
                id=begun.run_id,
                queue=begun.queue,
                payload=pack(begun),
                labels={"output": output},
            )
        )

    def close_round(
        self, round_id: str, report: BatchReport, *, status: BatchStatus | None = None
    ) -> None:
        """Write down what the batch came to with this round, for lists."""
        closed = BatchClosed(
            status=status or report.stopped or ("success" if report.ok else "fail"),
            at=time.time(),
            total=report.total,
            succeeded=report.succeeded,
            failed=report.failed,
            cost_usd=report.cost_usd,
        )
        self.client.set_labels(round_id, {CLOSED: pack(closed)})

    def reopen_round(self, round_id: str) -> None:
        """It goes on."""
        self.client.set_labels(round_id, {CLOSED: None})

    def tasks(self, round: Round) -> dict[str, WorkflowInfo]:
        """Those that were given to it, by id, without what came of them."""
        prefix = f"{round.id}/"
        found = self.client.list_workflows(prefix=prefix, name=node_workflow.NAME)
        return {each.id.removeprefix(prefix): each for each in found}

    def enqueue(self, round: Round, tasks: Sequence[BatchTask], queue: str) -> None:
        """In one transaction: all or none."""
        self.client.submit_all(
            [
                Submission(
                    name=node_workflow.NAME,
                    id=f"{round.id}/{task.id}",
                    queue=queue,
                    payload=pack(
                        NodeInput(run_id=round.id, visit=visit_of(task, round.number), alone=True)
                    ),
                )
                for task in tasks
            ]
        )

    def ended(self, workflows: Sequence[str]) -> dict[str, Outcome]:
        """Of these, the outcomes of those that have ended."""
        return {row.id: _outcome(row) for row in self.client.get_outputs(workflows)}

    def take_up(
        self, workflows: Sequence[str], queue: str, *, counts: bool
    ) -> tuple[list[str], list[str]]:
        """Put those whose executor is gone on this queue; returns those that are suspected of
        killing it, which are left where they are, and those that were given up. ``counts``:
        whether their process is the one that dies with them."""
        suspects: list[str] = []
        given_up: list[str] = []
        revived: list[str] = []
        with closing(ExecutorLiveness(self.database)) as lives:
            for each in self._open(workflows):
                executor_id = queues.responsible(each)
                if executor_id is None or lives.is_alive(executor_id):
                    continue
                blamed = int(str(each.labels.get(REVIVED, 0)))
                if counts and (each.state == "PENDING" or each.recoveries):
                    blamed += 1
                    self.client.set_labels(each.id, {REVIVED: blamed})
                    # Seen once: until it is claimed again it is to nobody's blame.
                    self.client.resume([each.id], queues.NOBODY)
                if blamed >= POISON:
                    given_up.append(each.id)
                elif blamed >= SUSPECT:
                    suspects.append(each.id)
                else:
                    revived.append(each.id)
        self.client.resume(revived, queue)
        self.client.cancel(given_up)
        return suspects, given_up

    def _open(self, workflows: Sequence[str]) -> list[WorkflowInfo]:
        return [
            each
            for at in range(0, len(workflows), CHUNK)
            for each in self.client.list_workflows(
                ids=list(workflows[at : at + CHUNK]), states=adapter.OPEN
            )
        ]

    def release(self, workflow: str, queue: str) -> None:
        self.client.resume([workflow], queue)

    def cancel(self, workflows: Sequence[str]) -> None:
        self.client.cancel(workflows)


def _outcome(row: WorkflowInfo) -> Outcome:
    """Of a workflow that has ended, however."""
    if row.state == "SUCCESS":
        return unpack(row.output, Outcome)
    words = {
        "CANCELLED": ("cancelled", "it was cancelled from outside"),
        "MAX_RECOVERY_ATTEMPTS_EXCEEDED": (
            "dead_letter",
            "its worker died again and again while it ran",
        ),
    }
    code, reason = words.get(row.state, ("engine", f"the engine failed at it: {row.error}"))
    if int(str(row.labels.get(REVIVED, 0))) >= POISON:
        code, reason = "dead_letter", f"its process died {POISON} times while it ran"
    return lost(code, reason)


def lost(code: str, reason: str) -> Outcome:
    return msgspec.structs.replace(
        failed(reason, retryable=False), context_updates={UPDATE: {"code": code}}
    )


class OnQueue:
    """The tasks of one round, under way. ``taken``: those that were given to it before, or to
    an earlier round, and have not ended: task → workflow. As ``async with``."""

    def __init__(
        self,
        door: BatchStoreThread,
        round: Round,
        taken: Mapping[str, str],
        *,
        concurrency: int,
        queue: str,
        is_limited: bool,
        counts: bool,
    ) -> None:
        self.window = 2 * concurrency + 8 if is_limited else concurrency
        self._door, self._round = door, round
        self._queue, self._counts = queue, counts
        self._flying = {workflow: task for task, workflow in taken.items()}
        self._suspects: list[str] = []
        self._looked = 0.0
        self._pause = FIRST_LOOK

    async def take_up(self) -> None:
        self._looked = time.monotonic()
        waiting = [each for each in self._flying if each not in self._suspects]
        suspects, _ = await self._door.ask(
            lambda ledger: ledger.take_up(waiting, self._queue, counts=self._counts)
        )
        self._suspects += suspects

    async def submit(self, tasks: Sequence[BatchTask]) -> None:
        await self._door.ask(lambda ledger: ledger.enqueue(self._round, tasks, self._queue))
        self._flying |= {f"{self._round.id}/{task.id}": task.id for task in tasks}

    async def finished(self) -> list[tuple[str, Outcome]]:
        while True:
            await self._let_a_suspect_go()
            asked = [each for each in self._flying if each not in self._suspects]
            found = await self._door.ask(partial(BatchStore.ended, workflows=asked))
            if found:
                self._pause, self._looked = FIRST_LOOK, time.monotonic()
                return [(self._flying.pop(key), each) for key, each in found.items()]
            here = executor.running()
            if here is not None and here.failed is not None:
                raise here.failed
            if time.monotonic() - self._looked > TAKE_UP:
                await self.take_up()
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 1.4, LAST_LOOK)

    async def _let_a_suspect_go(self) -> None:
        """One at a time, when all the others are done."""
        if self._suspects and len(self._suspects) == len(self._flying):
            chosen = self._suspects.pop(0)
            await self._door.ask(lambda ledger: ledger.release(chosen, self._queue))

    async def close(self, report: BatchReport) -> None:
        """All have ended: whoever worked at them may go."""
        await asyncio.to_thread(agent_host_client.close, self._round.id, cancel=True)
        await self._door.ask(lambda ledger: ledger.close_round(self._round.id, report))


class BatchStoreThread:
    """A ledger in a thread of its own, asked one thing at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="corral-batch")
        self._ledger: BatchStore | None = None

    async def ask(self, question: Callable[[BatchStore], T]) -> T:
        def whole() -> T:
            if self._ledger is None:
                self._ledger = BatchStore(self._database)
            return question(self._ledger)

        return await asyncio.get_running_loop().run_in_executor(self._thread, whole)

    async def close(self) -> None:
        """Also when somebody was interrupted while asking: the answer is waited for."""

        def last() -> None:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None

        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, last))
        self._thread.shutdown(wait=False)


def terms_of(
    begun: RunInput, digests: Mapping[str, str], number: int, again: Sequence[str]
) -> Round:
    """A round with these tasks."""
    values: dict[str, Json] = {"digests": dict(digests)}
    if again:
        values["again"] = list(again)
    folder = begun.setting.folder if number == 1 else f"{begun.setting.folder}#{number}"
    return Round(
        number=number,
        begun=msgspec.structs.replace(
            begun,
            run_id=round_id(begun.run_id, number),
            values=values,
            setting=msgspec.structs.replace(begun.setting, folder=folder),
        ),
    )
