"""A pipeline shown: as text for a terminal, as DOT for other tools, as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

from corral.pipelines.dot import lexer
from corral.pipelines.graph import Edge, Graph, Node, Value
from corral.pipelines.render.layout import arrange
from corral.pipelines.render.svg import as_svg

__all__ = ["as_dot", "as_svg", "as_text"]

SIGNS = {
    "start": "●",
    "exit": "◎",
    "codergen": "▪",
    "wait.human": "☻",
    "conditional": "◇",
    "switch": "◇",
    "parallel": "⋔",
    "parallel.fan_in": "⋎",
    "tool": "▸",
    "stack.manager_loop": "⌂",
}


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
    kind = "" if node.kind in ("start", "exit", "codergen") else f"  ({node.kind})"
    return (
        f"{SIGNS.get(node.kind, '▫')} {_line(node.id)}{label}{kind}{f'  [{status}]' * bool(status)}"
    )


def _line(text: str) -> str:
    """On one line, without what a terminal would obey."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    short = " ".join(plain.split())
    return short if len(short) <= 100 else short[:99] + "…"


def as_dot(graph: Graph) -> str:
    """A text that gives this graph again, and that Graphviz can read: names with dots are in
    quotes. Subgraphs are flat by now; what they gave stands in ``class``."""
    lines = [f"digraph {_name(graph.name)} {{"]
    lines += [f"  {_attribute(key, value)};" for key, value in graph.attrs.items()]
    for node in graph.nodes.values():
        attrs = dict(node.attrs)
        if node.classes:
            attrs["class"] = ",".join(node.classes)
        lines.append(f"  {_name(node.id)}{_block(attrs)};")
    lines += [_edge(edge) for edge in graph.edges]
    return "\n".join([*lines, "}", ""])


def _edge(edge: Edge) -> str:
    return f"  {_name(edge.source)} -> {_name(edge.target)}{_block(edge.attrs)};"


def _block(attrs: Mapping[str, Value]) -> str:
    inside = ", ".join(_attribute(key, value) for key, value in attrs.items())
    return f" [{inside}]" if inside else ""


def _attribute(key: str, value: Value) -> str:
    match value:
        case bool():
            shown = "true" if value else "false"
        case float() if math.isfinite(value):
            shown = f"{Decimal(repr(value)):f}"
            shown = shown if "." in shown else f"{shown}.0"
        case int():
            shown = str(value)
        case _:
            shown = _quoted(str(value))
    return f"{_name(key)}={shown}"


def _name(text: str) -> str:
    plain = lexer.IDENTIFIER.fullmatch(text) and text.lower() not in lexer.KEYWORDS
    return text if plain else _quoted(text)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
