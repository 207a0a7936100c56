"""How a run moves through its graph: enter a node, end it, choose an edge, move on."""

from __future__ import annotations

from typing import Literal

import msgspec

from corral.pipelines import events, node_kinds
from corral.pipelines.graph import Edge, Graph, Node
from corral.pipelines.scheduler import manager, parallel
from corral.pipelines.scheduler.commands import Checkpoint, Command, FinishRun, Restart
from corral.pipelines.scheduler.limits import Limits
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.scheduler.parallel import ForkEnd
from corral.pipelines.scheduler.pending import PendingCommands
from corral.pipelines.scheduler.routing import Route, Routes, is_decision
from corral.pipelines.scheduler.run_context import RunContext
from corral.pipelines.scheduler.state import TRUNK, Context, Lane, State, deep_copy

MAX_RESPONSE = 200
"""Characters of a response in the context. The full text is in the node's directory."""
MAX_LOOP = 20
"""Nodes of a loop that an error names."""
UNSATISFIED = "goal gate unsatisfied and no retry target"
NO_STAGE = frozenset((node_kinds.START.name, node_kinds.EXIT.name))
"""Kinds that do no work: like a decision, they are never ``last_stage``."""


class Traversal:
    """Raises ``PipelineInvalid`` if a condition or number in the graph is invalid."""

    def __init__(self, graph: Graph, state: State) -> None:
        self.graph = graph
        self.state = state
        self.routes = Routes(graph)
        self.pending = PendingCommands(graph, state, self.routes)
        self.run = RunContext(graph, state, self.routes, self.pending)
        self._limits = Limits(graph)

    def advance(self) -> list[Command]:
        """Let every ready lane enter its node, until all lanes wait. Returns the commands since
        the last call."""
        ready = self.run.ready
        while ready:
            lane = ready.popleft()
            if self.state.finish is None and self.state.lanes.get(lane.id) is lane:
                self._enter(lane)
        return self.pending.take()

    def move(self, lane: Lane, target: str, edge: Edge | None = None) -> None:
        """The lane enters this node next."""
        lane.previous = lane.node or None
        lane.node = target
        lane.fidelity = lane.thread = ""
        if edge is not None and edge.attrs:
            lane.fidelity = str(edge.attrs.get("fidelity", ""))
            lane.thread = str(edge.attrs.get("thread_id", ""))
        self.run.ready.append(lane)

    # Entering a node.

    def _enter(self, lane: Lane) -> None:
        state, node = self.state, self.graph.nodes.get(lane.node)
        if node is None:
            self._end_lane(lane, "fail", f"there is no node {lane.node!r}")
            return
        if lane.fork and not lane.visit and self._end_branch_at(lane, node.id):
            return
        number = state.visits.get(node.id, 0) + 1
        try:
            most = self._limits.visits(node)
        except ValueError as error:
            self._end_lane(lane, "fail", f"node {node.id!r}: {error}")
            return
        if number > most:
            self._end_lane(lane, "fail", self._endless_loop(node, most))
            return
        lane.number = state.visits[node.id] = number
        lane.visit = f"{node.id}.{number}"
        lane.context["current_node"] = node.id
        lane.attempt, lane.cycle = 1, 0
        if node.kind == node_kinds.EXIT.name:
            self._enter_exit(lane, node)
            return
        try:
            if node.is_true("goal_gate"):
                state.gates[node.id] = True
            self.pending.emit(events.StepStarted(node=node.id, visit=lane.visit, kind=node.kind))
            self._start(lane, node)
        except ValueError as error:  # an attribute with an invalid value
            self.end(lane, failed(f"node {node.id!r}: {error}", retryable=False))

    def _endless_loop(self, node: Node, most: int) -> str:
        """Why the run ends, with the loop that came back to this node once too often."""
        done = self.state.completed
        since = len(done) - 1 - done[::-1].index(node.id) if node.id in done else len(done)
        loop = " -> ".join([*done[since:][:MAX_LOOP], node.id])
        return f"node {node.id!r} would be visited more than {most} times (max_visits): {loop}"

    def _start(self, lane: Lane, node: Node) -> None:
        """Do what the node's kind asks for. Raises ``ValueError``."""
        match node.kind:
            case node_kinds.START.name | node_kinds.CONDITIONAL.name:
                self.end(lane, Outcome())
            case node_kinds.PARALLEL.name:
                self._end_fork(parallel.start_fork(self.run, lane, node))
            case node_kinds.FAN_IN.name:
                self._start_fan_in(lane, node)
            case node_kinds.WAIT_HUMAN.name:
                self.pending.open(lane, lane.visit, "ask")
            case node_kinds.INCLUDE.name:
                manager.start_child(self.run, lane, node)
            case node_kinds.MANAGER_LOOP.name:
                if manager.starts_child(node):
                    manager.start_child(self.run, lane, node)
                self.end_if_done(lane, manager.run_cycle(self.run, lane, node))
            case _:
                self.pending.open(lane, lane.visit, "visit")

    def _start_fan_in(self, lane: Lane, node: Node) -> None:
        if not parallel.rank_branches(lane.joined):
            reason = "every branch failed" if lane.joined else "there is no branch to join"
            self.end(lane, failed(reason, retryable=False))
        elif node.text("prompt"):
            self.pending.open(lane, lane.visit, "visit")
        else:
            self.end(lane, Outcome())

    def _enter_exit(self, lane: Lane, node: Node) -> None:
        """Finish the run, unless a goal gate is not satisfied. Only the trunk comes here: a
        branch ends before an exit."""
        state = self.state
        for name in state.gates:
            outcome = state.outcomes.get(name)
            if outcome is not None and outcome.ok:
                continue
            target = self.routes.retry_target(self.graph.nodes[name])
            state.log(f"goal gate {name!r} unsatisfied" + (f": back to {target}" if target else ""))
            if target:
                self.move(lane, target)
            else:
                self.finish("fail", UNSATISFIED)
            return
        self.pending.emit(events.StepStarted(node=node.id, visit=lane.visit, kind=node.kind))
        self._record(lane, node, Outcome())
        self.finish("success")

    # Ending a node.

    def end(
        self, lane: Lane, outcome: Outcome, answered: str | None = None, join: str = ""
    ) -> None:
        """The lane's node is over with this outcome. Record it and follow an edge, or go to
        ``join``. ``answered`` is the id of the command that brought the outcome."""
        node, context = self.graph.nodes[lane.node], lane.context
        if outcome.status == "retry":  # the driver has applied the retry rule already
            reason = outcome.failure_reason or "no attempt is left"
            outcome = msgspec.structs.replace(outcome, status="fail", failure_reason=reason)
        opened = self.state.open.get(answered or "")
        by_driver = opened is not None and opened.what == "visit"
        self.pending.close(lane, answered)
        updates = self._updates(lane, node, outcome)
        if updates:
            context.update(updates)
            if lane.fork:
                lane.updates.update(updates)
        keeps_outcome = is_decision(node)
        if not keeps_outcome:
            context["outcome"] = outcome.verdict or outcome.status
            context["preferred_label"] = outcome.preferred_label
            _note_failure(context, outcome)
        by_driver = by_driver and node.kind != node_kinds.MANAGER_LOOP.name
        self._record(lane, node, outcome, by_driver=by_driver)
        if self.spend(outcome):
            return
        if join:
            self.move(lane, join)
        else:
            self._leave(lane, node, outcome, keeps_outcome=keeps_outcome)

    def end_if_done(self, lane: Lane, outcome: Outcome | None) -> None:
        if outcome is not None:
            self.end(lane, outcome)

    def _end_fork(self, ended: ForkEnd | None) -> None:
        if ended is not None:
            self.end(ended.lane, ended.outcome, join=ended.join)

    def _updates(self, lane: Lane, node: Node, outcome: Outcome) -> Context:
        """What the outcome changes in the context; at a fan-in also what the branches set."""
        updates = deep_copy(outcome.context_updates) if outcome.context_updates else {}
        if node.kind == node_kinds.FAN_IN.name:
            best = updates.get("parallel.fan_in.best_id")
            if outcome.ok:
                picked = best if isinstance(best, str) else ""
                ranking = parallel.rank_branches(lane.joined, picked)
                updates = {**updates, **parallel.merge_updates(ranking)}
            lane.joined = []
        if isinstance(response := updates.get("last_response"), str):
            updates["last_response"] = response[:MAX_RESPONSE]
        return updates

    def spend(self, outcome: Outcome) -> bool:
        """Add up what the outcome cost. Finishes the run and returns True if it has spent more
        than it may."""
        reason = self._limits.spend(self.state, outcome)
        if reason:
            self.finish("fail", reason)
        return bool(reason)

    def _record(self, lane: Lane, node: Node, outcome: Outcome, *, by_driver: bool = False) -> None:
        """``by_driver``: the driver that ran the node has written its outcome down itself."""
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
        state.outcomes[node.id] = (
            msgspec.structs.replace(outcome, context_updates={})
            if outcome.context_updates
            else outcome
        )
        self.pending.emit(_step_ended(lane, node, outcome))
        if by_driver:
            self.pending.add(Checkpoint(node=node.id))
        else:
            self.pending.add(
                Checkpoint(node=node.id, visit=lane.visit, round=state.round, outcome=outcome)
            )

    # Leaving a node.

    def _leave(self, lane: Lane, node: Node, outcome: Outcome, *, keeps_outcome: bool) -> None:
        """``keeps_outcome``: the outcome and label of the node before this one stay in force."""
        context, suggested = lane.context, outcome.suggested_next_ids
        has_failed, preferred = outcome.status == "fail", outcome.preferred_label
        if keeps_outcome:
            has_failed = context.get("outcome") in ("fail", "retry")
            label = context.get("preferred_label")
            preferred = label if isinstance(label, str) else ""
        in_branch = bool(lane.fork)
        route: Route | None
        if node.kind == node_kinds.PARALLEL.name:  # its edges were its branches
            route = self._after_branches(lane, node, suggested, has_failed=has_failed)
        elif has_failed and not keeps_outcome:
            route = self.routes.choose_failed(
                node, context, preferred, suggested, in_branch=in_branch
            )
        else:
            edge = self.routes.choose(node, context, preferred, suggested)
            route = None if edge is None else Route(edge.target, edge)
        if route is None:
            self._end_without_edge(lane, node, outcome, has_failed=has_failed)
        elif route.edge is not None and route.edge.restarts:
            self._restart(route.target)
        elif not in_branch or not self._end_branch_at(lane, route.target):
            self.move(lane, route.target, route.edge)

    def _end_without_edge(
        self, lane: Lane, node: Node, outcome: Outcome, *, has_failed: bool
    ) -> None:
        """No edge can be followed. A node that has edges, none of whose conditions is true, is
        a run that got stuck before its exit: it fails. The edges of a parallel node were its
        branches: they decided already."""
        if has_failed:
            self._end_lane(lane, "fail", self._failure(lane, node, outcome))
        elif self.graph.edges_from(node.id) and node.kind != node_kinds.PARALLEL.name:
            self._end_lane(lane, "fail", f"{_dead_end(node)}: no condition on its edges is true")
        else:
            self._end_lane(lane, outcome.status, _dead_end(node))

    def _after_branches(
        self, lane: Lane, node: Node, exits: tuple[str, ...], *, has_failed: bool
    ) -> Route | None:
        """Where a parallel node without a fan-in leads: to the exit that a branch reached."""
        target = exits[0] if exits else ""
        if has_failed:
            target = self.routes.retry_target(node, in_branch=bool(lane.fork)) or (
                target if self.routes.continues(node) else ""
            )
        return Route(target, None) if target else None

    def _failure(self, lane: Lane, node: Node, outcome: Outcome) -> str:
        """Why the run fails, with the node that failed: for a decision, the one before it."""
        if not is_decision(node):
            reason = f": {outcome.failure_reason}" if outcome.failure_reason else ""
            return f"node {node.id!r} failed{reason}"
        before = lane.context.get("failure_reason")
        reason = f": {before}" if before else ""
        return f"node {lane.context.get('last_stage')!r} failed{reason} ({_dead_end(node)})"

    # Ending a lane, a round, the run.

    def _end_branch_at(self, lane: Lane, target: str) -> bool:
        """End the branch of this lane if the node is one that ends branches. Returns whether it
        is."""
        if not parallel.ends_branch(self.graph, target):
            return False
        self._end_fork(parallel.end_branch_at(self.run, lane, target))
        return True

    def _end_lane(self, lane: Lane, status: str, reason: str = "") -> None:
        """This lane goes no further: a branch ends, or with the trunk the run."""
        if lane.fork:
            self._end_fork(parallel.end_branch(self.run, lane, status, reason))
        elif status == "fail":
            self.finish("fail", reason)
        else:
            self.finish("success", reason)

    def _restart(self, target: str) -> None:
        """Start another round at this node, with a fresh context."""
        state, trunk = self.state, self.state.trunk
        parallel.stop_lane(self.run, trunk)
        context = {key: value for key, value in trunk.context.items() if key.startswith("graph.")}
        state.round += 1
        state.completed, state.outcomes, state.retries, state.gates = [], {}, {}, {}
        state.log(f"round {state.round} starts at {target}")
        lane = state.lanes[TRUNK] = Lane(context=context)
        self.pending.add(Restart(round=state.round, node=target))
        self.move(lane, target)

    def finish(self, status: Literal["success", "fail", "cancelled"], reason: str = "") -> None:
        """End the run, and stop everything that it waits for."""
        state = self.state
        if state.finish is not None:
            return
        parallel.stop_lane(self.run, state.trunk)
        state.finish = FinishRun(status=status, reason=reason)
        if status == "success":
            self.pending.emit(events.PipelineCompleted(reason=reason))
        else:
            cancelled = status == "cancelled"
            self.pending.emit(events.PipelineFailed(reason=reason, cancelled=cancelled))
        self.pending.add(state.finish)


def _step_ended(
    lane: Lane, node: Node, outcome: Outcome
) -> events.StepFailed | events.StepCompleted:
    if outcome.status == "fail":
        return events.StepFailed(
            node=node.id,
            visit=lane.visit,
            reason=outcome.failure_reason,
            attempts=outcome.attempts,
        )
    return events.StepCompleted(
        node=node.id,
        visit=lane.visit,
        status=outcome.status,
        preferred_label=outcome.preferred_label,
        notes=outcome.notes,
        attempts=outcome.attempts,
    )


def _dead_end(node: Node) -> str:
    return f"no edge leads on from {node.id!r}"


def _note_failure(context: Context, outcome: Outcome) -> None:
    """``failure_reason`` and ``failure_class`` describe the last node that did work."""
    if outcome.status == "fail":
        context["failure_reason"] = outcome.failure_reason
        context["failure_class"] = outcome.failure_class or "permanent"
    else:
        context.pop("failure_reason", None)
        context.pop("failure_class", None)
