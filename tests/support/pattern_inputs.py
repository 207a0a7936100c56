"""Inputs on which a regular expression may take long, made of the expression's own parts."""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_parser: Any = importlib.import_module("re._parser")
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
CATEGORIES = {"DIGIT": "1", "SPACE": " ", "WORD": "a"}
USUAL = ' \n\ta1"'
"""Characters that are tried in every part that accepts them."""
ENDS = ("", "\0", "\n!")
MOST_LITERALS = 6
MANY = 8
"""A part that is repeated more often than this is pumped."""

Nodes = Sequence[tuple[Any, Any]]


class Shape(NamedTuple):
    """An input of any size: ``unit`` is repeated."""

    begin: str
    unit: str
    end: str

    def text(self, size: int) -> str:
        return self.begin + self.unit * (size // len(self.unit)) + self.end


def shapes(pattern: re.Pattern[Any]) -> list[Shape]:
    """The inputs for a pattern. Those of a pattern for bytes are decoded as Latin-1."""
    source = pattern.pattern
    text = source.decode("latin-1") if isinstance(source, bytes) else source
    maker = _Maker(_parser.parse(text, pattern.flags & ~re.UNICODE & ~re.DEBUG))
    found: dict[Shape, None] = {}
    for begin, unit in maker.pumped():
        for end in (*ENDS, *maker.excluded):
            found[Shape(begin, unit, end)] = None
        found[Shape("", begin + unit, "")] = None
        found[Shape("", begin + unit, "\0")] = None
    for char in maker.alphabet:
        found[Shape("", char, "\0")] = None
    return [shape for shape in found if shape.unit]


class _Maker:
    def __init__(self, tree: Nodes) -> None:
        self.tree = tree
        self.literals = [*dict.fromkeys(_literals(tree))]
        self.excluded = [*dict.fromkeys(_excluded(tree))][:MOST_LITERALS]
        self.alphabet = [*dict.fromkeys((*USUAL, *self.literals[:MOST_LITERALS]))]

    def pumped(self) -> Iterator[tuple[str, str]]:
        """A beginning, and what can be repeated after it."""
        return self._pumped(self.tree, "")

    def _pumped(self, nodes: Nodes, begin: str) -> Iterator[tuple[str, str]]:
        for at, (kind, value) in enumerate(nodes):
            name = str(kind)
            if begin:
                yield "", begin
            if name in REPEATS and value[1] > MANY:
                for unit in self._units(value[2]):
                    yield begin, unit
                    # Two neighbors that accept the same text can divide it in many ways.
                    for other in self._neighbors(nodes[at + 1 :]):
                        yield begin, unit + other
            for below in _below(name, value):
                yield from self._pumped(below, begin)
            begin += self._sample([(kind, value)])

    def _units(self, body: Nodes) -> Iterator[str]:
        if len(body) == 1 and str(body[0][0]) not in (*REPEATS, "SUBPATTERN", "BRANCH"):
            yield from (char for char in self.alphabet if _accepts(body[0], char))
        yield from (self._sample(way) for way in _ways(body))

    def _neighbors(self, nodes: Nodes) -> Iterator[str]:
        for kind, value in nodes[:1]:
            sample = self._sample([(kind, value)])
            if sample:
                yield sample

    def _sample(self, nodes: Nodes) -> str:
        return "".join(self._one(str(kind), value) for kind, value in nodes)

    def _one(self, name: str, value: Any) -> str:
        if name in REPEATS:
            return self._sample(value[2]) * max(int(value[0]), 1)
        if name == "BRANCH":
            return self._sample(value[1][0])
        below = _below(name, value)
        if below and name not in ("ASSERT", "ASSERT_NOT"):
            return self._sample(below[0])
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            choices = itertools.chain(self.literals, USUAL, map(chr, range(33, 127)))
            return next((char for char in choices if _accepts((name, value), char)), "")
        return ""


def _below(name: str, value: Any) -> list[Nodes]:
    if name in REPEATS:
        return [value[2]]
    if name == "SUBPATTERN":
        return [value[3]]
    if name == "ATOMIC_GROUP":
        return [value]
    if name == "BRANCH":
        return list(value[1])
    if name in ("ASSERT", "ASSERT_NOT"):
        return [value[1]]
    return []


def _ways(body: Nodes) -> Iterator[Nodes]:
    """The body with each choice of its first branch."""
    for at, (kind, value) in enumerate(body):
        name = str(kind)
        inner = value[3] if name == "SUBPATTERN" else [(kind, value)]
        if len(inner) == 1 and str(inner[0][0]) == "BRANCH":
            for choice in inner[0][1][1]:
                yield [*body[:at], *choice, *body[at + 1 :]]
            return
    yield body


def _literals(nodes: Nodes) -> Iterator[str]:
    for kind, value in nodes:
        name = str(kind)
        if name in ("LITERAL", "NOT_LITERAL"):
            yield chr(value)
        elif name == "IN":
            yield from _members(value)
        for below in _below(name, value):
            yield from _literals(below)


def _excluded(nodes: Nodes) -> Iterator[str]:
    """Characters that a part does not accept: after one that was repeated, they end it."""
    for kind, value in nodes:
        name = str(kind)
        if name == "NOT_LITERAL":
            yield chr(value)
        elif name == "IN" and str(value[0][0]) == "NEGATE":
            yield from _members(value)
        for below in _below(name, value):
            yield from _excluded(below)


def _members(items: Nodes) -> Iterator[str]:
    for kind, value in items:
        name = str(kind)
        if name == "LITERAL":
            yield chr(value)
        elif name == "RANGE":
            yield chr(value[0])


def _accepts(node: tuple[Any, Any], char: str) -> bool:
    name, value = str(node[0]), node[1]
    if name in ("LITERAL", "NOT_LITERAL"):
        return (ord(char) == value) is (name == "LITERAL")
    if name == "ANY":
        return char != "\n"
    if name != "IN":
        return False
    is_negated = str(value[0][0]) == "NEGATE"
    return any(_holds(str(kind), item, char) for kind, item in value) is not is_negated


def _holds(name: str, value: Any, char: str) -> bool:
    if name == "LITERAL":
        return ord(char) == int(value)
    if name == "RANGE":
        low, high = value
        return bool(low <= ord(char) <= high)
    if name == "CATEGORY":
        word = str(value).removeprefix("CATEGORY_")
        kind = word.removeprefix("NOT_").removeprefix("UNI_")
        in_kind = {"DIGIT": char.isdigit(), "SPACE": char.isspace()}.get(
            kind, char.isalnum() or char == "_"
        )
        return in_kind is not word.startswith("NOT_")
    return False
