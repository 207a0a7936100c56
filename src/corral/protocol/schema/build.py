"""Python type → JSON Schema, and values checked against it with complaints a model can act on.

``schema_of`` takes a dataclass, a TypedDict, a msgspec Struct, a plain type
(``list[int]``, ``Literal``, an enum, a union, ``Annotated``), a pydantic model that
the caller brings, or a JSON Schema as a dict. Whatever cannot be a schema raises
``SchemaInvalid`` there, before anything starts.

A keyword that would go unchecked is refused by name; ``format`` and unknown ones are
annotations. ``$ref`` stays inside the document. ``Schema.json`` is whole: what a
vendor refuses is taken out of a copy, elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast, overload

import msgspec

from corral.errors import SchemaInvalid, SchemaNotMet
from corral.events import Json
from corral.protocol.schema.validate import LIMITS, TYPES, JsonObject, check, resolved, shown

T = TypeVar("T")
Read = Callable[[Json], tuple[Any, list[str]]]

MOST = 20
"""Complaints that are told at once; more would drown the first ones."""

BY_NAME = ("properties", "$defs", "definitions")
BELOW = ("items", "additionalProperties")
LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
"""Where schemas hold further schemas: by name, alone, in a list."""

UNCHECKED = (
    *("not", "if", "then", "else", "contains", "patternProperties", "propertyNames"),
    *("dependentSchemas", "dependentRequired", "dependencies", "additionalItems"),
    *("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
)

_SCHEMA: JsonObject = {"$ref": "#"}
_TYPE: JsonObject = {"enum": [*TYPES]}
META: JsonObject = {
    "type": ["object", "boolean"],
    "properties": {
        **{key: {"type": "object", "additionalProperties": _SCHEMA} for key in BY_NAME},
        **dict.fromkeys(BELOW, _SCHEMA),
        **{key: {"type": "array", "minItems": 1, "items": _SCHEMA} for key in LISTED},
        **{key: {"type": "number"} for key in LIMITS},
        **{key: {"type": "integer", "minimum": 0} for key in LIMITS if LIMITS[key][1]},
        **dict.fromkeys(UNCHECKED, False),
        "multipleOf": {"type": "number", "exclusiveMinimum": 0},
        "type": {"anyOf": [_TYPE, {"type": "array", "minItems": 1, "items": _TYPE}]},
        "required": {"type": "array", "items": {"type": "string"}},
        "enum": {"type": "array", "minItems": 1},
        "uniqueItems": {"type": "boolean"},
        "pattern": {"type": "string"},
        "$ref": {"type": "string"},
    },
}
"""A schema's own schema: a dict that somebody gives is checked by the same checker."""


class Schema(Generic[T]):
    """A schema, and how a JSON value becomes what it describes."""

    __slots__ = ("_read", "json", "name")

    def __init__(self, name: str, json: JsonObject, read: Read) -> None:
        self.name = name
        self.json = json
        self._read = read

    def fit(self, value: Json) -> tuple[T | None, tuple[str, ...]]:
        """The typed value and no complaints, or None and what is wrong with it. Never raises
        for a wrong value, however deep or odd."""
        try:
            typed, complaints = self._read(value)
        except (RecursionError, OverflowError):
            return None, ("the value is nested too deeply, or holds too large a number",)
        if len(complaints) > MOST:
            complaints = [*complaints[:MOST], f"and {len(complaints) - MOST} more"]
        return (None if complaints else typed), tuple(complaints)

    def validate(self, value: Json) -> T:
        """The typed value; ``SchemaNotMet`` with every complaint on a line of its own."""
        typed, complaints = self.fit(value)
        if complaints:
            raise not_met(self.name, complaints)
        return cast("T", typed)


def not_met(name: str, complaints: tuple[str, ...], text: str | None = None) -> SchemaNotMet:
    """The error; ``frame`` holds the text that it is about."""
    listed = "".join(f"\n- {complaint}" for complaint in complaints)
    return SchemaNotMet(f"the value does not fit {name}:{listed}", frame=text)


@overload
def schema_of(of: Schema[T] | type[T], name: str | None = None) -> Schema[T]: ...
@overload
def schema_of(of: object, name: str | None = None) -> Schema[Any]: ...
def schema_of(of: Schema[T] | object, name: str | None = None) -> Schema[T] | Schema[Any]:
    """The schema behind a type, a model or a JSON Schema dict. Raises ``SchemaInvalid``."""
    if isinstance(of, Schema):
        return cast("Schema[T]", of)
    if isinstance(of, Mapping):
        return _of_json(cast("Mapping[str, Json]", of), name)
    if of is None or isinstance(of, str | bytes | int | float | list | tuple):
        raise SchemaInvalid(
            f"a schema is a type or a JSON Schema as a dict, got: {of!r}",
            hint="Give the class itself, list[int], Literal['a', 'b'], or {'type': 'object', …}.",
        )
    label = name or getattr(of, "__name__", None) or "result"
    try:
        hook = _model_schema
        json = hook(of) if is_model(of) else msgspec.json.schema(of, schema_hook=hook)
    except Exception as error:  # the caller's own classes may raise anything here
        raise SchemaInvalid(f"{label} cannot be a JSON Schema: {error}") from error
    json = _tidy(json, label)
    return Schema(label, json, _model_reader(of) if is_model(of) else _type_reader(of, json))


def is_model(kind: object) -> bool:
    """A pydantic model, known by its methods: pydantic itself is never imported here."""
    methods = ("model_json_schema", "model_validate_json")
    return isinstance(kind, type) and all(callable(getattr(kind, name, None)) for name in methods)


def _model_schema(kind: Any) -> JsonObject:
    if not is_model(kind):
        raise NotImplementedError
    return cast("JsonObject", kind.model_json_schema())


def _tidy(json: JsonObject, label: str) -> JsonObject:
    """All definitions at the root, and the root itself written out: tools must say ``type``."""
    defs: JsonObject = {}

    def gather(schema: JsonObject) -> JsonObject:
        for name, found in cast("JsonObject", schema.get("$defs", {})).items():
            whole = gather(cast("JsonObject", found))
            if defs.setdefault(name, whole) != whole:
                raise SchemaInvalid(f"{label}: two different types are called {name}")
        return {key: _rebuilt(key, held, gather) for key, held in schema.items() if key != "$defs"}

    root = gather(json)
    reference = root.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        target = reference.removeprefix("#/$defs/")
        beside = {key: held for key, held in root.items() if key != "$ref"}
        root = {**cast("JsonObject", defs[target]), **beside}
        if reference.encode() not in msgspec.json.encode([root, defs]):
            del defs[target]
    return {**root, "$defs": defs} if defs else root


def _rebuilt(key: str, held: Json, each: Callable[[JsonObject], JsonObject]) -> Json:
    if key in BY_NAME and isinstance(held, dict):
        return {n: each(s) if isinstance(s, dict) else s for n, s in held.items()}
    if key in LISTED and isinstance(held, list):
        return [each(s) if isinstance(s, dict) else s for s in held]
    return each(held) if key in BELOW and isinstance(held, dict) else held


def _type_reader(kind: Any, json: JsonObject) -> Read:
    def read(value: Json) -> tuple[Any, list[str]]:
        try:
            return msgspec.convert(value, kind, str_keys=True, dec_hook=_decoded_model), []
        except msgspec.ValidationError as error:
            # It stops at the first; the schema knows them all, but not what a type adds.
            return None, check(value, json, json) or [_in_our_words(str(error))]

    return read


def _in_our_words(message: str) -> str:
    said, _, place = message.partition(" - at `$")
    place = place.rstrip("`").removeprefix(".")
    return f"{place or 'the value'}: {said}"


def _decoded_model(kind: type, value: Any) -> Any:
    if not is_model(kind):
        raise NotImplementedError(f"{kind.__name__} cannot be made of JSON")
    typed, complaints = _model_reader(kind)(value)
    if complaints:
        raise ValueError("; ".join(complaints))
    return typed


def _model_reader(kind: Any) -> Read:
    def read(value: Json) -> tuple[Any, list[str]]:
        try:
            return kind.model_validate_json(msgspec.json.encode(value)), []
        except ValueError as error:
            listed: Any = getattr(error, "errors", None)
            if not callable(listed):
                return None, [str(error)]
            return None, [_of_model(wrong) for wrong in cast("list[dict[str, Any]]", listed())]

    return read


def _of_model(wrong: dict[str, Any]) -> str:
    path = ""
    for step in wrong["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    got = "" if wrong["type"] == "missing" else f", got {shown(wrong['input'])}"
    return f"{path.lstrip('.') or 'the value'}: {wrong['msg']}{got}"


def _of_json(given: Mapping[str, Json], name: str | None) -> Schema[Any]:
    json = dict(given)
    try:
        wrong = check(json, META, META, "schema") or _unusable(json, json)
    except RecursionError as error:
        raise SchemaInvalid("not a schema that can be checked: nested too deeply") from error
    if wrong:
        raise SchemaInvalid(f"not a schema that can be checked: {'; '.join(wrong[:MOST])}")
    label = name or str(json.get("title") or "result")
    return Schema(label, json, lambda value: (value, check(value, json, json)))


def _unusable(schema: JsonObject, root: JsonObject) -> list[str]:
    """References that lead nowhere or in circles, and patterns that are none."""
    wrong: list[str] = []

    def look(below: JsonObject) -> JsonObject:
        seen: list[Json] = []
        step: Json = below
        while isinstance(step, dict) and "$ref" in step:
            step = None if step["$ref"] in seen else resolved(step["$ref"], root, seen)
        if step is None:
            wrong.append(f"$ref {below['$ref']!r} leads nowhere in it")
        try:
            re.compile(cast("str", below.get("pattern", "")))
        except re.error as error:
            wrong.append(f"pattern {below['pattern']!r}: {error}")
        for key, held in below.items():
            _rebuilt(key, held, look)
        return below

    look(schema)
    return wrong
