"""A run as its journal tells it: the plan, fed once more with the messages that it was fed.

Whoever can read the database sees so where a run stands, from anywhere, and costs it
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from corral.engine.journal import Begun, Retrying, unpack_message
from corral.engine.stream import Stream
from corral.events import Json
from corral.pipelines.events import PipelineEvent, StepStarted
from corral.pipelines.handlers import OF_THE_PLAN
from corral.pipelines.orders import Ask, Child, Ended, Message, Order, Question, Tell, Visit
from corral.pipelines.outcome import failed
from corral.pipelines.plan import Plan

if TYPE_CHECKING:
    from dbos._sys_db import StepInfo

RECEIVED, LOOKED, LOADED = "DBOS.recv", "look", "load "
"""Names of the journal's entries that bring messages."""


class Replay:
    def __init__(self, begun: Begun) -> None:
        self.begun = begun
        self.plan = Plan(begun.graph, run_id=begun.run_id, values=begun.values)
        self.events: list[PipelineEvent] = []
        self._stream = Stream(begun.run_id)
        self.visits: dict[str, Visit] = {}
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
        self._obey(self.plan.begin(), begun.at)
        self._settle(begun.at)

    @property
    def questions(self) -> list[Question]:
        """Those that are open."""
        return [each for key, each in self._questions.items() if key in self.plan.state.open]

    def feed(self, step: StepInfo) -> None:
        """The next entry of the journal."""
        name, output = step["function_name"], cast("Json", step["output"])
        moment = (step["completed_at_epoch_ms"] or 0) / 1000
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

    def _obey(self, orders: list[Order], moment: float) -> None:
        for order in orders:
            match order:
                case Visit(id=known):
                    self.visits[known] = order
                    self._ordered(known)
                case Child(id=known):
                    self.children[known] = order
                    self._ordered(known)
                case Tell(event=StepStarted(visit=known, kind=kind)) if kind in OF_THE_PLAN:
                    self.passed[known] = len(self.ordered)
                case Ask(question=question):
                    self._questions[question.id] = question
                    self._ordered(question.id)
                case _:
                    pass
            self._happened(order, moment)

    def _happened(self, order: Order | Retrying, moment: float) -> None:
        event = self._stream.of(order, moment)
        if event is not None:
            self.events.append(event)

    def _ordered(self, known: str) -> None:
        self.ordered[known] = len(self.messages)
        message = self.begun.known.get(known)
        if message is not None:
            self._at_hand.append(message)
