"""Builds a JSON Schema from a Python type, and converts JSON values by it.

``schema_of`` accepts a dataclass, a TypedDict, a msgspec Struct, a type (``list[int]``,
``Literal``, an enum, a union, ``Annotated``), a pydantic model, or a JSON Schema as a dict.
Anything else raises ``SchemaInvalid``.

Keywords that would not be checked are rejected by name. ``format`` and unknown keywords are
annotations. ``$ref`` must stay inside the document. ``Schema.json`` is complete: what a vendor
does not accept is removed from a copy by that vendor's module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast, overload

import msgspec

from corral.errors import SchemaInvalid, SchemaNotMet
from corral.protocol.schema.validate import (
    LIMITS,
    TYPES,
    check,
    describe,
    resolve_reference,
)
from corral.values import Json, JsonObject

T = TypeVar("T")
Read = Callable[[Json], tuple[Any, list[str]]]

MAX_COMPLAINTS = 20
"""Errors that are reported at once."""

MAPS_OF_SCHEMAS = ("properties", "$defs", "definitions")
SINGLE_SCHEMAS = ("items", "additionalProperties")
LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
"""Keywords that hold further schemas: in a map by name, alone, or in a list."""

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
        **{key: {"type": "object", "additionalProperties": _SCHEMA} for key in MAPS_OF_SCHEMAS},
        **dict.fromkeys(SINGLE_SCHEMAS, _SCHEMA),
        **{key: {"type": "array", "minItems": 1, "items": _SCHEMA} for key in LISTS_OF_SCHEMAS},
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
"""The schema of a schema: a dict given by the caller is checked with the same checker."""


class Schema(Generic[T]):
    """A schema, and the conversion of a JSON value to the type that it describes."""

    __slots__ = ("_read", "json", "name")

    def __init__(self, name: str, json: JsonObject, read: Read) -> None:
        self.name = name
        self.json = json
        self._read = read

    def fit(self, value: Json) -> tuple[T | None, tuple[str, ...]]:
        """The typed value and no errors, or None and the errors. Never raises for a wrong
        value."""
        try:
            typed, complaints = self._read(value)
        except (RecursionError, OverflowError):
            return None, ("the value is nested too deeply, or holds too large a number",)
        if len(complaints) > MAX_COMPLAINTS:
            complaints = [
                *complaints[:MAX_COMPLAINTS],
                f"and {len(complaints) - MAX_COMPLAINTS} more",
            ]
        return (None if complaints else typed), tuple(complaints)

    def validate(self, value: Json) -> T:
        """The typed value. Raises ``SchemaNotMet`` with one line per error."""
        typed, complaints = self.fit(value)
        if complaints:
            raise schema_not_met(self.name, complaints)
        return cast("T", typed)


def schema_not_met(name: str, complaints: tuple[str, ...], text: str | None = None) -> SchemaNotMet:
    """The error for these complaints; its ``frame`` holds the text that was checked."""
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
        return _schema_from_json(cast("Mapping[str, Json]", of), name)
    if of is None or isinstance(of, str | bytes | int | float | list | tuple):
        raise SchemaInvalid(
            f"a schema must be a type or a JSON Schema as a dict, got: {of!r}",
            hint="Pass the class itself, list[int], Literal['a', 'b'], or {'type': 'object', …}.",
        )
    label = name or getattr(of, "__name__", None) or "result"
    try:
        hook = _model_schema
        json = hook(of) if is_model(of) else msgspec.json.schema(of, schema_hook=hook)
    except Exception as error:  # the caller's own classes may raise anything here
        raise SchemaInvalid(f"{label} cannot be a JSON Schema: {error}") from error
    json = _hoist_definitions(json, label)
    return Schema(label, json, _model_reader(of) if is_model(of) else _type_reader(of, json))


def is_model(kind: object) -> bool:
    """Whether this is a pydantic model, by its methods: pydantic is never imported here."""
    methods = ("model_json_schema", "model_validate_json")
    return isinstance(kind, type) and all(callable(getattr(kind, name, None)) for name in methods)


def _model_schema(kind: Any) -> JsonObject:
    if not is_model(kind):
        raise NotImplementedError
    return cast("JsonObject", kind.model_json_schema())


def _hoist_definitions(json: JsonObject, label: str) -> JsonObject:
    """The schema with all definitions at the root, and no ``$ref`` at the root: the schema of a
    tool must have a ``type``."""
    defs: JsonObject = {}

    def gather(schema: JsonObject) -> JsonObject:
        for name, found in cast("JsonObject", schema.get("$defs", {})).items():
            whole = gather(cast("JsonObject", found))
            if defs.setdefault(name, whole) != whole:
                raise SchemaInvalid(f"{label}: two different types are called {name}")
        return {
            key: _map_subschemas(key, value, gather)
            for key, value in schema.items()
            if key != "$defs"
        }

    root = gather(json)
    reference = root.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        target = reference.removeprefix("#/$defs/")
        beside = {key: value for key, value in root.items() if key != "$ref"}
        root = {**cast("JsonObject", defs[target]), **beside}
        if reference.encode() not in msgspec.json.encode([root, defs]):
            del defs[target]
    return {**root, "$defs": defs} if defs else root


def _map_subschemas(key: str, value: Json, each: Callable[[JsonObject], JsonObject]) -> Json:
    if key in MAPS_OF_SCHEMAS and isinstance(value, dict):
        return {n: each(s) if isinstance(s, dict) else s for n, s in value.items()}
    if key in LISTS_OF_SCHEMAS and isinstance(value, list):
        return [each(s) if isinstance(s, dict) else s for s in value]
    return each(value) if key in SINGLE_SCHEMAS and isinstance(value, dict) else value


def _type_reader(kind: Any, json: JsonObject) -> Read:
    def read(value: Json) -> tuple[Any, list[str]]:
        try:
            return msgspec.convert(value, kind, str_keys=True, dec_hook=_decoded_model), []
        except msgspec.ValidationError as error:
            # msgspec reports the first error only. The checker reports all, but does not know
            # the constraints that only the type has.
            return None, check(value, json, json) or [_format_msgspec_error(str(error))]

    return read


def _format_msgspec_error(message: str) -> str:
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
            return None, [
                _format_model_error(wrong) for wrong in cast("list[dict[str, Any]]", listed())
            ]

    return read


def _format_model_error(wrong: dict[str, Any]) -> str:
    path = ""
    for step in wrong["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    got = "" if wrong["type"] == "missing" else f", got {describe(wrong['input'])}"
    return f"{path.lstrip('.') or 'the value'}: {wrong['msg']}{got}"


def _schema_from_json(given: Mapping[str, Json], name: str | None) -> Schema[Any]:
    json = dict(given)
    try:
        wrong = check(json, META, META, "schema") or _find_unusable(json, json)
    except RecursionError as error:
        raise SchemaInvalid("the schema cannot be used: it is nested too deeply") from error
    if wrong:
        errors = "; ".join(wrong[:MAX_COMPLAINTS])
        raise SchemaInvalid(f"the schema cannot be used: {errors}")
    label = name or str(json.get("title") or "result")
    return Schema(label, json, lambda value: (value, check(value, json, json)))


def _find_unusable(schema: JsonObject, root: JsonObject) -> list[str]:
    """Errors for references that lead nowhere or in circles, and for invalid patterns."""
    wrong: list[str] = []

    def look(below: JsonObject) -> JsonObject:
        seen: list[Json] = []
        step: Json = below
        while isinstance(step, dict) and "$ref" in step:
            step = None if step["$ref"] in seen else resolve_reference(step["$ref"], root, seen)
        if step is None:
            wrong.append(f"$ref {below['$ref']!r} does not lead to a schema")
        try:
            re.compile(cast("str", below.get("pattern", "")))
        except re.error as error:
            wrong.append(f"pattern {below['pattern']!r}: {error}")
        for key, value in below.items():
            _map_subschemas(key, value, look)
        return below

    look(schema)
    return wrong
