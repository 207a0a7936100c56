"""Fork and join: the branches of a parallel node start, end, and are joined.

A parallel node forks its lane into one lane per edge, of which at most ``max_parallel`` run at
once. A branch ends at the join or behind it, at a fan-in, at an exit, or where it fails. After the
last one (or the first success, by ``join_policy``) the fork is closed: the functions return the
lane of the parallel node and a ``ForkEnd``, and the caller ends the parallel node with it. A branch
that leads to a node before the parallel node ends all branches: the lane of the parallel node
continues there.

With ``worktree=branch`` the nodes of a branch work in their own worktree. If a branch
succeeded, their files are merged before the parallel node ends (``scheduler.merge``). Such a branch
cannot lead back to a node before the parallel node: its files would be lost.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

import msgspec

from corral._pipelines import events, node_kinds
from corral._pipelines.graph import Node
from corral._pipelines.scheduler import merge
from corral._pipelines.scheduler.commands import BranchWork
from corral._pipelines.scheduler.outcome import Outcome, Status
from corral._pipelines.scheduler.run_context import RunContext
from corral._pipelines.scheduler.state import (
    WORKTREE,
    Branch,
    Context,
    Fork,
    ForkEnd,
    RunLane,
    deep_copy,
)
from corral.values import Json, convert_to

_RANKS = {"success": 0, "partial_success": 1, "skipped": 2}
FAILED = ("fail", "cancelled")


def result_updates(fork: Fork) -> Context:
    """What the context says about the branches. Their full answers are in the run directory."""
    summaries: list[Json] = []
    updates: Context = {}
    for branch in fork.branches:
        summary: dict[str, Json] = {"id": branch.id, "status": branch.status, "score": branch.score}
        for key in ("reason", "notes", "last_stage", "last_visit", "last_response"):
            if value := getattr(branch, key):
                summary["failure_reason" if key == "reason" else key] = value
        summaries.append(summary)
        updates[f"parallel.branch.{branch.id}.status"] = branch.status
    updates["parallel.results"] = summaries
    failed = sum(branch.status in FAILED for branch in fork.branches)
    updates["parallel.fail_count"] = failed
    updates["parallel.success_count"] = len(fork.branches) - failed
    return updates


def rank_branches(joined: list[Branch], best: str = "") -> list[Branch]:
    """The branches that did not fail, the best first: the picked one, then by status, score
    and id."""
    succeeded = [branch for branch in joined if branch.status not in FAILED]
    return sorted(
        succeeded,
        key=lambda branch: (
            branch.id != best,
            _RANKS.get(branch.status, 3),
            -branch.score,
            branch.id,
        ),
    )


def merge_updates(ranking: list[Branch]) -> Context:
    """What the branches set; of several values for a key, the best branch's is taken. Results of
    parallel nodes inside a branch are left out."""
    updates: Context = {}
    for branch in reversed(ranking):
        for key, value in branch.updates.items():
            if not key.startswith("parallel."):
                updates[key] = value
    if ranking:
        updates["parallel.fan_in.best_id"] = ranking[0].id
        updates["parallel.fan_in.best_outcome"] = ranking[0].status
    return updates


MAX_PARALLEL = 4
MAX_DEPTH = 32
"""Parallel nodes inside each other."""


EndedFork: TypeAlias = tuple[RunLane, ForkEnd]
"""The lane of a parallel node whose branches are over: the caller ends its node."""


def start_fork(run: RunContext, lane: RunLane, node: Node) -> EndedFork | None:
    """Start as many branches as may run at once. Raises ``ValueError`` if ``max_parallel`` is not
    a number."""
    limit = _limit(node)
    if lane.depth >= MAX_DEPTH:
        raise ValueError(f"parallel nodes are nested more than {MAX_DEPTH} deep")
    counts: Counter[str] = Counter()
    branches: list[Branch] = []
    for edge in run.routes.branches(node, lane.context):
        counts[edge.target] += 1
        count = counts[edge.target]
        branches.append(
            Branch(
                id=edge.target if count == 1 else f"{edge.target}#{count}",
                target=edge.target,
                fidelity=str(edge.attrs.get("fidelity", "")),
                thread=str(edge.attrs.get("thread_id", "")),
            )
        )
    fork = run.state.forks[lane.visit] = Fork(id=lane.visit, lane=lane.id, branches=branches)
    ids = tuple(branch.id for branch in branches)
    run.emit(events.ParallelStarted(node=node.id, visit=fork.id, branches=ids))
    _start_branches(run, fork, limit)
    return None if branches else _close(run, fork)


def ends_branch(run: RunContext, lane: RunLane, target: str) -> bool:
    """Whether a branch that comes to this node is over."""
    node = run.graph.nodes.get(target)
    is_end = node is not None and node.kind in (node_kinds.FAN_IN.name, node_kinds.EXIT.name)
    return is_end or target in run.section(lane.fork).behind


def go_back(run: RunContext, lane: RunLane) -> RunLane:
    """The branch of this lane leads out to a node before its parallel node: stop all branches.
    Returns the lane of the parallel node, which goes on with what this branch knows."""
    fork = run.state.forks[lane.fork]
    parent = run.state.lanes[fork.lane]
    run.stop_fork(fork)
    run.emit(events.ParallelCompleted(node=parent.node, visit=fork.id, status="skipped"))
    parent.context = lane.context
    if parent.fork:
        parent.updates.update(lane.updates)
    return parent


def end_branch(run: RunContext, lane: RunLane, status: str, reason: str = "") -> EndedFork | None:
    """Record the branch of this lane as over. Start the next branches, or close the fork."""
    state = run.state
    fork = state.forks[lane.fork]
    branch = fork.branches[lane.branch]
    last = state.outcomes.get(lane.node)
    branch.status, branch.updates = status, lane.updates
    score = lane.updates.get("score")  # a node of the branch may have set it to a number
    if isinstance(score, int | float) and not isinstance(score, bool):
        branch.score = float(score)
    if lane.visit:
        branch.last_stage, branch.last_visit = lane.node, lane.visit
        branch.notes = last.notes if last is not None else ""
    if status == "fail":
        branch.reason = reason or (last.failure_reason if last is not None else "")
    response = lane.updates.get("last_response")
    branch.last_response = response if isinstance(response, str) else ""
    run.stop_lane(lane)
    del state.lanes[lane.id]
    fork.running -= 1
    fork.over += 1
    run.emit_branch_completed(fork, lane.branch)
    node = run.node_of(state.lanes[fork.lane])
    is_first = node.text("join_policy") == "first_success" and status not in FAILED
    if is_first or fork.over == len(fork.branches):
        return _close(run, fork)
    _start_branches(run, fork, _limit(node))
    return None


def end_branch_at(run: RunContext, lane: RunLane, target: str) -> EndedFork | None:
    """End a branch that has come to a node which ends it."""
    run.state.forks[lane.fork].branches[lane.branch].end = target
    status = lane.context.get("outcome") if lane.visit else "success"
    return end_branch(run, lane, status if isinstance(status, str) else "success")


def _start_branches(run: RunContext, fork: Fork, limit: int) -> None:
    parent = run.state.lanes[fork.lane]
    own_worktrees = merge.has_worktrees(run.node_of(parent))
    while fork.running < limit and fork.next < len(fork.branches):
        number, branch = fork.next, fork.branches[fork.next]
        lane_id = fork.lane_id(number)
        lane = RunLane(
            id=lane_id,
            node=branch.target,
            previous=parent.node,
            context=deep_copy(parent.context),
            fidelity=branch.fidelity,
            thread=branch.thread,
            fork=fork.id,
            branch=number,
            depth=parent.depth + 1,
            worktrees=(*parent.worktrees, lane_id) if own_worktrees else parent.worktrees,
        )
        run.state.lanes[lane.id] = lane
        branch.status = "running"
        fork.running += 1
        fork.next += 1
        run.emit(events.BranchStarted(node=parent.node, visit=fork.id, branch=branch.id))
        run.ready.append(lane)


def _close(run: RunContext, fork: Fork) -> EndedFork:
    """The parallel node is done. Its lane continues at the fan-in; without one, at the join if a
    branch came there, else where one has ended."""
    parent = run.state.lanes[fork.lane]
    node = run.node_of(parent)
    join = run.section(fork.id).join
    run.stop_fork(fork)
    succeeded = sum(branch.status not in FAILED for branch in fork.branches)
    is_complete = succeeded == len(fork.branches) or node.text("join_policy") == "first_success"
    status: Status = "partial_success"
    if not succeeded:
        status = "fail"
    elif is_complete:
        status = "success"
    run.emit(events.ParallelCompleted(node=node.id, visit=fork.id, status=status))
    updates, reason = result_updates(fork), ""
    is_fan_in = bool(join) and run.graph.nodes[join].kind == node_kinds.FAN_IN.name
    if status == "fail":
        reason = "every branch failed" if fork.branches else "it has no branch"
    elif not is_fan_in:
        updates |= merge_updates(rank_branches(fork.branches))
    parent.joined = fork.branches if is_fan_in else []
    ends = [branch.end for branch in fork.branches if branch.end]
    if join and (is_fan_in or join in ends or status == "fail"):
        ends = [join]
    # Where several are left, an exit is the last that counts.
    ends.sort(key=lambda name: run.graph.nodes[name].kind == node_kinds.EXIT.name)
    outcome = Outcome(
        status=status,
        failure_reason=reason,
        context_updates=updates,
        suggested_next_ids=() if is_fan_in else tuple(ends[:1]),
    )
    merges: tuple[BranchWork, ...] = ()
    if merge.has_worktrees(node) and succeeded:
        merges = tuple(
            msgspec.structs.replace(convert_to(done, BranchWork), id=branch.id)
            for number, branch in enumerate(fork.branches)
            if branch.status not in FAILED
            and (done := branch.updates.get(WORKTREE + fork.lane_id(number)))
        )
    end = ForkEnd(outcome=outcome, join=join if is_fan_in else "", merges=merges)
    return parent, end


def _limit(node: Node) -> int:
    return max(1, node.number("max_parallel", MAX_PARALLEL))
