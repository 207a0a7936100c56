"""The scheduler: a run of a graph as a state machine, without I/O.

Theory of operation
===================

Who calls
    A driver (``engine.run_loop``) owns one ``Scheduler`` per run. ``durable.query`` replays a
    journal into a scheduler to show a run. The driver calls ``start`` once and carries out the
    returned commands (run a node, ask a person, run a child pipeline, wait, emit an event, ...).
    Whenever one has a result, it calls ``receive`` with the message and carries out the commands
    that come back. The last command is ``FinishRun``. Calls must not overlap.

States
    A run is *not started*, *running* (``State.started``), or *finished* (``State.finish``). A
    running run moves on lanes: the trunk, and one lane per running branch of a parallel node.
    A lane is in one of three states:

    - *ready*: it is at a node that it has not entered (``RunContext.ready``);
    - *waiting*: it has entered the node and has open commands (``RunLane.open``), or a fork whose
      branches run;
    - *gone*: its branch ended, or the run did.

    Between two calls no lane is ready: each call handles its message, then ``_advance`` lets ready
    lanes enter their nodes until all lanes wait or the run is finished.

Parts
    This module enters, ends and leaves nodes, and counts visits, money and tokens. ``routing``
    chooses the edge. ``joins`` finds where branches meet, ``parallel`` starts and ends them,
    ``manager`` runs manager loops, ``human_gate`` builds questions; they return outcomes and never
    call this module. ``run_context`` numbers events and remembers which commands have no reply.
    ``retry`` decides about another attempt: drivers apply it to nodes, this module to human gates.
    ``state`` is all the memory.

Guarantees
    - It never waits, and uses no clock, no random numbers, no files, no network. The imports of
      this package are pure, including what they import.
    - The same messages in the same order give the same commands with the same ids, also if the
      state went through JSON in between.
    - A message for a command that is closed, or that never was, changes nothing. So replies may
      come twice or late.
    - Every command that needs a reply is either answered or stopped by a ``Stop`` command.
    - Every run ends: no node is visited more than ``max_visits`` times.
    - No branch of a parallel node goes past the join: what follows runs once, after the branches.
    - A failure is never ignored: a failed node follows an edge that handles failures, or the run
      (or branch) fails with its reason.
    - The cost of a message depends on the nodes it touches, not on the length of the run.

On a crash
    The scheduler stores nothing that matters outside ``State``, and ``State`` depends only on the
    messages. A durable driver writes each message to its journal before it calls ``receive``; to
    recover, it feeds the same messages to a new scheduler, ignores the commands that it has
    carried out already (they have the same ids), and carries out the rest. A driver that saved
    the state instead builds a scheduler with it and carries out ``pending()``: the commands that
    have no reply yet, built again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from corral._core.spending import Raise
from corral._pipelines import events, node_kinds
from corral._pipelines.attribute_definitions import find_written
from corral._pipelines.graph import Edge, Graph, Node, Value
from corral._pipelines.run_limits import check_raises, raises_of, run_limits
from corral._pipelines.scheduler import human_gate, manager, merge, parallel, retry
from corral._pipelines.scheduler.commands import (
    Answer,
    Answered,
    Cancelled,
    Checkpoint,
    Command,
    Ended,
    Expired,
    FinishRun,
    Message,
    RaiseBudget,
    Restart,
    Steered,
    Woken,
)
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._pipelines.scheduler.parallel import EndedFork
from corral._pipelines.scheduler.routing import Route, is_decision
from corral._pipelines.scheduler.run_context import RunContext
from corral._pipelines.scheduler.state import (
    TRUNK,
    Context,
    ForkEnd,
    Open,
    RunLane,
    State,
    deep_copy,
)
from corral.errors import PipelineInvalid
from corral.values import Json

MAX_RESPONSE = 200
"""Characters of a response in the context. The full text is in the node's directory."""
MAX_LOOP = 20
"""Nodes of a loop that an error names."""
UNSATISFIED = "goal gate unsatisfied and no retry target"
NO_STAGE = frozenset((node_kinds.START.name, node_kinds.EXIT.name))
"""Kinds that do no work: like a decision, they are never ``last_stage``."""
MAX_VISITS = 50


class Scheduler:
    """One run of a graph. Raises ``PipelineInvalid`` if a condition or number in the graph is
    invalid.

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
            trunk = RunLane(context={**context, **deep_copy(dict(values or {}))})
            state = State(run_id=run_id, lanes={TRUNK: trunk})
        self.graph = graph
        self.state = state
        self._run = RunContext(graph, state)
        try:
            self._visits = _max_visits(graph.attrs, MAX_VISITS, " of the graph")
        except ValueError as error:
            raise PipelineInvalid(str(error)) from None
        if graph.has_limits:
            check_raises(graph, run_limits(graph))

    def start(self) -> list[Command]:
        """The first commands. A run that was started already has none."""
        state = self.state
        if state.started:
            return []
        state.started = True
        self._run.emit(events.PipelineStarted(name=self.graph.name, goal=self.graph.goal))
        starts = list(self.graph.of_kind(node_kinds.START.name))
        if len(starts) == 1:
            self._move(state.trunk, starts[0].id)
        else:
            reason = f"a pipeline must have one start node, this one has {len(starts)}"
            self._finish("fail", reason)
        return self._advance()

    def receive(self, message: Message) -> list[Command]:
        """The commands that follow from this message."""
        state = self.state
        if state.finish is not None or not state.started:
            return []
        match message:
            case Cancelled():
                self._finish("cancelled", message.reason or "cancelled")
            case Steered():
                state.context.update(deep_copy(message.updates))
            case Ended() | Answered() | Expired() | Woken():
                if opened := state.open.get(message.id):
                    lane = state.lanes[opened.lane]
                    node = self.graph.nodes[lane.node]
                    try:
                        self._handle_reply(message, opened, lane, node)
                    except ValueError as error:  # an attribute with an invalid value
                        self._end(lane, failed(f"node {node.id!r}: {error}", retryable=False))
        return self._advance()

    def _handle_reply(
        self, message: Ended | Answered | Expired | Woken, opened: Open, lane: RunLane, node: Node
    ) -> None:
        run = self._run
        match message, opened.what:
            case Ended(id=id, outcome=outcome), _:
                # A node, a child pipeline, or the prompt of a manager has ended.
                if opened.what == "visit" and node.kind == node_kinds.MANAGER_LOOP.name:
                    run.close_one(lane, id)
                    self._add_cost(outcome)
                    self._end_if_done(lane, manager.steer_child(run, lane, node, outcome))
                    return
                if lane.merging is not None:
                    self._end_merge(lane, node, lane.merging, outcome, id)
                    return
                if (end := merge.end_of_items(outcome)) is not None:
                    run.close_one(lane, id)
                    self._merge(lane, end)
                    return
                if opened.what == "child":
                    lane.context.update(manager.ended_context(outcome))
                self._end(lane, outcome, answered=id)
            case Woken(id=id, seen=seen), "wait":
                run.close_one(lane, id)
                self._end_if_done(lane, manager.observe(run, lane, node, seen))
            case Answered(id=id, answer=answer, by=by), "ask":
                end = lane.merging
                asked = run.question(lane, node) if end is None else merge.question(lane, node, end)
                text = human_gate.answer_text(asked, answer)
                run.emit(events.InterviewCompleted(node=node.id, visit=id, answer=text, by=by))
                if end is not None:
                    self._answer_conflict(lane, node, end, answer, id)
                    return
                outcome = human_gate.outcome_of_answer(asked, answer)
                self._finish_gate(lane, node, id, outcome)
            case Expired(id=id), "ask":
                run.emit(events.InterviewTimeout(node=node.id, visit=id))
                outcome = human_gate.outcome_of_timeout(run.question(lane, node))
                self._finish_gate(lane, node, id, outcome)
            case _:
                pass

    def _finish_gate(self, lane: RunLane, node: Node, id: str, outcome: Outcome) -> None:
        """End a human gate; on ``retry`` ask again, as often as the node may be retried."""
        after = retry.after(self.graph, node, outcome, lane.attempt, lane.visit)
        if isinstance(after, Outcome):
            self._end(lane, after, answered=id)
            return
        run = self._run
        run.close_one(lane, id)
        lane.attempt += 1
        run.open(lane, run.question(lane, node).id, "ask")

    # Moving on.

    def _advance(self) -> list[Command]:
        """Let every ready lane enter its node, until all lanes wait. Returns the commands since
        the last call."""
        ready = self._run.ready
        while ready:
            lane = ready.popleft()
            if self.state.finish is None and self.state.lanes.get(lane.id) is lane:
                self._enter(lane)
        return self._run.take_commands()

    def _move(self, lane: RunLane, target: str, edge: Edge | None = None) -> None:
        """The lane enters this node next."""
        lane.previous = lane.node or None
        lane.node = target
        lane.fidelity = lane.thread = ""
        if edge is not None and edge.attrs:
            lane.fidelity = str(edge.attrs.get("fidelity", ""))
            lane.thread = str(edge.attrs.get("thread_id", ""))
        self._run.ready.append(lane)

    # Entering a node.

    def _enter(self, lane: RunLane) -> None:
        state, node = self.state, self.graph.nodes.get(lane.node)
        if node is None:
            self._end_lane(lane, "fail", f"there is no node {lane.node!r}")
            return
        if lane.fork and not lane.visit and self._leaves_branch(lane, node.id):
            return
        number = state.visits.get(node.id, 0) + 1
        try:
            most = _max_visits(node.attrs, self._visits)
        except ValueError as error:
            self._end_lane(lane, "fail", f"node {node.id!r}: {error}")
            return
        if number > most:
            # The reason names the loop that came back to this node once too often.
            done = state.completed
            since = len(done) - 1 - done[::-1].index(node.id) if node.id in done else len(done)
            loop = " -> ".join([*done[since:][:MAX_LOOP], node.id])
            reason = f"would be visited more than {most} times (max_visits): {loop}"
            self._end_lane(lane, "fail", f"node {node.id!r} {reason}")
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
            self._run.emit(events.StepStarted(node=node.id, visit=lane.visit, kind=node.kind))
            self._start(lane, node)
        except ValueError as error:  # an attribute with an invalid value
            self._end(lane, failed(f"node {node.id!r}: {error}", retryable=False))

    def _start(self, lane: RunLane, node: Node) -> None:
        """Do what the node's kind asks for. Raises ``ValueError``."""
        match node.kind:
            case node_kinds.START.name | node_kinds.CONDITIONAL.name:
                self._end(lane, Outcome())
            case node_kinds.PARALLEL.name:
                self._end_fork(parallel.start_fork(self._run, lane, node))
            case node_kinds.FAN_IN.name:
                if not parallel.rank_branches(lane.joined):
                    reason = "every branch failed" if lane.joined else "there is no branch to join"
                    self._end(lane, failed(reason, retryable=False))
                elif node.text("prompt"):
                    self._run.open(lane, lane.visit, "visit")
                else:
                    self._end(lane, Outcome())
            case node_kinds.WAIT_HUMAN.name if not self.graph.edges_from(node.id):
                self._end(lane, failed("the gate has no edges to choose from", retryable=False))
            case node_kinds.WAIT_HUMAN.name:
                self._run.open(lane, lane.visit, "ask")
            case node_kinds.INCLUDE.name:
                manager.start_child(self._run, lane, node)
            case node_kinds.MANAGER_LOOP.name:
                if node.attrs.get("stack.child_autostart", True) not in (False, "false"):
                    manager.start_child(self._run, lane, node)
                self._end_if_done(lane, manager.run_cycle(self._run, lane, node))
            case _:
                self._run.open(lane, lane.visit, "visit")

    def _enter_exit(self, lane: RunLane, node: Node) -> None:
        """Finish the run, unless a goal gate is not satisfied. Only the trunk comes here: a
        branch ends before an exit."""
        state = self.state
        for name in state.gates:
            outcome = state.outcomes.get(name)
            if outcome is not None and outcome.ok:
                continue
            target = self._run.routes.retry_target(self.graph.nodes[name])
            state.log(f"goal gate {name!r} unsatisfied" + (f": back to {target}" if target else ""))
            if target:
                self._move(lane, target)
            else:
                self._finish("fail", UNSATISFIED)
            return
        self._run.emit(events.StepStarted(node=node.id, visit=lane.visit, kind=node.kind))
        self._record(lane, node, Outcome())
        self._finish("success")

    # Ending a node.

    def _end(
        self, lane: RunLane, outcome: Outcome, answered: str | None = None, join: str = ""
    ) -> None:
        """The lane's node is over with this outcome. Record it and follow an edge, or go to
        ``join``. ``answered`` is the id of the command that brought the outcome."""
        node, context = self.graph.nodes[lane.node], lane.context
        if outcome.status == "retry":  # the driver has applied the retry rule already
            reason = outcome.failure_reason or "no attempt is left"
            outcome = msgspec.structs.replace(outcome, status="fail", failure_reason=reason)
        opened = self.state.open.get(answered or "")
        by_driver = opened is not None and opened.what == "visit"
        self._run.close(lane, answered)
        updates = self._updates(lane, node, outcome)
        if updates:
            context.update(updates)
            if lane.fork:
                lane.updates.update(updates)
        kind = node.kind
        keeps_outcome = is_decision(node)
        if not keeps_outcome:
            context["outcome"] = outcome.verdict or outcome.status
            context["preferred_label"] = outcome.preferred_label
            # These two describe the last node that did work.
            context.pop("failure_reason", None)
            context.pop("failure_class", None)
            if outcome.status == "fail":
                context["failure_reason"] = outcome.failure_reason
                context["failure_class"] = outcome.failure_class or "permanent"
        by_driver = by_driver and kind != node_kinds.MANAGER_LOOP.name
        if kind not in NO_STAGE and not keeps_outcome:
            context["last_stage"] = node.id
        self._record(lane, node, outcome, by_driver=by_driver)
        self._add_cost(outcome)
        if join:
            self._move(lane, join)
        else:
            self._leave(lane, node, outcome, keeps_outcome=keeps_outcome)

    def _end_if_done(self, lane: RunLane, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._end(lane, outcome)

    def _end_fork(self, ended: EndedFork | None) -> None:
        if ended is None:
            return
        lane, end = ended
        if end.merges:
            self._merge(lane, end)
        else:
            self._end(lane, end.outcome, join=end.join)

    def _merge(self, lane: RunLane, end: ForkEnd) -> None:
        """Let the driver merge the files of branches that are over."""
        lane.merging = end
        self._run.open(lane, f"{lane.visit}.{'chosen' if end.chosen else 'merge'}", "visit")

    def _end_merge(
        self, lane: RunLane, node: Node, end: ForkEnd, outcome: Outcome, answered: str
    ) -> None:
        """The files of the branches were merged with this outcome."""
        self._add_cost(outcome)
        if merge.must_ask(node, end, outcome):
            self._run.close_one(lane, answered)
            lane.merging = msgspec.structs.replace(end, conflict=outcome)
            self._run.open(lane, f"{lane.visit}.conflict", "ask")
            return
        lane.merging = None
        if not outcome.ok:
            lane.joined = []
        end = merge.combined(end, outcome)
        self._end(lane, end.outcome, answered=answered, join=end.join)

    def _answer_conflict(
        self, lane: RunLane, node: Node, end: ForkEnd, answer: Answer, answered: str
    ) -> None:
        """A person chose the branch that is merged first."""
        end = merge.with_answer(end, merge.question(lane, node, end), answer)
        if end.chosen:
            self._run.close_one(lane, answered)
            self._merge(lane, end)
        elif end.conflict is not None:
            self._end_merge(lane, node, end, end.conflict, answered)

    def _updates(self, lane: RunLane, node: Node, outcome: Outcome) -> Context:
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

    def _add_cost(self, outcome: Outcome) -> None:
        """Add up what the outcome cost. The budget of the run, which model calls reserve in,
        is the only one that refuses: it knows of each raise before the calls that follow it."""
        self.state.cost_usd += outcome.cost_usd or 0.0
        self.state.tokens += outcome.tokens or 0

    def _record(
        self, lane: RunLane, node: Node, outcome: Outcome, *, by_driver: bool = False
    ) -> None:
        """``by_driver``: the driver that ran the node has written its outcome down itself."""
        state = self.state
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
        if outcome.status == "fail":
            self._run.emit(
                events.StepFailed(
                    node=node.id,
                    visit=lane.visit,
                    reason=outcome.failure_reason,
                    attempts=outcome.attempts,
                )
            )
        else:
            self._run.emit(
                events.StepCompleted(
                    node=node.id,
                    visit=lane.visit,
                    status=outcome.status,
                    preferred_label=outcome.preferred_label,
                    notes=outcome.notes,
                    attempts=outcome.attempts,
                )
            )
        if by_driver:
            self._run.add(Checkpoint(node=node.id))
        else:
            self._run.add(
                Checkpoint(node=node.id, visit=lane.visit, round=state.round, outcome=outcome)
            )

    # Leaving a node.

    def _leave(self, lane: RunLane, node: Node, outcome: Outcome, *, keeps_outcome: bool) -> None:
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
            route = self._run.routes.choose_failed(
                node, context, preferred, suggested, in_branch=in_branch
            )
        else:
            edge = self._run.routes.choose(node, context, preferred, suggested)
            route = None if edge is None else Route(edge.target, edge)
            if edge is not None and self.graph.has_limits and is_gate(node):
                # The choice of a person may raise the limits of the run.
                amounts = Raise.of(raises_of(edge))
                if amounts != Raise():
                    self._run.add(RaiseBudget(id=lane.visit, amounts=amounts))
        if route is None:
            self._end_without_edge(lane, node, outcome, has_failed=has_failed)
        elif route.edge is not None and route.edge.restarts:
            self._restart(route.target)
        elif not in_branch or not self._leaves_branch(lane, route.target, route.edge):
            self._move(lane, route.target, route.edge)

    def _end_without_edge(
        self, lane: RunLane, node: Node, outcome: Outcome, *, has_failed: bool
    ) -> None:
        """No edge can be followed. A node that has edges, none of whose conditions is true, is
        a run that got stuck before its exit: it fails. The edges of a parallel node were its
        branches: they decided already."""
        if has_failed:
            failed_node: Json = node.id
            reason: Json = outcome.failure_reason
            where = ""
            if is_decision(node):  # the node before it has failed
                failed_node = lane.context.get("last_stage")
                reason = lane.context.get("failure_reason")
                where = f" ({_dead_end(node)})"
            because = f": {reason}" if reason else ""
            self._end_lane(lane, "fail", f"node {failed_node!r} failed{because}{where}")
        elif self.graph.edges_from(node.id) and node.kind != node_kinds.PARALLEL.name:
            why = "no condition on its edges is true"
            if is_gate(node):
                why = f"the condition of the choice {outcome.preferred_label!r} is not true"
            self._end_lane(lane, "fail", f"{_dead_end(node)}: {why}")
        else:
            self._end_lane(lane, outcome.status, _dead_end(node))

    def _after_branches(
        self, lane: RunLane, node: Node, ends: tuple[str, ...], *, has_failed: bool
    ) -> Route | None:
        """Where a parallel node without a fan-in leads: to where its branches have ended. If all
        failed, its edge there counts as an unconditional one."""
        routes, target = self._run.routes, ends[0] if ends else ""
        if has_failed:
            target = routes.retry_target(node, in_branch=bool(lane.fork)) or (
                target if routes.decides(target) or routes.continues(node) else ""
            )
        return Route(target, None) if target else None

    # Ending a lane, a round, the run.

    def _leaves_branch(self, lane: RunLane, target: str, edge: Edge | None = None) -> bool:
        """Whether the node is not in the branch of this lane. Then the branch is over; at a node
        before its parallel node, all branches are, and the run of the parallel node continues
        there."""
        if parallel.ends_branch(self._run, lane, target):
            self._end_fork(parallel.end_branch_at(self._run, lane, target))
            return True
        if target not in self._run.section(lane.fork).before:
            return False
        fork_lane = self.state.lanes[self.state.forks[lane.fork].lane]
        if merge.has_worktrees(self._run.node_of(fork_lane)):
            reason = f"{lane.node} leads back to {target}, out of a branch with its own worktree"
            self._end_fork(parallel.end_branch(self._run, lane, "fail", reason))
            return True
        parent = parallel.go_back(self._run, lane)
        notes = f"{lane.node} leads back to {target}"
        self._record(parent, self.graph.nodes[parent.node], Outcome(status="skipped", notes=notes))
        parent.node = lane.node
        if not parent.fork or not self._leaves_branch(parent, target, edge):
            self._move(parent, target, edge)
        return True

    def _end_lane(self, lane: RunLane, status: str, reason: str = "") -> None:
        """This lane goes no further: a branch ends, or with the trunk the run."""
        if lane.fork:
            self._end_fork(parallel.end_branch(self._run, lane, status, reason))
        elif status == "fail":
            self._finish("fail", reason)
        else:
            self._finish("success", reason)

    def _restart(self, target: str) -> None:
        """Start another round at this node, with a fresh context."""
        state, trunk = self.state, self.state.trunk
        self._run.stop_lane(trunk)
        context = {key: value for key, value in trunk.context.items() if key.startswith("graph.")}
        state.round += 1
        state.completed, state.outcomes, state.retries, state.gates = [], {}, {}, {}
        state.log(f"round {state.round} starts at {target}")
        lane = state.lanes[TRUNK] = RunLane(context=context)
        self._run.add(Restart(round=state.round, node=target))
        self._move(lane, target)

    def _finish(self, status: Literal["success", "fail", "cancelled"], reason: str = "") -> None:
        """End the run, and stop everything that it waits for."""
        state = self.state
        if state.finish is not None:
            return
        self._run.stop_lane(state.trunk)
        state.finish = FinishRun(status=status, reason=reason)
        if status == "success":
            self._run.emit(events.PipelineCompleted(reason=reason))
        else:
            cancelled = status == "cancelled"
            self._run.emit(events.PipelineFailed(reason=reason, cancelled=cancelled))
        self._run.add(state.finish)


def _max_visits(attrs: Mapping[str, Value], default: int, owner: str = "") -> int:
    """``max_visits`` of a node or the graph. Raises ``ValueError``."""
    written = find_written(attrs, "max_visits")
    if written is None:
        return default
    key, value = written
    try:
        return int(float(value))
    except ValueError:
        raise ValueError(f"{key}={value}{owner} is not a number") from None


def is_gate(node: Node) -> bool:
    return node.kind == node_kinds.WAIT_HUMAN.name


def _dead_end(node: Node) -> str:
    return f"no edge leads on from {node.id!r}"
