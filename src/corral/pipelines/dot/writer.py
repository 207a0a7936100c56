"""Writes a graph as DOT text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

from corral.pipelines.dot.parser import IDENTIFIER, KEYWORDS
from corral.pipelines.graph import Graph, Value
from corral.pipelines.node_kinds import WAIT_HUMAN


def as_dot(graph: Graph, statuses: Mapping[str, str] | None = None) -> str:
    """A text that parses to this graph and that Graphviz can read: names with dots are quoted.
    Subgraphs are not restored; the classes that they set are written as ``class``. ``statuses``
    (node -> text) are written beside the nodes.

    ::

        print(pipelines.as_dot(pipelines.load("review.dot")))
    """
    lines = [f"digraph {_name(graph.name)} {{"]
    lines += [f"  {_attribute(key, value)};" for key, value in graph.attrs.items()]
    for node in graph.nodes.values():
        attrs = dict(node.attrs)
        if node.inherits_timeout and node.kind == WAIT_HUMAN.name:
            del attrs["timeout"]  # it has no effect; written here, it would have one
        if node.classes:
            attrs["class"] = ",".join(node.classes)
        if status := (statuses or {}).get(node.id):
            attrs |= {"xlabel": status}
        lines.append(f"  {_name(node.id)}{_block(attrs)};")
    lines += [
        f"  {_name(edge.source)} -> {_name(edge.target)}{_block(edge.attrs)};"
        for edge in graph.edges
    ]
    return "\n".join([*lines, "}", ""])


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
    plain = IDENTIFIER.fullmatch(text) and text.lower() not in KEYWORDS
    return text if plain else _quoted(text)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
