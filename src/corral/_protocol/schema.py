"""Builds a JSON Schema from a Python type, checks JSON values against it and converts them.

``schema_of`` accepts a dataclass, a TypedDict, a msgspec Struct, a type (``list[int]``,
``Literal``, an enum, a union, ``Annotated``), a pydantic model, or a JSON Schema as a dict.
Anything else raises ``SchemaInvalid``.

Keywords that would not be checked are rejected by name. ``format`` and unknown keywords are
annotations. ``$ref`` must stay inside the document. ``Schema.json`` is complete: what a vendor
does not accept is removed from a copy by that vendor's module.

``check`` compares a value with a schema, with error messages that a model can act on.
``jsonschema`` is not used: it needs five packages, and its messages are for readers who see the
schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from operator import ge, gt, le, lt
from typing import (
    Generic,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeGuard,
    cast,
    overload,
)

import msgspec

from corral.errors import SchemaInvalid, SchemaNotMet
from corral.values import (
    Json,
    JsonObject,
    T,
    T_co,
    as_list,
    as_object,
    as_text,
    as_texts,
    convert_to,
    is_mapping,
    number_or_none,
)

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


class LimitKeyword(NamedTuple):
    """A keyword that limits a number or a length."""

    size_of: Callable[[Json], float | None]
    """The number to compare; ``None`` if the keyword does not apply to the value."""
    holds: Callable[[float, float], bool]
    description: str


def _length_limits(name: str, kind: type, unit: str) -> dict[str, LimitKeyword]:
    def length(value: Json) -> int | None:
        return len(value) if isinstance(value, str | list | dict) and type(value) is kind else None

    return {
        f"min{name}": LimitKeyword(length, ge, f"at least {{}} {unit}"),
        f"max{name}": LimitKeyword(length, le, f"at most {{}} {unit}"),
    }


LENGTH_LIMITS = {
    **_length_limits("Length", str, "characters"),
    **_length_limits("Items", list, "items"),
    **_length_limits("Properties", dict, "properties"),
}


def _is_multiple(value: float, of: float) -> bool:
    """Exact for the numbers as they are written: 0.07 is a multiple of 0.01, and no digit of a
    large integer is lost in a float."""
    if isinstance(value, int) and isinstance(of, int):
        return value % of == 0
    from fractions import Fraction  # slow to import, and rarely needed

    try:
        return Fraction(repr(value)) % Fraction(repr(of)) == 0
    except ValueError:  # infinite
        return False


LIMITS: dict[str, LimitKeyword] = {
    "minimum": LimitKeyword(number_or_none, ge, "at least {}"),
    "maximum": LimitKeyword(number_or_none, le, "at most {}"),
    "exclusiveMinimum": LimitKeyword(number_or_none, gt, "more than {}"),
    "exclusiveMaximum": LimitKeyword(number_or_none, lt, "less than {}"),
    "multipleOf": LimitKeyword(number_or_none, _is_multiple, "a multiple of {}"),
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
        json_equal(value, a) for a in allowed
    ):
        one_of = ", ".join(msgspec.json.encode(a).decode() for a in allowed)
        wrong.append(f"{here}: expected one of {one_of}, got {describe(value)}")
    if "const" in schema and not json_equal(value, schema["const"]):
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
            if any(json_equal(item, other) for other in value[:number]):
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


def json_equal(one: Json, other: Json) -> bool:
    """Whether two values are equal as JSON: 1 equals 1.0, but not true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
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


def find_properties(root: JsonObject) -> dict[str, list[Json]]:
    """The properties that a valid schema defines, at any depth: name → the schemas of its values.
    Definitions count only if something refers to them."""
    found: dict[str, list[Json]] = {}
    references: set[str] = set()

    def search(schema: JsonObject) -> JsonObject:
        reference = as_text(schema.get("$ref"))
        if reference and reference not in references:
            references.add(reference)
            search(as_object(resolve_reference(reference, root)))
        for key, value in schema.items():
            if key == "properties":
                for name, field in as_object(value).items():
                    found.setdefault(name, []).append(field)
            if key not in ("$defs", "definitions"):
                _map_subschemas(key, value, search)
        return schema

    search(root)
    return found


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
    """A schema, and the conversion of a JSON value to the type that it describes; made by
    ``corral.schema_of``.

    ::

        names: corral.Schema[list[str]] = corral.schema_of(list[str])
        print(names.json, names.typed_value(["a", "b"]))
    """

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

    def typed_value(self, value: Json) -> T_co:
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
def schema_of(of: Mapping[str, object], name: str | None = None) -> Schema[Json]: ...
@overload
def schema_of(of: object, name: str | None = None) -> Schema: ...
def schema_of(of: object, name: str | None = None) -> Schema:
    """The schema of a type, a model or a JSON Schema as a dict. ``name`` is its name for the model.

    ``output`` accepts these values directly. Type checkers know the type of ``output=Review`` and
    ``output=list[Review]``; a JSON Schema, ``Literal`` or a union needs this function::

        from typing import Literal

        verdict = corral.schema_of(Literal["yes", "no"])
        result = corral.run_sync("gemini-cli", "Is this code tested?", output=verdict)

    Raises ``SchemaInvalid``.
    """
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
        if of is object:
            raise TypeError("it has no type")
        if is_model(of):
            json = of.model_json_schema()
        else:
            json = msgspec.json.schema(of, schema_hook=_model_schema)
    except Exception as error:  # the caller's own classes may raise anything here
        raise SchemaInvalid(f"{label} cannot be a JSON Schema: {error}") from error
    json = _hoist_definitions(json, label)
    return Schema(label, json, _model_reader(of) if is_model(of) else _type_reader(of, json))


def without_samples(schema: Json) -> Json:
    """A JSON Schema whose descriptions have no samples of docstrings: they end before ``::``."""
    if isinstance(schema, list):
        return [without_samples(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: without_samples(value) for key, value in schema.items()}
    if isinstance(text := plain.get("description"), str):
        plain["description"] = re.split(r"\n[ \t]*::\n", text)[0].strip()
    return plain


def _is_schema(of: object) -> TypeGuard[Schema[object]]:
    return isinstance(of, Schema)


def is_model(kind: object) -> TypeGuard[type[PydanticModel]]:
    """Whether this is a pydantic model, by its methods."""
    methods = ("model_json_schema", "model_validate_json")
    return isinstance(kind, type) and all(callable(getattr(kind, name, None)) for name in methods)


def _model_schema(kind: object) -> JsonObject:
    if kind is object:  # within another type; msgspec takes no empty schema
        return {"description": "any value"}
    if not is_model(kind):
        raise TypeError(f"the type {getattr(kind, '__qualname__', kind)} is not supported")
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
            wrong, _, path = str(error).partition(" - at `$")
            path = path.rstrip("`").removeprefix(".") or "the value"
            return None, check(value, json, json) or [f"{path}: {wrong}"]

    return read


def _decoded_model(kind: type, value: Json) -> object:
    if kind is object:
        return value
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
