"""A run in memory: tasks of this event loop drive the scheduler.

::

    result = await memory_runner.run(graph, resources=resources)

    async with memory_runner.MemoryRun(graph, RunSettings(resources=resources)) as run:
        async for event in run:
            ...
        result = await run.result()

Nothing survives this process but the run directory, if there is one. However the run ends, it
leaves no task or process behind.

Theory of operation
===================

``RunLoop`` performs the commands of the scheduler (see there), with a ``MemoryJournal``: a node, a
question, a child pipeline and a wait each become one task. A task puts its result as a message into
the inbox, from which the loop takes one message at a time.

A ``Stop`` command cancels its task. A cancelled task that does not end in time is abandoned with a
warning, so one node cannot block the run. If ``drive`` itself is cancelled or fails, it stops all
tasks before it returns.

After a crash nothing continues by itself. A run that was stored (``State``) can be continued in a
new ``MemoryRun`` with that state: it gives the commands without a reply again.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from corral.core.spending import Raise
from corral.engine.node_runner import NodeRunner, Retrying
from corral.engine.run_loop import Projection, RunLoop
from corral.errors import ConfigError, CorralError
from corral.pipelines import loader
from corral.pipelines.events import RunEvent
from corral.pipelines.execution import attempt as execution_attempt
from corral.pipelines.execution.handlers import NodeResources
from corral.pipelines.execution.interviewers import Interviewer
from corral.pipelines.execution.run_dir import RunDir
from corral.pipelines.graph import Graph
from corral.pipelines.run_limits import run_limits
from corral.pipelines.scheduler.commands import (
    Answered,
    Cancelled,
    Ended,
    Expired,
    Message,
    Question,
    RaiseBudget,
    RunChild,
    RunNode,
    Steer,
    Steered,
    Wait,
    Woken,
)
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.scheduler.scheduler import Scheduler
from corral.pipelines.scheduler.state import State
from corral.system import clock
from corral.system.randomness import random_hex
from corral.values import Json

if TYPE_CHECKING:
    from corral.metering.budget import Budget
    from corral.pipelines.run_spans import LivePipelineSpans


STOP_TIMEOUT = 30.0
"""Seconds for a cancelled task to stop. An attempt limits its own stopping to less."""

C = TypeVar("C")


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    status: Literal["success", "fail", "cancelled"]
    reason: str = ""
    context: dict[str, Json] = {}
    completed: list[str] = []
    outcomes: dict[str, Outcome] = {}
    cost_usd: float = 0.0
    tokens: int = 0
    folder: Path | None = None

    @property
    def ok(self) -> bool:
        return self.status == "success"


async def run(
    graph: Graph,
    *,
    resources: NodeResources,
    interviewer: Interviewer | None = None,
    folder: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] = ".",
    run_id: str | None = None,
    values: Mapping[str, Json] | None = None,
    on_event: Callable[[RunEvent], None] | None = None,
) -> RunResult:
    """Run the graph to its end. A failed node does not raise. Raises ``PipelineInvalid`` if the
    graph is invalid, and ``StorageFailed`` if the run directory cannot be written; if the run
    ended nevertheless, the error has its result as ``.result``."""
    settings = RunSettings(
        resources=resources,
        interviewer=interviewer,
        folder=None if folder is None else Path(folder),
        workspace=Path(workspace),
        on_event=on_event,
    )
    return await MemoryRun(graph, settings, run_id=run_id, values=values).drive()


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What surrounds a run. A child pipeline gets the same, with its own directories."""

    resources: NodeResources
    interviewer: Interviewer | None = None
    """Answers the questions of human gates; None: a question without a timeout fails."""
    folder: Path | None = None
    """The run directory; None: nothing is written."""
    workspace: Path = Path()
    on_event: Callable[[RunEvent], None] | None = None
    budget: Budget | None = None
    """That of the run around this one."""


class MemoryRun:
    """A run in progress. Inside ``async with`` it stores its events until they are read. With the
    ``state`` of another run it continues from there. ``depth`` counts the pipelines around it."""

    def __init__(
        self,
        graph: Graph,
        settings: RunSettings,
        *,
        run_id: str | None = None,
        values: Mapping[str, Json] | None = None,
        state: State | None = None,
        depth: int = 0,
    ) -> None:
        self.graph = graph
        self.run_id = run_id or f"run-{random_hex(4)}"
        self.scheduler = Scheduler(graph, run_id=self.run_id, values=values, state=state)
        self._settings = settings
        self._workspace = settings.workspace.absolute()
        self._folder = None if settings.folder is None else RunDir(settings.folder.absolute())
        spans: LivePipelineSpans | None = None
        if (endpoint := settings.resources.options.get("otel")) is not None:
            from corral.pipelines.run_spans import LivePipelineSpans

            spans = LivePipelineSpans(endpoint, settings.resources.env)
        self._projection = Projection(self.run_id, self._folder, spans=spans)
        if settings.on_event is not None:
            self._projection.on_event = self._deliver
        self._unread: deque[RunEvent] | None = None
        self._has_news = asyncio.Event()
        self._depth = depth
        self.budget = settings.budget
        """What the model calls may use; None: there is no limit."""
        if graph.has_limits:
            from corral.metering.budget import memory_budget

            self.budget = memory_budget(run_limits(graph), settings.budget)
            if self.budget is not None and self.budget is not settings.budget and not depth:
                self.budget.owner = self.run_id
        self._node_runner = NodeRunner(
            run_id=self.run_id,
            graph=graph,
            resources=settings.resources,
            workspace=self._workspace,
            folder=self._folder,
            on_event=self._deliver,
            budget=self.budget,
            ask_person=None if settings.interviewer is None else settings.interviewer.ask,
        )
        self._journal = MemoryJournal(
            self._node_runner,
            self.scheduler.state,
            interviewer=settings.interviewer,
            on_retry=lambda retrying: self._projection.record(retrying, self.scheduler.state),
            open_child=self._open_child,
        )
        self._driving: asyncio.Task[RunResult] | None = None

    # The public methods.

    async def __aenter__(self) -> MemoryRun:
        self._unread = deque()
        self._projection.on_event = self._deliver
        self._driving = asyncio.create_task(self.drive())
        return self

    async def __aexit__(self, *_: object) -> None:
        driving = self._entered()
        driving.cancel()
        await asyncio.wait({driving})
        if not driving.cancelled():
            driving.exception()  # ``result`` raises it; here it is only marked as retrieved

    async def __aiter__(self) -> AsyncIterator[RunEvent]:
        driving, unread = self._entered(), self._unread
        while True:
            while unread:
                yield unread.popleft()
            if driving.done():
                return
            self._has_news.clear()
            await self._has_news.wait()

    async def result(self) -> RunResult:
        """Wait for the end of the run."""
        return await asyncio.shield(self._entered())

    def _entered(self) -> asyncio.Task[RunResult]:
        if self._driving is None:
            raise RuntimeError("enter the run first: async with MemoryRun(...) as run")
        return self._driving

    def cancel(self, reason: str = "") -> None:
        """Stop what is running and end the run with status ``cancelled``."""
        self._journal.inbox.put_nowait(Cancelled(reason=reason))

    def steer(self, updates: dict[str, Json]) -> None:
        """Change the context of the run."""
        self._journal.inbox.put_nowait(Steered(updates=updates))

    def add_budget(self, more: Raise) -> None:
        """Raise the limits of the run by these amounts. Raises ``ConfigError``."""
        if self.budget is None or self.budget is self._settings.budget:
            raise ConfigError(f"{self.run_id} has no budget")
        self.budget.raise_limits(more)

    async def drive(self) -> RunResult:
        """Run to the end."""
        scheduler, writer = self.scheduler, self._projection.writer
        if writer is not None:
            # Before anything costs money.
            writer.folder.create(self.graph, self.run_id, str(self._workspace))
            writer.folder.write_graph(self.graph)
        loop = RunLoop(scheduler, self._journal, self._projection)
        try:
            finish = await loop.run()
        except BaseException:
            await loop.perform(scheduler.receive(Cancelled(reason="interrupted")))
            raise
        finally:
            await self._journal.wait_for_stopped()
            if writer is not None:
                writer.close(scheduler.state)
            self._node_runner.close()
            self._has_news.set()
            if self._projection.spans is not None:
                await self._projection.spans.close()
        state = scheduler.state
        result = RunResult(
            run_id=self.run_id,
            status=finish.status,
            reason=finish.reason,
            context=state.context,
            completed=state.completed,
            outcomes=state.outcomes,
            cost_usd=state.cost_usd,
            tokens=state.tokens,
            folder=None if self._folder is None else self._folder.path,
        )
        if writer is not None and writer.failed is not None:
            writer.failed.result = result
            raise writer.failed
        return result

    def _open_child(self, command: RunChild) -> MemoryRun:
        graph = loader.load_child(
            command.dotfile, values=command.context, workspace=self._workspace, depth=self._depth
        )
        folder = None
        if self._folder is not None:
            folder = self._folder.make_visit_dir(command.id, command.node) / "child"
        settings = replace(
            self._settings,
            folder=folder,
            workspace=self._workspace / command.workdir,
            on_event=self._deliver,
            budget=self.budget,
        )
        return MemoryRun(
            graph,
            settings,
            run_id=f"{self.run_id}/{command.id}",
            values=command.context,
            depth=self._depth + 1,
        )

    def _deliver(self, event: RunEvent) -> None:
        if self._settings.on_event is not None:
            self._settings.on_event(event)
        if self._unread is not None:
            self._unread.append(event)
            self._has_news.set()


class MemoryJournal:
    """Starts tasks of this event loop, and delivers their results."""

    def __init__(
        self,
        nodes: NodeRunner,
        state: State,
        *,
        interviewer: Interviewer | None,
        on_retry: Callable[[Retrying], None],
        open_child: Callable[[RunChild], MemoryRun],
    ) -> None:
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._nodes = nodes
        self._state = state
        self._interviewer = interviewer
        self._on_retry = on_retry
        self._open_child = open_child
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping: dict[asyncio.Task[None], str] = {}
        """Cancelled tasks that have not ended, and their nodes."""
        self._children: dict[str, MemoryRun] = {}

    async def start_node(self, command: RunNode) -> None:
        self._begin(command.id, self._run_node, command)

    async def start_child(self, command: RunChild) -> None:
        self._begin(command.id, self._run_child, command)

    async def start_timer(self, command: Wait) -> None:
        self._begin(command.id, self._wait, command)

    async def ask(self, question: Question) -> None:
        self._begin(question.id, self._ask, question)

    async def stop(self, id: str) -> None:
        if task := self._tasks.pop(id, None):
            task.cancel()
            self._stopping[task] = id.rpartition(".")[0]
            task.add_done_callback(lambda stopped: self._stopping.pop(stopped, None))

    async def steer(self, command: Steer) -> None:
        if child := self._children.get(command.child):
            child.steer(command.updates)

    async def raise_budget(self, command: RaiseBudget) -> None:
        if self._nodes.budget is not None:
            self._nodes.budget.raise_limits(command.amounts)

    async def publish_progress(self, state: State) -> None:
        """A manager reads the state of its child itself."""

    async def next(self) -> list[Message]:
        return [await self.inbox.get()]

    def _begin(self, id: str, call: Callable[[C], Awaitable[Message]], command: C) -> None:
        self._tasks[id] = asyncio.create_task(self._answer(id, call, command))

    async def _answer(self, id: str, call: Callable[[C], Awaitable[Message]], command: C) -> None:
        try:
            message = await call(command)
        except CorralError as error:
            message = Ended(id=id, outcome=failed(str(error), retryable=error.retryable))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            message = Ended(id=id, outcome=failed(reason, retryable=False))
        self._tasks.pop(id, None)
        self.inbox.put_nowait(message)

    async def wait_for_stopped(self) -> None:
        """Wait for cancelled tasks; those that do not end are abandoned."""
        if self._stopping:
            waits = [
                execution_attempt.wait_stopped(task, node, self._nodes.run_id, STOP_TIMEOUT)
                for task, node in self._stopping.items()
            ]
            for message in filter(None, await asyncio.gather(*waits)):
                self._state.log(message)

    async def _run_node(self, visit: RunNode) -> Message:
        return Ended(id=visit.id, outcome=await self._nodes.run(visit, self._on_retry))

    async def _ask(self, question: Question) -> Message:
        interviewer = self._interviewer
        if interviewer is None:
            if question.timeout is None:
                reason = f"there is no interviewer to ask: {question.text}"
                return Ended(id=question.id, outcome=failed(reason, retryable=False))
            await asyncio.sleep(question.timeout)
            return Expired(id=question.id)
        limit = asyncio.timeout(question.timeout)
        if question.timeout is not None:
            question = replace(question, deadline=clock.now() + question.timeout)
        try:
            async with limit:
                return Answered(id=question.id, answer=await interviewer.ask(question))
        except TimeoutError:
            if not limit.expired():
                raise
            return Expired(id=question.id)

    async def _run_child(self, command: RunChild) -> Message:
        child = self._children[command.id] = self._open_child(command)
        try:
            await child.drive()
        finally:
            del self._children[command.id]
        return Ended(id=command.id, outcome=child.scheduler.state.as_outcome())

    async def _wait(self, command: Wait) -> Message:
        await asyncio.sleep(command.seconds)
        child = self._children.get(command.child)
        return Woken(id=command.id, seen={} if child is None else child.scheduler.state.progress())
