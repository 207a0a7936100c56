"""Read fields of a request. Invalid values are skipped: a client under test may send anything, and
the test decides what is correct.
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
    """Text is a string, or parts among others such as images."""
    if isinstance(content, str):
        return (content,) if content else ()
    return tuple(text for part in tables(content) if isinstance(text := part.get("text"), str))


def result(content: Json) -> Json:
    """What a tool returned. Texts of several parts are joined."""
    return "\n".join(texts(content)) if isinstance(content, list) else content


def arguments(written: Json) -> dict[str, Json]:
    """The arguments of a call, from the string that the model wrote."""
    args: Json = None
    with suppress(msgspec.DecodeError, RecursionError):  # the string of a model need not be JSON
        args = msgspec.json.decode(string(written) or "{}")
    return args if isinstance(args, dict) else {}
