"""Renders a pipeline as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph, Node
from corral.pipelines.render.layout import arrange

_PLAIN_KINDS = (node_kinds.START.name, node_kinds.EXIT.name, node_kinds.CODERGEN.name)
"""Kinds that the symbol identifies."""


def as_text(graph: Graph, statuses: Mapping[str, str] | None = None) -> str:
    """One paragraph per node, from the start on, with the target of each edge. ``↑`` marks edges
    that lead back.

    ::

        print(pipelines.as_text(pipelines.load("review.dot")))
    """
    positions = arrange(graph, {}).positions
    order = sorted(
        graph.nodes.values(), key=lambda node: (positions[node.id].y, positions[node.id].x)
    )
    rank = {node.id: number for number, node in enumerate(order)}
    lines = [graph.name, *([f"goal: {_line(graph.goal)}"] if graph.goal else []), ""]
    for node in order:
        lines.append(_headline(node, (statuses or {}).get(node.id, "")))
        edges = graph.edges_from(node.id)
        for number, edge in enumerate(edges, 1):
            corner = "└" if number == len(edges) else "├"
            label = f" {_line(text)} ─" if (text := edge.label or edge.condition) else ""
            back = " ↑" if rank.get(edge.target, 0) <= rank[node.id] else ""
            lines.append(f"  {corner}─{label}▶ {_line(edge.target)}{back}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _headline(node: Node, status: str) -> str:
    label = "" if node.label == node.id else f"  {_line(node.label)}"
    kind = "" if node.kind in _PLAIN_KINDS else f"  ({node.kind})"
    symbol = node_kinds.find(node.kind).symbol
    return f"{symbol} {_line(node.id)}{label}{kind}{f'  [{status}]' if status else ''}"


def _line(text: str) -> str:
    """The text on one line, without control characters."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    short = " ".join(plain.split())
    return short if len(short) <= 100 else short[:99] + "…"
