"""Rules about the shape of the graph: where it begins, ends, and whether one gets there.

A ``retry_target`` is a way too: a node that is reached by one alone is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph, Value
from corral.pipelines.linter.finding import Finding, error, warning
from corral.pipelines.scheduler.parallel import fan_ins

TARGETS = ("retry_target", "fallback_retry_target")


def start_node(graph: Graph) -> Iterator[Finding]:
    starts = list(graph.of_kind(node_kinds.START.name))
    if not starts:
        near = next((node for node in graph.nodes.values() if node.id.lower() == "start"), None)
        name = near.id if near else "start"
        yield error(
            "start_node",
            "there is no start",
            node=near,
            fix=f"Write {name} [shape={node_kinds.START.shape}].",
        )
    for node in starts[1:]:
        yield error(
            "start_node",
            f"{node.id} is a second start, after {starts[0].id}",
            node=node,
            fix="Keep one.",
        )


def terminal_node(graph: Graph) -> Iterator[Finding]:
    exits = list(graph.of_kind(node_kinds.EXIT.name))
    if not exits:
        ends = ("exit", "end", "done", "finish")
        near = next((node for node in graph.nodes.values() if node.id.lower() in ends), None)
        name = near.id if near else "exit"
        yield error(
            "terminal_node",
            "there is no exit",
            node=near,
            fix=f"Write {name} [shape={node_kinds.EXIT.shape}].",
        )
    for node in exits[1:]:
        yield error(
            "terminal_node",
            f"{node.id} is a second exit, after {exits[0].id}",
            node=node,
            fix=f"Lead its edges to {exits[0].id}.",
        )


def edge_target_exists(graph: Graph) -> Iterator[Finding]:
    """Never of a text, where an edge makes its nodes; of a graph that was made by hand."""
    for edge in graph.edges:
        for name in (edge.source, edge.target):
            if name not in graph.nodes:
                yield error(
                    "edge_target_exists",
                    f"the edge {edge.source} -> {edge.target} names {name}, which is no node",
                    edge=edge,
                )


def start_no_incoming(graph: Graph) -> Iterator[Finding]:
    for node in graph.of_kind(node_kinds.START.name):
        for edge in graph.edges_to(node.id):
            yield error(
                "start_no_incoming",
                f"the edge {edge.source} -> {edge.target} leads back to the start",
                edge=edge,
                fix="Lead it to the node after the start.",
            )


def exit_no_outgoing(graph: Graph) -> Iterator[Finding]:
    for node in graph.of_kind(node_kinds.EXIT.name):
        for edge in graph.edges_from(node.id):
            yield error(
                "exit_no_outgoing",
                f"the edge {edge.source} -> {edge.target} leaves the exit",
                edge=edge,
                fix="Let it leave the node before the exit.",
            )


def reachability(graph: Graph) -> Iterator[Finding]:
    starts = [node.id for node in graph.of_kind(node_kinds.START.name)]
    if not starts:
        return
    reached = _reached(starts, _ways(graph))
    for node in graph.nodes.values():
        if node.id not in reached:
            yield error(
                "reachability",
                f"nothing leads from the start to {node.id}",
                node=node,
                fix=f"Add an edge to {node.id}, or take it away.",
            )


def no_path_to_exit(graph: Graph) -> Iterator[Finding]:
    """Where a run can only go round in circles, and where none can ever reach the exit. A node
    without any edge ends the run: that is ``dead_end``."""
    exits = [node.id for node in graph.of_kind(node_kinds.EXIT.name)]
    if not exits:
        return
    ways = _ways(graph)
    back: dict[str, list[str]] = {}
    for source, targets in ways.items():
        for target in targets:
            back.setdefault(target, []).append(source)
    finishing = _reached(exits, back)
    ending = _reached([*exits, *(name for name in graph.nodes if not ways.get(name))], back)
    for node in graph.of_kind(node_kinds.START.name):
        if node.id not in finishing:
            yield error(
                "no_path_to_exit",
                f"no way leads from {node.id} to the exit {exits[0]}",
                node=node,
                fix=f"Add an edge to {exits[0]}.",
            )
    for node in graph.nodes.values():
        if node.id not in ending and node.kind != node_kinds.START.name:
            yield error(
                "no_path_to_exit",
                f"from {node.id} the run goes round for ever",
                node=node,
                fix="Add an edge that leaves the loop.",
            )


def dead_end(graph: Graph) -> Iterator[Finding]:
    for node in graph.nodes.values():
        if not graph.edges_from(node.id) and node.kind != node_kinds.EXIT.name:
            yield warning(
                "dead_end",
                f"{node.id} leads nowhere: the run ends there",
                node=node,
                fix="Add an edge to the exit.",
            )


def fan_out_has_fan_in(graph: Graph) -> Iterator[Finding]:
    """One that all its branches can come to: there control goes on."""
    for node in graph.of_kind(node_kinds.PARALLEL.name):
        heads = dict.fromkeys(edge.target for edge in graph.edges_from(node.id))
        ends = {head: fan_ins(graph, head) for head in heads}
        loose = [head for head, found in ends.items() if not found]
        if loose or not heads:
            branches = ", ".join(loose[:5]) if heads else "none at all"
            said = f"branches of {node.id} that reach no fan-in: {branches}"
        elif not any(all(end in found for found in ends.values()) for end in graph.nodes):
            ways = [f"{head} comes to {', '.join(found)}" for head, found in ends.items()]
            said = f"branches of {node.id} that reach no fan-in in common: {'; '.join(ways[:5])}"
        else:
            continue
        yield warning(
            "fan_out_has_fan_in",
            said,
            node=node,
            fix="Lead every branch to one node of shape=tripleoctagon.",
        )


def _ways(graph: Graph) -> dict[str, list[str]]:
    """Where one can get from each node, by edges and by targets of retries."""
    known = graph.nodes
    ways: dict[str, list[str]] = {}
    for edge in graph.edges:
        if edge.target in known:
            ways.setdefault(edge.source, []).append(edge.target)
    general = [name for name in _targets(graph.attrs) if name in known]
    for node in known.values():
        if "retry_target" in node.attrs or "fallback_retry_target" in node.attrs:
            mended = [target for target in _targets(node.attrs) if target in known]
            ways.setdefault(node.id, []).extend(mended)
    for node in graph.of_kind(node_kinds.EXIT.name):  # where the goal is not reached
        ways.setdefault(node.id, []).extend(general)
    return ways


def _targets(attrs: dict[str, Value]) -> Iterator[str]:
    for key in TARGETS:
        if key in attrs:
            yield str(attrs[key])


def _reached(begin: Iterable[str], ways: dict[str, list[str]]) -> set[str]:
    reached = set(begin)
    todo = list(reached)
    while todo:
        for name in ways.get(todo.pop(), ()):
            if name not in reached:
                reached.add(name)
                todo.append(name)
    return reached
