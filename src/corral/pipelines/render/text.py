"""A pipeline shown: as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph, Node
from corral.pipelines.render.layout import arrange
from corral.pipelines.render.svg import as_svg

__all__ = ["as_svg", "as_text"]

_USUAL = (node_kinds.START.name, node_kinds.EXIT.name, node_kinds.CODERGEN.name)
"""Kinds whose symbol says enough."""


def as_text(graph: Graph, statuses: Mapping[str, str] | None = None) -> str:
    """A node a paragraph, from the start on, with where each edge leads; ``↑`` marks those
    that lead back."""
    places = arrange(graph, {}).places
    order = sorted(graph.nodes.values(), key=lambda node: (places[node.id].y, places[node.id].x))
    rank = {node.id: number for number, node in enumerate(order)}
    lines = [graph.name, *([f"goal: {_line(graph.goal)}"] if graph.goal else []), ""]
    for node in order:
        lines.append(_headline(node, (statuses or {}).get(node.id, "")))
        edges = graph.edges_from(node.id)
        for number, edge in enumerate(edges, 1):
            corner = "└" if number == len(edges) else "├"
            said = f" {_line(text)} ─" if (text := edge.label or edge.condition) else ""
            back = " ↑" if rank.get(edge.target, 0) <= rank[node.id] else ""
            lines.append(f"  {corner}─{said}▶ {_line(edge.target)}{back}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _headline(node: Node, status: str) -> str:
    label = "" if node.label == node.id else f"  {_line(node.label)}"
    kind = "" if node.kind in _USUAL else f"  ({node.kind})"
    symbol = node_kinds.find(node.kind).symbol
    return f"{symbol} {_line(node.id)}{label}{kind}{f'  [{status}]' if status else ''}"


def _line(text: str) -> str:
    """On one line, without what a terminal would obey."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    short = " ".join(plain.split())
    return short if len(short) <= 100 else short[:99] + "…"
