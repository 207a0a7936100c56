"""Drives a scheduler without I/O: nodes end as a script says, and all commands are recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from corral._pipelines import dot_parser as parser
from corral._pipelines.graph import Graph
from corral._pipelines.scheduler.commands import (
    Answer,
    Answered,
    AskHuman,
    Command,
    EmitEvent,
    Ended,
    FinishRun,
    Message,
    RunChild,
    RunNode,
    Stop,
    Wait,
)
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.scheduler.scheduler import Scheduler
from corral._pipelines.scheduler.state import from_json, to_json
from corral.values import Json

FAIL = Outcome(status="fail", failure_reason="broken")
ENDS = "s [shape=Mdiamond]; e [shape=Msquare];"


def graph_of(body: str) -> Graph:
    """``s`` is the start, ``e`` the exit."""
    return parser.parse(f"digraph g {{ {ENDS} {body} }}")


class SchedulerDriver:
    """Before each message the state is encoded to JSON and decoded, as a durable run does."""

    def __init__(
        self,
        body: str | Graph,
        script: Mapping[str, Outcome | Sequence[Outcome]] | None = None,
        values: Mapping[str, Json] | None = None,
    ) -> None:
        self.graph = graph_of(body) if isinstance(body, str) else body
        self.scheduler = Scheduler(self.graph, run_id="run", values=values)
        self.commands: list[Command] = []
        self.last: list[Command] = []
        self.waiting: dict[str, Command] = {}
        self.script = {
            node: deque([outcomes] if isinstance(outcomes, Outcome) else outcomes)
            for node, outcomes in (script or {}).items()
        }
        self._record(self.scheduler.start())

    def send(self, message: Message) -> list[Command]:
        self.scheduler = Scheduler(self.graph, state=from_json(to_json(self.scheduler.state)))
        self._record(self.scheduler.receive(message))
        return self.last

    def _record(self, orders: list[Command]) -> None:
        self.last = orders
        self.commands += orders
        for order in orders:
            match order:
                case RunNode(id=id) | RunChild(id=id) | Wait(id=id):
                    assert id not in self.waiting
                    self.waiting[id] = order
                case AskHuman(question=question):
                    self.waiting[question.id] = order
                case Stop(id=id):
                    del self.waiting[id]
                case _:
                    pass

    def end(self, id: str, outcome: Outcome | None = None) -> list[Command]:
        """End a visit with this outcome. A node's name stands for its only open visit."""
        if id not in self.waiting:
            [id] = [known for known in self.waiting if known.rpartition(".")[0] == id]
        del self.waiting[id]
        return self.send(Ended(id=id, outcome=outcome or Outcome()))

    def answer(self, value: str = "", *, skipped: bool = False) -> list[Command]:
        [id] = [id for id, order in self.waiting.items() if isinstance(order, AskHuman)]
        del self.waiting[id]
        return self.send(Answered(id=id, answer=Answer(value=value, skipped=skipped)))

    def run(self) -> SchedulerDriver:
        """Run until only people, child pipelines and timers are pending."""
        while visits := [v for v in self.waiting.values() if isinstance(v, RunNode)]:
            outcomes = self.script.get(visits[0].node)
            outcome = Outcome()
            if outcomes:
                outcome = outcomes.popleft() if len(outcomes) > 1 else outcomes[0]
            self.end(visits[0].id, outcome)
        return self

    @property
    def path(self) -> list[str]:
        """The nodes that were run, in order."""
        return [order.node for order in self.commands if isinstance(order, RunNode)]

    @property
    def context(self) -> dict[str, Json]:
        return self.scheduler.state.context

    @property
    def completed(self) -> list[str]:
        return self.scheduler.state.completed

    @property
    def finish(self) -> FinishRun:
        assert self.scheduler.state.finish is not None, f"it waits for {[*self.waiting]}"
        assert self.commands[-1] == self.scheduler.state.finish
        assert not self.waiting, "something was left open"
        assert not self.scheduler.state.open
        return self.scheduler.state.finish

    @property
    def status(self) -> str:
        return self.finish.status

    @property
    def events(self) -> list[str]:
        return [
            type(order.event).__name__ for order in self.commands if isinstance(order, EmitEvent)
        ]

    def visit(self, node: str) -> RunNode:
        """The last command to run this node."""
        return [o for o in self.commands if isinstance(o, RunNode) and o.node == node][-1]


def run_scheduler(
    body: str,
    script: Mapping[str, Outcome | Sequence[Outcome]] | None = None,
    values: Mapping[str, Json] | None = None,
) -> SchedulerDriver:
    return SchedulerDriver(body, script, values).run()
