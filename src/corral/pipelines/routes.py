"""Which edge is taken: deterministic, and always the same way.

1. edges whose condition is true, by weight descending, then target id;
2. an unconditional edge whose label is the preferred one;
3. the first suggested node that an unconditional edge reaches;
4. unconditional edges by weight descending, then target id.

A failed node prefers an edge that is there for the failure, then its ``retry_target``,
its ``fallback_retry_target``, then any unconditional edge. Only of a person's gate nobody
but a person takes an edge: one that was skipped must not approve itself.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from corral.events import Json
from corral.pipelines import conditions
from corral.pipelines.graph import Edge, Graph, Node, Value

_ACCELERATOR = re.compile(r"\s*(?:\[(\w+)\]\s*|(\w)\)\s+|(\w) - )(?=\S)")


def accelerator(label: str) -> tuple[str, str]:
    """``[Y] Yes``, ``Y) Yes``, ``Y - Yes``: the key, and the label without it."""
    match = _ACCELERATOR.match(label)
    if match is None:
        return "", label.strip()
    return match[1] or match[2] or match[3], label[match.end() :].strip()


def plain(label: str) -> str:
    """As labels are compared: lower case, trimmed, without an accelerator."""
    return accelerator(label)[1].lower()


class Way(NamedTuple):
    """Where it goes on."""

    target: str
    edge: Edge | None
    """None: a jump to a retry target."""


class _Ways(msgspec.Struct, gc=False):
    """A node's outgoing edges, in the order in which they are tried."""

    conditional: list[tuple[conditions.Condition, Edge]]
    unconditional: list[Edge]
    labels: list[str]


class Routes:
    """The edges of a graph. Raises ``ConditionError`` where a condition is none."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ways: dict[str, _Ways] = {}
        for node in graph.nodes.values():
            ordered = sorted(
                graph.edges_from(node.id), key=lambda edge: (-edge.weight, edge.target)
            )
            met = [(conditions.of_edge(graph, edge), edge) for edge in ordered]
            free = [edge for condition, edge in met if condition is None]
            self._ways[node.id] = _Ways(
                [(condition, edge) for condition, edge in met if condition is not None],
                free,
                [plain(edge.label) for edge in free],
            )

    def choose(
        self,
        node: Node,
        context: dict[str, Json],
        preferred: str = "",
        suggested: tuple[str, ...] = (),
    ) -> Edge | None:
        """Of a node that did not fail."""
        ways = self._ways[node.id]
        if ways.conditional:
            look = conditions.look_in(context)
            for condition, edge in ways.conditional:
                if condition.holds(look):
                    return edge
        return _unconditional(ways, preferred, suggested)

    def choose_failed(
        self,
        node: Node,
        context: dict[str, Json],
        preferred: str = "",
        suggested: tuple[str, ...] = (),
    ) -> Way | None:
        """Of a node that failed."""
        ways = self._ways[node.id]
        if ways.conditional:
            look, healthy = (
                conditions.look_in(context),
                conditions.look_in({**context, "outcome": "success"}),
            )
            true = [(known, edge) for known, edge in ways.conditional if known.holds(look)]
            for condition, edge in true:
                if not condition.holds(healthy):  # it is there for the failure
                    return Way(edge.target, edge)
            if true:
                return Way(true[0][1].target, true[0][1])
        if target := self.target(node.attrs):
            return Way(target, None)
        if node.kind == "wait.human":  # its edges are a person's to choose
            return None
        chosen = _unconditional(ways, preferred, suggested)
        return None if chosen is None else Way(chosen.target, chosen)

    def target(self, attrs: dict[str, Value]) -> str:
        """Where a node's or the graph's attributes say to try again; empty: nowhere."""
        for key in ("retry_target", "fallback_retry_target"):
            target = str(attrs.get(key, ""))
            if target in self._graph.nodes:
                return target
        return ""

    def branches(self, node: Node, context: dict[str, Json]) -> list[Edge]:
        """Of a parallel node, as written: every edge, but those whose condition is false."""
        look = conditions.look_in(context)
        false = {
            id(edge)
            for condition, edge in self._ways[node.id].conditional
            if not condition.holds(look)
        }
        return [edge for edge in self._graph.edges_from(node.id) if id(edge) not in false]

    def options(self, node: Node) -> list[Edge]:
        """Of a gate, as written: its unconditional edges; where it has none, all."""
        free = {id(edge) for edge in self._ways[node.id].unconditional}
        edges = self._graph.edges_from(node.id)
        return [edge for edge in edges if id(edge) in free] or edges


def _unconditional(ways: _Ways, preferred: str, suggested: tuple[str, ...]) -> Edge | None:
    edges = ways.unconditional
    if not edges:
        return None
    if preferred:
        wanted = plain(preferred)
        same = [
            edge
            for edge, label in zip(edges, ways.labels, strict=True)
            if label and label == wanted
        ]
        if same:
            # Of several with one label the suggested node tells which was meant.
            return next((edge for edge in same if edge.target in suggested), same[0])
    for target in suggested:
        for edge in edges:
            if edge.target == target:
                return edge
    return edges[0]
