"""A run of a graph as a state machine: told what happened, it says what is to be done.

Its laws:

- it waits for nothing, and knows no clock, no chance and no machine;
- the same messages in the same order give the same orders, also where its state went
  through JSON in between;
- a message for what is closed or was never open changes nothing: answers may come twice,
  outcomes late;
- every run ends: no node is visited more than ``max_visits`` times;
- a message costs what its own nodes cost, however long the run has been.
"""

from __future__ import annotations

from collections.abc import Mapping

from corral.events import Json
from corral.pipelines import events as told
from corral.pipelines import graph as pipelines_graph
from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph, Node
from corral.pipelines.scheduler import human_gate, manager, retry
from corral.pipelines.scheduler.commands import (
    Answered,
    Cancelled,
    Command,
    Ended,
    Expired,
    Message,
    Steered,
    Woken,
)
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.scheduler.state import TRUNK, Lane, Open, State, copied
from corral.pipelines.scheduler.traversal import Traversal


class Scheduler:
    """Raises ``PipelineInvalid`` where a condition or a number of the graph is none.

    With the state of another plan it goes on exactly where that one stood; the state is
    then this one's, and changes.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        run_id: str = "",
        values: Mapping[str, Json] | None = None,
        state: State | None = None,
    ) -> None:
        if state is None:
            context: dict[str, Json] = {f"graph.{key}": value for key, value in graph.attrs.items()}
            context |= {"graph.goal": graph.goal, "graph.name": graph.name}
            trunk = Lane(context={**context, **copied(dict(values or {}))})
            state = State(run_id=run_id, lanes={TRUNK: trunk})
        self.graph = graph
        self.state = state
        self._walk = Traversal(graph, state)

    def begin(self) -> list[Command]:
        """The first orders. A run that has begun already has none."""
        walk, state = self._walk, self.state
        if state.begun:
            return []
        state.begun = True
        walk.book.tell(told.PipelineStarted(name=self.graph.name, goal=self.graph.goal))
        starts = list(self.graph.of_kind(node_kinds.START.name))
        if len(starts) == 1:
            walk.move(state.trunk, starts[0].id)
        else:
            walk.finish("fail", f"a pipeline has one start node, this one {len(starts)}")
        return walk.go()

    def receive(self, message: Message) -> list[Command]:
        """What follows from this message."""
        state, walk = self.state, self._walk
        if state.finish is not None or not state.begun:
            return []
        match message:
            case Cancelled():
                walk.finish("cancelled", message.reason or "cancelled")
            case Steered():
                state.context.update(copied(message.updates))
            case Ended() | Answered() | Expired() | Woken():
                if opened := state.open.get(message.id):
                    lane = state.lanes[opened.lane]
                    node = self.graph.nodes[lane.node]
                    try:
                        self._hear(message, opened, lane, node)
                    except ValueError as error:  # an attribute that is not what it should be
                        walk.end(lane, failed(f"node {node.id!r}: {error}", retryable=False))
        return walk.go()

    def pending(self) -> list[Command]:
        """What is still to be answered, ordered once more: for a driver that begins with the
        state of another."""
        return self._walk.book.pending()

    def _hear(
        self, message: Ended | Answered | Expired | Woken, opened: Open, lane: Lane, node: Node
    ) -> None:
        walk = self._walk
        match message, opened.what:
            case Ended(id=id, outcome=outcome), "child":
                lane.context.update(manager.ended(outcome))
                walk.end(lane, outcome, answered=id)
            case Ended(id=id, outcome=outcome), "visit" if (
                node.kind == node_kinds.MANAGER_LOOP.name
            ):
                manager.steer(walk, lane, node, id, outcome)
            case Ended(id=id, outcome=outcome), _:
                walk.end(lane, outcome, answered=id)
            case Woken(id=id, seen=looks), "wait":
                walk.book.answered(lane, id)
                if pipelines_graph.does(node, "observe"):
                    lane.context.update(copied(manager.seen(looks)))
                manager.cycle(walk, lane, node)
            case Answered(id=id, answer=answer, by=by), "ask":
                said = "skipped" if answer.skipped else answer.value or answer.text
                walk.book.tell(told.InterviewCompleted(node=node.id, visit=id, answer=said, by=by))
                outcome = human_gate.settled(walk.book.question(lane, node), answer)
                self._settle(lane, node, id, outcome)
            case Expired(id=id), "ask":
                walk.book.tell(told.InterviewTimeout(node=node.id, visit=id))
                self._settle(lane, node, id, human_gate.expired(walk.book.question(lane, node)))
            case _:
                pass

    def _settle(self, lane: Lane, node: Node, id: str, outcome: Outcome) -> None:
        """A gate that comes to ``retry`` asks again, as often as the node may be retried."""
        after = retry.after(self.graph, node, outcome, lane.attempt, lane.visit)
        if isinstance(after, Outcome):
            self._walk.end(lane, after, answered=id)
            return
        self._walk.book.answered(lane, id)
        lane.attempt += 1
        asked = self._walk.book.question(lane, node)
        self._walk.book.open(lane, asked.id, "ask")
