"""How a run walks its graph: enter a node, end it, choose the edge, go on."""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from corral.pipelines import events as told
from corral.pipelines import node_kinds
from corral.pipelines.graph import Edge, Graph, Node
from corral.pipelines.scheduler import manager, parallel
from corral.pipelines.scheduler import parallel as scheduler_parallel
from corral.pipelines.scheduler.commands import Checkpoint, Command, FinishRun, Restart
from corral.pipelines.scheduler.limits import Limits
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.scheduler.pending import PendingCommands
from corral.pipelines.scheduler.routing import Routes, Way, is_decision
from corral.pipelines.scheduler.state import TRUNK, Context, Lane, State, copied

RESPONSE = 200
"""Characters of a response in the context: whole, it is in the node's folder."""
LOOP = 20
"""Nodes of a loop that are named in an error."""
UNSATISFIED = "goal gate unsatisfied and no retry target"
NO_STAGE = frozenset((node_kinds.START.name, node_kinds.EXIT.name))
"""Kinds that do no work: like a decision, they are never ``last_stage``."""


class Traversal:
    """Raises ``PipelineInvalid`` where a condition or a number of the graph is none."""

    def __init__(self, graph: Graph, state: State) -> None:
        self.graph = graph
        self.state = state
        self.routes = Routes(graph)
        self._limits = Limits(graph)
        self.book = PendingCommands(graph, state, self.routes)
        self._ready: deque[Lane] = deque()
        """Lanes that were put at a node, and have not entered it."""

    def go(self) -> list[Command]:
        """Until everybody waits: the orders."""
        while self._ready:
            lane = self._ready.popleft()
            if self.state.finish is None and self.state.lanes.get(lane.id) is lane:
                self._enter(lane)
        return self.book.take()

    def move(self, lane: Lane, target: str, edge: Edge | None = None) -> None:
        """It stands at this node next."""
        lane.previous = lane.node or None
        lane.node = target
        lane.fidelity = lane.thread = ""
        if edge is not None and edge.attrs:
            lane.fidelity = str(edge.attrs.get("fidelity", ""))
            lane.thread = str(edge.attrs.get("thread_id", ""))
        self._ready.append(lane)

    def ready(self, lane: Lane) -> None:
        self._ready.append(lane)

    def _enter(self, lane: Lane) -> None:
        state, node = self.state, self.graph.nodes.get(lane.node)
        if node is None:
            self.over(lane, "fail", f"there is no node {lane.node!r}")
            return
        if lane.fork and not lane.visit and parallel.at_its_end(self, lane, node.id):
            return
        kind, number = node.kind, state.visits.get(node.id, 0) + 1
        try:
            most = self._limits.visits(node)
        except ValueError as error:
            self.over(lane, "fail", f"node {node.id!r}: {error}")
            return
        if number > most:
            self.over(lane, "fail", self._endless(node, most))
            return
        lane.number = state.visits[node.id] = number
        lane.visit = f"{node.id}.{number}"
        lane.context["current_node"] = node.id
        lane.attempt, lane.cycle = 1, 0
        if kind == node_kinds.EXIT.name:
            self._exit(lane, node)
            return
        try:
            if node.is_true("goal_gate"):
                state.gates[node.id] = True
            self.book.tell(told.StepStarted(node=node.id, visit=lane.visit, kind=kind))
            self._act(lane, node, kind)
        except ValueError as error:  # an attribute that is not what it should be
            self.end(lane, failed(f"node {node.id!r}: {error}", retryable=False))

    def _endless(self, node: Node, most: int) -> str:
        """Why the run ends: the loop that brought it back to this node once too often."""
        done = self.state.completed
        since = len(done) - 1 - done[::-1].index(node.id) if node.id in done else len(done)
        loop = " -> ".join([*done[since:][:LOOP], node.id])
        return f"node {node.id!r} would be visited more than {most} times (max_visits): {loop}"

    def _act(self, lane: Lane, node: Node, kind: str) -> None:
        match kind:
            case node_kinds.START.name | node_kinds.CONDITIONAL.name:
                self.end(lane, Outcome())
            case node_kinds.PARALLEL.name:
                parallel.begin(self, lane, node)
            case node_kinds.FAN_IN.name:
                if not scheduler_parallel.ranked(lane.joined):
                    why = "every branch failed" if lane.joined else "there is no branch to join"
                    self.end(lane, failed(why, retryable=False))
                elif node.text("prompt"):
                    self.book.open(lane, lane.visit, "visit")
                else:
                    self.end(lane, Outcome())
            case node_kinds.WAIT_HUMAN.name:
                self.book.open(lane, lane.visit, "ask")
            case node_kinds.INCLUDE.name:
                manager.start(self, lane, node)
            case node_kinds.MANAGER_LOOP.name:
                if manager.starts_child(node):
                    manager.start(self, lane, node)
                manager.cycle(self, lane, node)
            case _:
                self.book.open(lane, lane.visit, "visit")

    def _exit(self, lane: Lane, node: Node) -> None:
        """Of the trunk: a branch ends before it."""
        state = self.state
        for name in state.gates:
            outcome = state.outcomes.get(name)
            if outcome is not None and outcome.ok:
                continue
            gate = self.graph.nodes[name]
            target = self.routes.retry_target(gate)
            state.log(f"goal gate {name!r} unsatisfied" + (f": back to {target}" if target else ""))
            if target:
                self.move(lane, target)
            else:
                self.finish("fail", UNSATISFIED)
            return
        self.book.tell(told.StepStarted(node=node.id, visit=lane.visit, kind=node.kind))
        self._record(lane, node, Outcome())
        self.finish("success")

    def end(
        self, lane: Lane, outcome: Outcome, answered: str | None = None, join: str = ""
    ) -> None:
        """The outcome of the lane's node is known: keep it, and go on by it, or at ``join``."""
        node, context = self.graph.nodes[lane.node], lane.context
        kind = node.kind
        if outcome.status == "retry":  # whoever drives has applied the rule of attempts
            reason = outcome.failure_reason or "no attempt is left"
            outcome = msgspec.structs.replace(outcome, status="fail", failure_reason=reason)
        opened = self.state.open.get(answered or "")
        by_hand = (
            opened is not None and opened.what == "visit" and kind != node_kinds.MANAGER_LOOP.name
        )
        self.book.close(lane, answered)
        updates = copied(outcome.context_updates) if outcome.context_updates else {}
        if kind == node_kinds.FAN_IN.name:
            best = updates.get("parallel.fan_in.best_id")
            if outcome.ok:
                ranking = scheduler_parallel.ranked(
                    lane.joined, best if isinstance(best, str) else ""
                )
                updates = {**updates, **scheduler_parallel.merged(ranking)}
            lane.joined = []
        if updates:
            if isinstance(said := updates.get("last_response"), str):
                updates["last_response"] = said[:RESPONSE]
            context.update(updates)
            if lane.fork:
                lane.updates.update(updates)
        carries = is_decision(node)
        if not carries:
            context["outcome"] = outcome.verdict or outcome.status
            context["preferred_label"] = outcome.preferred_label
            _note_failure(context, outcome)
        self._record(lane, node, outcome, by_hand=by_hand)
        if self.spend(outcome):
            return
        if join:
            self.move(lane, join)
        else:
            self._leave(lane, node, outcome, carries=carries)

    def spend(self, outcome: Outcome) -> bool:
        """Whether that was more than the run may."""
        spent = self._limits.spend(self.state, outcome)
        if spent:
            self.finish("fail", spent)
        return bool(spent)

    def _record(self, lane: Lane, node: Node, outcome: Outcome, *, by_hand: bool = False) -> None:
        state = self.state
        if node.kind not in NO_STAGE and not is_decision(node):
            lane.context["last_stage"] = node.id
        counter = f"internal.retry_count.{node.id}"
        if outcome.ok or outcome.attempts <= 1:
            if state.retries.pop(node.id, None) is not None:
                lane.context.pop(counter, None)
        else:
            lane.context[counter] = state.retries[node.id] = outcome.attempts - 1
        state.completed.append(node.id)
        kept = outcome
        if outcome.context_updates:
            kept = msgspec.structs.replace(outcome, context_updates={})
        state.outcomes[node.id] = kept
        event: told.StepFailed | told.StepCompleted
        if outcome.status == "fail":
            event = told.StepFailed(
                node=node.id,
                visit=lane.visit,
                reason=outcome.failure_reason,
                attempts=outcome.attempts,
            )
        else:
            event = told.StepCompleted(
                node=node.id,
                visit=lane.visit,
                status=outcome.status,
                preferred_label=outcome.preferred_label,
                notes=outcome.notes,
                attempts=outcome.attempts,
            )
        self.book.tell(event)
        if by_hand:  # whose hands have written it down
            self.book.add(Checkpoint(node=node.id))
        else:
            done = Checkpoint(node=node.id, visit=lane.visit, round=state.round, outcome=outcome)
            self.book.add(done)

    def _leave(self, lane: Lane, node: Node, outcome: Outcome, *, carries: bool) -> None:
        """``carries``: the outcome and the label of the node before are in force."""
        context, suggested = lane.context, outcome.suggested_next_ids
        has_failed, preferred = outcome.status == "fail", outcome.preferred_label
        if carries:
            has_failed = context.get("outcome") in ("fail", "retry")
            label = context.get("preferred_label")
            preferred = label if isinstance(label, str) else ""
        in_branch = bool(lane.fork)
        way: Way | None
        if node.kind == node_kinds.PARALLEL.name:  # its edges were its branches
            way = self._after_branches(lane, node, suggested, has_failed=has_failed)
        elif has_failed and not carries:
            way = self.routes.choose_failed(
                node, context, preferred, suggested, in_branch=in_branch
            )
        else:
            edge = self.routes.choose(node, context, preferred, suggested)
            way = None if edge is None else Way(edge.target, edge)
        if way is None:
            self._end_without_edge(lane, node, outcome, has_failed=has_failed)
        elif way.edge is not None and way.edge.restarts:
            self._restart(way.target)
        elif not in_branch or not parallel.at_its_end(self, lane, way.target):
            self.move(lane, way.target, way.edge)

    def _end_without_edge(
        self, lane: Lane, node: Node, outcome: Outcome, *, has_failed: bool
    ) -> None:
        """No edge can be followed. A node that has edges, none of whose conditions is true, is
        a run that got stuck before its exit: it fails."""
        if has_failed:
            self.over(lane, "fail", self._failure(lane, node, outcome))
        elif self.graph.edges_from(node.id):
            self.over(lane, "fail", f"{_dead_end(node)}: no condition on its edges is true")
        else:
            self.over(lane, outcome.status, _dead_end(node))

    def _after_branches(
        self, lane: Lane, node: Node, exits: tuple[str, ...], *, has_failed: bool
    ) -> Way | None:
        """Where a parallel node without a fan-in leads: to the exit that a branch reached."""
        target = exits[0] if exits else ""
        if has_failed:
            target = self.routes.retry_target(node, in_branch=bool(lane.fork)) or (
                target if self.routes.continues(node) else ""
            )
        return Way(target, None) if target else None

    def _failure(self, lane: Lane, node: Node, outcome: Outcome) -> str:
        """Why the run fails, with the node that failed: at a decision that is the one before."""
        if not is_decision(node):
            why = f": {outcome.failure_reason}" if outcome.failure_reason else ""
            return f"node {node.id!r} failed{why}"
        said = lane.context.get("failure_reason")
        why = f": {said}" if said else ""
        return f"node {lane.context.get('last_stage')!r} failed{why} ({_dead_end(node)})"

    def over(self, lane: Lane, status: str, reason: str = "") -> None:
        """This lane goes no further: with the trunk the run ends, with a branch the branch."""
        if lane.fork:
            parallel.branch_over(self, lane, status, reason)
        elif status == "fail":
            self.finish("fail", reason)
        else:
            self.finish("success", reason)

    def stop(self, lane: Lane) -> None:
        """End all that this lane has under way, its own branches first."""
        for fork in [fork for fork in self.state.forks.values() if fork.lane == lane.id]:
            parallel.stop(self, fork)
        self.book.close(lane)

    def _restart(self, target: str) -> None:
        state, trunk = self.state, self.state.trunk
        self.stop(trunk)
        context = {key: value for key, value in trunk.context.items() if key.startswith("graph.")}
        state.round += 1
        state.completed, state.outcomes, state.retries, state.gates = [], {}, {}, {}
        state.log(f"round {state.round} begins at {target}")
        lane = state.lanes[TRUNK] = Lane(context=context)
        self.book.add(Restart(round=state.round, node=target))
        self.move(lane, target)

    def finish(self, status: Literal["success", "fail", "cancelled"], reason: str = "") -> None:
        """The run is over: what is under way is to end."""
        state = self.state
        if state.finish is not None:
            return
        self.stop(state.trunk)
        state.finish = FinishRun(status=status, reason=reason)
        if status == "success":
            self.book.tell(told.PipelineCompleted(reason=reason))
        else:
            cancelled = status == "cancelled"
            self.book.tell(told.PipelineFailed(reason=reason, cancelled=cancelled))
        self.book.add(state.finish)


def _dead_end(node: Node) -> str:
    return f"no edge leads on from {node.id!r}"


def _note_failure(context: Context, outcome: Outcome) -> None:
    """``failure_reason`` and ``failure_class`` are those of the last node that did work."""
    if outcome.status == "fail":
        context["failure_reason"] = outcome.failure_reason
        context["failure_class"] = outcome.failure_class or "permanent"
    else:
        context.pop("failure_reason", None)
        context.pop("failure_class", None)
