"""Checks a value against a JSON Schema, with error messages that a model can act on.

``jsonschema`` is not used: it needs five packages, and its messages are for readers who see the
schema. The schema must come from ``schema_of``, which rejects keywords that are not checked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from operator import ge, gt, le, lt
from typing import NamedTuple

import msgspec

from corral.values import Json, JsonObject, as_list, as_object, as_texts, number_or_none

MAX_MATCHED = 10_000
"""Characters of a value that has a pattern: the pattern may be slow, and the value a model's."""
MAX_SHOWN = 60
"""Characters of a wrong value that are shown to the model."""


TYPES: dict[str, tuple[str, Callable[[Json], bool]]] = {
    "object": ("an object", lambda v: isinstance(v, dict)),
    "array": ("a list", lambda v: isinstance(v, list)),
    "string": ("a string", lambda v: isinstance(v, str)),
    "number": ("a number", lambda v: number_or_none(v) is not None),
    "integer": ("an integer", lambda v: (n := number_or_none(v)) is not None and n % 1 == 0),
    "boolean": ("true or false", lambda v: isinstance(v, bool)),
    "null": ("null", lambda v: v is None),
}


class Limit(NamedTuple):
    """A keyword that limits a number or a length."""

    size_of: Callable[[Json], float | None]
    """The number to compare; ``None`` if the keyword does not apply to the value."""
    holds: Callable[[float, float], bool]
    description: str


def _text_length(value: Json) -> int | None:
    return len(value) if isinstance(value, str) else None


def _item_count(value: Json) -> int | None:
    return len(value) if isinstance(value, list) else None


def _property_count(value: Json) -> int | None:
    return len(value) if isinstance(value, dict) else None


def _is_multiple(value: float, of: float) -> bool:
    return round(value / of, 9) % 1 == 0


LENGTH_LIMITS = {
    "minLength": Limit(_text_length, ge, "at least {} characters"),
    "maxLength": Limit(_text_length, le, "at most {} characters"),
    "minItems": Limit(_item_count, ge, "at least {} items"),
    "maxItems": Limit(_item_count, le, "at most {} items"),
    "minProperties": Limit(_property_count, ge, "at least {} properties"),
    "maxProperties": Limit(_property_count, le, "at most {} properties"),
}
LIMITS = {
    "minimum": Limit(number_or_none, ge, "at least {}"),
    "maximum": Limit(number_or_none, le, "at most {}"),
    "exclusiveMinimum": Limit(number_or_none, gt, "more than {}"),
    "exclusiveMaximum": Limit(number_or_none, lt, "less than {}"),
    "multipleOf": Limit(number_or_none, _is_multiple, "a multiple of {}"),
    **LENGTH_LIMITS,
}
"""Keyword → what it limits."""


def check(value: Json, schema: Json, root: JsonObject, path: str = "") -> list[str]:
    """All errors of the value; none if it fits."""
    here = path or "the value"
    if not isinstance(schema, dict):
        return [f"{here}: must not be there"] if schema is False else []
    types = schema.get("type", [])
    types = types if isinstance(types, list) else [types]
    if types and not any(TYPES[str(name)][1](value) for name in types):
        words = " or ".join(TYPES[str(name)][0] for name in types)
        return [f"{here}: expected {words}, got {describe(value)}"]
    wrong: list[str] = []
    if isinstance(reference := schema.get("$ref"), str):
        wrong += check(value, resolve_reference(reference, root), root, path)
    wrong += _check_value(value, schema, here)
    if isinstance(value, dict):
        wrong += _check_object(value, schema, root, path)
    elif isinstance(value, list):
        wrong += _check_list(value, schema, root, path)
    for part in as_list(schema.get("allOf")):
        wrong += check(value, part, root, path)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            wrong += _check_alternatives(
                value, as_list(schema[key]), root, path, only_one=key == "oneOf"
            )
    return wrong


def _check_value(value: Json, schema: JsonObject, here: str) -> list[str]:
    """Errors of the value itself: allowed values, limits, pattern."""
    wrong: list[str] = []
    if isinstance(allowed := schema.get("enum"), list) and not any(
        _json_equal(value, a) for a in allowed
    ):
        one_of = ", ".join(msgspec.json.encode(a).decode() for a in allowed)
        wrong.append(f"{here}: expected one of {one_of}, got {describe(value)}")
    if "const" in schema and not _json_equal(value, schema["const"]):
        wrong.append(f"{here}: expected {describe(schema['const'])}, got {describe(value)}")
    for key in LIMITS.keys() & schema.keys():
        size, limit = LIMITS[key].size_of(value), number_or_none(schema[key])
        if size is not None and limit is not None and not LIMITS[key].holds(size, limit):
            expected = LIMITS[key].description.format(limit)
            wrong.append(f"{here}: expected {expected}, got {describe(size)}")
    pattern = schema.get("pattern")
    if isinstance(value, str) and isinstance(pattern, str):
        if len(value) > MAX_MATCHED:
            wrong.append(f"{here}: expected at most {MAX_MATCHED:,} characters, got {len(value):,}")
        elif not re.search(pattern, value):
            wrong.append(f"{here}: expected a match of {pattern}, got {describe(value)}")
    return wrong


def _check_object(value: JsonObject, schema: JsonObject, root: JsonObject, path: str) -> list[str]:
    known = as_object(schema.get("properties"))
    others = schema.get("additionalProperties", True)
    inside = f"{path}." if path else ""
    required = as_texts(schema.get("required"))
    wrong = [f"{inside}{name}: is required and missing" for name in required if name not in value]
    for name, item in value.items():
        if name in known or others is not False:
            wrong += check(item, known.get(name, others), root, f"{inside}{name}")
        else:
            near = get_close_matches(name, known, 1)
            advice = f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}"
            wrong.append(f"{inside}{name}: is not a known property; {advice}")
    return wrong


def _check_list(value: list[Json], schema: JsonObject, root: JsonObject, path: str) -> list[str]:
    first = as_list(schema.get("prefixItems"))
    rest = schema.get("items", True)
    wrong: list[str] = []
    for number, item in enumerate(value):
        part = first[number] if number < len(first) else rest
        wrong += check(item, part, root, f"{path}[{number}]")
    if schema.get("uniqueItems") is True:
        for number, item in enumerate(value):
            if any(_json_equal(item, other) for other in value[:number]):
                wrong.append(f"{path}[{number}]: is there twice: {describe(item)}")
    return wrong


def _check_alternatives(
    value: Json, choices: list[Json], root: JsonObject, path: str, *, only_one: bool
) -> list[str]:
    tried = [check(value, choice, root, path) for choice in choices]
    fits = tried.count([])
    if fits == 1 or (fits and not only_one):
        return []
    here = path or "the value"
    if fits:
        return [f"{here}: expected to fit one of {len(choices)} alternatives, fits {fits}"]
    # An error about a part of the value says more than one about its type.
    deeper = [found for found in tried if not any(c.startswith(f"{here}: ") for c in found)]
    if deeper:
        return min(deeper, key=len)
    begin, end = f"{here}: expected ", f", got {describe(value)}"
    wanted = dict.fromkeys(
        c.removeprefix(begin).removesuffix(end) for found in tried for c in found
    )
    return [f"{begin}{' or '.join(wanted)}{end}"]


def _json_equal(one: Json, other: Json) -> bool:
    """Whether two values are equal as JSON: 1 equals 1.0, but not true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_json_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_json_equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def describe(value: object) -> str:
    """A short description of the value for an error message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool | int | float):
        return "null" if value is None else str(value).lower()[:MAX_SHOWN]
    text = str(value)
    return f"the string {text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '…'!r}"


def resolve_reference(reference: str, root: Json) -> Json:
    """The schema that a reference names; None if it is outside the document or missing."""
    document, *steps = reference.split("/")
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, dict) else None
    return root if document == "#" else None
