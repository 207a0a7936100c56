"""Rules about the shape of the graph: its start, its exit, and which nodes can be reached.

A ``retry_target`` counts as an edge: a node that only a retry leads to is reachable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from corral._pipelines import node_kinds, templates
from corral._pipelines.conditions import ConditionError
from corral._pipelines.graph import Graph, Value, reach
from corral._pipelines.linter.finding import Problem
from corral._pipelines.node_kinds import NodeKind
from corral._pipelines.scheduler import merge
from corral._pipelines.scheduler.joins import Joins, fan_ins

TARGETS = ("retry_target", "fallback_retry_target")


def start_node(graph: Graph) -> Iterator[Problem]:
    """There is exactly one start."""
    return _exactly_one(graph, node_kinds.START, ("start",), "Keep one.")


def terminal_node(graph: Graph) -> Iterator[Problem]:
    """There is exactly one exit."""
    names = ("exit", "end", "done", "finish")
    return _exactly_one(graph, node_kinds.EXIT, names, "Lead its edges to {first}.")


def _exactly_one(
    graph: Graph, kind: NodeKind, names: tuple[str, ...], fix: str
) -> Iterator[Problem]:
    """``names`` are those of nodes that were probably meant to be of this kind."""
    nodes = list(graph.of_kind(kind.name))
    if not nodes:
        near = next((node for node in graph.nodes.values() if node.id.lower() in names), None)
        name = near.id if near else names[0]
        fix = f"Write {name} [shape={kind.shape}]."
        yield Problem(near or graph, f"there is no {kind.name}", fix)
    for node in nodes[1:]:
        message = f"{node.id} is a second {kind.name}, after {nodes[0].id}"
        yield Problem(node, message, fix.format(first=nodes[0].id))


def edge_target_exists(graph: Graph) -> Iterator[Problem]:
    """The nodes of each edge exist. In a parsed text every edge creates its nodes; a graph that a
    program built may have an edge without them."""
    for edge in graph.edges:
        for name in (edge.source, edge.target):
            if name not in graph.nodes:
                message = (
                    f"the edge {edge.source} -> {edge.target} names {name}, which is not a node"
                )
                yield Problem(edge, message)


def start_no_incoming(graph: Graph) -> Iterator[Problem]:
    """No edge leads to the start."""
    for node in graph.of_kind(node_kinds.START.name):
        for edge in graph.edges_to(node.id):
            message = f"the edge {edge.source} -> {edge.target} leads back to the start"
            yield Problem(edge, message, "Lead it to the node after the start.")


def exit_no_outgoing(graph: Graph) -> Iterator[Problem]:
    """No edge leaves the exit."""
    for node in graph.of_kind(node_kinds.EXIT.name):
        for edge in graph.edges_from(node.id):
            message = f"the edge {edge.source} -> {edge.target} leaves the exit"
            yield Problem(edge, message, "Let it leave the node before the exit.")


def reachability(graph: Graph) -> Iterator[Problem]:
    """Every node can be reached from the start."""
    starts = [node.id for node in graph.of_kind(node_kinds.START.name)]
    if not starts:
        return
    reached = _reachable(starts, _successors(graph))
    for node in graph.nodes.values():
        if node.id not in reached:
            fix = f"Add an edge to {node.id}, or remove it."
            yield Problem(node, f"{node.id} cannot be reached from the start", fix)


def no_path_to_exit(graph: Graph) -> Iterator[Problem]:
    """The exit can be reached: no loop without a way out, and no start without a path to it."""
    exits = [node.id for node in graph.of_kind(node_kinds.EXIT.name)]
    if not exits:
        return
    successors = _successors(graph)
    predecessors: dict[str, list[str]] = {}
    for source, targets in successors.items():
        for target in targets:
            predecessors.setdefault(target, []).append(source)
    dead_ends = [name for name in graph.nodes if not successors.get(name)]
    reaching_exit = _reachable(exits, predecessors)
    ending = _reachable([*exits, *dead_ends], predecessors)
    for node in graph.of_kind(node_kinds.START.name):
        if node.id not in reaching_exit:
            message = f"no path leads from {node.id} to the exit {exits[0]}"
            yield Problem(node, message, f"Add an edge to {exits[0]}.")
    for node in graph.nodes.values():
        if node.id not in ending and node.kind != node_kinds.START.name:
            message = f"{node.id} is in a loop that never ends"
            yield Problem(node, message, "Add an edge that leaves the loop.")


def dead_end(graph: Graph) -> Iterator[Problem]:
    """A node without an outgoing edge ends the run."""
    for node in graph.nodes.values():
        if not graph.edges_from(node.id) and node.kind != node_kinds.EXIT.name:
            message = f"{node.id} has no outgoing edge: the run ends there"
            yield Problem(node, message, "Add an edge to the exit.")


def fan_out_has_fan_in(graph: Graph) -> Iterator[Problem]:
    """The branches of a parallel node can reach one fan-in, or another common node: the run
    continues there."""
    joins: Joins | None = None
    for node in graph.of_kind(node_kinds.PARALLEL.name):
        heads = dict.fromkeys(edge.target for edge in graph.edges_from(node.id))
        reached = {head: fan_ins(graph, head) for head in heads}
        loose = [head for head, reached_fan_ins in reached.items() if not reached_fan_ins]
        message = ""
        if not reached:
            message = f"{node.id} has no branches"
        elif loose:
            message = f"branches of {node.id} that reach no fan-in: {', '.join(loose[:5])}"
        elif not set[str].intersection(*({*names} for names in reached.values())):
            listed = [f"{head} reaches {', '.join(names)}" for head, names in reached.items()]
            message = f"branches of {node.id} that reach no common fan-in: {'; '.join(listed[:5])}"
        if len(heads) > 1 and not any(reached.values()):
            with suppress(ConditionError):  # which is another finding
                joins = joins or Joins(graph)
                if joins.section(node.id, heads, frozenset()).join:
                    continue
        if message:
            fix = f"Lead every branch to one node of shape={node_kinds.FAN_IN.shape}."
            if any(graph.nodes[head].kind == node_kinds.PARALLEL.name for head in loose):
                fix += " A parallel node inside a branch needs its own."
            yield Problem(node, message, fix)


def visits_of_branches(graph: Graph) -> Iterator[Problem]:
    """``max_visits`` of a node lets each branch in that comes to it: visits are counted over the
    run, not in each branch."""
    joins: Joins | None = None
    for parallel in graph.of_kind(node_kinds.PARALLEL.name):
        heads = dict.fromkeys(edge.target for edge in graph.edges_from(parallel.id))
        limits = {
            name: int(text)
            for name, node in graph.nodes.items()
            if (text := node.text("max_visits")[:9]).isdecimal() and 0 < int(text) < len(heads)
        }
        if not limits:
            continue
        with suppress(ConditionError):  # which is another finding
            joins = joins or Joins(graph)
            outside = {parallel.id, *joins.section(parallel.id, heads, frozenset()).behind}
            inside = {
                name: [target for target in targets if target not in outside]
                for name, targets in _successors(graph).items()
            }
            reached = [_reachable([head], inside) for head in heads if head not in outside]
            for name, limit in limits.items():
                count = sum(name in names for names in reached)
                if limit < count:
                    message = (
                        f"{count} branches of {parallel.id} come to {name}, and"
                        f" max_visits={limit} counts the visits of all"
                    )
                    yield Problem(graph.nodes[name], message, f"Write max_visits={count} or more.")


def merge_has_branches(graph: Graph) -> Iterator[Problem]:
    """A node ``merge`` gets the branches that others keep, unless it names some."""
    keeping = [
        node
        for node in graph.of_kind(node_kinds.PARALLEL.name, node_kinds.FOR_EACH.name)
        if not merge.merges_files(node)
    ]
    for node in keeping:
        if not merge.has_worktrees(node):
            message = f"{node.id} has merge=false, but its branches work in one folder"
            yield Problem(node, message, "Write worktree=branch, too.")
        elif "on_conflict" in node.attrs:
            message = f"on_conflict of {node.id} has no effect, because of merge=false"
            yield Problem(node, message, "Remove one of them.", "warning")
    for node in graph.of_kind(node_kinds.MERGE.name):
        if not keeping and not node.text("branches"):
            fix = "Write worktree=branch, merge=false at the node that makes them, or branches=…"
            yield Problem(node, f"no branches come to {node.id}", fix)
        if templates.PLACEHOLDER.search(node.text("gate")):
            message = f"the gate of {node.id} has a placeholder, which an agent could fill"
            yield Problem(node, message, "Write the command, or name a script in the repository.")


def _successors(graph: Graph) -> dict[str, list[str]]:
    """The nodes that can follow each node, by edges and by retry targets."""
    nodes = graph.nodes
    successors: dict[str, list[str]] = {}
    for edge in graph.edges:
        if edge.target in nodes:
            successors.setdefault(edge.source, []).append(edge.target)
    for node in nodes.values():
        if "retry_target" in node.attrs or "fallback_retry_target" in node.attrs:
            successors.setdefault(node.id, []).extend(_targets(graph, node.attrs))
    for node in graph.of_kind(node_kinds.EXIT.name):  # a goal gate may lead back from there
        successors.setdefault(node.id, []).extend(_targets(graph, graph.attrs))
    return successors


def _targets(graph: Graph, attrs: dict[str, Value]) -> list[str]:
    names = (str(attrs[key]) for key in TARGETS if key in attrs)
    return [name for name in names if name in graph.nodes]


def _reachable(begin: list[str], successors: dict[str, list[str]]) -> set[str]:
    return {*begin} | reach(begin, lambda name: successors.get(name, ()))
