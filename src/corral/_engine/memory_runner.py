"""A run in memory: tasks of this event loop drive the scheduler.

::

    output = await memory_runner.MemoryRun(graph, resources=resources).drive()

Nothing survives this process but the run directory, if there is one. However the run ends, it
leaves no task or process behind.

Theory of operation
===================

``RunLoop`` performs the commands of the scheduler (see there), with the run as its journal: a node,
a question, a child pipeline and a wait each become one task. A task puts its result as a message
into the inbox, from which the loop takes one message at a time.

A ``Stop`` command cancels its task. A cancelled task that does not end in time is abandoned with a
warning, so one node cannot block the run. If ``drive`` itself is cancelled or fails, it stops all
tasks before it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from corral._core.spending import Raise
from corral._engine.batch.task_scheduler import BatchRound, BatchScheduler
from corral._engine.node_runner import NodeRunner
from corral._engine.payloads import PipelineOutput
from corral._engine.run_loop import ProgramLoop, Projection, RunLoop, drawn
from corral._pipelines import loader
from corral._pipelines.events import RunEvent
from corral._pipelines.execution import attempt as execution_attempt
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.execution.interviewers import Interviewer
from corral._pipelines.execution.run_dir import RunDir
from corral._pipelines.graph import Graph
from corral._pipelines.run_limits import run_limits
from corral._pipelines.scheduler.commands import (
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
from corral._pipelines.scheduler.merge import has_lanes, uses_worktrees
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._pipelines.scheduler.scheduler import Scheduler
from corral._pipelines.scheduler.state import State
from corral._system import clock
from corral._system.clock import random_hex
from corral._system.environment import is_scripted
from corral._workflows.program_turn import KnownStep, ProgramTurn, graph_of
from corral._workflows.scheduler import WorkflowScheduler
from corral.errors import ConfigError, CorralError, StorageFailed
from corral.values import Json, as_text

if TYPE_CHECKING:
    from corral._engine.payloads import RunWorktree
    from corral._engine.workspace.branch_worktrees import RunPlace
    from corral._metering.budget import Budget
    from corral._pipelines.run_spans import LivePipelineSpans
    from corral._workflows.program import Program


STOP_TIMEOUT = 30.0
"""Seconds for a cancelled task to stop. An attempt limits its own stopping to less."""

STEPS_SECONDS = 2.0
"""Seconds between two writes of the steps of a workflow."""

C = TypeVar("C")


class MemoryRun:
    """A run, and the ``Journal`` of its loop."""

    def __init__(  # noqa: PLR0913
        self,
        graph: Graph,
        *,
        resources: NodeResources,
        interviewer: Interviewer | None = None,
        folder: str | os.PathLike[str] | None = None,
        workspace: str | os.PathLike[str] = ".",
        run_id: str | None = None,
        values: Mapping[str, Json] | None = None,
        on_event: Callable[[RunEvent], None] | None = None,
        parent: MemoryRun | None = None,
        tree: RunWorktree | None = None,
        budget: Budget | None = None,
        program: Program | None = None,
        batch: BatchRound | None = None,
        on_outcome: Callable[[str, Outcome], None] | None = None,
    ) -> None:
        """``interviewer`` answers the questions of human gates; without one, a question without a
        timeout fails. Without a ``folder`` nothing is written. ``parent``: the run that this one is
        a node of. ``tree``: the worktree that the workspace is in. ``budget`` is the caller's, of
        which the limits of the graph are a part. ``program``: that of a workflow, whose graph has
        no nodes. ``batch``: the tasks of a batch, for which ``on_outcome`` is called."""
        self.graph = graph
        self.run_id: str = run_id or f"run-{random_hex(4)}"
        self._program = program
        self.scheduler: Scheduler | WorkflowScheduler | BatchScheduler
        if batch is not None:
            self.scheduler = BatchScheduler(graph, batch, run_id=self.run_id)
        elif program is not None:
            self.scheduler = WorkflowScheduler(graph, run_id=self.run_id)
        else:
            self.scheduler = Scheduler(graph, run_id=self.run_id, values=values)
        self._depth: int = 0 if parent is None else parent._depth + 1
        self._interviewer = interviewer
        self._on_event = on_event
        spans: LivePipelineSpans | None = None
        endpoint = resources.options.get("otel")
        if endpoint is not None and batch is None:  # a batch sends its spans itself
            from corral._pipelines.run_spans import LivePipelineSpans

            spans = LivePipelineSpans(endpoint, resources.env, graph)
        run_dir = None if folder is None else RunDir(Path(folder).absolute())
        self._projection = Projection(self.run_id, run_dir, spans=spans)
        self._projection.on_event = on_event
        self._projection.on_outcome = on_outcome
        self._outer_budget = budget if parent is None else parent.budget
        self.budget: Budget | None = self._outer_budget
        """What the model calls may use; None: there is no limit."""
        if graph.has_limits:
            from corral._metering.budget import memory_budget

            self.budget = memory_budget(run_limits(graph), self._outer_budget)
            if self.budget is not None and self.budget is not self._outer_budget and parent is None:
                self.budget.owner = self.run_id
        self._nodes = NodeRunner(
            run_id=self.run_id,
            graph=graph,
            resources=resources,
            workspace=Path(workspace).absolute(),
            started_in="" if tree is None else tree.repository,
            folder=run_dir,
            on_event=on_event,
            budget=self.budget,
            ask_person=None if interviewer is None else interviewer.ask,
        )
        self._place: RunPlace | None = None
        """Set if lanes of the run have their own worktrees, or the run is in one."""
        if tree is not None or program is not None or uses_worktrees(graph):
            from corral._engine.workspace import branch_worktrees

            self._place = branch_worktrees.RunPlace(
                run_id=self.run_id, workspace=self._nodes.workspace, tree=tree
            )
            self._nodes.perform = partial(
                branch_worktrees.in_place, self._place, execution_attempt.attempt
            )
        self._since_written = clock.Stopwatch()
        self._turns: list[ProgramTurn] = []
        """Of a workflow whose steps are written."""
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping: dict[asyncio.Task[None], str] = {}
        """Cancelled tasks that have not ended, and their nodes."""
        self._children: dict[str, MemoryRun] = {}

    def cancel(self, reason: str = "") -> None:
        """Stop what is running and end the run with status ``cancelled``."""
        self._inbox.put_nowait(Cancelled(reason=reason))

    def add_budget(self, more: Raise) -> None:
        """Raise the limits of the run by these amounts. Raises ``ConfigError``."""
        if self.budget is None or self.budget is self._outer_budget:
            raise ConfigError(f"{self.run_id} has no budget")
        self.budget.raise_limits(more)

    async def drive(self) -> PipelineOutput:
        """Run to the end. A failed node does not raise. Raises ``PipelineInvalid`` if the graph is
        invalid, and ``StorageFailed`` if the run directory cannot be written; if the run ended
        nevertheless, the error has its output as ``.result``."""
        scheduler, writer = self.scheduler, self._projection.writer
        if writer is not None:
            # Before anything costs money.
            nodes = self._nodes
            writer.folder.create(
                self.graph,
                self.run_id,
                nodes.started_in or str(nodes.workspace),
                kind="pipeline" if self._program is None else "workflow",
                label=as_text(nodes.resources.options.get("label")),
                scripted=is_scripted({}) or bool(nodes.resources.simulate),
            )
            writer.folder.write_graph(self.graph)
        loop = RunLoop(scheduler, self, self._projection)
        if self._program is not None and isinstance(scheduler, WorkflowScheduler):
            loop = ProgramLoop(scheduler, self._program, self, self._projection)
        try:
            finish = await loop.run()
        except BaseException:
            await loop.perform(scheduler.receive(Cancelled(reason="interrupted")))
            raise
        finally:
            await self.wait_for_stopped()
            if writer is not None:
                writer.close(scheduler.state)
                self._write_steps(is_last=True)
            self._nodes.close()
            if self._projection.spans is not None:
                await self._projection.spans.close()
        output = PipelineOutput.of(finish, scheduler.state)
        if branches := await self._close_branches():
            output = replace(output, saved={"branches": [*branches]})
        if writer is not None and writer.failed is not None:
            writer.failed.result = output
            raise writer.failed
        return output

    async def _close_branches(self) -> list[str]:
        """Remove the worktrees of branches; returns the git branches that stay."""
        if self._place is None or not has_lanes(self.graph, self.scheduler.state):
            return []
        from corral._engine.workspace import branch_worktrees

        return await branch_worktrees.close(self._place)

    # The journal.

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
            child._inbox.put_nowait(Steered(updates=command.updates))

    async def raise_budget(self, command: RaiseBudget) -> None:
        if self.budget is not None:
            self.budget.raise_limits(command.amounts)

    async def publish_progress(self, state: State) -> None:
        """A manager reads the state of its child itself."""

    async def next(self) -> list[Message]:
        return [await self._inbox.get()]

    async def record_turn(self, turn: ProgramTurn, known: Mapping[str, KnownStep]) -> ProgramTurn:
        if self._projection.writer is not None:
            self._turns.append(turn)
        self._write_steps()
        return drawn(turn, known)

    def _write_steps(self, *, is_last: bool = False) -> None:
        """Write the graph of a workflow's steps so far, for those who look at the run: at its end,
        and else at most once in ``STEPS_SECONDS``."""
        writer = self._projection.writer
        if writer is None or self._program is None:
            return
        if is_last or self._since_written.seconds > STEPS_SECONDS:
            self._since_written = clock.Stopwatch()
            with contextlib.suppress(StorageFailed):  # the writer reports it
                writer.folder.write_graph(graph_of(self._turns, self.graph))

    def _begin(self, id: str, call: Callable[[C], Awaitable[Message]], command: C) -> None:
        async def perform() -> None:
            try:
                message = await call(command)
            except CorralError as error:
                message = Ended(id=id, outcome=failed(str(error), retryable=error.retryable))
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                message = Ended(id=id, outcome=failed(reason, retryable=False))
            self._tasks.pop(id, None)
            self._inbox.put_nowait(message)

        self._tasks[id] = asyncio.create_task(perform())

    async def wait_for_stopped(self) -> None:
        """Wait for cancelled tasks; those that do not end are abandoned."""
        if self._stopping:
            waits = [
                execution_attempt.wait_stopped(task, node, self.run_id, STOP_TIMEOUT)
                for task, node in self._stopping.items()
            ]
            for message in filter(None, await asyncio.gather(*waits)):
                self.scheduler.state.log(message)

    async def _run_node(self, visit: RunNode) -> Message:
        state, record = self.scheduler.state, self._projection.record
        outcome = await self._nodes.run(visit, lambda retrying: record(retrying, state))
        return Ended(id=visit.id, outcome=outcome)

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
        workspace, folder = self._nodes.workspace, self._nodes.folder
        tree = None if self._place is None else self._place.tree
        if self._place is not None and command.worktrees:
            from corral._engine.workspace import branch_worktrees, run_worktree

            tree = await branch_worktrees.open_lane(self._place, command.worktrees)
            workspace = run_worktree.workspace_folder(tree)
            async with run_worktree.used(tree):
                pass  # now it is there
        graph = loader.load_child(
            command.dotfile, values=command.context, workspace=workspace, depth=self._depth
        )
        child_folder = None
        if folder is not None:
            child_folder = folder.make_visit_dir(command.id, command.node) / "child"
        child = self._children[command.id] = MemoryRun(
            graph,
            resources=self._nodes.resources,
            interviewer=self._interviewer,
            folder=child_folder,
            workspace=workspace / command.workdir,
            run_id=f"{self.run_id}/{command.id}",
            values=command.context,
            on_event=self._on_event,
            parent=self,
            tree=tree,
        )
        try:
            await child.drive()
        finally:
            del self._children[command.id]
        outcome = child.scheduler.state.as_outcome()
        if tree is not None and command.worktrees:
            from corral._engine.workspace import branch_worktrees

            outcome = await branch_worktrees.with_commit(outcome, tree, command.worktrees[-1])
        return Ended(id=command.id, outcome=outcome)

    async def _wait(self, command: Wait) -> Message:
        await asyncio.sleep(command.seconds)
        child = self._children.get(command.child)
        return Woken(id=command.id, seen={} if child is None else child.scheduler.state.progress())
