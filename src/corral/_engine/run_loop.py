"""One loop that performs the commands of a scheduler, for runs in memory and durable runs.

Theory of operation
-------------------
The loop owns one ``Scheduler`` (pure) and repeats two steps until the scheduler returns
``FinishRun``:

1. perform each command that the scheduler returned, by a call of the ``Journal``: start a node, a
   child run or a timer, ask a person, stop one of them;
2. take the next messages from the journal and pass them to the scheduler, which returns the next
   commands.

A journal starts what the loop asks for and delivers the messages that come of it. There are two:
``memory_runner.MemoryRun`` starts tasks of this event loop, and nothing survives the process;
that of a durable run (``corral._engine.worker.run_workflow``) records each call and each message
in a database. There, a replay after a crash passes the recorded messages to a new loop, which
makes the same calls in the same order. So nothing here may depend on a clock, on randomness or on
the environment, and the order of the calls may not change (``stored_formats.JOURNAL``).

What people and tools see of a run, its events, directory and spans, is written by the
``Projection``, and never read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from corral._core.lookup import run_of
from corral._engine.node_runner import Retrying
from corral._pipelines.events import (
    CheckpointSaved,
    PipelineCompleted,
    PipelineEvent,
    PipelineFailed,
    StepRetrying,
)
from corral._pipelines.execution.run_dir import CheckpointWriter, RunDir
from corral._pipelines.scheduler.commands import (
    AskHuman,
    Checkpoint,
    Command,
    EmitEvent,
    FinishRun,
    Message,
    Question,
    RaiseBudget,
    Restart,
    RunChild,
    RunNode,
    Steer,
    Stop,
    Wait,
)
from corral._pipelines.scheduler.outcome import RESULT, Outcome
from corral._pipelines.scheduler.state import State
from corral._pipelines.templates import as_text
from corral._system import clock
from corral._system.clock import random_fraction
from corral._workflows.program_turn import (
    DRAWN,
    KnownStep,
    ProgramTurn,
    StepEnd,
    first_difference,
)
from corral._workflows.scheduler import WorkflowScheduler
from corral.errors import ReplayMismatch

if TYPE_CHECKING:
    from corral._pipelines.run_spans import LivePipelineSpans
    from corral._workflows.program import Program


class Journal(Protocol):
    """Carries out commands; see ``scheduler.commands`` for what each must do."""

    async def start_node(self, command: RunNode) -> None: ...

    async def start_child(self, command: RunChild) -> None: ...

    async def start_timer(self, command: Wait) -> None: ...

    async def ask(self, question: Question) -> None: ...

    async def stop(self, id: str) -> None: ...

    async def steer(self, command: Steer) -> None: ...

    async def raise_budget(self, command: RaiseBudget) -> None: ...

    async def publish_progress(self, state: State) -> None:
        """A node has ended; a manager of the run reads its progress."""
        ...

    async def wait_for_stopped(self) -> None:
        """Return when what was stopped has ended, or was given up."""
        ...

    async def next(self) -> list[Message]:
        """The next messages, at least one, in the order in which they are taken."""
        ...

    async def record_turn(self, turn: ProgramTurn, known: Mapping[str, KnownStep]) -> ProgramTurn:
        """Record what the program of a workflow did, with the values that it draws (``drawn``). A
        replay returns the recorded turn."""
        ...


class RunScheduler(Protocol):
    """What a run follows: a graph, a program, or the tasks of a batch."""

    state: State

    def start(self) -> list[Command]: ...

    def receive(self, message: Message) -> list[Command]: ...


class RunLoop:
    def __init__(self, scheduler: RunScheduler, journal: Journal, projection: Projection) -> None:
        self._scheduler = scheduler
        self._journal = journal
        self._projection = projection

    async def run(self) -> FinishRun:
        """Run to the end."""
        scheduler = self._scheduler
        await self.perform(scheduler.start())
        while (finish := scheduler.state.finish) is None:
            await self._receive()
        return finish

    async def _receive(self) -> None:
        """Take the next messages, and perform the commands that follow from them."""
        commands = list[Command]()
        for message in await self._journal.next():
            commands += self._scheduler.receive(message)
        await self.perform(commands)

    async def perform(self, commands: list[Command]) -> None:
        journal, state = self._journal, self._scheduler.state
        for command in commands:
            if isinstance(command, Restart):
                # What still stops would write into the directory of the new round.
                await journal.wait_for_stopped()
            self._projection.record(command, state)
            match command:
                case RunNode():
                    await journal.start_node(command)
                case AskHuman(question=question):
                    await journal.ask(question)
                case RunChild():
                    await journal.start_child(command)
                case Wait():
                    await journal.start_timer(command)
                case Steer():
                    await journal.steer(command)
                case RaiseBudget():
                    await journal.raise_budget(command)
                case Stop(id=id):
                    await journal.stop(id)
                case Checkpoint():
                    await journal.publish_progress(state)
                case EmitEvent() | Restart() | FinishRun():
                    pass


class ProgramLoop(RunLoop):
    """The loop of a workflow. Between two steps of the loop above, the program goes on: it gets
    what has ended, and what it does then is recorded. On a replay it must do what is recorded:
    else ``run`` raises ``ReplayMismatch``."""

    def __init__(
        self,
        scheduler: WorkflowScheduler,
        program: Program,
        journal: Journal,
        projection: Projection,
    ) -> None:
        super().__init__(scheduler, journal, projection)
        self._steps = scheduler
        self._program = program

    async def run(self) -> FinishRun:
        """Run to the end."""
        steps = self._steps
        await self.perform(steps.start())
        ends = list[StepEnd]()
        try:
            while (finish := steps.state.finish) is None:
                made = await self._program.advance(ends)
                known = steps.find_known(made)
                turn = await self._journal.record_turn(made, known)
                if difference := first_difference(turn, made):
                    raise mismatch(steps.state.run_id, difference)
                await self.perform(steps.take(turn, known))
                ends = steps.take_ends()
                while not ends and steps.state.finish is None:
                    if not steps.state.open:
                        await self.perform(steps.fail(STUCK))
                        break
                    await self._receive()
                    ends = steps.take_ends()
        finally:
            await self._program.close()
        return finish


STUCK = "the workflow waits for something that no step brings"


def mismatch(run_id: str, difference: str) -> ReplayMismatch:
    """The error of a program that does not do what is recorded."""
    return ReplayMismatch(
        f"the replay of {run_of(run_id)} takes another path than the run: {difference}",
        hint="The code between steps must depend on nothing but their results. "
        f"`corral runs fork {run_of(run_id)}` starts a new run, which keeps the steps with the same"
        " inputs.",
    )


def drawn(turn: ProgramTurn, known: Mapping[str, KnownStep]) -> ProgramTurn:
    """The turn with the values of the steps that draw one: the known one, or a new one."""
    if not any(step.kind in DRAWN for step in turn.steps):
        return turn
    steps = [
        step
        if step.kind not in DRAWN
        else replace(step, value=known[step.id].value)
        if step.id in known
        else replace(step, value=clock.now() if step.kind == "now" else random_fraction())
        for step in turn.steps
    ]
    return replace(turn, steps=steps)


_END_EVENTS = (PipelineCompleted, PipelineFailed)


class EventNumbering:
    """Turns commands into events, numbered from 1; a replay gives the same numbers."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.count: int = 0

    def of(self, command: Command | Retrying, at: float) -> PipelineEvent | None:
        """The event of this command; None if it has none."""
        event: PipelineEvent
        match command:
            case EmitEvent():
                event = command.event
            case Checkpoint():
                event = CheckpointSaved(node=command.node)
            case Retrying():
                event = StepRetrying(
                    node=command.node,
                    visit=command.visit,
                    attempt=command.attempt,
                    delay=command.delay,
                    reason=command.reason,
                )
            case _:
                return None
        self.count += 1
        return replace(event, seq=self.count, ts=at, run_id=self._run_id)


class Projection:
    """Writes the events of a run, and its directory if ``folder`` is given. ``recorded``: how many
    events are in the file already. A failure to write never fails the run.

    With ``is_journaled`` the end of a node is safe when its command comes, and reported at
    once. In memory the file is all there is: a node is reported when it is written."""

    def __init__(
        self,
        run_id: str,
        folder: RunDir | None,
        *,
        spans: LivePipelineSpans | None,
        recorded: int = 0,
        is_journaled: bool = False,
    ) -> None:
        self.spans = spans
        self.writer: CheckpointWriter | None = None
        if folder is not None:
            self.writer = CheckpointWriter(folder, None if is_journaled else self._report_saved)
        self.on_event: Callable[[PipelineEvent], None] | None = None
        self.on_outcome: Callable[[str, Outcome], None] | None = None
        """Called with a visit and its outcome, where the scheduler reports it (``Checkpoint``)."""
        self._numbering = EventNumbering(run_id)
        self._recorded = recorded
        self._is_journaled = is_journaled

    def record(self, command: Command | Retrying, state: State) -> None:
        writer = self.writer
        if self.on_outcome is not None and isinstance(command, Checkpoint) and command.outcome:
            self.on_outcome(command.visit, command.outcome)
        if writer is None and self.spans is None and self.on_event is None:
            return
        is_end = isinstance(command, EmitEvent) and isinstance(command.event, _END_EVENTS)
        if is_end and writer is not None and not self._is_journaled:
            writer.flush(state)  # reports of nodes come before the end
        if is_end and self.spans is not None:
            given = state.context.get(RESULT, state.context.get("last_response"))
            self.spans.set_output(as_text(given))
        if self._is_journaled or not isinstance(command, Checkpoint):
            self._write(self._numbering.of(command, clock.now()))
        if writer is not None:
            if isinstance(command, Checkpoint):
                writer.node_ended(command, state)
            elif isinstance(command, Restart):
                writer.restart(command.round)

    def _report_saved(self, node: str) -> None:
        self._write(self._numbering.of(Checkpoint(node=node), clock.now()))

    def _write(self, event: PipelineEvent | None) -> None:
        if event is None or self._numbering.count <= self._recorded:
            return
        if self.writer is not None:
            self.writer.add_event(event)
        if self.spans is not None:
            self.spans.add(event)
        if self.on_event is not None:
            self.on_event(event)
