"""A parallel node at work: branches begin, end, and are joined."""

from __future__ import annotations

from corral.events import Json
from corral.pipelines import events as told
from corral.pipelines import node_kinds
from corral.pipelines.graph import Edge, Graph, Node
from corral.pipelines.scheduler.outcome import Outcome, Status
from corral.pipelines.scheduler.state import Branch, Context, Fork, Lane, copied
from corral.pipelines.scheduler.walker import Walker

_RANKS = {"success": 0, "partial_success": 1, "skipped": 2}
FAILED = ("fail", "cancelled")


def branches(edges: list[Edge]) -> list[Branch]:
    seen: dict[str, int] = {}
    made: list[Branch] = []
    for edge in edges:
        count = seen[edge.target] = seen.get(edge.target, 0) + 1
        made.append(
            Branch(
                id=edge.target if count == 1 else f"{edge.target}#{count}",
                target=edge.target,
                fidelity=str(edge.attrs.get("fidelity", "")),
                thread=str(edge.attrs.get("thread_id", "")),
            )
        )
    return made


def join_of(graph: Graph, heads: list[str]) -> str:
    """The fan-in where these branches meet: the one that most of them reach, then the nearest,
    then by its id. A fan-in of a parallel node inside a branch is not theirs. Empty: none."""
    reached: dict[str, list[int]] = {}
    for head in dict.fromkeys(heads):
        for fan_in, distance in fan_ins(graph, head).items():
            reached.setdefault(fan_in, []).append(distance)
    return min(
        reached, key=lambda name: (-len(reached[name]), sum(reached[name]), name), default=""
    )


def fan_ins(graph: Graph, head: str) -> dict[str, int]:
    """Those that end a branch which begins here, and how far they are."""
    found: dict[str, int] = {}
    seen = {(head, 0)}
    edge_of_it = [(head, 0)]
    distance = 0
    deepest = sum(1 for _ in graph.of_kind(node_kinds.PARALLEL.name))
    while edge_of_it:
        beyond: list[tuple[str, int]] = []
        for name, depth in edge_of_it:
            node = graph.nodes.get(name)
            if node is None:
                continue
            inside = depth
            if node.kind == node_kinds.FAN_IN.name:
                if depth == 0:
                    found.setdefault(name, distance)
                    continue
                inside = depth - 1
            elif node.kind == node_kinds.PARALLEL.name:
                inside = min(depth + 1, deepest)
            for edge in graph.edges_from(name):
                if (edge.target, inside) not in seen:
                    seen.add((edge.target, inside))
                    beyond.append((edge.target, inside))
        edge_of_it = beyond
        distance += 1
    return found


def status_of(fork: Fork, policy: str) -> Status:
    """Of the parallel node, once its branches are over."""
    fine = [branch for branch in fork.branches if branch.status not in FAILED]
    if not fine:
        return "fail"
    if policy == "first_success" or len(fine) == len(fork.branches):
        return "success"
    return "partial_success"


def results(fork: Fork) -> Context:
    """What the context says of the branches. Small: their answers are in the run folder."""
    told: list[Json] = []
    updates: Context = {}
    for branch in fork.branches:
        one: dict[str, Json] = {"id": branch.id, "status": branch.status, "score": branch.score}
        for key in ("reason", "notes", "last_stage", "last_visit", "last_response"):
            if value := getattr(branch, key):
                one["failure_reason" if key == "reason" else key] = value
        told.append(one)
        updates[f"parallel.branch.{branch.id}.status"] = branch.status
    updates["parallel.results"] = told
    failed = sum(branch.status in FAILED for branch in fork.branches)
    updates["parallel.fail_count"] = failed
    updates["parallel.success_count"] = len(fork.branches) - failed
    return updates


def ranked(joined: list[Branch], best: str = "") -> list[Branch]:
    """The branches that did not fail, the best first: the one that was picked, then by status,
    score and id."""
    fine = [branch for branch in joined if branch.status not in FAILED]
    return sorted(
        fine,
        key=lambda branch: (
            branch.id != best,
            _RANKS.get(branch.status, 3),
            -branch.score,
            branch.id,
        ),
    )


def merged(ranking: list[Branch]) -> Context:
    """What the branches set, with the best one's say last. What they say of branches of their
    own stays with them."""
    updates: Context = {}
    for branch in reversed(ranking):
        for key, value in branch.updates.items():
            if not key.startswith("parallel."):
                updates[key] = value
    if ranking:
        updates["parallel.fan_in.best_id"] = ranking[0].id
        updates["parallel.fan_in.best_outcome"] = ranking[0].status
    return updates


def score_of(updates: Context) -> float:
    """``score``, as a node of the branch has set it."""
    score = updates.get("score", 0)
    if isinstance(score, bool) or not isinstance(score, int | float):
        return 0.0
    return float(score)


MAX_PARALLEL = 4
DEEPEST = 32
"""Parallel nodes inside each other: a branch may come back to its own."""


def begin(walk: Walker, lane: Lane, node: Node) -> None:
    """Raises ``ValueError`` where ``max_parallel`` is no number."""
    limit = _limit(node)
    if lane.depth >= DEEPEST:
        raise ValueError(f"parallel nodes are nested more than {DEEPEST} deep")
    made = branches(walk.routes.branches(node, lane.context))
    join = join_of(walk.graph, [branch.target for branch in made])
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
    if node is None or node.kind not in (node_kinds.FAN_IN.name, node_kinds.EXIT.name):
        return False
    branch = walk.state.forks[lane.fork].branches[lane.branch]
    branch.exit = target if node.kind == node_kinds.EXIT.name else ""
    status = lane.context.get("outcome")
    branch_over(walk, lane, status if isinstance(status, str) else "success", "")
    return True


def branch_over(walk: Walker, lane: Lane, status: str, reason: str) -> None:
    state = walk.state
    fork = state.forks[lane.fork]
    branch = fork.branches[lane.branch]
    last = state.outcomes.get(lane.node)
    branch.status, branch.updates = status, lane.updates
    branch.score = score_of(lane.updates)
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
    first = node.text("join_policy") == "first_success" and status not in FAILED
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
    status = status_of(fork, node.text("join_policy"))
    walk.book.tell(told.ParallelCompleted(node=node.id, visit=fork.id, status=status))
    updates, reason = results(fork), ""
    if status == "fail":
        reason = "every branch failed" if fork.branches else "it has no branch"
    elif not fork.join:
        updates |= merged(ranked(fork.branches))
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
