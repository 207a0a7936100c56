"""JSON Schema as Gemini's API takes it: a subset of OpenAPI's, without references."""

from __future__ import annotations

from typing import cast

import msgspec

from corral.events import Json
from corral.models.spec import JsonObject

MOST = 2000
"""References written out: types that name one another would be written out without end."""
TYPES = {"string", "number", "integer", "boolean", "array", "object"}
KEPT = frozenset(
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
"""Taken as they are."""
SILENT = frozenset({"$defs", "definitions", "$comment", "examples", "deprecated"})
"""Left out without a word: nothing that the model should keep to."""


def convert(schema: JsonObject) -> tuple[JsonObject, list[str]]:
    """The schema in Gemini's words, and what of it was lost."""
    work = _Work(schema)
    converted = _convert(schema, work, ())
    return converted, [f"the schema's {n} is left out: Gemini does not take it" for n in work.lost]


class _Work:
    """One schema on its way."""

    def __init__(self, root: JsonObject) -> None:
        self.root = root
        self.lost: dict[str, None] = {}
        self.left = MOST


def _convert(schema: JsonObject, work: _Work, inside: tuple[str, ...]) -> JsonObject:
    schema, inside = _inlined(schema, work, inside)
    out: JsonObject = {}

    def below(held: Json) -> JsonObject:
        return _convert(held, work, inside) if isinstance(held, dict) else {}

    # The description first: values that cannot be listed are appended to it.
    for key, held in sorted(schema.items(), key=lambda entry: entry[0] != "description"):
        match key:
            case "type":
                out.update(_type(held))
            case "properties" if isinstance(held, dict):
                out["properties"] = {name: below(each) for name, each in held.items()}
            case "items":
                out["items"] = below(held)
            case "anyOf" | "oneOf" if isinstance(held, list):
                _choice(out, [below(each) for each in held])
            case "enum" if isinstance(held, list):
                _enum(out, held)
            case "const":
                _enum(out, [held])
            case "required" if isinstance(held, list):
                known = schema.get("properties")
                out["required"] = [n for n in held if isinstance(known, dict) and n in known]
            case _ if key in KEPT:
                out[key] = held
            case _ if key not in SILENT:
                work.lost[key] = None
            case _:
                pass
    if out.get("required") == []:
        del out["required"]
    if out.get("type") == "ARRAY" and "items" not in out:
        out["items"] = {}  # without it the API refuses the whole request
    return out


def _inlined(
    schema: JsonObject, work: _Work, inside: tuple[str, ...]
) -> tuple[JsonObject, tuple[str, ...]]:
    """References written out, and an ``allOf`` of one; a type within itself becomes any object."""
    for _ in range(64):
        only = schema.get("allOf")
        if isinstance(only, list) and len(only) == 1 and isinstance(only[0], dict):
            schema = {**only[0], **{k: v for k, v in schema.items() if k != "allOf"}}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema, inside
        beside = {key: held for key, held in schema.items() if key != "$ref"}
        target = _target(reference, work.root)
        deep = reference in inside or work.left <= 0
        work.left -= 1
        if deep or target is None:
            work.lost["recursive $ref" if deep else "dangling $ref"] = None
            return {"type": "object", **beside}, inside
        schema, inside = {**target, **beside}, (*inside, reference)
    return {}, inside


def _target(reference: str, root: JsonObject) -> JsonObject | None:
    document, *steps = reference.split("/")
    found: Json = root if document == "#" else None
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _type(held: Json) -> JsonObject:
    names = [str(name) for name in held] if isinstance(held, list) else [str(held)]
    known = [name.upper() for name in names if name in TYPES]
    nullable: JsonObject = {"nullable": True} if "null" in names else {}
    if len(known) == 1:
        return {"type": known[0], **nullable}
    if known:
        return {"anyOf": [{"type": name} for name in known], **nullable}
    return nullable  # an unknown type is left unspecified


def _choice(out: JsonObject, choices: list[JsonObject]) -> None:
    """``anyOf`` with null among it is the other one, nullable."""
    real = [choice for choice in choices if choice not in ({"nullable": True}, {})]
    if {"nullable": True} in choices:
        out["nullable"] = True
    if len(real) == 1:
        for key, held in real[0].items():
            out.setdefault(key, held)
    elif real:
        out["anyOf"] = cast("list[Json]", real)


def _enum(out: JsonObject, values: list[Json]) -> None:
    """Only strings can be listed; of others the model is told in words."""
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
    said = out.get("description")
    out["description"] = f"{said} (one of: {listed})" if said else f"One of: {listed}"
