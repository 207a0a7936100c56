"""A run as its journal tells it: the plan, fed once more with the messages that it was fed.

Whoever can read the database sees so where a run stands, from anywhere, and costs it
nothing.
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
from corral.events import Json
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

if TYPE_CHECKING:
    from corral.durable.dbos.client import JournalEntry


class Stream:
    """Numbers them from 1, the same on replay."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.count = 0

    def of(self, order: Command | Retrying, moment: float) -> PipelineEvent | None:
        """The event of this order, where it has one."""
        event: PipelineEvent
        match order:
            case EmitEvent():
                event = order.event
            case Checkpoint():
                event = CheckpointSaved(node=order.node)
            case Retrying():
                event = StepRetrying(
                    node=order.node,
                    visit=order.visit,
                    attempt=order.attempt,
                    delay=order.delay,
                    reason=order.reason,
                )
            case _:
                return None
        self.count += 1
        return replace(event, seq=self.count, ts=moment, run_id=self._run_id)


class AgentEventReader:
    """Of all visits of a run; each is read on where it was left."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._folder = RunDir(run_worktree.local_folder(replay.begun.setting.folder))
        self._read: dict[str, int] = {}
        """Visit → bytes read of its diary; a visit that has ended is not in it any more."""
        self._over: set[str] = set()

    def between(self, news: Iterable[PipelineEvent]) -> Iterator[RunEvent]:
        """The run's news, with what the agents said where it belongs: after their node began,
        before it ended."""
        for event in news:
            if isinstance(event, StepCompleted | StepFailed):
                yield from self._rest(event.visit)
                self._over.add(event.visit)
            yield event
        for visit in list(self._replay.visits):
            if visit not in self._over:
                yield from self._rest(visit)

    def _rest(self, visit: str) -> Iterator[RunEvent]:
        order = self._replay.visits.get(visit)
        if order is None or visit in self._over:
            return
        for line in self._lines(visit, self._folder.place(visit) / EVENTS):
            try:
                event = events.from_json(line)
            except msgspec.MsgspecError:
                continue  # of another version of corral
            yield event if event.node == order.node else replace(event, node=order.node)

    def _lines(self, visit: str, path: Path) -> list[bytes]:
        try:
            with path.open("rb") as file:
                file.seek(self._read.get(visit, 0))
                data = file.read()
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._read[visit] = self._read.get(visit, 0) + whole
        return data[:whole].splitlines()


LOOKED, LOADED = "look", "load "
"""Names of the journal's entries that bring messages."""


class Replay:
    def __init__(self, begun: RunInput) -> None:
        self.begun = begun
        self.plan = Scheduler(begun.graph, run_id=begun.run_id, values=begun.values)
        self.events: list[PipelineEvent] = []
        self._stream = Stream(begun.run_id)
        self.visits: dict[str, RunNode] = {}
        """Ordered so far."""
        self.children: dict[str, Child] = {}
        self.messages: list[Message] = []
        """Taken so far, in order."""
        self.ordered: dict[str, int] = {}
        """Visit, question or child → how many messages had been taken when it was ordered."""
        self.passed: dict[str, int] = {}
        """Visit of a node that the plan does itself → how much had been ordered by then."""
        self._questions: dict[str, Question] = {}
        self._at_hand: list[Message] = []
        self._obey(self.plan.start(), begun.at)
        self._settle(begun.at)

    @property
    def questions(self) -> list[Question]:
        """Those that are open."""
        return [each for key, each in self._questions.items() if key in self.plan.state.open]

    def feed(self, entry: JournalEntry) -> None:
        """The next entry of the journal."""
        name, output, moment = entry.name, entry.output, entry.at
        if name == RECEIVED and output is not None:
            self._take(unpack_message(output), moment)
        elif name == LOOKED:
            for each in cast("list[Json]", output or []):
                self._take(unpack_message(each), moment)
        elif name.startswith(LOADED) and isinstance(output, str):
            known = name.removeprefix(LOADED)
            self._at_hand.append(Ended(id=known, outcome=failed(output, retryable=False)))
        self._settle(moment)

    def _take(self, message: Message | Retrying, moment: float) -> None:
        if isinstance(message, Retrying):
            self._happened(message, moment)
            return
        self.messages.append(message)
        self._obey(self.plan.receive(message), moment)

    def _settle(self, moment: float) -> None:
        while self._at_hand:
            self._take(self._at_hand.pop(0), moment)

    def _obey(self, orders: list[Command], moment: float) -> None:
        for order in orders:
            match order:
                case RunNode(id=known):
                    self.visits[known] = order
                    self._ordered(known)
                case Child(id=known):
                    self.children[known] = order
                    self._ordered(known)
                case EmitEvent(event=StepStarted(visit=known, kind=kind)) if (
                    kind in SCHEDULER_KINDS
                ):
                    self.passed[known] = len(self.ordered)
                case AskHuman(question=question):
                    self._questions[question.id] = question
                    self._ordered(question.id)
                case _:
                    pass
            self._happened(order, moment)

    def _happened(self, order: Command | Retrying, moment: float) -> None:
        event = self._stream.of(order, moment)
        if event is not None:
            self.events.append(event)

    def _ordered(self, known: str) -> None:
        self.ordered[known] = len(self.messages)
        message = self.begun.known.get(known)
        if message is not None:
            self._at_hand.append(message)
