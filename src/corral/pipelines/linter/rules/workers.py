"""Rules about who does the work: node types, agents, models, and what they are told."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from corral.agents import registry as agents_registry
from corral.errors import ConfigError, UnknownProvider
from corral.models import catalogue, registry
from corral.pipelines import node_kinds
from corral.pipelines.execution import handlers
from corral.pipelines.graph import Graph, Node, shape_kind
from corral.pipelines.linter.finding import Finding, warning
from corral.pipelines.linter.rules.near import MOST, Nearest
from corral.pipelines.transforms import UNKNOWN_TYPE
from corral.system import config


def type_known(graph: Graph) -> Iterator[Finding]:
    nearest, shapes = Nearest(()), Nearest(node_kinds.SHAPES)
    for node in graph.nodes.values():
        if kind := node.text(UNKNOWN_TYPE):
            if not nearest:  # looks through what is installed
                nearest = Nearest(handlers.registered_kinds())
            message = f"no node type is called {kind!r}: {node.id} runs as {shape_kind(node)}"
            yield warning("type_known", message, node=node, fix=nearest.fix(kind))
        elif _is_house_without_child(node):
            message = f"{node.id} names no child pipeline: it runs as a human gate"
            fix = "Write shape=hexagon, or name the child with stack.child_dotfile."
            yield warning("type_known", message, node=node, fix=fix)
        elif (
            shape := str(node.attrs.get("shape", node_kinds.CODERGEN.shape))
        ) not in node_kinds.SHAPES and not node.text("type"):
            message = f"the shape {shape!r} of {node.id} is unknown: it runs as {shape_kind(node)}"
            yield warning("type_known", message, node=node, fix=shapes.fix(shape))


def _is_house_without_child(node: Node) -> bool:
    is_house = node.text("shape") == node_kinds.MANAGER_LOOP.shape
    return is_house and node.kind == node_kinds.WAIT_HUMAN.name


def prompt_on_llm_nodes(graph: Graph) -> Iterator[Finding]:
    for node in graph.of_kind(*node_kinds.LLM_KINDS):
        if not node.attrs.get("prompt") and not node.attrs.get("label"):
            yield warning(
                "prompt_on_llm_nodes",
                f"{node.id} has no prompt: all that is said is {node.id!r}",
                node=node,
                fix=f'Write {node.id} [prompt="…"].',
            )


def agent_known(graph: Graph) -> Iterator[Finding]:
    judged: dict[str, ConfigError | None] = {}
    for node in graph.nodes.values():
        name = str(node.attrs.get("agent", ""))
        if not name or "{{" in name or node_kinds.find(node.kind).llm == "none":
            continue
        if name not in judged:
            judged[name] = _unknown_agent(name) if len(judged) < MOST else None
        if found := judged[name]:
            message = f"{found.message}, as {node.id} has it"
            yield warning("agent_known", message, node=node, fix=found.hint)


def _unknown_agent(name: str) -> ConfigError | None:
    try:
        config.find_agent(name)
    except ConfigError as found:
        return found
    return None


def model_known(graph: Graph) -> Iterator[Finding]:
    judged: dict[tuple[str, bool], tuple[str, str | None] | None] = {}
    for node in graph.nodes.values():
        name = model_of(node)
        if not name or "{{" in name or node_kinds.find(node.kind).llm == "none":
            continue
        asked = name, "agent" in node.attrs
        if asked not in judged:
            judged[asked] = _unknown_model(*asked) if len(judged) < MOST else None
        if found := judged[asked]:
            yield warning("model_known", f"{node.id}: {found[0]}", node=node, fix=found[1])


def model_of(node: Node) -> str:
    """The model that a node names, with its vendor where that is said apart."""
    name = node.text("model") or node.text("llm_model")
    vendor = node.text("llm_provider")
    return f"{vendor}:{name}" if vendor and name and ":" not in name else name


def _unknown_model(name: str, has_agent: bool) -> tuple[str, str | None] | None:
    """A name without a vendor is the agent's own affair; a vendor that lists no models here
    cannot be asked."""
    vendor, colon, _ = name.partition(":")
    if not colon:
        known = [
            entry.id for entry in catalogue.all_entries() if entry.id.partition(":")[2] == name
        ]
        if has_agent or not known:
            return None
        return (
            f"{name} goes to {agents_registry.DEFAULT_AGENT} as it is",
            f"Write {known[0]} for the model.",
        )
    try:
        provider = registry.find_provider(vendor)
    except UnknownProvider as found:
        return found.message, found.hint
    if catalogue.lookup(f"{provider.name}:{name.partition(':')[2]}"):
        return None
    listed = [
        entry.id for entry in catalogue.all_entries() if entry.id.startswith(f"{provider.name}:")
    ]
    if not listed:
        return None
    near = get_close_matches(f"{provider.name}:{name.partition(':')[2]}", listed, 1, 0.6)
    fix = f"Did you mean {near[0]}?" if near else None
    return f"{name} is not in the catalogue; it may be new", fix
