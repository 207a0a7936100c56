"""Holes in texts: ``$goal``, ``{{key}}`` and ``{{.key}}``.

Filled in one pass: what is put in is never looked at again, so a value that holds braces or
``$goal`` stays what it is. A hole whose key nobody knows stays as it was written: prompts
hold templates of other languages too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from corral.pipelines.conditions import as_text, find
from corral.values import Json

_HOLE = re.compile(
    r"\$goal(?![A-Za-z0-9_])|\$\{goal\}|\{\{\s*+\.?([A-Za-z_][A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]++)*+)\s*+\}\}"
)


def fill(text: str, context: Mapping[str, Json], goal: str | None = None) -> str:
    """The text with its holes filled. Without a goal, ``$goal`` stays."""
    if "$" not in text and "{{" not in text:
        return text

    def filled(match: re.Match[str]) -> str:
        key = match[1]
        if key is None:
            return match[0] if goal is None else goal
        value = find(context, key)
        if value is None and key == "goal":
            return match[0] if goal is None else goal
        return match[0] if value is None and key not in context else as_text(value)

    return _HOLE.sub(filled, text)


def holes(text: str) -> Iterator[str]:
    """The keys that it asks for."""
    return (match[1] for match in _HOLE.finditer(text) if match[1] is not None)
