"""Values of the context, and the texts that use them: ``$goal``, ``{{key}}`` and ``{{.key}}``.

Placeholders are filled in one pass. An inserted value is not searched again, so a value that
contains braces or ``$goal`` stays as it is. A placeholder with an unknown key also stays, because
prompts contain templates of other languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from corral.values import Json

_KEY = r"\{\{\s*+\.?([A-Za-z_][A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]++)*+)\s*+\}\}"
PLACEHOLDER = re.compile(_KEY)
_GOAL_OR_PLACEHOLDER = re.compile(rf"\$goal(?![A-Za-z0-9_])|\$\{{goal\}}|{_KEY}")


def fill(text: str, context: Mapping[str, Json], goal: str | None = None) -> str:
    """The text with its placeholders filled. Without a goal, ``$goal`` stays."""
    if "$" not in text and "{{" not in text:
        return text

    def replacement(match: re.Match[str]) -> str:
        key = match[1]
        if key is None:
            return match[0] if goal is None else goal
        value = find(context, key)
        if value is None and key == "goal":
            return match[0] if goal is None else goal
        return match[0] if value is None and key not in context else as_text(value)

    return _GOAL_OR_PLACEHOLDER.sub(replacement, text)


def is_filled(text: str) -> bool:
    """Whether the text has a placeholder, or ``$goal``."""
    return _GOAL_OR_PLACEHOLDER.search(text) is not None


def placeholders(text: str) -> Iterator[str]:
    """The keys of the placeholders in a text."""
    return (match[1] for match in PLACEHOLDER.finditer(text))


def find(context: Mapping[str, Json], key: str) -> Json:
    """The value of a key, or None. The key is tried as it is, then without ``context.``, then
    step by step into objects and lists."""
    if key in context:
        return context[key]
    if key.startswith("context."):
        return find(context, key[8:])
    head, dot, rest = key.rpartition(".")
    tail: list[str] = []
    while dot:
        tail.append(rest)
        if head in context:
            break
        head, dot, rest = head.rpartition(".")
    value = context[head] if dot else None
    for step in reversed(tail):
        match value:
            case dict():
                value = value.get(step)
            case list() if step.isdecimal() and len(step) < 10 and int(step) < len(value):
                value = value[int(step)]
            case _:
                return None
    return value


def as_text(value: Json) -> str:
    """The text of a value, as conditions compare it and prompts contain it."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case None:
            return ""
        case int() | float():
            return str(value)
        case _:
            return msgspec.json.encode(value).decode()
