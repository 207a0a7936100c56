"""The rule about keys of the context that nothing sets: in placeholders, and in conditions.

Agents and commands may report any key. So a key counts as set if the engine or a node sets it, if
the run gives it a value, or if a prompt or a command mentions its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import TypeAlias

from corral.pipelines import conditions, node_kinds, templates
from corral.pipelines.conditions import Condition
from corral.pipelines.graph import Edge, Graph, Node
from corral.pipelines.linter.attributes import MAX_SUGGESTIONS, list_names
from corral.pipelines.linter.finding import Finding, warning

ENGINE_KEYS = (
    "outcome", "preferred_label", "current_node", "last_stage", "last_response", "failure_reason",
    "failure_class", "goal", "item", "index", "tool_stdout", "tool.output", "tool.stderr",
    "tool.exit_code", "tool.last_line", "human.gate.selected", "human.gate.label",
    "human.gate.text", "parallel.results", "parallel.success_count", "parallel.fail_count",
    "parallel.fan_in.best_id", "parallel.fan_in.best_outcome", "stack.child.status",
    "stack.child.outcome", "stack.manager.cycle",
)  # fmt: skip
PREFIXES = ("graph.", "internal.", "parallel.branch.", "stack.child.", "item.")
"""Beginnings of other keys that the engine sets."""
CONDITIONS = ("manager.stop_condition", "expr", "condition")
"""Attributes of nodes that are conditions."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def key_known(graph: Graph, values: Collection[str] = ()) -> Iterator[Finding]:
    """``values``: the keys that the run gives a value."""
    if not (used := _find_uses(graph)):
        return
    set_keys = {*ENGINE_KEYS, *values, *_keys_of_nodes(graph)}
    mentioned = set[str]()
    for node in graph.nodes.values():
        for name in ("prompt", "tool_command", "label", "system_prompt"):
            plain = templates.PLACEHOLDER.sub(" ", node.text(name))
            mentioned.update(
                word.rstrip(".-").removeprefix("context.") for word in _WORD.findall(plain)
            )
    # A child pipeline, and a node of a program's own kind, may set any key.
    is_open = any(
        node.kind in node_kinds.CHILD_KINDS or node.kind not in node_kinds.KINDS
        for node in graph.nodes.values()
    )
    unknown = {
        key: uses
        for key, uses in used.items()
        if not _is_set(key, graph, set_keys) and key not in mentioned
    }
    for key, uses in islice(unknown.items(), MAX_SUGGESTIONS):
        near = _find_similar(key, set_keys)
        if is_open and not near:
            continue
        owner = uses[0][1]
        yield warning(
            "key_known",
            f"nothing sets {key}: {list_names([text for text, _ in uses])}",
            node=owner if isinstance(owner, Node) else None,
            edge=owner if isinstance(owner, Edge) else None,
            fix=f"Did you mean {near}?" if near else f"Give it with --set {key}=…",
        )


def _find_similar(key: str, set_keys: Collection[str]) -> str | None:
    """The most similar key. Its first word must be similar, too: many keys end with ``.output``."""
    word = key.partition(".")[0]
    for similar in get_close_matches(key, set_keys, 3, 0.8):
        if get_close_matches(similar.partition(".")[0], [word]):
            return similar
    return None


Uses: TypeAlias = dict[str, list[tuple[str, Node | Edge]]]
"""Key -> what uses it: its description, and the node or the edge."""


def _find_uses(graph: Graph) -> Uses:
    """Each key in a placeholder or a condition."""
    uses: Uses = {}

    def add(key: str, text: str, owner: Node | Edge) -> None:
        uses.setdefault(key.removeprefix("context."), []).append((text, owner))

    def add_condition(
        compiled: Callable[[], Condition | None], text: str, owner: Node | Edge
    ) -> None:
        with suppress(conditions.ConditionError):  # the rule condition_syntax reports it
            if condition := compiled():
                for key in dict.fromkeys(
                    clause.key for clause in conditions.clauses(condition.tree)
                ):
                    add(key, text, owner)

    for node in graph.nodes.values():
        for name, value in node.attrs.items():
            if isinstance(value, str) and "{{" in value:
                for key in dict.fromkeys(templates.placeholders(value)):
                    add(key, f"{{{{{key}}}}} in {name} of {node.id}", node)
            if name in CONDITIONS:
                compiled = partial(conditions.compile, str(value))
                add_condition(compiled, f"{name} of {node.id}", node)
    for edge in graph.edges:
        if edge.attrs:
            compiled_edge = partial(conditions.edge_condition, graph, edge)
            add_condition(compiled_edge, f"the edge {edge.source} -> {edge.target}", edge)
    return uses


def _keys_of_nodes(graph: Graph) -> Iterator[str]:
    for node in graph.nodes.values():
        yield f"{node.id}.output"
        for name, value in node.attrs.items():
            if name in node_kinds.KEY_ATTRIBUTES:
                yield str(value)
            elif name.startswith("set."):
                yield name.removeprefix("set.")


def _is_set(key: str, graph: Graph, set_keys: Collection[str]) -> bool:
    """Whether the key, or the object that it is in, is set."""
    if key in set_keys or key.startswith(PREFIXES):
        return True
    prefixes = (node.text("prefix") for node in graph.of_kind(node_kinds.JSON_DECODE.name))
    if any(prefix and key.startswith(prefix) for prefix in prefixes):
        return True
    head, dot, _ = key.rpartition(".")
    while dot:
        if head in set_keys or head in graph.nodes:
            return True
        head, dot, _ = head.rpartition(".")
    return False
