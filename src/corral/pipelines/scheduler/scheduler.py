"""The scheduler: a run of a graph as a state machine, without I/O.

Theory of operation
===================

Who calls
    A driver owns one ``Scheduler`` per run: ``execution.memory_runner`` in memory,
    ``durable.worker.run_workflow`` on a database. ``durable.query`` replays a journal into a
    scheduler to show a run. The driver calls ``start`` once and carries out the returned commands
    (run a node, ask a person, run a child pipeline, wait, emit an event, ...). Whenever one has a
    result, it calls ``receive`` with the message and carries out the commands that come back.
    The last command is ``FinishRun``. Calls must not overlap.

States
    A run is *not started*, *running* (``State.started``), or *finished* (``State.finish``). A
    running run moves on lanes: the trunk, and one lane per running branch of a parallel node.
    A lane is in one of three states:

    - *ready*: it stands at a node that it has not entered (``RunContext.ready``);
    - *waiting*: it has entered the node and has open commands (``Lane.open``), or a fork whose
      branches run;
    - *gone*: its branch ended, or the run did.

    Between two calls no lane is ready: each call handles its message, then ``Traversal.advance``
    lets ready lanes enter their nodes until all lanes wait or the run is finished.

Parts
    ``traversal`` enters, ends and leaves nodes. ``routing`` chooses the edge. ``parallel`` forks
    and joins, ``manager`` runs manager loops, ``human_gate`` builds questions; they return
    outcomes and never call ``traversal``. ``pending`` numbers events and remembers which commands
    have no reply. ``retry`` decides about another attempt: drivers apply it to nodes, this module
    to human gates. ``limits`` counts visits, money and tokens. ``state`` is all the memory.

Guarantees
    - It never waits, and uses no clock, no random numbers, no files, no network. The imports of
      this package are pure, including what they import.
    - The same messages in the same order give the same commands with the same ids, also if the
      state went through JSON in between.
    - A message for a command that is closed, or that never was, changes nothing. So replies may
      come twice or late.
    - Every command that needs a reply is either answered or stopped by a ``Stop`` command.
    - Every run ends: no node is visited more than ``max_visits`` times.
    - A failure is never ignored: a failed node follows an edge that handles failures, or the run
      (or branch) fails with its reason.
    - The cost of a message depends on the nodes it touches, not on the length of the run.

On a crash
    The scheduler holds nothing that matters outside ``State``, and ``State`` depends only on the
    messages. A durable driver writes each message to its journal before it calls ``receive``; to
    recover, it feeds the same messages to a new scheduler, ignores the commands that it has
    carried out already (they have the same ids), and carries out the rest. A driver that saved
    the state instead builds a scheduler with it and carries out ``pending()``: the commands that
    have no reply yet, built again.
"""

from __future__ import annotations

from collections.abc import Mapping

from corral.pipelines import events, node_kinds
from corral.pipelines import graph as pipelines_graph
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
from corral.pipelines.scheduler.state import TRUNK, Lane, Open, State, deep_copy
from corral.pipelines.scheduler.traversal import Traversal
from corral.values import Json


class Scheduler:
    """Raises ``PipelineInvalid`` if a condition or number in the graph is invalid.

    With the ``state`` of another scheduler it continues exactly where that one was. It changes
    this state; the other scheduler must not be used any more.
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
            trunk = Lane(context={**context, **deep_copy(dict(values or {}))})
            state = State(run_id=run_id, lanes={TRUNK: trunk})
        self.graph = graph
        self.state = state
        self._traversal = Traversal(graph, state)

    def start(self) -> list[Command]:
        """The first commands. A run that was started already has none."""
        traversal, state = self._traversal, self.state
        if state.started:
            return []
        state.started = True
        traversal.pending.emit(events.PipelineStarted(name=self.graph.name, goal=self.graph.goal))
        starts = list(self.graph.of_kind(node_kinds.START.name))
        if len(starts) == 1:
            traversal.move(state.trunk, starts[0].id)
        else:
            reason = f"a pipeline must have one start node, this one has {len(starts)}"
            traversal.finish("fail", reason)
        return traversal.advance()

    def receive(self, message: Message) -> list[Command]:
        """The commands that follow from this message."""
        state, traversal = self.state, self._traversal
        if state.finish is not None or not state.started:
            return []
        match message:
            case Cancelled():
                traversal.finish("cancelled", message.reason or "cancelled")
            case Steered():
                state.context.update(deep_copy(message.updates))
            case Ended() | Answered() | Expired() | Woken():
                if opened := state.open.get(message.id):
                    lane = state.lanes[opened.lane]
                    node = self.graph.nodes[lane.node]
                    try:
                        self._handle_reply(message, opened, lane, node)
                    except ValueError as error:  # an attribute with an invalid value
                        traversal.end(lane, failed(f"node {node.id!r}: {error}", retryable=False))
        return traversal.advance()

    def pending(self) -> list[Command]:
        """The commands without a reply, given once more: for a driver that starts with the state
        of another."""
        return self._traversal.pending.open_commands()

    def _handle_reply(
        self, message: Ended | Answered | Expired | Woken, opened: Open, lane: Lane, node: Node
    ) -> None:
        pending = self._traversal.pending
        match message, opened.what:
            case Ended(id=id, outcome=outcome), _:
                self._handle_end(id, outcome, opened, lane, node)
            case Woken(id=id, seen=observed), "wait":
                pending.close_one(lane, id)
                if pipelines_graph.does(node, "observe"):
                    lane.context.update(deep_copy(manager.observed_context(observed)))
                done = manager.run_cycle(self._traversal.run, lane, node)
                self._traversal.end_if_done(lane, done)
            case Answered(id=id, answer=answer, by=by), "ask":
                text = "skipped" if answer.skipped else answer.value or answer.text
                pending.emit(events.InterviewCompleted(node=node.id, visit=id, answer=text, by=by))
                outcome = human_gate.outcome_of_answer(pending.question(lane, node), answer)
                self._finish_gate(lane, node, id, outcome)
            case Expired(id=id), "ask":
                pending.emit(events.InterviewTimeout(node=node.id, visit=id))
                outcome = human_gate.outcome_of_timeout(pending.question(lane, node))
                self._finish_gate(lane, node, id, outcome)
            case _:
                pass

    def _handle_end(self, id: str, outcome: Outcome, opened: Open, lane: Lane, node: Node) -> None:
        """A node, a child pipeline, or the prompt of a manager has ended."""
        traversal = self._traversal
        if opened.what == "visit" and node.kind == node_kinds.MANAGER_LOOP.name:
            traversal.pending.close_one(lane, id)
            if not traversal.spend(outcome):
                done = manager.steer_child(traversal.run, lane, node, outcome)
                traversal.end_if_done(lane, done)
            return
        if opened.what == "child":
            lane.context.update(manager.ended_context(outcome))
        traversal.end(lane, outcome, answered=id)

    def _finish_gate(self, lane: Lane, node: Node, id: str, outcome: Outcome) -> None:
        """End a human gate; on ``retry`` ask again, as often as the node may be retried."""
        after = retry.after(self.graph, node, outcome, lane.attempt, lane.visit)
        if isinstance(after, Outcome):
            self._traversal.end(lane, after, answered=id)
            return
        pending = self._traversal.pending
        pending.close_one(lane, id)
        lane.attempt += 1
        pending.open(lane, pending.question(lane, node).id, "ask")
