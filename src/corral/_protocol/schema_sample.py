"""A value that fits a JSON Schema, for runs that only simulate a model."""

from __future__ import annotations

from corral._protocol.validation import check, resolve_reference
from corral.values import Json, JsonObject, as_list, as_object, as_text, as_texts, number_or_none

FORMATS = {
    "date-time": "2000-01-01T00:00:00Z",
    "date": "2000-01-01",
    "time": "00:00:00Z",
    "duration": "PT0S",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "decimal": "0",
}
"""Format → a text of it, where any other text could not be read."""


class _Endless(Exception):
    """A part of the schema refers to itself."""


def sample_value(schema: JsonObject, text: str) -> Json:
    """The first allowed value, true, 1, one item of a list, the required properties of an object,
    ``text`` as a string. Raises ``ValueError`` if no value that is made so fits the schema."""
    try:
        value = _sample(schema, schema, text, ())
    except _Endless:
        raise ValueError("it refers to itself without an end") from None
    if errors := check(value, schema):
        raise ValueError("; ".join(errors))
    return value


def _sample(schema: Json, root: JsonObject, text: str, inside: tuple[str, ...]) -> Json:
    """``inside``: the references that led here."""
    if not isinstance(schema, dict):
        return text
    given = [schema[key] for key in ("const", "default") if key in schema]
    if given := given or as_list(schema.get("enum")):
        return given[0]
    if reference := as_text(schema.get("$ref")):
        if reference in inside:
            raise _Endless
        return _sample(resolve_reference(reference, root), root, text, (*inside, reference))
    if choices := as_list(schema.get("anyOf")) or as_list(schema.get("oneOf")):
        return _first_of(choices, root, text, inside)
    if parts := as_list(schema.get("allOf")):
        values = [_sample(part, root, text, inside) for part in parts]
        values.append(_object(schema, root, text, inside))
        return {key: each for value in values for key, each in as_object(value).items()}
    kind = _type_of(schema)
    if kind in ("object", "array"):
        make = _object if kind == "object" else _list
        return make(schema, root, text, inside)
    return _plain(schema, kind, text)


def _plain(schema: JsonObject, kind: str, text: str) -> Json:
    if kind in ("integer", "number"):
        return _number(schema, kind)
    if kind in ("boolean", "null"):
        return True if kind == "boolean" else None
    return _text(schema, text)


def _type_of(schema: JsonObject) -> str:
    named = schema.get("type", "object" if "properties" in schema else "string")
    names = as_texts(named) if isinstance(named, list) else [as_text(named)]
    return next((name for name in names if name != "null"), "null")


def _first_of(choices: list[Json], root: JsonObject, text: str, inside: tuple[str, ...]) -> Json:
    """Of the first alternative that ends; null only if nothing else does."""
    for choice in sorted(choices, key=lambda each: as_object(each).get("type") == "null"):
        try:
            return _sample(choice, root, text, inside)
        except _Endless:
            continue
    raise _Endless


def _object(schema: JsonObject, root: JsonObject, text: str, inside: tuple[str, ...]) -> Json:
    known, others = as_object(schema.get("properties")), schema.get("additionalProperties", True)
    return {
        name: _sample(known.get(name, others), root, text, inside)
        for name in as_texts(schema.get("required"))
    }


def _list(schema: JsonObject, root: JsonObject, text: str, inside: tuple[str, ...]) -> Json:
    first = [_sample(each, root, text, inside) for each in as_list(schema.get("prefixItems"))]
    least = int(number_or_none(schema.get("minItems")) or 0)
    most = number_or_none(schema.get("maxItems"))
    count = max(least, 0 if first or schema.get("items") is False or most == 0 else 1)
    try:
        rest = [_sample(schema.get("items"), root, text, inside) for _ in range(len(first), count)]
    except _Endless:
        if least > len(first):
            raise
        rest = []
    return [*first, *rest]


def _number(schema: JsonObject, kind: str) -> Json:
    names = ("minimum", "exclusiveMinimum", "exclusiveMaximum", "maximum", "multipleOf")
    limits = [number for name in names if (number := number_or_none(schema.get(name))) is not None]
    near = [limit + step for limit in limits for step in (0, 1, -1)]
    found = [1.0, 0.0, *near, sum(limits) / (len(limits) or 1)]
    numbers: list[Json] = [int(each) if each % 1 == 0 else each for each in found]
    plain: JsonObject = {**{key: schema[key] for key in names if key in schema}, "type": kind}
    return next((each for each in numbers if not check(each, plain)), 1)


def _text(schema: JsonObject, text: str) -> str:
    text = FORMATS.get(as_text(schema.get("format")), text)
    least, most = number_or_none(schema.get("minLength")), number_or_none(schema.get("maxLength"))
    text = text.ljust(int(least or 0), ".")
    return text if most is None else text[: int(most)]
