"""Rules about conditions: those that are invalid, and those that no values can make true."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import get_args

from corral.pipelines import conditions
from corral.pipelines.conditions import Clause, Condition
from corral.pipelines.graph import Graph
from corral.pipelines.linter.finding import Finding, Problem, error, warning
from corral.pipelines.scheduler.outcome import Status

STATUSES: tuple[str, ...] = get_args(Status)
EXAMPLE = "Write it as outcome=success && context.tests=passed."


def condition_syntax(graph: Graph) -> Iterator[Finding]:
    for edge in graph.edges:
        if "condition" in edge.attrs and (problem := _syntax_problem(edge.condition)):
            message = f"the condition of the edge {edge.source} -> {edge.target}: {problem[0]}"
            yield error("condition_syntax", message, edge=edge, fix=problem[1])
    for node in graph.nodes.values():
        text = node.attrs.get("manager.stop_condition")
        if text is not None and (problem := _syntax_problem(str(text))):
            message = f"manager.stop_condition of {node.id}: {problem[0]}"
            yield error("condition_syntax", message, node=node, fix=problem[1])


@lru_cache(1024)
def _syntax_problem(text: str) -> Problem | None:
    """What was expected, and the text around the position."""
    try:
        conditions.compile(text)
    except conditions.ConditionError as wrong:
        at = wrong.position
        around = f"{text[max(0, at - 40) : at]} ⟨here⟩ {text[at : at + 40]}".strip()
        return f"{wrong.wanted}: {around}", wrong.hint or EXAMPLE
    return None


def condition_never_true(graph: Graph) -> Iterator[Finding]:
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
            yield warning("condition_never_true", message, edge=edge, fix=problem[1])


@lru_cache(1024)
def contradiction(condition: Condition) -> Problem | None:
    """Why no values can make it true; None: some can, or there are too many alternatives."""
    problems = [_find_conflict(clauses) for clauses in conditions.alternatives(condition.tree)]
    return problems[0] if problems and None not in problems else None


def _find_conflict(clauses: tuple[Clause, ...]) -> Problem | None:
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
