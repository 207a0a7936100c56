"""Conditions of edges, compiled from text.

A condition is ``clause (&& clause)*``. A clause is ``key = literal`` (or ``==``),
``key != literal``, or a bare key, which is true if its value is not empty, zero or false.
Extensions: ``||``, ``!`` and parentheses; ``key contains literal`` (part of a text, or an item of
a list); ``key matches regex`` (anywhere in the text), both also as ``!contains`` and
``not contains``; ``<``, ``<=``, ``>`` and ``>=`` between
numbers, false if one side is not a number.

``=`` compares the texts exactly, with case: ``true``, ``3`` and ``"3"`` may be written. A literal
is a word, several words, or quoted; after ``=`` and ``!=`` it may be empty. Compared with
``outcome``, ``succeeded``, ``failed`` and ``failure`` are read as ``success`` and ``fail``; with
``failure_class``, ``transient_infra`` is ``transient`` and ``deterministic`` is ``permanent``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from operator import ge, gt, le, lt
from typing import NamedTuple, TypeAlias

import msgspec

from corral._pipelines import node_kinds
from corral._pipelines.graph import Edge, Graph
from corral._pipelines.scheduler.outcome import SYNONYMS
from corral._pipelines.templates import as_text, find
from corral.errors import PipelineInvalid
from corral.values import Json

Lookup: TypeAlias = Callable[[str], Json]
"""Returns the value of a key; ``""`` if it is unknown."""

MAX_DEPTH = 64
"""How deep parentheses may be nested."""
CACHE_SIZE = 4096
MAX_ALTERNATIVES = 256
"""Alternatives of a condition that are checked. Their number can grow exponentially."""

_SPACE = re.compile(r"\s*+")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]++)*+")
_QUOTED = re.compile(r"\"((?:[^\"\\]|\\.)*+)\"|'((?:[^'\\]|\\.)*+)'", re.DOTALL)
_WORDS = re.compile(r"[^\s&|()!=\"'<>]++(?:[ \t]++[^\s&|()!=\"'<>]++)*+")
_WORD_OPERATOR = re.compile(r"(!\s*+|not\s++)?(contains|matches)(?:\s++|(?=[\"']))")
_SIGNS = ("=", "&&", "||", "!", "<", ">", "contains", "matches")


class ConditionError(PipelineInvalid):
    """A text that is not a condition."""

    code = "condition"

    def __init__(self, text: str, position: int, wanted: str, hint: str | None = None) -> None:
        self.position = position
        """Offset in the text of the condition."""
        self.wanted = wanted
        shown = f"{text[:200]}\n    {' ' * position}^" if position <= 200 else text[:200]
        super().__init__(f"in a condition, {wanted}\n    {shown}", hint=hint)


class Clause(NamedTuple):
    key: str
    literal: str | None = None
    """None: the clause is a bare key."""
    negated: bool = False
    operator: str = "="
    """One of ``OPERATORS``: compares the value with the literal."""


class AllOf(NamedTuple):
    parts: tuple[Tree, ...]


class AnyOf(NamedTuple):
    parts: tuple[Tree, ...]


Tree: TypeAlias = Clause | AllOf | AnyOf


class Condition(msgspec.Struct, frozen=True):
    text: str
    tree: Clause | AllOf | AnyOf

    def holds(self, look: Lookup, unknown: str = "") -> bool:
        """``unknown`` is a key whose value is not known yet: no clause on it is true, not even a
        negated one."""
        return _holds(self.tree, look, unknown)

    @property
    def has_operator(self) -> bool:
        """Whether it is more than a bare word, which may be meant as a label."""
        match self.tree:
            case Clause(_, None, False, _):
                return False
            case _:
                return True


@lru_cache(CACHE_SIZE)
def compile(text: str) -> Condition:
    """Parse a condition. An empty text is always true. Raises ``ConditionError``."""
    return Condition(text, _ConditionParser(text).parse())


def edge_condition(graph: Graph, edge: Edge) -> Condition | None:
    """The condition of an edge; None: it has none. A label counts as a condition if it has an
    operator and the edge leaves a node that decides (``switch``, ``conditional``). Raises
    ``ConditionError``."""
    text = edge.condition
    if text.strip():
        return compile(text)
    label = edge.label
    if not any(sign in label for sign in _SIGNS):
        return None
    source = graph.nodes.get(edge.source)
    if source is None or not node_kinds.find(source.kind).decides:
        return None
    try:
        condition = compile(label)
    except ConditionError:
        return None
    return condition if condition.has_operator else None


def lookup_in(context: Mapping[str, Json]) -> Lookup:
    """A function that looks up keys in the context as templates do."""

    def look(key: str) -> Json:
        value = find(context, key)
        return "" if value is None else value

    return look


def is_true(value: Json) -> bool:
    return bool(value) and value not in ("false", "0")


def _holds(tree: Tree, look: Lookup, unknown: str) -> bool:
    match tree:
        case Clause(key) if unknown and key.removeprefix("context.") == unknown:
            return False
        case Clause(key, str() as literal, negated, operator):
            return OPERATORS[operator](look(key), literal) is not negated
        case Clause(key, _, negated, _):
            return is_true(look(key)) is not negated
        case AllOf(parts):
            return all(_holds(part, look, unknown) for part in parts)
        case AnyOf(parts):
            return any(_holds(part, look, unknown) for part in parts)


def _contains(value: Json, literal: str) -> bool:
    if isinstance(value, list):
        return any(as_text(item) == literal for item in value)
    return literal in as_text(value)


def _compare(value: Json, literal: str, holds: Callable[[float, float], bool]) -> bool:
    try:
        return holds(float(as_text(value)), float(literal))
    except ValueError:
        return False


@lru_cache(CACHE_SIZE)
def _regex(text: str) -> re.Pattern[str]:
    """Raises ``re.error``."""
    return re.compile(text)


OPERATORS: dict[str, Callable[[Json, str], bool]] = {
    "=": lambda value, literal: as_text(value) == literal,
    "contains": _contains,
    "matches": lambda value, literal: _regex(literal).search(as_text(value)) is not None,
    "<=": lambda value, literal: _compare(value, literal, le),
    ">=": lambda value, literal: _compare(value, literal, ge),
    "<": lambda value, literal: _compare(value, literal, lt),
    ">": lambda value, literal: _compare(value, literal, gt),
}


def clauses(tree: Tree) -> Iterator[Clause]:
    """All clauses of a condition."""
    if isinstance(tree, Clause):
        yield tree
        return
    for part in tree.parts:
        yield from clauses(part)


def alternatives(tree: Tree) -> list[tuple[Clause, ...]]:
    """The condition as alternatives: it is true if all clauses of one of them are. Empty: there
    are too many to check."""
    if isinstance(tree, Clause):
        return [(tree,)]
    by_part = [alternatives(part) for part in tree.parts]
    if not all(by_part):
        return []
    if isinstance(tree, AnyOf):
        joined = [clauses for options in by_part for clauses in options]
        return joined if len(joined) <= MAX_ALTERNATIVES else []
    count = 1
    for options in by_part:
        count *= len(options)
        if count > MAX_ALTERNATIVES:
            return []
    return [tuple(clause for part in chosen for clause in part) for chosen in product(*by_part)]


def negated(tree: Tree) -> Tree:
    match tree:
        case Clause():
            return tree._replace(negated=not tree.negated)
        case AllOf(parts):
            return AnyOf(tuple(map(negated, parts)))
        case AnyOf(parts):
            return AllOf(tuple(map(negated, parts)))


class _ConditionParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def parse(self) -> Tree:
        self.skip()
        if self.at == len(self.text):
            return AllOf(())
        tree = self.either()
        if self.at < len(self.text):
            raise self.error("expected &&, || or the end")
        return tree

    def either(self) -> Tree:
        parts = [self.both()]
        while self.takes("||"):
            parts.append(self.both())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def both(self) -> Tree:
        parts = [self.clause()]
        while self.takes("&&"):
            parts.append(self.clause())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def clause(self) -> Tree:
        is_negated = False
        while self.takes("!"):
            is_negated = not is_negated
        tree = self.inner() if self.takes("(") else self.comparison()
        return negated(tree) if is_negated else tree

    def inner(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"parentheses are nested more than {MAX_DEPTH} deep")
        tree = self.either()
        self.depth -= 1
        if not self.takes(")"):
            raise self.error("expected )")
        return tree

    def comparison(self) -> Clause:
        match = _KEY.match(self.text, self.at)
        if match is None:
            raise self.error("expected a key", "Such as outcome, preferred_label or context.name.")
        self.at = match.end()
        self.skip()
        key = match[0]
        if self.takes("!="):
            return Clause(key, self.compared(key), negated=True)
        if self.takes("==") or self.takes("="):
            return Clause(key, self.compared(key))
        for operator in ("<=", ">=", "<", ">"):
            if self.takes(operator):
                return Clause(key, self.literal(), operator=operator)
        if (word := _WORD_OPERATOR.match(self.text, self.at)) is not None:
            self.at = word.end()
            clause = self.word_comparison(key, word[2])
            return clause._replace(negated=bool(word[1]))
        return Clause(key)

    def word_comparison(self, key: str, operator: str) -> Clause:
        start = self.at
        literal = self.literal()
        if operator == "matches":
            try:
                _regex(literal)
            except re.error as error:
                self.at = start
                raise self.error(f"not a regular expression: {error}") from error
        return Clause(key, literal, operator=operator)

    def compared(self, key: str) -> str:
        """The literal after ``=``; if nothing follows, the empty text."""
        literal = ""
        if self.at < len(self.text) and not self.text.startswith(("&&", "||", ")"), self.at):
            literal = self.literal()
        return SYNONYMS.get(key.removeprefix("context."), {}).get(literal, literal)

    def literal(self) -> str:
        quoted = _QUOTED.match(self.text, self.at)
        if quoted is not None:
            self.at = quoted.end()
            self.skip()
            text = quoted[1] if quoted[1] is not None else quoted[2]
            # Any other backslash stays, as in ``\d``.
            return re.sub(r"\\([\"'\\])", r"\1", text)
        words = _WORDS.match(self.text, self.at)
        if words is None:
            raise self.error("expected a value", 'An empty one is written "".')
        self.at = words.end()
        self.skip()
        return words[0]

    def takes(self, symbol: str) -> bool:
        if not self.text.startswith(symbol, self.at):
            return False
        self.at += len(symbol)
        self.skip()
        return True

    def skip(self) -> None:
        space = _SPACE.match(self.text, self.at)
        if space is not None:
            self.at = space.end()

    def error(self, wanted: str, hint: str | None = None) -> ConditionError:
        return ConditionError(self.text, self.at, wanted, hint)
