"""A run rebuilt from its journal: the scheduler, fed once more with the recorded messages.

Whoever can read the database can see the state of a run this way, from any machine, without
disturbing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace

from corral.durable.dbos.adapter import RECEIVED
from corral.durable.payloads import Retrying, RunInput, unpack_message
from corral.durable.workspace import run_worktree
from corral.pipelines import events
from corral.pipelines.events import (
    CheckpointSaved,
    PipelineEvent,
    RunEvent,
    StepCompleted,
    StepFailed,
    StepRetrying,
    StepStarted,
)
from corral.pipelines.execution.run_dir import EVENTS, RunDir
from corral.pipelines.node_kinds import SCHEDULER_KINDS
from corral.pipelines.scheduler.commands import (
    AskHuman,
    Checkpoint,
    Child,
    Command,
    EmitEvent,
    Ended,
    Message,
    Question,
    RunNode,
)
from corral.pipelines.scheduler.outcome import failed
from corral.pipelines.scheduler.scheduler import Scheduler
from corral.values import Json

if TYPE_CHECKING:
    from corral.durable.dbos.client import JournalEntry


class EventNumbering:
    """Turns commands into events, numbered from 1; a replay gives the same numbers."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.count = 0

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


class AgentEventReader:
    """Reads the event files of all visits of a run; each call continues where the last stopped."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._folder = RunDir(run_worktree.local_folder(replay.run_input.config.folder))
        self._offsets: dict[str, int] = {}
        """Visit -> bytes read of its event file."""
        self._ended: set[str] = set()

    def merge(self, events_of_run: Iterable[PipelineEvent]) -> Iterator[RunEvent]:
        """The new events of the run, with the agents' events in between: after their node started
        and before it ended."""
        for event in events_of_run:
            if isinstance(event, StepCompleted | StepFailed):
                yield from self._unread(event.visit)
                self._ended.add(event.visit)
            yield event
        for visit in list(self._replay.visits):
            if visit not in self._ended:
                yield from self._unread(visit)

    def _unread(self, visit: str) -> Iterator[RunEvent]:
        command = self._replay.visits.get(visit)
        if command is None or visit in self._ended:
            return
        for line in self._lines(visit, self._folder.visit_dir(visit) / EVENTS):
            try:
                event = events.from_json(line)
            except msgspec.MsgspecError:
                continue  # written by another version of corral
            yield event if event.node == command.node else replace(event, node=command.node)

    def _lines(self, visit: str, path: Path) -> list[bytes]:
        try:
            with path.open("rb") as file:
                file.seek(self._offsets.get(visit, 0))
                data = file.read()
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        self._offsets[visit] = self._offsets.get(visit, 0) + end
        return data[:end].splitlines()


LOOKED, LOADED = "look", "load "
"""Names of journal entries that contain messages."""


class Replay:
    def __init__(self, run_input: RunInput) -> None:
        self.run_input = run_input
        self.scheduler = Scheduler(
            run_input.graph, run_id=run_input.run_id, values=run_input.values
        )
        self.events: list[PipelineEvent] = []
        self._stream = EventNumbering(run_input.run_id)
        self.visits: dict[str, RunNode] = {}
        """Started so far, by id."""
        self.children: dict[str, Child] = {}
        self.messages: list[Message] = []
        """Received so far, in order."""
        self.command_positions: dict[str, int] = {}
        """Visit, question or child -> number of messages received before its command."""
        self.passed_positions: dict[str, int] = {}
        """Visit of a node that the scheduler executes itself -> number of commands before it."""
        self._questions: dict[str, Question] = {}
        self._pending: list[Message] = []
        self._apply(self.scheduler.start(), run_input.at)
        self._take_pending(run_input.at)

    @property
    def questions(self) -> list[Question]:
        """The open questions."""
        return [each for key, each in self._questions.items() if key in self.scheduler.state.open]

    def feed(self, entry: JournalEntry) -> None:
        """Process the next journal entry."""
        name, output, at = entry.name, entry.output, entry.at
        if name == RECEIVED and output is not None:
            self._take(unpack_message(output), at)
        elif name == LOOKED:
            for each in cast("list[Json]", output or []):
                self._take(unpack_message(each), at)
        elif name.startswith(LOADED) and isinstance(output, str):
            known = name.removeprefix(LOADED)
            self._pending.append(Ended(id=known, outcome=failed(output, retryable=False)))
        self._take_pending(at)

    def _take(self, message: Message | Retrying, at: float) -> None:
        if isinstance(message, Retrying):
            self._record_event(message, at)
            return
        self.messages.append(message)
        self._apply(self.scheduler.receive(message), at)

    def _take_pending(self, at: float) -> None:
        while self._pending:
            self._take(self._pending.pop(0), at)

    def _apply(self, commands: list[Command], at: float) -> None:
        for command in commands:
            match command:
                case RunNode(id=known):
                    self.visits[known] = command
                    self._record_command(known)
                case Child(id=known):
                    self.children[known] = command
                    self._record_command(known)
                case EmitEvent(event=StepStarted(visit=known, kind=kind)) if (
                    kind in SCHEDULER_KINDS
                ):
                    self.passed_positions[known] = len(self.command_positions)
                case AskHuman(question=question):
                    self._questions[question.id] = question
                    self._record_command(question.id)
                case _:
                    pass
            self._record_event(command, at)

    def _record_event(self, command: Command | Retrying, at: float) -> None:
        event = self._stream.of(command, at)
        if event is not None:
            self.events.append(event)

    def _record_command(self, known: str) -> None:
        self.command_positions[known] = len(self.messages)
        message = self.run_input.known.get(known)
        if message is not None:
            self._pending.append(message)
