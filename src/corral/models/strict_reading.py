"""Reads a vendor's JSON for the judge of tool calls: what is not known exactly is an error.

Everywhere else a field of another type is treated as missing (``corral.values``). Here that would
be a gap: a program might read it as a tool call. So a field that may hold a call must have exactly
the type and the name that the vendor documents. A field that is not known passes if it cannot hold
a call: a scalar, or an object in which nothing is called like one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from corral.values import Json, JsonObject, is_list, is_object

_CALL_WORDS = frozenset(
    (
        "functioncall",
        "functioncalls",
        "toolcall",
        "toolcalls",
        "tooluse",
        "tooluses",
        "customtoolcall",
        "localshellcall",
        "shellcall",
        "applypatchcall",
        "partialargs",
    )
)
"""Names of fields and types that hold a tool call, in lower case and without separators."""
_PROTOTYPE = "__proto__"
"""Programs in JavaScript that copy an object take the fields of this one for its own."""


class Unreadable(Exception):
    """A response has a form in which its tool calls cannot be judged."""


class Incomplete(Unreadable):
    """A response ended before a tool call or an event was complete."""


def required_object(value: Json, what: str) -> JsonObject:
    """Raises ``Unreadable`` for anything else."""
    if not is_object(value):
        raise Unreadable(f"{what} is not an object")
    return value


def optional_object(holder: JsonObject, name: str) -> JsonObject:
    """A field that is an object; empty if there is none. Raises ``Unreadable`` for anything
    else."""
    value = holder.get(name)
    return {} if value is None else required_object(value, name)


def optional_objects(holder: JsonObject, name: str) -> list[JsonObject]:
    """A field that is a list of objects; empty if there is none. Raises ``Unreadable`` for anything
    else."""
    value = holder.get(name)
    if value is None:
        return []
    if not is_list(value):
        raise Unreadable(f"{name} is not a list")
    return [required_object(item, f"an item of {name}") for item in value]


def optional_text(holder: JsonObject, name: str) -> str:
    """A field that is a string; empty if there is none. Raises ``Unreadable`` for anything else."""
    value = holder.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Unreadable(f"{name} is not a string")
    return value


def optional_index(holder: JsonObject, name: str) -> int | None:
    """A field that is a number from 0 on; None if there is none. Raises ``Unreadable`` for anything
    else."""
    value = holder.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Unreadable(f"{name} is not a number from 0 on")
    return value


def check_other_fields(holder: JsonObject, known: Collection[str], what: str) -> None:
    """Raises ``Unreadable`` if a field that is not in ``known`` may hold a tool call."""
    for name, value in holder.items():
        if name not in known and (_is_call_word(name) or _holds_call(value)):
            raise Unreadable(f"{what} has an unknown field that may hold a tool call: {name!r}")


def check_prototypes(value: Json) -> None:
    """Raises ``Unreadable`` for an object that changes how JavaScript reads other objects."""
    if any(name == _PROTOTYPE for name, _ in _fields(value)):
        raise Unreadable(f"an object has a field with the name {_PROTOTYPE}")


def _holds_call(value: Json) -> bool:
    return any(
        _is_call_word(name) or (name == "type" and isinstance(inner, str) and _is_call_word(inner))
        for name, inner in _fields(value)
    )


def _is_call_word(name: str) -> bool:
    return name.replace("_", "").replace("-", "").lower() in _CALL_WORDS


def _fields(value: Json) -> Iterator[tuple[str, Json]]:
    """All fields of all objects in a value."""
    left: list[Json] = [value]
    while left:
        value = left.pop()
        if is_object(value):
            yield from value.items()
            left.extend(value.values())
        elif is_list(value):
            left.extend(value)
