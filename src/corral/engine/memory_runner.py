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

``MemoryRun.drive`` is the driver of a ``Scheduler`` (see there). It carries out each command: a
node, a question, a child pipeline and a wait each become one task. A task puts its result as a
message into ``_inbox``. ``drive`` takes one message at a time, calls ``Scheduler.receive``, and
carries out the commands that come back, until the scheduler is finished.

A ``Stop`` command cancels its task. A cancelled task that does not end in time is abandoned with a
warning, so one node cannot block the run. If ``drive`` itself is cancelled or fails, it stops all
tasks before it returns.

After a crash nothing continues by itself. A run that was stored (``State``) can be continued in a
new ``MemoryRun`` with that state: it gives the commands without a reply again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from corral.engine.node_runner import AttemptResult, DueAttempt, NodeRunner
from corral.errors import ConfigError, CorralError
from corral.pipelines import events, loader
from corral.pipelines.events import PipelineEvent, RunEvent, StepRetrying
from corral.pipelines.execution import attempt as execution_attempt
from corral.pipelines.execution.handlers import NodeResources
from corral.pipelines.execution.interviewers import Interviewer
from corral.pipelines.execution.run_dir import CheckpointWriter, RunDir
from corral.pipelines.graph import Graph
from corral.pipelines.run_limits import run_limits
from corral.pipelines.scheduler.commands import (
    Answered,
    AskHuman,
    Cancelled,
    Checkpoint,
    Child,
    Command,
    EmitEvent,
    Ended,
    Expired,
    FinishRun,
    Message,
    Question,
    RaiseBudget,
    Raised,
    Restart,
    RunNode,
    Steer,
    Steered,
    Stop,
    Wait,
    Woken,
)
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.scheduler.scheduler import Scheduler
from corral.pipelines.scheduler.state import State
from corral.spending import Raise
from corral.values import Json

if TYPE_CHECKING:
    from corral.metering.budget import Budget
    from corral.pipelines.run_spans import LivePipelineSpans

NOWHERE = Path(os.devnull)
_END_EVENTS = (events.PipelineCompleted, events.PipelineFailed)


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
        self.run_id = run_id or f"run-{os.urandom(4).hex()}"
        self.scheduler = Scheduler(graph, run_id=self.run_id, values=values, state=state)
        self._settings = settings
        self._workspace = settings.workspace.absolute()
        self._checkpoints = (
            None
            if settings.folder is None
            else CheckpointWriter(RunDir(settings.folder.absolute()), self._checkpoint_saved)
        )
        self._spans = _live_spans(settings.resources)
        self._on_event = settings.on_event
        self._unread: deque[RunEvent] | None = None
        self._has_news = asyncio.Event()
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping: dict[asyncio.Task[None], str] = {}
        """Cancelled tasks that have not ended, and their nodes."""
        self._children: dict[str, MemoryRun] = {}
        self._depth = depth
        self._seq = 0
        self.budget = settings.budget
        """What the model calls may use; None: there is no limit."""
        if graph.has_limits:
            from corral.pipelines.execution.run_budget import memory_budget

            self.budget = memory_budget(run_limits(graph), settings.budget)
            if self.budget is not None and self.budget is not settings.budget and not depth:
                self.budget.owner = self.run_id
        self._node_runner = NodeRunner(
            run_id=self.run_id,
            graph=graph,
            resources=settings.resources,
            workspace=self._workspace,
            folder=None if self._checkpoints is None else self._checkpoints.folder,
            on_event=self._deliver,
            budget=self.budget,
            ask_person=None if settings.interviewer is None else settings.interviewer.ask,
        )
        self._driving: asyncio.Task[RunResult] | None = None

    # The public methods.

    async def __aenter__(self) -> MemoryRun:
        self._unread = deque()
        self._driving = asyncio.create_task(self.drive())
        return self

    async def __aexit__(self, *_: object) -> None:
        driving = self._entered()
        driving.cancel()
        await asyncio.wait({driving})
        if not driving.cancelled():
            driving.exception()  # ``result`` raises it; here it is only marked as retrieved

    def __aiter__(self) -> AsyncIterator[RunEvent]:
        return self._events()

    async def _events(self) -> AsyncIterator[RunEvent]:
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
        self._inbox.put_nowait(Cancelled(reason=reason))

    def steer(self, updates: dict[str, Json]) -> None:
        """Change the context of the run."""
        self._inbox.put_nowait(Steered(updates=updates))

    def add_budget(self, more: Raise) -> None:
        """Raise the limits of the run by these amounts. Raises ``ConfigError``."""
        if self.budget is None or self.budget is self._settings.budget:
            raise ConfigError(f"{self.run_id} has no budget")
        self.budget.raise_limits(more)
        self._inbox.put_nowait(Raised(amounts=more))

    def _change_run(self, command: Steer | RaiseBudget) -> None:
        if isinstance(command, Steer):
            self._steer(command)
        elif self.budget is not None:
            self.budget.raise_limits(command.amounts)

    async def drive(self) -> RunResult:
        """Run to the end."""
        scheduler, checkpoints = self.scheduler, self._checkpoints
        if checkpoints is not None:
            checkpoints.folder.create(self.graph, self.run_id)  # before anything costs money
            checkpoints.folder.write_graph(self.graph)
        try:
            self._carry_out(scheduler.pending() if scheduler.state.started else scheduler.start())
            while scheduler.state.finish is None:
                for command in scheduler.receive(await self._inbox.get()):
                    if isinstance(command, Restart):
                        await self._wait_for_stopped()
                    self._do(command)
        except BaseException:
            self._carry_out(scheduler.receive(Cancelled(reason="interrupted")))
            raise
        finally:
            await self._wait_for_stopped()
            if checkpoints is not None:
                checkpoints.close(scheduler.state)
            self._node_runner.close()
            self._has_news.set()
            if self._spans is not None:
                await self._spans.close()
        result = self._result(scheduler.state.finish)
        if checkpoints is not None and checkpoints.failed is not None:
            checkpoints.failed.result = result
            raise checkpoints.failed
        return result

    def _result(self, finish: FinishRun) -> RunResult:
        state = self.scheduler.state
        return RunResult(
            run_id=self.run_id,
            status=finish.status,
            reason=finish.reason,
            context=state.context,
            completed=state.completed,
            outcomes=state.outcomes,
            cost_usd=state.cost_usd,
            tokens=state.tokens,
            folder=None if self._checkpoints is None else self._checkpoints.folder.path,
        )

    # Commands.

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            self._do(command)

    def _do(self, command: Command) -> None:
        match command:
            case EmitEvent():
                self._emit_of_run(command.event)
            case RunNode():
                self._begin(command.id, self._run_node, command)
            case AskHuman(question=question):
                self._begin(question.id, self._ask, question)
            case Child():
                self._begin(command.id, self._child, command)
            case Wait():
                self._begin(command.id, self._wait, command)
            case Steer() | RaiseBudget():
                self._change_run(command)
            case Stop():
                self._stop(command.id)
            case Checkpoint() | Restart():
                self._write(command)
            case FinishRun():
                pass

    def _write(self, command: Checkpoint | Restart) -> None:
        """Write to the run directory, if there is one."""
        if self._checkpoints is None:
            return
        if isinstance(command, Restart):
            self._checkpoints.restart(command.round)
        else:
            self._checkpoints.node_ended(command, self.scheduler.state)

    def _steer(self, command: Steer) -> None:
        if child := self._children.get(command.child):
            child.steer(command.updates)

    def _stop(self, id: str) -> None:
        if task := self._tasks.pop(id, None):
            task.cancel()
            self._stopping[task] = id.rpartition(".")[0]
            task.add_done_callback(self._forget_stopped)

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
        self._inbox.put_nowait(message)

    def _forget_stopped(self, task: asyncio.Task[None]) -> None:
        self._stopping.pop(task, None)

    async def _wait_for_stopped(self) -> None:
        """Wait for cancelled tasks; those that do not end are abandoned."""
        if self._stopping:
            waits = [
                execution_attempt.wait_stopped(task, node, self.run_id, STOP_TIMEOUT)
                for task, node in self._stopping.items()
            ]
            for message in filter(None, await asyncio.gather(*waits)):
                self.scheduler.state.log(message)

    async def _run_node(self, visit: RunNode) -> Message:
        def on_retry(due: DueAttempt, result: AttemptResult) -> None:
            self._emit(
                StepRetrying(
                    node=visit.node,
                    visit=visit.id,
                    attempt=due.attempt,
                    delay=result.pause or 0.0,
                    reason=result.outcome.failure_reason,
                )
            )

        return Ended(id=visit.id, outcome=await self._node_runner.run(visit, on_retry))

    async def _ask(self, question: Question) -> Message:
        interviewer = self._settings.interviewer
        if interviewer is None:
            if question.timeout is None:
                reason = f"there is no interviewer to ask: {question.text}"
                return Ended(id=question.id, outcome=failed(reason, retryable=False))
            await asyncio.sleep(question.timeout)
            return Expired(id=question.id)
        limit = asyncio.timeout(question.timeout)
        if question.timeout is not None:
            question = replace(question, deadline=time.time() + question.timeout)
        try:
            async with limit:
                return Answered(id=question.id, answer=await interviewer.ask(question))
        except TimeoutError:
            if not limit.expired():
                raise
            return Expired(id=question.id)

    async def _child(self, command: Child) -> Message:
        if self._depth >= loader.MAX_DEPTH:
            reason = f"pipelines are nested more than {loader.MAX_DEPTH} deep"
            return Ended(id=command.id, outcome=failed(reason, retryable=False))
        path = self._workspace / command.dotfile
        loaded = loader.load(path, values=command.context, cwd=self._workspace)
        graph = loader.with_absolute_children(loaded, path.parent)
        folder = None
        if self._checkpoints is not None:
            folder = self._checkpoints.folder.make_visit_dir(command.id, command.node) / "child"
        settings = replace(
            self._settings,
            folder=folder,
            workspace=self._workspace / command.workdir,
            on_event=self._deliver,
            budget=self.budget,
        )
        child = self._children[command.id] = MemoryRun(
            graph,
            settings,
            run_id=f"{self.run_id}/{command.id}",
            values=command.context,
            depth=self._depth + 1,
        )
        try:
            await child.drive()
        finally:
            del self._children[command.id]
        return Ended(id=command.id, outcome=child.scheduler.state.as_outcome())

    async def _wait(self, command: Wait) -> Message:
        await asyncio.sleep(command.seconds)
        child = self._children.get(command.child)
        return Woken(id=command.id, seen={} if child is None else child.scheduler.state.progress())

    # Events.

    def _emit_of_run(self, event: PipelineEvent) -> None:
        if self._checkpoints is not None and isinstance(event, _END_EVENTS):
            self._checkpoints.flush(self.scheduler.state)  # reports of nodes come before the end
        self._emit(event)

    def _checkpoint_saved(self, node: str) -> None:
        self._emit(events.CheckpointSaved(node=node))

    def _emit(self, event: PipelineEvent) -> None:
        is_visible = self._on_event is not None or self._unread is not None
        if not is_visible and self._checkpoints is None and self._spans is None:
            return
        self._seq += 1
        event = replace(event, seq=self._seq, ts=time.time(), run_id=self.run_id)
        if self._checkpoints is not None:
            self._checkpoints.add_event(event)
        if self._spans is not None:
            self._spans.add(event)
        self._deliver(event)

    def _deliver(self, event: RunEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)
        if self._unread is not None:
            self._unread.append(event)
            self._has_news.set()


def _live_spans(resources: NodeResources) -> LivePipelineSpans | None:
    """What sends the spans of the run, if its options ask for it. Raises ``ConfigError``."""
    endpoint = resources.options.get("otel")
    if endpoint is None:
        return None
    from corral.pipelines.run_spans import LivePipelineSpans

    return LivePipelineSpans(endpoint, resources.env)
