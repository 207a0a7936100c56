"""Stylesheets: one place for the models and agents of many nodes.

A rule is ``selector { property: value; }``. Selectors are ``*``, a shape (``box``), ``.class`` and
``#id``; the more specific one wins, and of two equally specific ones the later. A node's own
attributes win over the stylesheet. An unknown property is ignored; the linter warns about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from corral._pipelines.graph import Node, Value
from corral.errors import PipelineInvalid

PROPERTIES = ("llm_model", "llm_provider", "model", "agent", "reasoning_effort", "max_tokens")
ALIASES = {"provider": "llm_provider", "backend": "agent"}
"""Other names of a property."""
REPLACES: dict[str, tuple[str, ...]] = {
    "model": ("llm_model", "llm_provider"),
    "llm_model": ("model",),
}
"""Property -> properties of lower precedence that it makes meaningless."""

_SKIP = re.compile(r"(?:\s++|/\*[^*]*+(?:\*(?!/)[^*]*+)*+\*/)*+")
_SELECTOR = re.compile(r"\*|#(?:[\w-]++|\"[^\"]*+\")|\.[\w-]++|[A-Za-z][A-Za-z0-9_]*+")
_PROPERTY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*+")
_VALUE = re.compile(r"\"([^\"]*+)\"|'([^']*+)'|([^;{}\s\"'][^;{}\n\"']*+)")
_RANKS = {"*": 0, ".": 2, "#": 3}


class StylesheetError(PipelineInvalid):
    code = "stylesheet"

    def __init__(self, text: str, position: int, problem: str, hint: str | None = None) -> None:
        self.position = position
        """Offset in the text of the stylesheet."""
        self.problem = problem
        line = text.count("\n", 0, position) + 1
        column = position - text.rfind("\n", 0, position)
        super().__init__(f"line {line}, column {column} of the stylesheet: {problem}", hint=hint)


class StyleRule(NamedTuple):
    rank: int
    order: int
    selector: str
    properties: dict[str, str]


class Sheet:
    """The rules, indexed by selector."""

    def __init__(self, rules: Iterable[StyleRule] = ()) -> None:
        self._rules: dict[tuple[int, str], list[StyleRule]] = {}
        for rule in rules:
            self._rules.setdefault((rule.rank, rule.selector), []).append(rule)

    def __iter__(self) -> Iterator[StyleRule]:
        return (rule for rules in self._rules.values() for rule in rules)

    def unknown(self) -> list[str]:
        """Unknown properties, in the order of the text."""
        named = (key for rule in self for key in rule.properties if key not in PROPERTIES)
        return list(dict.fromkeys(named))

    def properties_of(self, node: Node) -> dict[str, Value]:
        """The attributes that the sheet adds to a node. ``model`` and ``llm_model`` mean the same:
        only the one with the higher precedence counts."""
        matching = [
            *self._rules.get((0, "*"), ()),
            *self._rules.get((1, str(node.attrs.get("shape", "box"))), ()),
            *(rule for name in node.classes for rule in self._rules.get((2, name), ())),
            *self._rules.get((3, node.id), ()),
        ]
        properties: dict[str, Value] = {}
        for rule in sorted(matching, key=lambda rule: rule[:2]):
            for key, value in rule.properties.items():
                if key in PROPERTIES:
                    properties[key] = value
                    for other in REPLACES.get(key, ()):
                        properties.pop(other, None)
        own = node.attrs
        named = next((key for key in REPLACES if key in own), "")
        hidden = {*own, *REPLACES.get(named, ())}
        return {key: value for key, value in properties.items() if key not in hidden}


def parse(text: str) -> Sheet:
    """Raises ``StylesheetError``."""
    return Sheet(_rules(text))


def _rules(text: str) -> Iterator[StyleRule]:
    order = 0
    at = _skip(text, 0)
    while at < len(text):
        selectors: list[str] = []
        while True:
            match = _SELECTOR.match(text, at)
            if match is None:
                hint = "One of *, a shape such as box, .class or #id."
                raise StylesheetError(text, at, "expected a selector", hint)
            selectors.append(match[0])
            at = _skip(text, match.end())
            if not text.startswith(",", at):
                break
            at = _skip(text, at + 1)
        if not text.startswith("{", at):
            raise StylesheetError(text, at, f"expected {{ after {selectors[-1]}")
        properties, at = _properties(text, at)
        for selector in selectors:
            rank = _RANKS.get(selector[0], 1)
            name = selector[1:].strip('"') if rank > 1 else selector
            yield StyleRule(rank, order, name, properties)
            order += 1
        at = _skip(text, at)


def _properties(text: str, opened: int) -> tuple[dict[str, str], int]:
    properties: dict[str, str] = {}
    at = _skip(text, opened + 1)
    while not text.startswith("}", at):
        if at >= len(text):
            raise StylesheetError(text, opened, "this { is not closed")
        key = _PROPERTY.match(text, at)
        if key is None:
            raise StylesheetError(text, at, "expected a property, or }")
        name = key[0].replace("-", "_")
        name = ALIASES.get(name, name)
        at = _skip(text, key.end())
        if not text.startswith(":", at):
            raise StylesheetError(text, at, f"expected : after {key[0]}")
        at = _skip(text, at + 1)
        value = _VALUE.match(text, at)
        if value is None:
            raise StylesheetError(text, at, f"expected a value after {key[0]}:")
        properties[name] = next(part for part in value.groups() if part is not None).strip()
        at = _skip(text, value.end())
        if text.startswith(";", at):
            at = _skip(text, at + 1)
        elif not text.startswith("}", at):
            raise StylesheetError(text, at, "expected ; or }")
    return properties, at + 1


def _skip(text: str, at: int) -> int:
    skipped = _SKIP.match(text, at)
    return skipped.end() if skipped else at
