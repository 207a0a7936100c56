"""Rules about conditions, and about the keys of the context that they and placeholders use:
conditions that are invalid, or that no values can make true, and keys that nothing sets.

Agents and commands may report any key. So a key counts as set if the engine or a node sets it, if
the run gives it a value, or if a prompt or a command mentions its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache, partial
from itertools import islice
from typing import TypeAlias, get_args

from corral._pipelines import conditions, node_kinds, templates
from corral._pipelines.conditions import Clause, Condition
from corral._pipelines.graph import Edge, Graph, Node
from corral._pipelines.linter.attributes import MAX_SUGGESTIONS, MessageAndFix, list_names
from corral._pipelines.linter.finding import Problem
from corral._pipelines.scheduler.outcome import Status

STATUSES: tuple[str, ...] = get_args(Status)
EXAMPLE = "Write it as outcome=success && context.tests=passed."


def condition_syntax(graph: Graph) -> Iterator[Problem]:
    """A condition can be read."""
    for edge in graph.edges:
        if "condition" in edge.attrs and (problem := _syntax_problem(edge.condition)):
            message = f"the condition of the edge {edge.source} -> {edge.target}: {problem[0]}"
            yield Problem(edge, message, problem[1])
    for node in graph.nodes.values():
        text = node.attrs.get("manager.stop_condition")
        if text is not None and (problem := _syntax_problem(str(text))):
            message = f"manager.stop_condition of {node.id}: {problem[0]}"
            yield Problem(node, message, problem[1])


@lru_cache(1024)
def _syntax_problem(text: str) -> MessageAndFix | None:
    """What was expected, and the text around the position."""
    try:
        conditions.compile(text)
    except conditions.ConditionError as wrong:
        at = wrong.position
        around = f"{text[max(0, at - 40) : at]} ⟨here⟩ {text[at : at + 40]}".strip()
        return f"{wrong.wanted}: {around}", wrong.hint or EXAMPLE
    return None


def condition_never_true(graph: Graph) -> Iterator[Problem]:
    """The condition of an edge can be true."""
    for edge in graph.edges:
        if "condition" not in edge.attrs and "label" not in edge.attrs:
            continue
        try:
            condition = conditions.edge_condition(graph, edge)
        except conditions.ConditionError:
            continue
        if condition is not None and (problem := contradiction(condition)):
            edge_name = f"the edge {edge.source} -> {edge.target}"
            message = f"the condition of {edge_name} is never true: {problem[0]}"
            yield Problem(edge, message, problem[1])


@lru_cache(1024)
def contradiction(condition: Condition) -> MessageAndFix | None:
    """Why no values can make it true; None: some can, or there are too many alternatives."""
    problems = [_find_conflict(clauses) for clauses in conditions.alternatives(condition.tree)]
    return problems[0] if problems and None not in problems else None


def _find_conflict(clauses: tuple[Clause, ...]) -> MessageAndFix | None:
    """Why these clauses cannot all be true."""
    equal: dict[str, str] = {}
    unequal: set[tuple[str, str]] = set()
    truth: dict[str, bool] = {}
    for clause in clauses:
        key = clause.key.removeprefix("context.")
        if clause.operator != "=":
            continue
        if clause.literal is None:
            if truth.setdefault(key, not clause.negated) is clause.negated:
                return f"{key} cannot be both true and false", None
        elif clause.negated:
            unequal.add((key, clause.literal))
        else:
            other = equal.setdefault(key, clause.literal)
            if other != clause.literal:
                return f"{key} cannot be both {other!r} and {clause.literal!r}", "Use || instead."
    for key, literal in equal.items():
        # Agents may report any word as their outcome. One that is similar to a status is probably a
        # mistake.
        near = get_close_matches(literal.lower(), STATUSES, 1, 0.8) if key == "outcome" else []
        if near and literal not in STATUSES:
            fix = f"Did you mean {near[0]}? Outcomes are {', '.join(STATUSES)}."
            return f"no outcome is called {literal!r}", fix
        if (key, literal) in unequal:
            return f"{key} cannot both be and not be {literal!r}", None
        if key in truth and truth[key] is not conditions.is_true(literal):
            return f"{key} = {literal!r} contradicts the bare {key}", None
    return None


# Keys that nothing sets.

ENGINE_KEYS = (
    "outcome", "preferred_label", "current_node", "last_stage", "last_response", "failure_reason",
    "failure_class", "goal", "item", "index", "tool_stdout", "tool.output", "tool.stderr",
    "tool.exit_code", "tool.last_line", "human.gate.selected", "human.gate.label",
    "human.gate.text", "parallel.results", "parallel.success_count", "parallel.fail_count",
    "parallel.merged", "parallel.left_out", "parallel.branches", "parallel.fan_in.best_id",
    "parallel.fan_in.best_outcome", "stack.child.status", "stack.child.outcome",
    "stack.manager.cycle",
)  # fmt: skip
PREFIXES = ("graph.", "internal.", "parallel.branch.", "stack.child.", "item.")
"""Beginnings of other keys that the engine sets."""
CONDITIONS = ("manager.stop_condition", "expr", "condition")
"""Attributes of nodes that are conditions."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def key_known(graph: Graph, values: Collection[str] = ()) -> Iterator[Problem]:
    """A key in a placeholder, a condition or ``items`` is set: by the engine, a node, or ``values``
    of a run. A key that a prompt or a command mentions counts as set, because agents and commands
    may report any key."""
    if not (used := _find_uses(graph)):
        return
    set_keys = {*ENGINE_KEYS, *values}
    mentioned = set[str]()
    for node in graph.nodes.values():
        set_keys.add(f"{node.id}.output")
        set_keys |= node_kinds.find(node.kind).sets
        for name, value in node.attrs.items():
            if name in node_kinds.KEY_ATTRIBUTES:
                set_keys.add(str(value))
            elif name.startswith("set."):
                set_keys.add(name.removeprefix("set."))
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
        # The first word must be similar, too: many keys end with ``.output``.
        word = [key.partition(".")[0]]
        similar = get_close_matches(key, set_keys, 3, 0.8)
        near = next((n for n in similar if get_close_matches(n.partition(".")[0], word)), None)
        if is_open and not near:
            continue
        message = f"nothing sets {key}: {list_names([text for text, _ in uses])}"
        fix = f"Did you mean {near}?" if near else f"Give it with --set {key}=…"
        yield Problem(uses[0][1], message, fix)


Uses: TypeAlias = dict[str, list[tuple[str, Node | Edge]]]
"""Key -> what uses it: its description, and the node or the edge."""


def _find_uses(graph: Graph) -> Uses:
    """Each key in a placeholder, a condition or ``items``. One word there is a key: as a list of
    one item it would need no node of its own."""
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
            if name == "items" and _WORD.fullmatch(word := str(value).strip()):
                add(word, f"items of {node.id}", node)
            if name in CONDITIONS:
                compiled = partial(conditions.compile, str(value))
                add_condition(compiled, f"{name} of {node.id}", node)
    for edge in graph.edges:
        if edge.attrs:
            compiled_edge = partial(conditions.edge_condition, graph, edge)
            add_condition(compiled_edge, f"the edge {edge.source} -> {edge.target}", edge)
    return uses


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
