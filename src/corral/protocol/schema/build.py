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
from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypedDict, TypeGuard, TypeVar, cast, overload

import msgspec

from corral.errors import SchemaInvalid, SchemaNotMet
from corral.protocol.schema.validate import (
    LENGTH_LIMITS,
    LIMITS,
    TYPES,
    check,
    describe,
    resolve_reference,
)
from corral.values import Json, JsonObject, as_object, as_text, convert_to, is_mapping

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Read: TypeAlias = Callable[[Json], tuple[T | None, list[str]]]
"""Converts a value: the typed value and no errors, or ``None`` and the errors."""

MAX_ERRORS = 20
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
        **{key: {"type": "integer", "minimum": 0} for key in LENGTH_LIMITS},
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


class PydanticModel(Protocol):
    """The methods of a pydantic model that are used here: pydantic is never imported."""

    @classmethod
    def model_json_schema(cls) -> JsonObject: ...
    @classmethod
    def model_validate_json(cls, json_data: bytes) -> object: ...


class ModelError(TypedDict):
    """One entry of ``pydantic.ValidationError.errors()``."""

    loc: tuple[int | str, ...]
    type: str
    msg: str
    input: object


class Schema(Generic[T_co]):
    """A schema, and the conversion of a JSON value to the type that it describes."""

    __slots__ = ("_read", "json", "name")

    def __init__(self, name: str, json: JsonObject, read: Read[T_co]) -> None:
        self.name = name
        self.json = json
        self._read = read

    def fit(self, value: Json) -> tuple[T_co | None, tuple[str, ...]]:
        """The typed value and no errors, or None and the errors. Never raises for a wrong
        value."""
        try:
            typed, errors = self._read(value)
        except (RecursionError, OverflowError):
            return None, ("the value is nested too deeply, or holds too large a number",)
        if len(errors) > MAX_ERRORS:
            errors = [*errors[:MAX_ERRORS], f"and {len(errors) - MAX_ERRORS} more"]
        return (None if errors else typed), tuple(errors)

    def validate(self, value: Json) -> T_co:
        """The typed value. Raises ``SchemaNotMet`` with one line per error."""
        typed, errors = self.fit(value)
        if errors:
            raise schema_not_met(self.name, errors)
        return cast("T_co", typed)  # None only if the schema allows null


def schema_not_met(name: str, errors: tuple[str, ...], text: str | None = None) -> SchemaNotMet:
    """The exception for these errors; its ``frame`` is the text that was checked."""
    listed = "".join(f"\n- {error}" for error in errors)
    return SchemaNotMet(f"the value does not fit {name}:{listed}", frame=text)


@overload
def schema_of(of: Schema[T] | type[T], name: str | None = None) -> Schema[T]: ...
@overload
def schema_of(of: object, name: str | None = None) -> Schema[object]: ...
def schema_of(of: object, name: str | None = None) -> Schema[object]:
    """The schema of a type, a model or a JSON Schema dict. Raises ``SchemaInvalid``."""
    if _is_schema(of):
        return of
    if is_mapping(of):
        return _schema_from_json(dict(of), name)
    if of is None or isinstance(of, str | bytes | int | float | list | tuple):
        raise SchemaInvalid(
            f"a schema must be a type or a JSON Schema as a dict, got: {of!r}",
            hint="Pass the class itself, list[int], Literal['a', 'b'], or {'type': 'object', …}.",
        )
    label = name or getattr(of, "__name__", None) or "result"
    try:
        json = _type_schema(of)
    except Exception as error:  # the caller's own classes may raise anything here
        raise SchemaInvalid(f"{label} cannot be a JSON Schema: {error}") from error
    json = _hoist_definitions(json, label)
    return Schema(label, json, _model_reader(of) if is_model(of) else _type_reader(of, json))


def _is_schema(of: object) -> TypeGuard[Schema[object]]:
    return isinstance(of, Schema)


def is_model(kind: object) -> TypeGuard[type[PydanticModel]]:
    """Whether this is a pydantic model, by its methods."""
    methods = ("model_json_schema", "model_validate_json")
    return isinstance(kind, type) and all(callable(getattr(kind, name, None)) for name in methods)


def _type_schema(kind: object) -> JsonObject:
    if is_model(kind):
        return kind.model_json_schema()
    return msgspec.json.schema(kind, schema_hook=_model_schema)


def _model_schema(kind: object) -> JsonObject:
    if not is_model(kind):
        raise NotImplementedError
    return kind.model_json_schema()


def _hoist_definitions(json: JsonObject, label: str) -> JsonObject:
    """The schema with all definitions at the root, and no ``$ref`` at the root: the schema of a
    tool must have a ``type``."""
    defs: JsonObject = {}

    def gather(schema: JsonObject) -> JsonObject:
        for name, found in as_object(schema.get("$defs")).items():
            definition = gather(as_object(found))
            if defs.setdefault(name, definition) != definition:
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
        root = {**as_object(defs[target]), **beside}
        if reference.encode() not in msgspec.json.encode([root, defs]):
            del defs[target]
    return {**root, "$defs": defs} if defs else root


def _map_subschemas(key: str, value: Json, each: Callable[[JsonObject], JsonObject]) -> Json:
    if key in MAPS_OF_SCHEMAS and isinstance(value, dict):
        return {n: each(s) if isinstance(s, dict) else s for n, s in value.items()}
    if key in LISTS_OF_SCHEMAS and isinstance(value, list):
        return [each(s) if isinstance(s, dict) else s for s in value]
    return each(value) if key in SINGLE_SCHEMAS and isinstance(value, dict) else value


def _type_reader(kind: object, json: JsonObject) -> Read[object]:
    def read(value: Json) -> tuple[object, list[str]]:
        try:
            return convert_to(value, kind, str_keys=True, dec_hook=_decoded_model), []
        except msgspec.ValidationError as error:
            # msgspec reports the first error only. The checker reports all, but does not know
            # the constraints that only the type has.
            return None, check(value, json, json) or [_format_msgspec_error(str(error))]

    return read


def _format_msgspec_error(message: str) -> str:
    error, _, path = message.partition(" - at `$")
    path = path.rstrip("`").removeprefix(".")
    return f"{path or 'the value'}: {error}"


def _decoded_model(kind: type, value: Json) -> object:
    if not is_model(kind):
        raise NotImplementedError(f"{kind.__name__} cannot be made of JSON")
    typed, errors = _model_reader(kind)(value)
    if errors:
        raise ValueError("; ".join(errors))
    return typed


def _model_reader(kind: type[PydanticModel]) -> Read[object]:
    def read(value: Json) -> tuple[object, list[str]]:
        try:
            return kind.model_validate_json(msgspec.json.encode(value)), []
        except ValueError as error:
            list_errors: Callable[[], list[ModelError]] | None = getattr(error, "errors", None)
            if not callable(list_errors):
                return None, [str(error)]
            return None, [_format_model_error(wrong) for wrong in list_errors()]

    return read


def _format_model_error(wrong: ModelError) -> str:
    path = ""
    for step in wrong["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    got = "" if wrong["type"] == "missing" else f", got {describe(wrong['input'])}"
    return f"{path.lstrip('.') or 'the value'}: {wrong['msg']}{got}"


def _schema_from_json(json: JsonObject, name: str | None) -> Schema[Json]:
    try:
        wrong = check(json, META, META, "schema") or _find_unusable(json, json)
    except RecursionError as error:
        raise SchemaInvalid("the schema cannot be used: it is nested too deeply") from error
    if wrong:
        errors = "; ".join(wrong[:MAX_ERRORS])
        raise SchemaInvalid(f"the schema cannot be used: {errors}")
    label = name or str(json.get("title") or "result")
    return Schema(label, json, lambda value: (value, check(value, json, json)))


def _find_unusable(schema: JsonObject, root: JsonObject) -> list[str]:
    """Errors for references that lead nowhere or in circles, and for invalid patterns."""
    wrong: list[str] = []

    def search(below: JsonObject) -> JsonObject:
        seen: list[str] = []
        step: Json = below
        while isinstance(step, dict) and "$ref" in step:
            reference = as_text(step["$ref"])
            step = None if reference in seen else resolve_reference(reference, root)
            seen.append(reference)
        if step is None:
            wrong.append(f"$ref {below['$ref']!r} does not lead to a schema")
        try:
            re.compile(as_text(below.get("pattern")))
        except re.error as error:
            wrong.append(f"pattern {below['pattern']!r}: {error}")
        for key, value in below.items():
            _map_subschemas(key, value, search)
        return below

    search(schema)
    return wrong
