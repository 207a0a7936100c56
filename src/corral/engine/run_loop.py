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
``memory_runner.MemoryJournal`` starts tasks of this event loop, and nothing survives the process;
that of a durable run (``corral.engine.worker.run_workflow``) records each call and each message
in a database. There, a replay after a crash passes the recorded messages to a new loop, which
makes the same calls in the same order. So nothing here may depend on a clock, on randomness or on
the environment, and the order of the calls may not change (``database.PROTOCOL``).

What people see of a run is written by the ``Projection``, and never read here.
"""

from __future__ import annotations

from typing import Protocol

from corral.engine.projection import Projection
from corral.pipelines.scheduler.commands import (
    AskHuman,
    Checkpoint,
    Child,
    Command,
    EmitEvent,
    FinishRun,
    Message,
    Question,
    RaiseBudget,
    Restart,
    RunNode,
    Steer,
    Stop,
    Wait,
)
from corral.pipelines.scheduler.scheduler import Scheduler
from corral.pipelines.scheduler.state import State


class Journal(Protocol):
    """Carries out commands; see ``scheduler.commands`` for what each must do."""

    async def start_node(self, command: RunNode) -> None: ...

    async def start_child(self, command: Child) -> None: ...

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


class RunLoop:
    def __init__(self, scheduler: Scheduler, journal: Journal, projection: Projection) -> None:
        self._scheduler = scheduler
        self._journal = journal
        self._projection = projection

    async def run(self) -> FinishRun:
        """Run to the end. A scheduler with the state of another run continues from there."""
        scheduler = self._scheduler
        commands = scheduler.pending() if scheduler.state.started else scheduler.start()
        await self.perform(commands)
        while (finish := scheduler.state.finish) is None:
            commands = list[Command]()
            for message in await self._journal.next():
                commands += scheduler.receive(message)
            await self.perform(commands)
        return finish

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
                case Child():
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
