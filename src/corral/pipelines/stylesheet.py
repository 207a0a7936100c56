"""Stylesheets: which model and agent nodes use, said in one place.

``selector { prop: value; }``. Selectors, the more exact wins and of two alike the later:
``*``, a shape (``box``), ``.class``, ``#id``. What a node says itself wins over all. A
property that is not known is ignored, with a warning of lint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from corral.errors import PipelineInvalid
from corral.pipelines.graph import Node, Value

PROPERTIES = ("llm_model", "llm_provider", "model", "agent", "reasoning_effort", "max_tokens")
ALIASES = {"provider": "llm_provider", "backend": "agent"}
"""Other names of a property."""

_SKIP = re.compile(r"(?:\s++|/\*[^*]*+(?:\*(?!/)[^*]*+)*+\*/)*+")
_SELECTOR = re.compile(r"\*|#(?:[\w-]++|\"[^\"]*+\")|\.[\w-]++|[A-Za-z][A-Za-z0-9_]*+")
_PROPERTY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*+")
_VALUE = re.compile(r"\"([^\"]*+)\"|'([^']*+)'|([^;{}\s\"'][^;{}\n\"']*+)")
_RANKS = {"*": 0, ".": 2, "#": 3}


class StylesheetError(PipelineInvalid):
    code = "stylesheet"

    def __init__(self, text: str, position: int, problem: str, hint: str | None = None) -> None:
        self.position = position
        """From 0, in the stylesheet's own text."""
        self.problem = problem
        line = text.count("\n", 0, position) + 1
        column = position - text.rfind("\n", 0, position)
        super().__init__(f"line {line}, column {column} of the stylesheet: {problem}", hint=hint)


class Rule(NamedTuple):
    rank: int
    order: int
    selector: str
    properties: dict[str, str]


class Sheet:
    """Rules, found by what they select: a node looks at its own alone."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._rules: dict[tuple[int, str], list[Rule]] = {}
        for rule in rules:
            self._rules.setdefault((rule.rank, rule.selector), []).append(rule)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __iter__(self) -> Iterator[Rule]:
        return (rule for rules in self._rules.values() for rule in rules)

    def unknown(self) -> list[str]:
        """Properties that mean nothing here, in the order of the text."""
        named = (key for rule in self for key in rule.properties if key not in PROPERTIES)
        return list(dict.fromkeys(named))

    def properties_of(self, node: Node) -> dict[str, Value]:
        """What the sheet adds to a node. ``model`` and ``llm_model`` say the same thing: of the
        two the stronger alone counts, and a node's own over any."""
        fitting = [
            *self._rules.get((0, "*"), ()),
            *self._rules.get((1, str(node.attrs.get("shape", "box"))), ()),
            *(rule for name in node.classes for rule in self._rules.get((2, name), ())),
            *self._rules.get((3, node.id), ()),
        ]
        found: dict[str, Value] = {}
        for rule in sorted(fitting, key=lambda rule: rule[:2]):
            for key, value in rule.properties.items():
                if key not in PROPERTIES:
                    continue
                found[key] = value
                if key == "model":
                    found.pop("llm_model", None)
                    found.pop("llm_provider", None)
                elif key == "llm_model":
                    found.pop("model", None)
        own = node.attrs
        gone: tuple[str, ...] = ()
        if "model" in own:
            gone = ("llm_model", "llm_provider")
        elif "llm_model" in own:
            gone = ("model",)
        return {key: value for key, value in found.items() if key not in own and key not in gone}


def parse(text: str) -> Sheet:
    """Raises ``StylesheetError``."""
    return Sheet(_rules(text))


def _rules(text: str) -> Iterator[Rule]:
    order = 0
    at = _skip(text, 0)
    while at < len(text):
        selectors: list[str] = []
        while True:
            found = _SELECTOR.match(text, at)
            if found is None:
                hint = "One of *, a shape such as box, .class or #id."
                raise StylesheetError(text, at, "expected a selector", hint)
            selectors.append(found[0])
            at = _skip(text, found.end())
            if not text.startswith(",", at):
                break
            at = _skip(text, at + 1)
        if not text.startswith("{", at):
            raise StylesheetError(text, at, f"expected {{ after {selectors[-1]}")
        properties, at = _properties(text, at)
        for selector in selectors:
            rank = _RANKS.get(selector[0], 1)
            name = selector[1:].strip('"') if rank > 1 else selector
            yield Rule(rank, order, name, properties)
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
    found = _SKIP.match(text, at)
    return found.end() if found else at
