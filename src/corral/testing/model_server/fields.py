"""Taking apart what a client sent.

Leniently: a client under test may send anything, and what it sent is for the
test to judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from corral.values import Json


def items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def tables(value: Json) -> Iterator[dict[str, Json]]:
    return (entry for entry in items(value) if isinstance(entry, dict))


def string(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def texts(content: Json) -> tuple[str, ...]:
    """Text comes bare, or as parts beside images."""
    if isinstance(content, str):
        return (content,) if content else ()
    return tuple(text for part in tables(content) if isinstance(text := part.get("text"), str))


def result(content: Json) -> Json:
    """What a tool returned: its texts joined where it came in parts."""
    return "\n".join(texts(content)) if isinstance(content, list) else content


def arguments(written: Json) -> dict[str, Json]:
    """Of a call, from the string that the model wrote."""
    args: Json = None
    with suppress(msgspec.DecodeError, RecursionError):  # a model's words need not be JSON
        args = msgspec.json.decode(string(written) or "{}")
    return args if isinstance(args, dict) else {}
