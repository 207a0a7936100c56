"""Finds conditions that no values can make true."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from itertools import product
from typing import get_args

from corral.pipelines import conditions
from corral.pipelines.conditions import AnyOf, Clause, Condition, Tree
from corral.pipelines.linter.finding import Problem
from corral.pipelines.scheduler.outcome import Status

STATUSES: tuple[str, ...] = get_args(Status)
MAX_ALTERNATIVES = 256
"""Alternatives of a condition that are checked. Their number can grow exponentially."""


@lru_cache(1024)
def contradiction(condition: Condition) -> Problem | None:
    """Why no values can make it true; None: some can, or there are too many alternatives."""
    alternatives = _alternatives(condition.tree)
    if not alternatives:
        return None
    problems = [_conflict(clauses) for clauses in alternatives]
    return problems[0] if None not in problems else None


def _alternatives(tree: Tree) -> list[tuple[Clause, ...]]:
    """The condition as alternatives: it is true if all clauses of one of them are. Empty: there
    are too many to check."""
    if isinstance(tree, Clause):
        return [(tree,)]
    each = [_alternatives(part) for part in tree.parts]
    if not all(each):
        return []
    if isinstance(tree, AnyOf):
        joined = [clauses for alternatives in each for clauses in alternatives]
        return joined if len(joined) <= MAX_ALTERNATIVES else []
    count = 1
    for alternatives in each:
        count *= len(alternatives)
        if count > MAX_ALTERNATIVES:
            return []
    return [tuple(clause for part in chosen for clause in part) for chosen in product(*each)]


def _conflict(clauses: Iterable[Clause]) -> Problem | None:
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
            if key == "outcome" and (problem := _misspelled_outcome(clause.literal)):
                return problem
    return _conflict_between(equal, unequal, truth)


def _misspelled_outcome(literal: str) -> Problem | None:
    """Agents may report any word as their outcome. One that is similar to a status is probably a
    mistake."""
    if literal in STATUSES:
        return None
    near = get_close_matches(literal.lower(), STATUSES, 1, 0.8)
    if not near:
        return None
    fix = f"Did you mean {near[0]}? Outcomes are {', '.join(STATUSES)}."
    return f"no outcome is called {literal!r}", fix


def _conflict_between(
    equal: dict[str, str], unequal: set[tuple[str, str]], truth: dict[str, bool]
) -> Problem | None:
    for key, literal in equal.items():
        if (key, literal) in unequal:
            return f"{key} cannot both be and not be {literal!r}", None
        if key in truth and truth[key] is not conditions.is_true(literal):
            return f"{key} = {literal!r} contradicts the bare {key}", None
    return None
