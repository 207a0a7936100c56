"""Rules about the small languages inside a pipeline: conditions and the stylesheet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import lru_cache
from itertools import product
from typing import get_args

from corral.pipelines import conditions, stylesheet
from corral.pipelines.conditions import All, Any, Clause, Condition, Tree
from corral.pipelines.graph import Graph
from corral.pipelines.linter.finding import Finding, error, warning
from corral.pipelines.scheduler.outcome import Status

STATUSES: tuple[str, ...] = get_args(Status)
MOST_WAYS = 256
"""Ways for a condition to hold that are looked at. Nobody writes more, and they multiply."""


def condition_syntax(graph: Graph) -> Iterator[Finding]:
    for edge in graph.edges:
        if "condition" in edge.attrs and (found := _wrong(edge.condition)):
            where = f"the edge {edge.source} -> {edge.target}"
            message = f"the condition of {where}: {found.wanted}: {_marked(edge.condition, found)}"
            yield error("condition_syntax", message, edge=edge, fix=found.hint or EXAMPLE)
    for node in graph.nodes.values():
        text = node.attrs.get("manager.stop_condition")
        if text is not None and (found := _wrong(str(text))):
            message = f"manager.stop_condition of {node.id}: {found.wanted}"
            message = f"{message}: {_marked(str(text), found)}"
            yield error("condition_syntax", message, node=node, fix=found.hint or EXAMPLE)


EXAMPLE = "Write it as outcome=success && context.tests=passed."


def _marked(text: str, found: conditions.ConditionError) -> str:
    """What stands before the place, and what after it."""
    at = found.position
    return f"{text[max(0, at - 40) : at]} ⟨here⟩ {text[at : at + 40]}".strip()


@lru_cache(1024)
def _wrong(text: str) -> conditions.ConditionError | None:
    try:
        conditions.compile(text)
    except conditions.ConditionError as found:
        return found
    return None


def condition_never_true(graph: Graph) -> Iterator[Finding]:
    for edge in graph.edges:
        if "condition" not in edge.attrs and "label" not in edge.attrs:
            continue
        try:
            condition = conditions.edge_condition(graph, edge)
        except conditions.ConditionError:
            continue
        if condition is None:
            continue
        reason = _contradiction(condition)
        if reason is not None:
            where = f"the edge {edge.source} -> {edge.target}"
            message = f"the condition of {where} never holds: {reason[0]}"
            yield warning("condition_never_true", message, edge=edge, fix=reason[1])


@lru_cache(1024)
def _contradiction(condition: Condition) -> tuple[str, str | None] | None:
    """Why no values could make it true, and what to do; None: some could."""
    ways = _ways(condition.tree)
    if not ways:
        return None
    reasons = [_conflict(way) for way in ways]
    return reasons[0] if None not in reasons else None


def _ways(tree: Tree) -> list[tuple[Clause, ...]]:
    """The sets of clauses of which one must hold as a whole; none: too many to look at."""
    match tree:
        case Clause():
            return [(tree,)]
        case Any(parts):
            each = [_ways(part) for part in parts]
            if not all(each) or sum(map(len, each)) > MOST_WAYS:
                return []
            return [way for ways in each for way in ways]
        case All(parts):
            each = [_ways(part) for part in parts]
            count = 1
            for ways in each:
                count *= len(ways)
                if not 0 < count <= MOST_WAYS:
                    return []
            return [tuple(c for way in chosen for c in way) for chosen in product(*each)]


def _conflict(clauses: Iterable[Clause]) -> tuple[str, str | None] | None:
    equal: dict[str, str] = {}
    unequal: set[tuple[str, str]] = set()
    truth: dict[str, bool] = {}
    for clause in clauses:
        key = clause.key.removeprefix("context.")
        if clause.operator != "=":
            continue
        if clause.literal is None:
            if truth.setdefault(key, not clause.negated) is clause.negated:
                return f"{key} cannot be both true and not", None
        elif clause.negated:
            unequal.add((key, clause.literal))
        else:
            other = equal.setdefault(key, clause.literal)
            if other != clause.literal:
                return f"{key} cannot be both {other!r} and {clause.literal!r}", "Use || instead."
            if key == "outcome" and (found := _misspelled_outcome(clause.literal)):
                return found
    return _conflict_between(equal, unequal, truth)


def _misspelled_outcome(literal: str) -> tuple[str, str] | None:
    """Agents may report outcomes of the author's own. Only one close to a status is an error."""
    if literal in STATUSES:
        return None
    near = get_close_matches(literal.lower(), STATUSES, 1, 0.8)
    if not near:
        return None
    fix = f"Did you mean {near[0]}? Outcomes are {', '.join(STATUSES)}."
    return f"no outcome is called {literal!r}", fix


def _conflict_between(
    equal: dict[str, str], unequal: set[tuple[str, str]], truth: dict[str, bool]
) -> tuple[str, None] | None:
    for key, literal in equal.items():
        if (key, literal) in unequal:
            return f"{key} cannot be {literal!r} and not be it", None
        if key in truth and truth[key] is not conditions.is_true(literal):
            return f"{key} = {literal!r} and the bare {key} exclude each other", None
    return None


def stylesheet_syntax(graph: Graph) -> Iterator[Finding]:
    text = str(graph.attrs.get("model_stylesheet", ""))
    try:
        sheet = stylesheet.parse(text)
    except stylesheet.StylesheetError as found:
        fix = found.hint or 'Write it as "* { model: vendor:name; } .class { … } #node { … }".'
        yield error("stylesheet_syntax", found.message, fix=fix)
        return
    known = f"Known are {', '.join(stylesheet.PROPERTIES)}."
    for name in sheet.unknown():
        near = get_close_matches(name, stylesheet.PROPERTIES, 1, 0.6)
        fix = f"Did you mean {near[0]}? {known}" if near else known
        message = f"the stylesheet's property {name} is not known and has no effect"
        yield warning("stylesheet_syntax", message, fix=fix)
