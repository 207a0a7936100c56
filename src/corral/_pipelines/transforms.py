"""Transforms: from the graph as written to the graph that runs.

A transform is a function from a graph to a new graph. The run itself fills ``{{key}}`` in prompts,
commands and other texts of a node at each visit, because the context changes. Attributes that must
be known before (agent, model, limits, the goal) are filled here from the values of the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from corral._models.registry import vendor_of
from corral._pipelines import attribute_definitions, node_kinds, stylesheet, templates
from corral._pipelines.attribute_definitions import ALIASES, SETTINGS
from corral._pipelines.execution import handlers
from corral._pipelines.graph import Graph, Node, Value, shape_kind
from corral.values import Json

Transform: TypeAlias = Callable[[Graph], Graph]

UNFILLED = frozenset(("policy", "pass_env", "tool_hooks.pre", "tool_hooks.post"))
"""Attributes of the graph that no value decides. In a command a value is a variable of the shell,
set when it runs."""
TEXTS = frozenset(("prompt", "label"))
"""Attributes in which ``$goal`` is filled. In a command it is a variable of the shell."""
UNKNOWN_TYPE = "internal.unknown_type"
"""The attribute that stores an unknown type for the linter, once the node has the type of its
shape."""
UNREAD_PROMPT = "internal.unread_prompt"
"""The attribute that stores for the linter why the file of a prompt was not read."""
ENDS: dict[str, tuple[str, ...]] = {
    node_kinds.START.name: ("start",),
    node_kinds.EXIT.name: ("exit", "end"),
}
"""Kind -> ids of nodes that are of this kind if they have neither a shape nor a type."""


def apply(
    graph: Graph,
    *,
    values: Mapping[str, Json] | None = None,
    goal: str | None = None,
    model: str | None = None,
    transforms: Iterable[Transform] = (),
) -> Graph:
    """Apply the built-in transforms (attribute names, types, start and exit, values and goal,
    stylesheet, model, vendors), then ``transforms`` in their order."""
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
    """Attributes and values of other pipeline runners under the names that they have here. An
    attribute that is given under its name here wins."""

    def change(node: Node) -> dict[str, Value]:
        attrs = {**_renamed(node.attrs), **node.attrs}
        if replace(node, attrs=attrs).kind == node_kinds.PARALLEL.name:
            attrs.pop("error_policy", None)  # there it is about the branches: the linter says so
        return {**_renamed(node.attrs), **_with_values_here(attrs)}

    attrs = {**_renamed(graph.attrs), **graph.attrs}
    return changed(graph, {**attrs, **_with_values_here(attrs)}, change)


def _renamed(attrs: Mapping[str, Value]) -> dict[str, Value]:
    return {
        ALIASES[key]: value
        for key, value in attrs.items()
        if key in ALIASES and ALIASES[key] not in attrs
    }


def _with_values_here(attrs: Mapping[str, Value]) -> dict[str, Value]:
    """The attributes whose value has another name here."""
    return {
        name: values[str(attrs[name])]
        for name, values in attribute_definitions.SYNONYMS.items()
        if str(attrs.get(name, "")) in values
    }


def with_types(graph: Graph) -> Graph:
    """A node of an unknown type gets the kind of its shape. If the scheduler does not run that kind
    itself, the type stays: the process that runs the node may know it. A ``house`` that names no
    child pipeline is a human gate, as some authors mean it. The linter warns about both."""
    known: set[str] = set()

    def change(node: Node) -> dict[str, Value]:
        kind = str(node.attrs.get("type", ""))
        if not kind and node.text("shape") == node_kinds.MANAGER_LOOP.shape:
            own = any(key in node.attrs for key in ("dotfile", "pipeline", "path", "max_cycles"))
            names = (*node.attrs, *graph.attrs)
            if not own and not any(key.startswith(("manager.", "stack.")) for key in names):
                return {"type": node_kinds.WAIT_HUMAN.name}
        if not kind or kind in node_kinds.ALIASES or kind in node_kinds.PUBLIC:
            return {}
        if not known:  # searches the installed packages
            known.update(handlers.registered_kinds())
        if kind in known:
            return {}
        shape = shape_kind(node)
        if shape in (*node_kinds.SCHEDULER_KINDS, node_kinds.FAN_IN.name):
            return {"type": shape, UNKNOWN_TYPE: kind}
        return {UNKNOWN_TYPE: kind}

    return changed(graph, graph.attrs, change)


def with_vendors(graph: Graph) -> Graph:
    """``vendor:model`` for a model name whose vendor is known, so that the built-in agent runs it.
    If an agent is named, the name is passed to that agent unchanged."""
    if graph.attrs.get("agent"):
        return graph

    def change(node: Node) -> dict[str, Value]:
        if node.attrs.get("agent") or node.attrs.get("llm_provider"):
            return {}
        key = "model" if node.attrs.get("model") else "llm_model"
        model = node.text(key)
        vendor = vendor_of(model) if model else None
        return {key: f"{vendor}:{model}"} if vendor else {}

    return changed(graph, graph.attrs, change)


def with_ends(graph: Graph) -> Graph:
    """In a graph without a start, a node called ``start`` without incoming edges is the start. In a
    graph without an exit, a node called ``exit`` or ``end`` without outgoing edges is the exit. A
    node with a type or a prompt is neither."""
    kinds: dict[str, Value] = {}
    for kind, names in ENDS.items():
        edges = graph.edges_to if kind == node_kinds.START.name else graph.edges_from
        candidates = [
            node.id
            for node in graph.nodes.values()
            if node.id.lower() in names
            and node.kind == node_kinds.CODERGEN.name
            and not node.attrs.get("type")
            and not node.attrs.get("prompt")
            and not edges(node.id)
        ]
        if len(candidates) == 1 and not any(graph.of_kind(kind)):
            kinds[candidates[0]] = kind

    def change(node: Node) -> dict[str, Value]:
        return {"type": kinds[node.id]} if node.id in kinds else {}

    return changed(graph, graph.attrs, change) if kinds else graph


def with_values(graph: Graph, values: Mapping[str, Json], goal: str | None = None) -> Graph:
    """Fill ``{{key}}`` in the settings of the graph and its nodes, and ``$goal`` in their texts."""
    attrs = {
        key: value if key in UNFILLED else _filled(value, values, None)
        for key, value in graph.attrs.items()
    }
    if goal is not None:
        attrs["goal"] = goal
    goal = str(attrs.get("goal", ""))

    def change(node: Node) -> dict[str, Value]:
        return {
            key: _filled(value, values if key in SETTINGS else {}, goal if key in TEXTS else None)
            for key, value in node.attrs.items()
            if isinstance(value, str) and ("$" in value or "{{" in value)
            if key in SETTINGS or key in TEXTS
        }

    return changed(graph, attrs, change)


def decided_by_values(graph: Graph) -> Iterator[str]:
    """What the values of a run decide beside its texts: agents, models, folders, limits, the branch
    that others are merged into, the server that a request goes to."""
    for key, value in graph.attrs.items():
        if key not in {*TEXTS, *UNFILLED, "goal"} and templates.is_filled(str(value)):
            yield f"{key} of the graph"
    for node in graph.nodes.values():
        for key, value in node.attrs.items():
            decides = key in SETTINGS or (key == "into" and node.kind == node_kinds.MERGE.name)
            if decides and templates.is_filled(str(value)):
                yield f"{key} of {node.id}"
        if node.kind == node_kinds.HTTP.name and templates.is_filled(_server(node.text("url"))):
            yield f"the server in the url of {node.id}"


def _server(url: str) -> str:
    """What comes before the path."""
    return re.split(r"(?<![:/])[/?#]", url.strip(), maxsplit=1)[0]


def with_stylesheet(graph: Graph) -> Graph:
    """Add the properties of ``model_stylesheet`` to the nodes. An invalid stylesheet changes
    nothing; the linter reports it."""
    text = str(graph.attrs.get("model_stylesheet", ""))
    if not text:
        return graph
    try:
        sheet = stylesheet.parse(text)
    except stylesheet.StylesheetError:
        return graph
    return changed(graph, graph.attrs, sheet.properties_of)


def with_model(graph: Graph, model: str) -> Graph:
    """Set this model for nodes that need one and name neither a model nor an agent."""

    def change(node: Node) -> dict[str, Value]:
        named = node.attrs.keys() & {"model", "llm_model", "agent"}
        return {} if named or node.kind not in node_kinds.LLM_KINDS else {"model": model}

    return changed(graph, graph.attrs, change)


def _filled(value: Value, values: Mapping[str, Json], goal: str | None) -> Value:
    return templates.fill(value, values, goal) if isinstance(value, str) else value


def changed(
    graph: Graph, attrs: dict[str, Value], change: Callable[[Node], dict[str, Value]]
) -> Graph:
    """A graph with these attributes, and with the attributes that ``change`` returns for each
    node."""
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        new = change(node)
        nodes[name] = replace(node, attrs={**node.attrs, **new}) if new else node
    return Graph(graph.name, attrs, nodes, graph.edges)
