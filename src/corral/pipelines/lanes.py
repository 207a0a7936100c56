"""Branches of a parallel node: where they come together, and which of them is best."""

from __future__ import annotations

from corral.events import Json
from corral.pipelines.graph import Edge, Graph
from corral.pipelines.outcome import Status
from corral.pipelines.state import Branch, Context, Fork

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
    deepest = sum(1 for _ in graph.of_kind("parallel"))
    while edge_of_it:
        beyond: list[tuple[str, int]] = []
        for name, depth in edge_of_it:
            node = graph.nodes.get(name)
            if node is None:
                continue
            inside = depth
            if node.kind == "parallel.fan_in":
                if depth == 0:
                    found.setdefault(name, distance)
                    continue
                inside = depth - 1
            elif node.kind == "parallel":
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
