"""From the graph as written to the graph that runs: the goal, values, the stylesheet, one's own.

A transform is a function from a graph to a graph; it makes another and leaves the first as it
was. The run itself fills ``{{key}}`` in prompts, commands and the other texts of a node, each
time it comes there, as the context changes. What must be known before (its agent, its model,
limits, the goal) is filled here from the values of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from corral.models.families import vendor_of
from corral.pipelines import node_kinds, stylesheet, templates
from corral.pipelines.execution import handlers
from corral.pipelines.graph import Graph, Node, Value, shape_kind
from corral.values import Json

Transform: TypeAlias = Callable[[Graph], Graph]

TEXTS = frozenset(("prompt", "label"))
"""What ``$goal`` is filled in. Not in commands: there it is the shell's."""
SETTINGS = frozenset(
    (
        "agent", "model", "llm_model", "llm_provider", "reasoning_effort", "timeout",
        "max_retries", "fidelity", "thread_id", "class", "max_parallel", "join_policy",
        "human.default_choice", "human.timeout", "manager.poll_interval", "manager.max_cycles",
        "stack.child_dotfile", "stack.child_workdir",
    )
)  # fmt: skip
"""What is read before a node runs."""
NAMES = {
    "node_type": "type",
    "handler": "type",
    "script": "tool_command",
    "command": "tool_command",
    "cmd": "tool_command",
    "concurrency": "max_parallel",
    "system": "system_prompt",
    "stdout_key": "output_key",
}
"""Other names of a node's attributes, as other runners have them. An attribute under its own name
wins."""
UNKNOWN_TYPE = "internal.unknown_type"
"""Where a type that nobody knows is kept for lint, once the node has the type of its shape."""
ENDS = {node_kinds.START.name: ("start",), node_kinds.EXIT.name: ("exit", "end")}
"""Kind → what such a node is called, where neither a shape nor a type says which it is."""


def apply(
    graph: Graph,
    *,
    values: Mapping[str, Json] | None = None,
    goal: str | None = None,
    model: str | None = None,
    transforms: Iterable[Transform] = (),
) -> Graph:
    """Attributes under their own names, known types, where it begins and ends, the values and the
    goal, the stylesheet, the model for nodes without one and its vendor, then the caller's own, in
    their order."""
    graph = with_names(graph)
    graph = with_types(graph)
    graph = with_ends(graph)
    graph = with_values(graph, values or {}, goal)
    graph = with_stylesheet(graph)
    if model is not None:
        graph = with_model(graph, model)
    graph = with_vendors(graph)
    for transform in transforms:
        graph = transform(graph)
    return graph


def with_names(graph: Graph) -> Graph:
    """Attributes that other runners call something else, under the names they have here."""

    def changed(node: Node) -> dict[str, Value]:
        return {
            NAMES[key]: value
            for key, value in node.attrs.items()
            if key in NAMES and NAMES[key] not in node.attrs
        }

    return _remade(graph, graph.attrs, changed)


def with_types(graph: Graph) -> Graph:
    """A node of a type that nobody knows does what its shape says; unless the scheduler must know
    the shape, that is left to the process that runs the node, which may have the type. A
    ``house`` that says nothing of a child pipeline is a human gate, as some authors mean it. Lint
    warns of both."""
    known: set[str] = set()

    def changed(node: Node) -> dict[str, Value]:
        kind = str(node.attrs.get("type", ""))
        if (
            not kind
            and node.text("shape") == node_kinds.MANAGER_LOOP.shape
            and not _manages(graph, node)
        ):
            return {"type": node_kinds.WAIT_HUMAN.name}
        if not kind or kind in node_kinds.ALIASES or handlers.is_built_in(kind):
            return {}
        if not known:  # looks through what is installed
            known.update(handlers.registered_kinds())
        if kind in known:
            return {}
        shape = shape_kind(node)
        if shape in (*node_kinds.SCHEDULER_KINDS, node_kinds.FAN_IN.name):
            return {"type": shape, UNKNOWN_TYPE: kind}
        return {UNKNOWN_TYPE: kind}  # whoever runs the node may know it

    return _remade(graph, graph.attrs, changed)


def _manages(graph: Graph, node: Node) -> bool:
    """Whether a ``house`` says anything that only a manager of a child pipeline needs."""
    named = (*node.attrs, *graph.attrs)
    own = any(key in node.attrs for key in ("dotfile", "pipeline", "path", "max_cycles"))
    return own or any(key.startswith(("manager.", "stack.")) for key in named)


def with_vendors(graph: Graph) -> Graph:
    """``vendor:model`` for a bare name that tells its vendor, so that our own agent runs on it.
    Where an agent is named, the name is that agent's own affair."""
    if graph.attrs.get("agent"):
        return graph

    def changed(node: Node) -> dict[str, Value]:
        if node.attrs.get("agent") or node.attrs.get("llm_provider"):
            return {}
        key = "model" if node.attrs.get("model") else "llm_model"
        vendor = vendor_of(node.text(key))
        return {key: f"{vendor}:{node.text(key)}"} if vendor else {}

    return _remade(graph, graph.attrs, changed)


def with_ends(graph: Graph) -> Graph:
    """In a graph without a start, a node called ``start`` that nothing leads to is it; without an
    exit, one called ``exit`` or ``end`` that leads nowhere. One with work of its own is neither."""
    kinds: dict[str, Value] = {}
    for kind, names in ENDS.items():
        edges = graph.edges_to if kind == node_kinds.START.name else graph.edges_from
        called = [
            node.id
            for node in graph.nodes.values()
            if node.id.lower() in names
            and node.kind == node_kinds.CODERGEN.name
            and not node.attrs.get("type")
            if not node.attrs.get("prompt") and not edges(node.id)
        ]
        if len(called) == 1 and not any(graph.of_kind(kind)):
            kinds[called[0]] = kind

    def changed(node: Node) -> dict[str, Value]:
        return {"type": kinds[node.id]} if node.id in kinds else {}

    return _remade(graph, graph.attrs, changed) if kinds else graph


def with_values(graph: Graph, values: Mapping[str, Json], goal: str | None = None) -> Graph:
    """``{{key}}`` in the settings of the graph and its nodes, and ``$goal`` in their texts."""
    attrs = {key: _filled(value, values, None) for key, value in graph.attrs.items()}
    if goal is not None:
        attrs["goal"] = goal
    said = str(attrs["goal"]) if "goal" in attrs else ""

    def changed(node: Node) -> dict[str, Value]:
        return {
            key: _filled(value, values if key in SETTINGS else {}, said if key in TEXTS else None)
            for key, value in node.attrs.items()
            if isinstance(value, str) and ("$" in value or "{{" in value)
            if key in SETTINGS or key in TEXTS
        }

    return _remade(graph, attrs, changed)


def with_stylesheet(graph: Graph) -> Graph:
    """``model_stylesheet`` laid under the nodes. One that cannot be read changes nothing: lint
    says so."""
    text = str(graph.attrs.get("model_stylesheet", ""))
    try:
        sheet = stylesheet.parse(text)
    except stylesheet.StylesheetError:
        return graph
    return _remade(graph, graph.attrs, sheet.properties_of) if sheet else graph


def with_model(graph: Graph, model: str) -> Graph:
    """This model for nodes that need one and name neither model nor agent."""

    def changed(node: Node) -> dict[str, Value]:
        named = node.attrs.keys() & {"model", "llm_model", "agent"}
        return {} if named or node.kind not in node_kinds.LLM_KINDS else {"model": model}

    return _remade(graph, graph.attrs, changed)


def _filled(value: Value, values: Mapping[str, Json], goal: str | None) -> Value:
    return templates.fill(value, values, goal) if isinstance(value, str) else value


def _remade(
    graph: Graph, attrs: dict[str, Value], changed: Callable[[Node], dict[str, Value]]
) -> Graph:
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        new = changed(node)
        nodes[name] = replace(node, attrs={**node.attrs, **new}) if new else node
    return Graph(graph.name, attrs, nodes, graph.edges)
