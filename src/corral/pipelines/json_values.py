"""Whether a value is JSON, so that a context can hold it and a journal can store it."""

from __future__ import annotations

import math
from typing import cast

MAX_DEPTH = 100
"""Levels of nesting: not every JSON reader can read more."""


def not_json(value: object, depth: int = 0) -> str | None:
    """Why the value is not JSON; None if it is."""
    match value:
        case None | bool():
            return None
        case str():
            return _not_json_text(value)
        case int():
            return None if -(2**63) <= value < 2**64 else "is a number beyond 64 bits"
        case float():
            return None if math.isfinite(value) else f"is {value}"
        case list() | tuple() | dict():
            return _not_json_container(cast("list[object] | dict[object, object]", value), depth)
        case _:
            return f"is or holds a {type(value).__name__}"


def _not_json_text(value: str) -> str | None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return "has a lone surrogate: it cannot be encoded"
    return None


def _not_json_container(value: list[object] | dict[object, object], depth: int) -> str | None:
    if depth >= MAX_DEPTH:
        return f"is nested more than {MAX_DEPTH} deep"
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return f"has a key that is not text: {key!r}"
            if wrong := not_json(key) or not_json(item, depth + 1):
                return wrong
        return None
    return next((wrong for item in value if (wrong := not_json(item, depth + 1))), None)
