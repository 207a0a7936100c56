"""A parallel node at work: branches begin, end, and are joined."""

from __future__ import annotations

from corral.pipelines import events as told
from corral.pipelines import lanes
from corral.pipelines.graph import Node
from corral.pipelines.outcome import Outcome
from corral.pipelines.state import Fork, Lane, copied
from corral.pipelines.walker import Walker

MAX_PARALLEL = 4
DEEPEST = 32
"""Parallel nodes inside each other: a branch may come back to its own."""


def begin(walk: Walker, lane: Lane, node: Node) -> None:
    """Raises ``ValueError`` where ``max_parallel`` is no number."""
    limit = _limit(node)
    if lane.depth >= DEEPEST:
        raise ValueError(f"parallel nodes are nested more than {DEEPEST} deep")
    made = lanes.branches(walk.routes.branches(node, lane.context))
    join = lanes.join_of(walk.graph, [branch.target for branch in made])
    fork = Fork(id=lane.visit, lane=lane.id, join=join, branches=made)
    walk.state.forks[fork.id] = fork
    ids = tuple(branch.id for branch in made)
    walk.book.tell(told.ParallelStarted(node=node.id, visit=fork.id, branches=ids))
    _start(walk, fork, limit)
    if not made:
        _close(walk, fork)


def at_its_end(walk: Walker, lane: Lane, target: str) -> bool:
    """Whether a branch that comes to this node is over: it is a fan-in, or an exit."""
    node = walk.graph.nodes.get(target)
    if node is None or node.kind not in ("parallel.fan_in", "exit"):
        return False
    branch = walk.state.forks[lane.fork].branches[lane.branch]
    branch.exit = target if node.kind == "exit" else ""
    status = lane.context.get("outcome")
    branch_over(walk, lane, status if isinstance(status, str) else "success", "")
    return True


def branch_over(walk: Walker, lane: Lane, status: str, reason: str) -> None:
    state = walk.state
    fork = state.forks[lane.fork]
    branch = fork.branches[lane.branch]
    last = state.outcomes.get(lane.node)
    branch.status, branch.updates = status, lane.updates
    branch.score = lanes.score_of(lane.updates)
    if lane.visit:
        branch.last_stage, branch.last_visit = lane.node, lane.visit
        branch.notes = last.notes if last is not None else ""
    if status == "fail":
        branch.reason = reason or (last.failure_reason if last is not None else "")
    response = lane.updates.get("last_response")
    branch.last_response = response if isinstance(response, str) else ""
    walk.stop(lane)
    del state.lanes[lane.id]
    fork.running -= 1
    fork.over += 1
    _told_over(walk, fork, lane.branch)
    node = walk.graph.nodes[walk.state.lanes[fork.lane].node]
    first = node.text("join_policy") == "first_success" and status not in lanes.FAILED
    if first or fork.over == len(fork.branches):
        _close(walk, fork)
    else:
        _start(walk, fork, _limit(node))


def stop(walk: Walker, fork: Fork) -> None:
    """End what its branches have under way, and forget it."""
    state = walk.state
    for number, branch in enumerate(fork.branches):
        lane = state.lanes.get(_lane_id(fork, number))
        if lane is not None:
            walk.stop(lane)
            del state.lanes[lane.id]
        if branch.status in ("running", "waiting"):
            was_running, branch.status = branch.status == "running", "cancelled"
            if was_running:
                _told_over(walk, fork, number)
    del state.forks[fork.id]


def _start(walk: Walker, fork: Fork, limit: int) -> None:
    parent = walk.state.lanes[fork.lane]
    while fork.running < limit and fork.next < len(fork.branches):
        number, branch = fork.next, fork.branches[fork.next]
        lane = Lane(
            id=_lane_id(fork, number),
            node=branch.target,
            previous=parent.node,
            context=copied(parent.context),
            fidelity=branch.fidelity,
            thread=branch.thread,
            fork=fork.id,
            branch=number,
            depth=parent.depth + 1,
        )
        walk.state.lanes[lane.id] = lane
        branch.status = "running"
        fork.running += 1
        fork.next += 1
        node = walk.graph.nodes[parent.node]
        walk.book.tell(told.BranchStarted(node=node.id, visit=fork.id, branch=branch.id))
        walk.ready(lane)


def _close(walk: Walker, fork: Fork) -> None:
    """The node is done: control goes on at the fan-in, in the lane that came to it; without
    one at the exit that a branch came to."""
    parent = walk.state.lanes[fork.lane]
    node = walk.graph.nodes[parent.node]
    stop(walk, fork)
    status = lanes.status_of(fork, node.text("join_policy"))
    walk.book.tell(told.ParallelCompleted(node=node.id, visit=fork.id, status=status))
    updates, reason = lanes.results(fork), ""
    if status == "fail":
        reason = "every branch failed" if fork.branches else "it has no branch"
    elif not fork.join:
        updates |= lanes.merged(lanes.ranked(fork.branches))
    exits = tuple(branch.exit for branch in fork.branches if branch.exit)
    parent.joined = fork.branches if fork.join else []
    outcome = Outcome(
        status=status,
        failure_reason=reason,
        context_updates=updates,
        suggested_next_ids=() if fork.join else exits[:1],
    )
    walk.end(parent, outcome, join=fork.join)


def _told_over(walk: Walker, fork: Fork, number: int) -> None:
    branch = fork.branches[number]
    node = walk.state.lanes[fork.lane].node
    walk.book.tell(
        told.BranchCompleted(node=node, visit=fork.id, branch=branch.id, status=branch.status)
    )


def _lane_id(fork: Fork, number: int) -> str:
    return f"{fork.id}/{fork.branches[number].id}"


def _limit(node: Node) -> int:
    return max(1, node.number("max_parallel", MAX_PARALLEL))
