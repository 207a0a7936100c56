"""Builds a JSON Schema from a Python type, checks JSON values against it and converts them.

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
from typing import (
    Generic,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeGuard,
    cast,
    overload,
)

import msgspec

from corral._core.display import shorten
from corral._protocol.validation import (
    LENGTH_LIMITS,
    LIMITS,
    TYPES,
    OutOfSteps,
    Steps,
    Validator,
    check,
    compile_pattern,
    describe,
    resolve_reference,
)
from corral.errors import SchemaInvalid, SchemaNotMet
from corral.values import (
    Json,
    JsonObject,
    T,
    T_co,
    as_list,
    as_object,
    as_text,
    convert_to,
    is_mapping,
)


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

MAX_PARTS = 20_000
"""Values in a schema, of its keywords too. It is also written into prompts, and converted
for vendors."""
MAX_REFERENCES = 100
"""Schemas, each in the one before, that are compared with the same value."""
NO_LINEAR_PATTERN = (
    "A pattern has the syntax of RE2: without look-around and back references, and with at most"
    " 1,000 repetitions. One of a Python type is matched by the library of that type."
)

MAPS_OF_SCHEMAS = ("properties", "$defs", "definitions")
SINGLE_SCHEMAS = ("items", "additionalProperties")
SAME_VALUE = ("anyOf", "oneOf", "allOf")
LISTS_OF_SCHEMAS = (*SAME_VALUE, "prefixItems")
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

    def __init__(self, name: str, json: JsonObject, read: Read[T_co] | Validator) -> None:
        self.name = name
        self.json = json
        self._read = read

    def fit(self, value: Json) -> tuple[T_co | None, tuple[str, ...]]:
        """The typed value and no errors, or None and the errors. Never raises for a wrong
        value."""
        return self.fit_within(value, Steps())

    def fit_within(self, value: Json, steps: Steps) -> tuple[T_co | None, tuple[str, ...]]:
        """As ``fit``, for one of several values that are tried: a schema that was made of JSON, by
        a caller perhaps, is checked within the steps of all of them."""
        typed: T_co | None
        try:
            if isinstance(self._read, Validator):
                typed = cast("T_co", value)
                errors = self._read.check(value, self.json, steps=steps)
            else:
                typed, errors = self._read(value)
        except (RecursionError, OverflowError):
            return None, ("the value is nested too deeply, or holds too large a number",)
        except OutOfSteps:
            return None, ("the value, or the schema, is too large to be checked",)
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
            return None, check(value, json) or [f"{path}: {wrong}"]

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
    border = _Border(json)
    try:
        if _has_more_parts(json, MAX_PARTS):
            raise OutOfSteps
        border.check(json)
    except RecursionError as error:
        raise SchemaInvalid("the schema cannot be used: it is nested too deeply") from error
    except OutOfSteps as error:
        raise SchemaInvalid("the schema cannot be used: it is too large") from error
    if border.wrong:
        errors = "; ".join(dict.fromkeys(border.wrong[:MAX_ERRORS]))
        raise SchemaInvalid(f"the schema cannot be used: {errors}", hint=border.hint)
    name = name or shorten(str(json.get("title") or "result"))
    return Schema(name, json, border.validator)


def _has_more_parts(value: Json, most: int) -> bool:
    """Whether there are more than ``most`` values in it. Never recurses."""
    level, count = [value], 0
    while level and count <= most:
        below: list[Json] = []
        for part in level:
            if isinstance(part, dict | list):
                count += len(part)
                if count > most:
                    return True
                below += part.values() if isinstance(part, dict) else part
        level = below
    return count > most


class _Border:
    """What makes a schema from outside unusable: keywords that are not checked, references that
    lead nowhere or in circles, patterns that cannot be matched in linear time, its size."""

    def __init__(self, json: JsonObject) -> None:
        self.validator = Validator(json)
        """With the patterns, compiled."""
        self.wrong: list[str] = []
        self.hint: str | None = None
        self._meta = Validator(META)
        self._steps = Steps()
        self._seen: set[int] = set()
        self._depths: dict[int, int] = {}

    def check(self, json: JsonObject, where: str = "schema") -> None:
        self.wrong += self._meta.check(json, META, where, self._steps)
        if not self.wrong:
            self._search(json)

    def _search(self, part: JsonObject) -> JsonObject:
        if id(part) in self._seen:
            return part
        self._seen.add(id(part))
        self._steps.take()
        pattern, reference = part.get("pattern"), part.get("$ref")
        if isinstance(pattern, str):
            self._compile(pattern)
        if isinstance(reference, str):
            target = self._target(reference)
            if not isinstance(target, dict | bool):
                self.wrong.append(f"$ref {shorten(reference)!r} does not lead to a schema")
            elif isinstance(target, dict) and id(target) not in self._seen:
                self.check(target, shorten(reference))  # perhaps below a keyword that is not ours
        if self._depth(part) > MAX_REFERENCES:
            self.wrong.append(
                f"a part of it refers to itself, or to more than {MAX_REFERENCES} others in a row"
            )
        for key, value in part.items():
            _map_subschemas(key, value, self._search)
        return part

    def _compile(self, pattern: str) -> None:
        if pattern in self.validator.patterns:
            return
        try:
            self.validator.patterns[pattern] = compile_pattern(pattern, self._steps)
        except ValueError as error:
            self.wrong.append(f"pattern {shorten(pattern)!r}: {error}")
            self.hint = NO_LINEAR_PATTERN

    def _target(self, reference: str) -> Json:
        self._steps.take(len(reference) // 10)
        return resolve_reference(reference, self.validator.root)

    def _depth(self, part: Json) -> int:
        """How many schemas, each in the one before, are compared with the same value."""
        if not isinstance(part, dict):
            return 0
        if id(part) not in self._depths:
            self._steps.take()
            self._depths[id(part)] = MAX_REFERENCES  # if it leads to itself
            below = [each for key in SAME_VALUE for each in as_list(part.get(key))]
            if isinstance(reference := part.get("$ref"), str):
                below.append(self._target(reference))
            self._depths[id(part)] = 1 + max(map(self._depth, below), default=0)
        return self._depths[id(part)]
