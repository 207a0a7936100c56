"""Visits of nodes, with all their attempts: in the workflow ``corral.node``, or in their run.

Theory of operation
-------------------
There are two ways to run a visit. With workers, it is a workflow on a queue, which any
worker takes (``visit``). In the process that owns its run, it is a task of that process
(``LocalNodes``), without a workflow, a queue and messages: its result becomes part of the output of
a step of the run. The rest is about the workflow; ``LocalNodes`` has its own theory.

Who calls: an executor that takes the workflow from its queue. A run enqueued it with a
``NodeInput``. There are two forms:

* a visit: attempts are made until one succeeds or the retry rule allows no more; the outcome is
  sent to the run as ``Ended``;
* a timer: sleep, then send ``Expired`` or ``Woken`` to the run.

States of a visit: attempt n runs -> pause -> attempt n+1 ... -> outcome sent. Each attempt is a
recorded step with its own name (``fix#2``): one that has ended is never run again. The end of a
pause is recorded too, so a restart does not extend it.

After an attempt that a rate limit ended, the workflow leaves its executor until the limit ends
(``adapter.leave_until``): nothing of it runs, and its place in a limited queue is free. Then any
worker of the queue replays it and goes on in the agent's session (``on_limit=wait``); that is not
another attempt.

Guarantees
* An attempt always has a result: every exception but a cancellation becomes a failed outcome, so
  that a bug fails its node and does not hang its run.
* A message is sent once: its key contains the visit, and only the first message with a key counts.

Crashes
* The worker dies during an attempt: the step has no result, so the next executor runs it again.
  If the node's agent runs in an agent host (``agent_host``), the running or finished job is found
  there; otherwise the attempt starts again, as the node's attribute ``on_crash`` says
  (``node_runner.apply_crash_rule``).
* It dies ``RECOVERIES`` times: the node is likely what kills the workers. The library gives the
  workflow up, and the run notices (``run_workflow._find_lost``).
* The worker drains: an attempt that has not started waits for ever (``admitted``), and another
  executor takes the workflow.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from corral._engine import node_runner
from corral._engine.agent_host import client
from corral._engine.dbos import adapter
from corral._engine.dbos.database import UnreadableRecord, reading
from corral._engine.node_runner import AttemptResult, DueAttempt, NodeRunner, Retrying
from corral._engine.payloads import (
    NodeInput,
    NodesStep,
    RunConfig,
    RunInput,
    pack,
    unpack,
)
from corral._engine.worker import executor
from corral._engine.workspace import artifacts
from corral._pipelines import node_kinds
from corral._pipelines.execution import attempt as execution_attempt
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.execution.run_dir import RunDir
from corral._pipelines.graph import Node
from corral._pipelines.scheduler.commands import Ended, RunNode, Woken, node_of
from corral._pipelines.scheduler.outcome import Outcome, failed_task
from corral._pipelines.scheduler.retry import with_earlier_cost
from corral._system import clock, fs
from corral.errors import ConfigError, StorageFailed
from corral.values import Json

if TYPE_CHECKING:
    from corral._engine.dbos.database import Database
    from corral._metering.budget import Budget
    from corral._pipelines.execution.interviewers import AskPerson

LONGEST_HOLD = 10.0
"""Seconds that an attempt waits for a rate limit with its agent. For a longer one the attempt ends,
and the workflow sleeps: nothing runs, and another worker may go on."""
RECOVERIES = 20
"""Times that a visit is started again after its worker died."""

_CACHE = 64
_run_inputs: OrderedDict[str, RunInput] = OrderedDict()


def check_names_itself(run_input: RunInput, run_id: str) -> None:
    """Raises ``UnreadableRecord`` if the input of a run names another run: it would send the
    messages, write the files and replace the remembered input of that run."""
    if run_input.run_id != run_id:
        raise UnreadableRecord(f"it names another run, {run_input.run_id!r}")


def remember_run(run_input: RunInput) -> None:
    """Keep a run's input in memory: it never changes, and each node needs it."""
    _run_inputs[run_input.run_id] = run_input
    _run_inputs.move_to_end(run_input.run_id)
    while len(_run_inputs) > _CACHE:
        _run_inputs.popitem(last=False)


async def visit(payload: dict[str, Json]) -> Json:
    task = unpack(payload, NodeInput)
    if (message := task.then) is not None:
        await adapter.sleep(task.sleep)
        if task.child and isinstance(message, Woken):
            look = partial(adapter.published, task.child, "progress")
            progress = await adapter.step("look", look)
            message = Woken(id=message.id, seen=progress if isinstance(progress, dict) else {})
        key = f"{type(message).__name__} {message.id}"
        await adapter.send(task.run_id, pack(message), key=key)
    if task.visit is None:
        return None
    outcome = await _visit(task.run_id, task.visit)
    ended = pack(Ended(id=task.visit.id, outcome=outcome))
    await adapter.send(task.run_id, ended, key=f"ended {task.visit.id}")
    return None


async def _visit(run_id: str, visit: RunNode) -> Outcome:
    async def make(due: DueAttempt) -> AttemptResult:
        step = partial(_recorded_attempt, run_id, due)
        name = attempt_name(due.visit.node, due.number)
        return unpack(await adapter.step(name, step, preemptible=True), AttemptResult)

    async def pause(due: DueAttempt, result: AttemptResult) -> None:
        key = f"retrying {visit.id}#{due.number}"
        await adapter.send(run_id, pack(due.retrying(result)), key=key)
        if result.until:
            await adapter.leave_until(result.until)
        else:
            await adapter.sleep(result.pause or 0.0)

    return await node_runner.run_visit(visit, make, pause)


def attempt_name(node: str, number: int) -> str:
    """The name of the step of an attempt."""
    return f"{node}#{number}"


BATCH_BYTES = 1024 * 1024
"""About the maximum size of the results in one step."""
MAIL_POLL = 0.5
"""Maximum number of seconds between two looks into the inbox, while local nodes run."""


SUSPECT = 2
"""Deaths of its process after which a task starts alone."""
POISON = 5
"""Deaths of its process after which a task fails."""


class StartMarks:
    """How often the process died while a task ran in it: a file in the task's directory has a byte
    for each start, and is removed when the task ends. Where it cannot be written, nothing is
    counted."""

    def __init__(self, folder: RunDir) -> None:
        self._folder = folder

    def _file(self, visit: RunNode) -> Path:
        return self._folder.visit_dir(visit.id) / ".starts"

    def count_deaths(self, visit: RunNode) -> int:
        with contextlib.suppress(OSError):
            return fs.status(self._file(visit)).st_size
        return 0

    @contextlib.contextmanager
    def started(self, visit: RunNode) -> Generator[None]:
        with contextlib.suppress(OSError, StorageFailed):
            self._folder.make_visit_dir(visit.id, visit.node)
            fs.append(self._file(visit), b".")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fs.remove_file(self._file(visit))


class LocalNodes:
    """The visits of one run that run in the process of the run, as tasks.

    Theory of operation
    -------------------
    The run adds a visit (``add``) when the scheduler returns its command, and calls ``next`` in a
    recorded step. Only there attempts are started: a replay returns the recorded output of the
    step and does not call ``next``, so it starts nothing that has a result. When it has caught up,
    the first real call starts what has none.

    ``next`` waits for attempts to end, and returns all that have: the fewer steps, the faster. The
    order of messages in the outputs is the order in which the run takes them, on replay too. The
    run reports each message to ``take``; then the visit is over, or its next attempt is due.

    While attempts run, ``next`` looks into the run's inbox. If a message waits there, it returns,
    and the run receives it in the usual way.

    Crashes: an attempt whose result is not in a recorded step is run again, as that of a node
    workflow. If it runs in an agent host, the running or finished job is found there. The end of a
    pause is recorded, so a restart does not extend it.

    A task of a batch that runs in this process may kill it, and thousands of other tasks with it.
    So each start of one is noted in its directory, until it ends in any other way. From ``SUSPECT``
    deaths on it starts alone, when no other task can, so that no other one is blamed; after
    ``POISON`` deaths it fails as ``dead_letter``."""

    def __init__(self, run_input: RunInput, poll: float) -> None:
        self._run_input = run_input
        self._open: dict[str, DueAttempt] = {}
        self._due: dict[str, DueAttempt] = {}
        """Those whose next attempt was not started in this process."""
        self._tasks: dict[str, asyncio.Task[Ended | Retrying]] = {}
        self._finished: deque[str] = deque()
        """Visits whose tasks have ended."""
        self._stopping: set[asyncio.Task[Ended | Retrying]] = set()
        self._has_news = asyncio.Event()
        self._first_poll = self._poll = min(poll, MAIL_POLL)
        self._next_look = 0.0
        self._is_leaving = False
        self._marks: StartMarks | None = None
        config, nodes = run_input.config, run_input.graph.nodes.values()
        if run_input.batch is not None and not any(is_detached(config, node) for node in nodes):
            self._marks = StartMarks(RunDir(config.on_this_machine().folder))

    def __contains__(self, visit: str) -> bool:
        return visit in self._open

    def __len__(self) -> int:
        return len(self._open)

    @property
    def visits(self) -> list[str]:
        return list(self._open)

    # Called by the run; on replay, too.

    def add(self, command: RunNode) -> None:
        self._open[command.id] = self._due[command.id] = DueAttempt(visit=command)

    def take(self, message: Ended | Retrying) -> None:
        """The run takes this message of a visit. Of a visit that was stopped, it is ignored."""
        if isinstance(message, Ended):
            self._open.pop(message.id, None)
            self._due.pop(message.id, None)
        elif message.outcome is not None and (due := self._open.get(message.visit)) is not None:
            self._open[message.visit] = self._due[message.visit] = due.following(
                message.outcome, is_wait=message.is_wait, until=message.until
            )

    def stop(self, visit: str) -> None:
        """Stop a visit. Its agent is cancelled."""
        self._open.pop(visit, None)
        self._due.pop(visit, None)
        task = self._tasks.pop(visit, None)
        if task is not None and not task.done():
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)
            if not task.cancelling():  # a second cancellation would interrupt its cleanup
                task.cancel()

    async def close(self, *, leave: bool) -> None:
        """Stop all. ``leave``: another process continues, so agents in an agent host work on."""
        self._is_leaving = leave
        for visit in list(self._tasks):
            self.stop(visit)
        self._open.clear()
        await self.wait_for_stopped()

    async def wait_for_stopped(self) -> None:
        if self._stopping:
            await asyncio.wait(self._stopping)  # an attempt limits the time of its own stopping

    # Called in a step.

    async def next(self, timeout: float | None) -> Json:
        """A ``NodesStep``: what has ended, or that a message waits; empty after the timeout."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        for due in self._startable():
            # Not in the context of this step, as in a node workflow.
            task = asyncio.create_task(self._attempt(due), context=contextvars.Context())
            self._tasks[due.visit.id] = task
            task.add_done_callback(partial(self._on_finished, due.visit.id))
            del self._due[due.visit.id]
        while True:
            if loop.time() >= self._next_look:
                try:
                    has_mail = await adapter.has_mail(self._run_input.run_id)
                except Exception:  # the database is not reachable; the next look may succeed
                    has_mail = False
                if has_mail:
                    self._poll = self._first_poll
                    return pack(NodesStep(messages=self._ended(), has_mail=True))
                self._next_look = loop.time() + self._poll
            if messages := self._ended():
                self._poll = self._first_poll
                return pack(NodesStep(messages=messages))
            if until is not None and loop.time() >= until:
                return pack(NodesStep())
            self._has_news.clear()
            limit = self._next_look if until is None else min(self._next_look, until)
            timer = loop.call_at(limit, self._has_news.set)
            try:
                await self._has_news.wait()
            finally:
                timer.cancel()
            self._poll = min(self._poll * 1.2, MAIL_POLL)

    def _startable(self) -> list[DueAttempt]:
        """The attempts that may start now."""
        due = [*self._due.values()]
        marks = self._marks
        if marks is None:
            return due
        safe = [each for each in due if marks.count_deaths(each.visit) < SUSPECT]
        return safe or ([] if self._tasks else due[:1])

    def _on_finished(self, visit: str, _task: object) -> None:
        self._finished.append(visit)
        self._has_news.set()

    def _ended(self) -> list[Ended | Retrying]:
        """The results of attempts that have ended, about ``BATCH_BYTES`` of them."""
        messages: list[Ended | Retrying] = []
        size = 0
        while self._finished and size < BATCH_BYTES:
            task = self._tasks.pop(self._finished.popleft(), None)
            if task is not None and not task.cancelled():  # it was not stopped
                messages.append(task.result())
                size += len(msgspec.json.encode(messages[-1]))
        return messages

    async def _attempt(self, due: DueAttempt) -> Ended | Retrying:
        if (pause := due.until - clock.now()) > 0:
            await asyncio.sleep(pause)
        marks = self._marks
        if marks is not None and marks.count_deaths(due.visit) >= POISON:
            reason = f"its process died {POISON} times while it ran"
            return Ended(id=due.visit.id, outcome=failed_task(reason, "dead_letter"))
        with nullcontext() if marks is None else marks.started(due.visit):
            result = await attempt(self._run_input, due, lambda: self._is_leaving)
        adapter.watch(f"ended {due.visit.node}#{due.attempt}")
        outcome = with_earlier_cost(result.outcome, due.earlier)
        if result.pause is None:
            return Ended(id=due.visit.id, outcome=outcome)
        until = clock.now() + result.pause
        return replace(due.retrying(result), outcome=outcome, until=until, is_wait=result.is_wait)


async def _recorded_attempt(run_id: str, due: DueAttempt) -> Json:
    await executor.current().admitted()
    run_input = _run_inputs.get(run_id)
    if run_input is None:
        raw = await adapter.input_of(run_id)
        with reading(run_id):
            run_input = unpack(raw, RunInput).without_tasks()
            check_names_itself(run_input, run_id)
        remember_run(run_input)
    return pack(await attempt(run_input, due, lambda: False))


async def attempt(
    run_input: RunInput, due: DueAttempt, is_leaving: Callable[[], bool]
) -> AttemptResult:
    """Make an attempt: in an agent host that outlives this process, or in this process.
    ``is_leaving``: whether a cancellation means that another process continues; also if this one is
    closing."""

    async def run(visit: RunNode, number: int) -> Outcome:
        here = executor.current()
        await here.admitted()
        with here.attempt(f"{visit.id} of {run_input.run_id}"):
            if is_detached(run_input.config, node_of(run_input.graph, visit)):
                job = client.Job(
                    visit=visit, attempt=number, database=str(here.database.path or "")
                )
                return await client.attempt(run_input, job, lambda: here.closing or is_leaving())
            resources = await here.resource_cache.find(run_input.config)
            return await run_in_process(run_input, visit, number, resources, here.database)

    return await node_runner.attempt(run, run_input.graph, run_input.run_id, due)


async def run_in_process(
    run_input: RunInput,
    visit: RunNode,
    number: int,
    resources: NodeResources,
    database: Database | None = None,
) -> Outcome:
    """Run the attempt in this process's event loop. ``database``: that of the run, if this process
    may use it."""
    config = run_input.config.on_this_machine()
    graph, run_id, here = run_input.graph, run_input.run_id, executor.running()
    ask_person: AskPerson | None = None
    if here is not None and node_of(graph, visit).is_true("questions"):
        from corral._engine import open_questions

        ask_person = partial(open_questions.ask_person, run_id, here.database)
    budget: Budget | None = None
    if names := run_input.config.budgets:
        from corral._engine import limits

        store = None if here is None else here.database
        budget = await asyncio.to_thread(limits.open_budget, names, f"{run_id}/{visit.id}", store)
        if budget is not None:
            budget.owner = limits.find_owner(names[-1], run_id)

    async def work(context: handlers.NodeContext) -> Outcome:
        began = clock.now()
        async with _limits(context, database):
            outcome = await execution_attempt.run_bounded(
                execution_attempt.attempt(context), context.node.id, run_id
            )
        if config.artifacts_url and config.folder != run_input.config.folder:
            # The machine that ends the run may be another one, without this directory.
            folder = RunDir(config.folder).artifacts
            upload = partial(
                artifacts.upload, folder, config.artifacts_url, run_input.run, since=began
            )
            try:
                await asyncio.to_thread(upload)
            except (StorageFailed, ConfigError) as error:
                notes = f"{outcome.notes}; {error.message}".removeprefix("; ")
                return replace(outcome, notes=notes)
        return outcome

    perform = work
    if config.tree is not None or visit.worktrees or visit.merges:
        from corral._engine.workspace import branch_worktrees

        perform = partial(branch_worktrees.in_place, branch_worktrees.place_of(run_input), work)
    runner = NodeRunner(
        run_id=run_id,
        graph=graph,
        resources=resources,
        workspace=Path(config.workspace),
        started_in="" if config.tree is None else config.tree.repository,
        folder=RunDir(config.folder),
        longest_hold=LONGEST_HOLD,
        budget=budget,
        ask_person=ask_person,
        perform=perform,
    )
    return await runner.attempt(visit, number)


def _limits(
    context: handlers.NodeContext, database: Database | None
) -> AbstractAsyncContextManager[None]:
    """Within the block the node's agent shares its rate limits with other workers."""
    is_agent = node_kinds.find(context.node.kind).llm == "agent"
    if database is None or context.resources.simulate or not is_agent:
        return nullcontext()
    from corral._engine.limits import shared_limits

    return shared_limits(context, database)


def is_detached(config: RunConfig, node: Node) -> bool:
    """Whether the node's attempts run in an agent host. The node's ``detached`` wins."""
    given = node.attrs.get("detached")
    if given is not None and given != "":
        return given in (True, "true")
    if node.is_true("questions"):  # only a worker knows the database
        return False
    if config.simulate or not config.detached or not node_kinds.find(node.kind).detached:
        return False
    # A host does not know node kinds that this program registered itself.
    return handlers.is_built_in(handlers.for_node(node))
