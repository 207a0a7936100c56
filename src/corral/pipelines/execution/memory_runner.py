"""A run in memory: the plan driven by tasks of this loop.

::

    result = await inline.run(graph, desk=desk)

    async with inline.Running(graph, desk=desk) as run:
        async for event in run:
            ...
        result = await run.result()

Nothing survives this process but the run folder, where one is asked for. Whatever way it is
left, nothing that it started is left behind.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from corral.errors import CorralError
from corral.events import Event, Json
from corral.pipelines import events as told
from corral.pipelines import loader
from corral.pipelines import loader as pipelines_loader
from corral.pipelines.events import PipelineEvent, RunEvent, StepRetrying
from corral.pipelines.execution import attempt, handlers
from corral.pipelines.execution import attempt as execution_attempt
from corral.pipelines.execution.handlers import NodeContext, ResourcesProtocol
from corral.pipelines.execution.interviewers import Interviewer
from corral.pipelines.execution.run_dir import CheckpointWriter, RunDir
from corral.pipelines.graph import Graph, Node
from corral.pipelines.scheduler import retry
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

NOWHERE = Path(os.devnull)


class NodeRunner:
    def __init__(
        self,
        graph: Graph,
        run_id: str,
        *,
        desk: ResourcesProtocol,
        people: Interviewer | None,
        workspace: Path,
        folder: RunDir | None,
        say: Callable[[RunEvent], None],
        retrying: Callable[[StepRetrying], None],
    ) -> None:
        self._graph = graph
        self._run_id = run_id
        self._desk = desk
        self._people = people
        self._workspace = workspace
        self._folder = folder
        self._say = say
        self._retrying = retrying
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()

    async def visit(self, visit: RunNode) -> Message:
        node = self._graph.nodes[visit.node]
        root, place, keeps = self._place(visit, node)
        attempt, earlier = 1, None
        while True:
            outcome = await execution_attempt.attempt(
                NodeContext(
                    run_id=self._run_id,
                    graph=self._graph,
                    node=node,
                    visit=visit,
                    attempt=attempt,
                    folder=place,
                    run_folder=root,
                    workspace=self._workspace,
                    desk=self._desk,
                    emit=partial(self._agent_said, visit.node),
                    keeps=keeps,
                )
            )
            outcome = retry.with_earlier_cost(outcome, earlier)
            then = retry.after(self._graph, node, outcome, attempt, visit.id)
            if isinstance(then, Outcome):
                return Ended(id=visit.id, outcome=then)
            self._retrying(
                StepRetrying(
                    node=visit.node,
                    visit=visit.id,
                    attempt=attempt,
                    delay=then.seconds,
                    reason=outcome.failure_reason,
                )
            )
            await asyncio.sleep(then.seconds)
            earlier = outcome
            attempt += 1

    def _place(self, visit: RunNode, node: Node) -> tuple[Path, Path, bool]:
        """The run's folder, the visit's, and whether anything is to be written there."""
        folder = self._folder
        if folder is None:
            if not handlers.is_ours(handlers.for_node(node)):  # which makes what it needs
                return NOWHERE, NOWHERE, False
            if self._scratch is None:
                self._scratch = tempfile.TemporaryDirectory(prefix="corral-run-")
            folder = RunDir(self._scratch.name)
        return folder.path, folder.stage(visit.id, visit.node), True

    async def ask(self, question: Question) -> Message:
        if self._people is None:
            if question.timeout is None:
                reason = f"there is nobody to ask: {question.text}"
                return Ended(id=question.id, outcome=failed(reason, retryable=False))
            await asyncio.sleep(question.timeout)
            return Expired(id=question.id)
        limit = asyncio.timeout(question.timeout)
        try:
            async with limit:
                return Answered(id=question.id, answer=await self._people.ask(question))
        except TimeoutError:
            if not limit.expired():
                raise
            return Expired(id=question.id)

    def _agent_said(self, node: str, event: Event) -> None:
        self._say(event if event.node == node else replace(event, node=node))


ENDING = 30.0
"""Seconds for what was cancelled to end: an attempt bounds its own ending below that."""

Given = TypeVar("Given")


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    status: str
    """``success``, ``fail`` or ``cancelled``."""
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
    desk: ResourcesProtocol,
    people: Interviewer | None = None,
    folder: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] = ".",
    run_id: str | None = None,
    values: Mapping[str, Json] | None = None,
    on_event: Callable[[RunEvent], None] | None = None,
) -> RunResult:
    """Run it to its end. A node that fails is no error; raised is what is wrong with the graph
    (``PipelineInvalid``) or the folder (``StorageFailed``; where the run came to its end all
    the same, with its result as ``.result``)."""
    running = MemoryRun(
        graph,
        desk=desk,
        people=people,
        folder=folder,
        workspace=workspace,
        run_id=run_id,
        values=values,
        on_event=on_event,
    )
    return await running.drive()


class MemoryRun:
    """A run under way. Entered with ``async with``, it keeps its events until they are read.
    With the ``state`` of another run it goes on from there."""

    def __init__(
        self,
        graph: Graph,
        *,
        desk: ResourcesProtocol,
        people: Interviewer | None = None,
        folder: str | os.PathLike[str] | None = None,
        workspace: str | os.PathLike[str] = ".",
        run_id: str | None = None,
        values: Mapping[str, Json] | None = None,
        state: State | None = None,
        on_event: Callable[[RunEvent], None] | None = None,
        depth: int = 0,
    ) -> None:
        self.graph = graph
        self.run_id = run_id or f"run-{os.urandom(4).hex()}"
        self.plan = Scheduler(graph, run_id=self.run_id, values=values, state=state)
        self._desk = desk
        self._people = people
        self._workspace = Path(workspace).absolute()
        self._keeper = None if folder is None else CheckpointWriter(RunDir(Path(folder).absolute()))
        self._on_event = on_event
        self._kept: deque[RunEvent] | None = None
        self._news = asyncio.Event()
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[asyncio.Task[None], str] = {}
        """Told to stop, and at what they are."""
        self._children: dict[str, MemoryRun] = {}
        self._depth = depth
        self._seq = 0
        self._hands = NodeRunner(
            graph,
            self.run_id,
            desk=desk,
            people=people,
            workspace=self._workspace,
            folder=None if self._keeper is None else self._keeper.folder,
            say=self._say,
            retrying=self._tell,
        )
        self._driving: asyncio.Task[RunResult] | None = None

    # The public face.

    async def __aenter__(self) -> MemoryRun:
        self._kept = deque()
        self._driving = asyncio.create_task(self.drive())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        driving = self._entered()
        driving.cancel()
        await asyncio.wait({driving})
        if not driving.cancelled():
            driving.exception()  # whoever wants it asks for the result

    def __aiter__(self) -> AsyncIterator[RunEvent]:
        return self._events()

    async def _events(self) -> AsyncIterator[RunEvent]:
        driving, kept = self._entered(), self._kept
        while True:
            while kept:
                yield kept.popleft()
            if driving.done():
                return
            self._news.clear()
            await self._news.wait()

    async def result(self) -> RunResult:
        """Its end, waited for."""
        return await asyncio.shield(self._entered())

    def _entered(self) -> asyncio.Task[RunResult]:
        if self._driving is None:
            raise RuntimeError("enter the run first: async with Running(...) as run")
        return self._driving

    def cancel(self, reason: str = "") -> None:
        """End it in order: what is at work is stopped, and the result is ``cancelled``."""
        self._inbox.put_nowait(Cancelled(reason=reason))

    def steer(self, updates: dict[str, Json]) -> None:
        """Its context is to say this."""
        self._inbox.put_nowait(Steered(updates=updates))

    def looks(self) -> dict[str, Json]:
        """What a manager sees of it."""
        state = self.plan.state
        last = state.completed[-1] if state.completed else ""
        outcome = state.outcomes.get(last)
        return {
            "status": "running" if state.finish is None else state.finish.status,
            "current_node": state.current_node,
            "completed": len(state.completed),
            "outcome": "" if outcome is None else outcome.status,
        }

    async def drive(self) -> RunResult:
        """To its end."""
        plan, keeper = self.plan, self._keeper
        if keeper is not None:
            keeper.folder.create(self.graph, self.run_id)  # before anything is spent
        try:
            self._carry_out(plan.pending() if plan.state.started else plan.start())
            while plan.state.finish is None:
                for order in plan.receive(await self._heard()):
                    if isinstance(order, Restart):
                        await self._stopped()
                    self._do(order)
        except BaseException:
            self._carry_out(plan.receive(Cancelled(reason="interrupted")))
            raise
        finally:
            await self._stopped()
            if keeper is not None:
                keeper.close(plan.state)
            self._hands.close()
            self._news.set()
        result = self._result(plan.state.finish)
        if keeper is not None and keeper.failed is not None:
            keeper.failed.result = result
            raise keeper.failed
        return result

    async def _heard(self) -> Message:
        """The next message. While nobody speaks, the folder catches up."""
        keeper = self._keeper
        while keeper is not None and keeper.is_behind and self._inbox.empty():
            try:
                async with asyncio.timeout(keeper.due):
                    return await self._inbox.get()
            except TimeoutError:
                if not keeper.save_now(self.plan.state):
                    break  # the disk will not: with the next node it is tried again
                self._tell(told.CheckpointSaved())
        return await self._inbox.get()

    def _result(self, finish: FinishRun) -> RunResult:
        state = self.plan.state
        return RunResult(
            run_id=self.run_id,
            status=finish.status,
            reason=finish.reason,
            context=state.context,
            completed=state.completed,
            outcomes=state.outcomes,
            cost_usd=state.cost_usd,
            tokens=state.tokens,
            folder=None if self._keeper is None else self._keeper.folder.path,
        )

    # Orders.

    def _carry_out(self, orders: list[Command]) -> None:
        for order in orders:
            self._do(order)

    def _do(self, command: Command) -> None:
        match command:
            case EmitEvent():
                self._tell(command.event)
            case RunNode():
                self._begin(command.id, self._hands.visit, command)
            case AskHuman(question=question):
                self._begin(question.id, self._hands.ask, question)
            case Child():
                self._begin(command.id, self._child, command)
            case Wait():
                self._begin(command.id, self._wait, command)
            case Steer():
                self._steer(command)
            case Stop():
                self._stop(command.id)
            case Checkpoint() | Restart():
                self._write(command)
            case FinishRun():
                pass

    def _write(self, command: Checkpoint | Restart) -> None:
        """Write to the run directory, if there is one."""
        if self._keeper is None:
            return
        if isinstance(command, Restart):
            self._keeper.restart(command.round)
            return
        self._keeper.ended(command)
        if self._keeper.save(self.plan.state):
            self._tell(told.CheckpointSaved(node=command.node))

    def _steer(self, command: Steer) -> None:
        if child := self._children.get(command.child):
            child.steer(command.updates)

    def _stop(self, id: str) -> None:
        if task := self._tasks.pop(id, None):
            task.cancel()
            self._leaving[task] = id.rpartition(".")[0]
            task.add_done_callback(self._left)

    def _begin(self, id: str, doing: Callable[[Given], Awaitable[Message]], order: Given) -> None:
        self._tasks[id] = asyncio.create_task(self._answer(id, doing, order))

    async def _answer(
        self, id: str, doing: Callable[[Given], Awaitable[Message]], order: Given
    ) -> None:
        try:
            message = await doing(order)
        except CorralError as error:
            message = Ended(id=id, outcome=failed(str(error), retryable=error.retryable))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            message = Ended(id=id, outcome=failed(said, retryable=False))
        self._tasks.pop(id, None)
        self._inbox.put_nowait(message)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.pop(task, None)

    async def _stopped(self) -> None:
        """What was told to stop has ended, or was broken off."""
        if self._leaving:
            ending = [attempt.end(*each, self.run_id, ENDING) for each in self._leaving.items()]
            for said in filter(None, await asyncio.gather(*ending)):
                self.plan.state.log(said)

    async def _child(self, order: Child) -> Message:
        if self._depth >= pipelines_loader.DEEPEST:
            reason = f"pipelines are nested more than {pipelines_loader.DEEPEST} deep"
            return Ended(id=order.id, outcome=failed(reason, retryable=False))
        path = self._workspace / order.dotfile
        loaded = loader.load(path, values=order.context, workspace=self._workspace)
        graph = pipelines_loader.beside(loaded, path.parent)
        folder = None
        if self._keeper is not None:
            folder = self._keeper.folder.stage(order.id, order.node) / "child"
        child = self._children[order.id] = MemoryRun(
            graph,
            desk=self._desk,
            people=self._people,
            folder=folder,
            workspace=self._workspace / order.workdir,
            run_id=f"{self.run_id}/{order.id}",
            values=order.context,
            on_event=self._say,
            depth=self._depth + 1,
        )
        try:
            await child.drive()
        finally:
            del self._children[order.id]
        return Ended(id=order.id, outcome=child.plan.state.as_outcome())

    async def _wait(self, order: Wait) -> Message:
        await asyncio.sleep(order.seconds)
        child = self._children.get(order.child)
        return Woken(id=order.id, seen={} if child is None else child.looks())

    # Events.

    def _tell(self, event: PipelineEvent) -> None:
        if self._keeper is None and self._on_event is None and self._kept is None:
            return
        self._seq += 1
        event = replace(event, seq=self._seq, ts=time.time(), run_id=self.run_id)
        if self._keeper is not None:
            self._keeper.tell(event)
        self._say(event)

    def _say(self, event: RunEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)
        if self._kept is not None:
            self._kept.append(event)
            self._news.set()
