"""Which edge a run follows after a node. Deterministic.

After a node that did not fail:

1. edges whose condition is true, by weight descending, then target id;
2. an unconditional edge whose label is the preferred one;
3. the first suggested node that an unconditional edge reaches;
4. unconditional edges by weight descending, then target id.

A failure is never ignored. After a node that failed (its retries are exhausted):

1. edges whose condition is true, as above;
2. its ``retry_target``, its ``fallback_retry_target``, then those of the graph (the latter not
   in a parallel branch);
3. an unconditional edge to a decision (``conditional``, or a ``switch`` that names no value to
   switch on) that has an edge with a condition:
   the decision handles the failure by its own edges, the unconditional one being its "else";
4. any unconditional edge, where the node or the graph says ``error_policy=continue``;
5. otherwise there is no edge: the run, or the branch, fails.

The edges of a human gate are the person's choice: only the chosen one is followed, even if the
condition of another is true. If it has a condition that is not true, the run fails. A gate that
failed (skipped, or timed out without a default) follows an unconditional edge only where the gate
itself says ``error_policy=continue``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from corral._pipelines import conditions, node_kinds
from corral._pipelines.graph import Edge, Graph, Node, Value
from corral.values import Json

_ACCELERATOR = re.compile(r"\s*(?:\[(\w+)\]\s*|(\w)\)\s+|(\w) - )(?=\S)")


def accelerator(label: str) -> tuple[str, str]:
    """The key of ``[Y] Yes``, ``Y) Yes`` or ``Y - Yes``, and the label without it."""
    match = _ACCELERATOR.match(label)
    if match is None:
        return "", label.strip()
    return match[1] or match[2] or match[3], label[match.end() :].strip()


def normalize_label(label: str) -> str:
    """A label as it is compared: lower case, trimmed, without an accelerator."""
    return accelerator(label)[1].lower()


def is_decision(node: Node) -> bool:
    """Whether the node only routes, by the conditions of its edges. It leaves the outcome of the
    node before it in force."""
    kind = node.kind
    if kind == node_kinds.SWITCH.name:
        return not node.text("key") and "value" not in node.attrs
    return kind == node_kinds.CONDITIONAL.name


class Route(NamedTuple):
    """Where a run continues."""

    target: str
    edge: Edge | None
    """None: a jump to a retry target."""


class _OrderedEdges(msgspec.Struct, gc=False):
    """A node's outgoing edges, in the order in which they are tried."""

    conditional: list[tuple[conditions.Condition, Edge]]
    unconditional: list[Edge]


class Routes:
    """The edges of a graph. Raises ``ConditionError`` if a condition is invalid."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._edges: dict[str, _OrderedEdges] = {}
        for node in graph.nodes.values():
            ordered = sorted(
                graph.edges_from(node.id), key=lambda edge: (-edge.weight, edge.target)
            )
            parsed = [
                (conditions.edge_condition(graph, edge) if edge.attrs else None, edge)
                for edge in ordered
            ]
            free = [edge for condition, edge in parsed if condition is None]
            self._edges[node.id] = _OrderedEdges(
                [(condition, edge) for condition, edge in parsed if condition is not None],
                free,
            )

    def choose(
        self,
        node: Node,
        context: dict[str, Json],
        preferred: str = "",
        suggested: tuple[str, ...] = (),
    ) -> Edge | None:
        """The edge to follow after a node that did not fail."""
        edges = self._edges[node.id]
        held: list[Edge] = []
        if edges.conditional:
            look = conditions.lookup_in(context)
            held = [edge for condition, edge in edges.conditional if condition.holds(look)]
        if suggested and node.kind == node_kinds.WAIT_HUMAN.name:
            # A person who chose "revise" must not be sent to "approve", whatever holds there.
            chosen = normalize_label(preferred)
            for edge in (*held, *edges.unconditional):
                label = normalize_label(edge.label or edge.target)
                if edge.target in suggested and label == chosen:
                    return edge
            return None
        if held:
            return held[0]
        return _unconditional(edges.unconditional, preferred, suggested)

    def choose_failed(
        self,
        node: Node,
        context: dict[str, Json],
        preferred: str = "",
        suggested: tuple[str, ...] = (),
        *,
        in_branch: bool = False,
    ) -> Route | None:
        """Where the run continues after a node that failed; None: nothing handles the failure."""
        edges = self._edges[node.id]
        if edges.conditional:
            look = conditions.lookup_in(context)
            for condition, edge in edges.conditional:
                if condition.holds(look):
                    return Route(edge.target, edge)
        if target := self.retry_target(node, in_branch=in_branch):
            return Route(target, None)
        is_gate = node.kind == node_kinds.WAIT_HUMAN.name
        unconditional = () if is_gate else edges.unconditional
        handled = [edge for edge in unconditional if self.decides(edge.target)]
        if not handled and self.continues(node):
            handled = edges.unconditional
        chosen = _unconditional(handled, preferred, suggested)
        return None if chosen is None else Route(chosen.target, chosen)

    def decides(self, target: str) -> bool:
        """Whether this node handles a failure before it: a decision with a condition to decide
        by."""
        node = self._graph.nodes.get(target)
        return node is not None and is_decision(node) and bool(self._edges[target].conditional)

    def retry_target(self, node: Node, *, in_branch: bool = False) -> str:
        """Where to go back to after this node failed: its own target, else the graph's. Empty:
        no target. In a branch the graph's target does not count: a failure ends the branch."""
        return self._target(node.attrs) or ("" if in_branch else self._target(self._graph.attrs))

    def continues(self, node: Node) -> bool:
        """Whether ``error_policy`` lets the run continue after a failure of this node."""
        own = node.text("error_policy")
        if own or node.kind == node_kinds.WAIT_HUMAN.name:
            return own == "continue"
        return str(self._graph.attrs.get("error_policy", "")) == "continue"

    def _target(self, attrs: dict[str, Value]) -> str:
        for key in ("retry_target", "fallback_retry_target"):
            target = str(attrs.get(key, ""))
            if target in self._graph.nodes:
                return target
        return ""

    def branches(self, node: Node, context: dict[str, Json]) -> list[Edge]:
        """The edges of a parallel node in file order, without those whose condition is false."""
        look = conditions.lookup_in(context)
        false = {
            id(edge)
            for condition, edge in self._edges[node.id].conditional
            if not condition.holds(look)
        }
        return [edge for edge in self._graph.edges_from(node.id) if id(edge) not in false]


def _unconditional(edges: list[Edge], preferred: str, suggested: tuple[str, ...]) -> Edge | None:
    """The unconditional edge to follow. ``edges`` is in the order in which they are tried."""
    if not edges:
        return None
    if preferred:
        wanted = normalize_label(preferred)
        same = [edge for edge in edges if edge.label and normalize_label(edge.label) == wanted]
        if same:
            # Several edges have this label: the suggested node selects one.
            return next((edge for edge in same if edge.target in suggested), same[0])
    for target in suggested:
        for edge in edges:
            if edge.target == target:
                return edge
    return edges[0]
