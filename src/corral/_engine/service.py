"""Operations on durable runs: start, follow, wait, cancel, resume.

A run without a queue runs in the engine of this process (``process_engine``); if that ends first,
the run waits to be resumed. A run on a queue is executed by the workers of that queue
(``corral worker``); then this process runs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from corral._engine import open_questions, process_engine, query, run_list
from corral._engine.agent_host import client as agent_host_client
from corral._engine.dbos.client import (
    DEFAULT_QUEUE,
    DatabaseClient,
    moved_queue,
    open_client,
    responsible_executor,
    with_client,
)
from corral._engine.dbos.database import (
    OPEN_STATES,
    UnreadableRecord,
    WorkflowSubmission,
    find,
    prepare,
    reading,
    storage_errors,
)
from corral._engine.dbos.leases import ExecutorLiveness
from corral._engine.open_questions import RunQuestion
from corral._engine.payloads import (
    BATCH_CLOSED,
    BATCH_WORKFLOW,
    RUN_WORKFLOW,
    PipelineOutput,
    RunConfig,
    RunInput,
    pack,
    unpack,
)
from corral._pipelines import events, node_kinds
from corral._pipelines.execution.interviewers import Interviewer
from corral._pipelines.run_limits import run_limits
from corral._pipelines.scheduler.commands import Answer, Cancelled
from corral._system import clock, paths
from corral._system.process.tree import ProcessRegistry
from corral._system.randomness import random_hex
from corral.errors import ConfigError, FormatUnsupported, StorageFailed
from corral.values import Json, slug

if TYPE_CHECKING:
    from corral._core.spending import Raise
    from corral._metering.budget import Budget

QUIET = 0.5
"""Seconds without an event until it is checked whether the run waits only for people."""
QUESTION_POLL = 0.1
"""Seconds between two checks for questions, if there is an interviewer to answer them."""
SHORT_TIMEOUT = 300.0
"""Seconds: if a question expires sooner, the follower waits for its timeout, although there is no
interviewer."""
SERVER_AWAY = 60.0
"""Seconds that a database server may be away while a run is waited for."""
GOAL = 200
"""Characters of a goal that are stored for lists."""


def new_id(name: str) -> str:
    """``review-20260131-142501-3f9a``"""
    plain = slug(name.lower(), limit=30, default="run")
    return f"{plain}-{clock.timestamp()}-{random_hex(2)}"


async def start(run_input: RunInput, *, db: str | None = None, queue: str | None = None) -> str:
    """Start a run; returns its id, a new one if ``run_input`` has none. ``queue``: its workers
    execute the run; None: this process does."""
    database = find(db)
    await asyncio.to_thread(prepare, database)
    graph, config = run_input.graph, run_input.config
    name = run_input.run_id or new_id(graph.name)
    if config.detached is None:
        config = replace(config, detached=database.path is not None)
    runs_here = paths.home() / "runs"
    if config.tree is not None and config.tree.is_remote:
        # Machines that share only a repository have a run directory each, unless the caller named
        # one.
        with contextlib.suppress(ValueError):
            folder = Path(config.folder).relative_to(runs_here)
            config = replace(config, folder=str(folder))
    if graph.has_limits:
        from corral._engine import limits

        spent = run_input.spent_before
        made = await asyncio.to_thread(
            limits.create_budget, database, name, run_limits(graph), spent, run_input.forked_from
        )
        config = replace(config, budgets=made)
    local_nodes = False
    if queue is None:
        here = await process_engine.opened(database)
        queue = here.own or DEFAULT_QUEUE
        local_nodes = here.own is not None and len(here.all_queues) == 1  # no limited resource
    submitted = replace(
        run_input,
        run_id=name,
        config=config,
        queue=queue,
        at=clock.now(),
        local_nodes=local_nodes,
    )
    if await with_client(database, lambda client: _submit(client, submitted)):
        raise ConfigError(
            f"the run {name!r} already exists", hint="Choose another id, or resume it."
        )
    return name


def _submit(client: DatabaseClient, run_input: RunInput) -> bool:
    """Submit the run; returns whether it existed already."""
    if client.state(run_input.run_id) is not None:
        return True
    client.ensure_queue(run_input.queue)
    labels: dict[str, Json] = {
        "pipeline": run_input.graph.name,
        "kind": "pipeline" if run_input.program is None else "workflow",
        "goal": run_input.graph.goal[:GOAL],
        "folder": run_input.config.folder,
        "workspace": run_input.config.workspace,
    }
    client.submit(
        WorkflowSubmission(
            name=RUN_WORKFLOW,
            id=run_input.run_id,
            queue=run_input.queue,
            payload=pack(run_input),
            labels=labels,
        )
    )
    return False


async def wait(run: str, *, db: str | None = None, timeout: float | None = None) -> PipelineOutput:
    """The output of the run, when it has ended. A database server may be away for
    ``SERVER_AWAY`` seconds. Raises ``TimeoutError`` and ``StorageFailed``."""
    database = find(db)
    async with open_client(database) as client, asyncio.timeout(timeout):
        pause, since_answer = 0.02, clock.Stopwatch()
        while True:
            try:
                with storage_errors(database):
                    closed = await asyncio.to_thread(query.run_output, client, run)
                since_answer = clock.Stopwatch()
            except StorageFailed as error:
                if not error.retryable or since_answer.seconds > SERVER_AWAY:
                    raise
                closed = None
            if closed is not None:
                return closed
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.5)


class RunFollower:
    """Follows a run to its end: reports its events, and asks ``interviewer`` its questions; None:
    there is no one to ask. ``reported``: the number of the last event that the caller knows."""

    def __init__(
        self,
        run: str,
        *,
        db: str | None = None,
        interviewer: Interviewer | None = None,
        on_event: Callable[[events.RunEvent], None] | None = None,
        reported: int = 0,
    ) -> None:
        self.run: str = run
        self.db: str | None = db
        self.interviewer: Interviewer | None = interviewer
        self._on_event, self._reported, self._is_new = on_event, reported, reported == 0
        self._open: set[str] = set()
        """Open questions of the run itself. Those of nested runs are read from the database."""
        self._working: set[str] = set()
        self._within: set[str] = set()
        self._asking: dict[asyncio.Task[Answer], RunQuestion] = {}
        self._answered_ids: set[str] = set()
        self._quiet = 0

    async def run_to_end(self) -> PipelineOutput | None:
        """The output of the run; None if it waits only for people and has no interviewer."""
        stream = query.follow(self.run, db=self.db)
        coming = _next_event(stream)
        try:
            while True:
                looks = bool(self._open or self._within)
                pause = QUIET if self.interviewer is None else QUESTION_POLL
                ready, _ = await asyncio.wait(
                    {coming, *self._asking},
                    timeout=pause if looks else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in [task for task in self._asking if task in ready]:
                    await self._answered(task)
                if coming in ready:
                    event = coming.result()
                    if event is None:
                        return await wait(self.run, db=self.db)
                    coming = _next_event(stream)
                    self._on_event_received(event)
                elif looks and self.interviewer is not None:
                    await self._ask(self.interviewer)
                elif looks and await self._waits_for_people():
                    return None
        finally:
            tasks: list[asyncio.Task[Any]] = [coming, *self._asking]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await stream.aclose()

    def _on_event_received(self, event: events.RunEvent) -> None:
        self._quiet = 0
        of_the_run = isinstance(event, events.PipelineEvent)
        self._is_new = self._is_new or (of_the_run and event.seq > self._reported)
        if self._on_event is not None and self._is_new:
            self._on_event(event)
        self._is_new = self._is_new or (of_the_run and event.seq >= self._reported)
        match event:
            case events.StepStarted(kind=kind, visit=visit) if kind in node_kinds.CHILD_KINDS:
                self._within.add(visit)
            case events.StepStarted(kind=kind, visit=visit):
                node_kind = node_kinds.find(kind)
                if node_kind.works and not node_kind.waits:  # a process works while it runs
                    self._working.add(visit)
            case events.StepCompleted(visit=visit) | events.StepFailed(visit=visit):
                self._working.discard(visit)
                self._within.discard(visit)
                self._open.discard(visit)
            case events.InterviewStarted(visit=visit):
                self._open.add(visit)
                # A question about a conflict: the visit of its node does not work meanwhile.
                self._working.discard(visit.rpartition(".")[0])
            case events.InterviewCompleted(visit=visit) | events.InterviewTimeout(visit=visit):
                self._open.discard(visit)
            case _:
                pass

    async def _ask(self, interviewer: Interviewer) -> None:
        """Ask questions that are open, and stop asking those that no longer are."""
        found = await open_questions.questions(self.run, db=self.db)
        asked = {each.id: each for each in found if not each.answered}
        known = {each.id for each in self._asking.values()} | self._answered_ids
        for task, each in self._asking.items():
            if each.id not in asked:
                task.cancel()
        for each in asked.values():
            if each.id not in known:
                self._asking[asyncio.create_task(interviewer.ask(each.question))] = each

    async def _answered(self, task: asyncio.Task[Answer]) -> None:
        asked = self._asking.pop(task)
        if task.cancelled():  # another process has answered it
            return
        self._answered_ids.add(asked.id)
        with contextlib.suppress(open_questions.NoSuchQuestion):  # another process was faster
            await open_questions.send_answer(asked, task.result(), db=self.db)

    async def _waits_for_people(self) -> bool:
        if self._working:
            return False
        asked = await open_questions.questions(self.run, db=self.db)
        timeouts = [each.question.timeout for each in asked]
        lasts = all(timeout is None or timeout > SHORT_TIMEOUT for timeout in timeouts)
        if not asked or not lasts or any(each.answered for each in asked):
            return False
        if not self._within:
            return True
        # Between two nodes of a nested run there is a moment in which none runs.
        self._quiet = (
            0 if await open_questions.has_running_nodes(self.run, db=self.db) else self._quiet + 1
        )
        return self._quiet > 1


def _next_event(stream: AsyncIterator[events.RunEvent]) -> asyncio.Task[events.RunEvent | None]:
    async def coming() -> events.RunEvent | None:
        return await anext(stream, None)

    return asyncio.create_task(coming())


async def cancel(run: str, *, reason: str = "", db: str | None = None) -> None:
    """Cancel a run with all its agents. If no executor runs it, it is cancelled at once; otherwise
    its executor receives a message."""
    database = find(db)
    message = pack(Cancelled(reason=reason))

    def end(client: DatabaseClient) -> RunConfig | None:
        found = client.list_workflows(ids=[run])
        if not found:
            raise query.run_not_found(run)
        status = found[0]
        if status.has_ended:
            return None
        with closing(ExecutorLiveness(database, is_strict=True)) as liveness:
            if status.state == "running" and liveness.is_alive(status.executor):
                status.check_format()
                client.send(run, message)
                return None
        client.set_labels(run, {"reason": reason})
        client.cancel([run], children=True)
        agent_host_client.close(run, cancel=True)
        ProcessRegistry(paths.process_registry()).reap()  # processes of an engine that was killed
        # What cannot be read can be cancelled.
        with contextlib.suppress(UnreadableRecord, FormatUnsupported):
            row = client.get_workflow(run)
            if row is not None and row.name == RUN_WORKFLOW and row.input is not None:
                with reading(run, row.format):
                    return unpack(row.input, RunInput).config
        return None

    config = await with_client(database, end)
    if config is not None and config.tree is not None:
        from corral._engine.workspace import run_worktree

        await run_worktree.close(config.tree, config.on_this_machine().folder, run)


async def add_budget(
    run: str, amounts: Raise, *, is_total: bool = False, db: str | None = None
) -> Budget | None:
    """Raise the limits of a run or batch by these amounts, or with ``is_total`` to these amounts,
    from any process; those of a run nested in it, if that is the one that waits. Returns a copy of
    the budget as it is then; None if there is no such run or batch. Raises ``ConfigError``."""
    from corral._engine import limits

    database = find(db)

    def add(client: DatabaseClient) -> Budget | None:
        rows = client.list_workflows(ids=[run])
        if not rows or rows[0].name not in (RUN_WORKFLOW, BATCH_WORKFLOW):
            return None
        rows[0].check_format()
        has_ended = rows[0].has_ended
        if rows[0].name == BATCH_WORKFLOW:
            # The workflow of a batch does nothing. Its last round says whether it has ended.
            rounds = [rows[0], *client.list_workflows(prefix=f"{run}#", name=BATCH_WORKFLOW)]
            has_ended = rounds[-1].labels.get(BATCH_CLOSED) is not None
        if has_ended:
            kind = rows[0].labels.get("kind") or "pipeline"
            raise ConfigError(
                f"{run} has ended: its budget cannot be raised",
                hint=f"A new run continues it: corral {kind} fork RUN --from NODE.",
            )
        # A run nested in it may be what waits.
        waiting = run_list.open_budgets(database, [run]).get(run)
        owner = run if waiting is None else waiting.owner
        budget = limits.read_budget(database, owner)
        if not budget.has_limits:
            raise ConfigError(f"{run} has no budget that could be raised")
        more = budget.missing(amounts) if is_total else amounts
        limits.raise_budget(database, owner, more)
        return limits.read_budget(database, owner)

    return await with_client(database, add)


async def resume(run: str, *, db: str | None = None) -> None:
    """Continue a run in this process if no executor runs it. A run that a worker executes, or that
    has ended, stays as it is."""
    database = find(db)
    await asyncio.to_thread(prepare, database)

    def check(client: DatabaseClient) -> None:
        found = client.list_workflows(ids=[run])
        if not found:
            raise query.run_not_found(run)
        found[0].check_format()

    await with_client(database, check)  # before an executor is recorded
    here = await process_engine.opened(database)

    def move(client: DatabaseClient) -> None:
        open_workflows = client.list_workflows(ids=[run], states=OPEN_STATES)
        open_workflows += client.list_workflows(prefix=f"{run}/", states=OPEN_STATES)
        with closing(ExecutorLiveness(database, is_strict=True)) as liveness:
            for each in open_workflows:
                executor_id = responsible_executor(each)
                if executor_id is None or liveness.is_alive(executor_id):
                    continue
                target = moved_queue(each.queue, here.queue_names[0], here.all_queues)
                client.resume([each.id], target)

    await with_client(database, move)
