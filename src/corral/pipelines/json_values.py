"""Whether a value is JSON: what a context may hold, and a journal can keep."""

from __future__ import annotations

import math
from typing import cast

DEEPEST = 100
"""Levels of a value: more cannot be read back by every reader of JSON."""


def not_json(value: object, depth: int = 0) -> str | None:
    """What is wrong with it; None where it is JSON."""
    match value:
        case None | bool():
            return None
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return "holds half a character"
            return None
        case int():
            return None if -(2**63) <= value < 2**64 else "is a number beyond 64 bits"
        case float():
            return None if math.isfinite(value) else f"is {value}"
        case _ if depth >= DEEPEST:
            return f"is nested over {DEEPEST} deep"
        case list() | tuple():
            inner = cast("list[object]", value)
            return next((w for each in inner if (w := not_json(each, depth + 1))), None)
        case dict():
            for key, held in cast("dict[object, object]", value).items():
                if not isinstance(key, str):
                    return f"has a key that is no text: {key!r}"
                if wrong := not_json(key) or not_json(held, depth + 1):
                    return wrong
            return None
        case _:
            return f"is or holds a {type(value).__name__}"
