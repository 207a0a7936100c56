"""Converts a JSON Schema to Gemini's format: a subset of OpenAPI's, without references."""

from __future__ import annotations

import msgspec

from corral.values import Json, JsonObject, as_object

MAX_REFERENCES = 2000
"""References that are replaced by their target; recursive types would need infinitely many."""
TYPES = {"string", "number", "integer", "boolean", "array", "object"}
COPIED_KEYWORDS = frozenset(
    {
        "default",
        "description",
        "example",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "nullable",
        "pattern",
        "propertyOrdering",
        "title",
    }
)
"""Keywords that are copied unchanged."""
IGNORED_KEYWORDS = frozenset({"$defs", "definitions", "$comment", "examples", "deprecated"})
"""Keywords that are left out without a warning: they do not constrain the value."""


def to_gemini_schema(schema: JsonObject) -> tuple[JsonObject, list[str]]:
    """The converted schema, and a warning for each keyword that was left out."""
    conversion = _Conversion(schema)
    converted = conversion.convert(schema, ())
    return converted, [
        f"the schema's {n} is left out: Gemini does not take it" for n in conversion.lost
    ]


class _Conversion:
    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self.lost: dict[str, None] = {}
        self._left = MAX_REFERENCES

    def convert(self, schema: JsonObject, inside: tuple[str, ...]) -> JsonObject:
        schema, inside = self._resolve_references(schema, inside)
        out: JsonObject = {}

        def below(value: Json) -> JsonObject:
            return self.convert(value, inside) if isinstance(value, dict) else {}

        # The description first: enum values that are not strings are appended to it.
        for key, value in sorted(schema.items(), key=lambda entry: entry[0] != "description"):
            match key:
                case "properties" if isinstance(value, dict):
                    out["properties"] = {name: below(each) for name, each in value.items()}
                case "items":
                    out["items"] = below(value)
                case "anyOf" | "oneOf" if isinstance(value, list):
                    _add_alternatives(out, [below(each) for each in value])
                case "type":
                    out.update(_type(value))
                case "enum" if isinstance(value, list):
                    _add_enum(out, value)
                case "const":
                    _add_enum(out, [value])
                case "required" if isinstance(value, list):
                    known = as_object(schema.get("properties"))
                    out["required"] = [name for name in value if name in known]
                case _ if key in COPIED_KEYWORDS:
                    out[key] = value
                case _:
                    self.lost |= {} if key in IGNORED_KEYWORDS else {key: None}
        if out.get("required") == []:
            del out["required"]
        if out.get("type") == "ARRAY" and "items" not in out:
            out["items"] = {}  # without it the API rejects the request
        return out

    def _resolve_references(
        self, schema: JsonObject, inside: tuple[str, ...]
    ) -> tuple[JsonObject, tuple[str, ...]]:
        """The schema with references and an ``allOf`` of one element replaced by their target. A
        recursive reference becomes an object of any kind."""
        for _ in range(64):
            only = schema.get("allOf")
            if isinstance(only, list) and len(only) == 1 and isinstance(only[0], dict):
                schema = {**only[0], **{k: v for k, v in schema.items() if k != "allOf"}}
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema, inside
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            target = _find_target(reference, self._root)
            deep = reference in inside or self._left <= 0
            self._left -= 1
            if deep or target is None:
                self.lost["recursive $ref" if deep else "dangling $ref"] = None
                return {"type": "object", **beside}, inside
            schema, inside = {**target, **beside}, (*inside, reference)
        return {}, inside


def _find_target(reference: str, root: JsonObject) -> JsonObject | None:
    document, *steps = reference.split("/")
    found: Json = root if document == "#" else None
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _type(value: Json) -> JsonObject:
    names = [str(name) for name in value] if isinstance(value, list) else [str(value)]
    known = [name.upper() for name in names if name in TYPES]
    nullable: JsonObject = {"nullable": True} if "null" in names else {}
    if len(known) == 1:
        return {"type": known[0], **nullable}
    if known:
        return {"anyOf": [{"type": name} for name in known], **nullable}
    return nullable  # an unknown type is left out


def _add_alternatives(out: JsonObject, choices: list[JsonObject]) -> None:
    """Write the alternatives. ``anyOf`` with null becomes the other alternative, nullable."""
    real = [choice for choice in choices if choice not in ({"nullable": True}, {})]
    if {"nullable": True} in choices:
        out["nullable"] = True
    if len(real) == 1:
        for key, value in real[0].items():
            out.setdefault(key, value)
    elif real:
        out["anyOf"] = [*real]


def _add_enum(out: JsonObject, values: list[Json]) -> None:
    """Write the allowed values. Only strings can be listed; others go into the description."""
    if all(isinstance(value, str) for value in values):
        out["enum"] = values
        out.setdefault("type", "STRING")
        return
    if None in values:
        out["nullable"] = True
        values = [value for value in values if value is not None]
        if values and all(isinstance(value, str) for value in values):
            out["enum"] = values
            out.setdefault("type", "STRING")
            return
    listed = ", ".join(msgspec.json.encode(value).decode() for value in values)
    described = out.get("description")
    out["description"] = f"{described} (one of: {listed})" if described else f"One of: {listed}"
