"""Whether a JSON Schema follows the rules of OpenAI's strict mode.

A schema is never rewritten: strict mode is used if the schema follows the rules, and otherwise
not. Making optional properties required and nullable would return nulls that the caller's schema
does not allow.
"""

from __future__ import annotations

from corral.values import Json, JsonObject, as_list

ALLOWED = frozenset(
    {
        "$defs",
        "$ref",
        "$schema",
        "additionalProperties",
        "anyOf",
        "const",
        "definitions",
        "description",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "multipleOf",
        "pattern",
        "properties",
        "required",
        "title",
        "type",
    }
)
FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)


def is_strict(schema: JsonObject) -> bool:
    """Whether the root is an object without ``anyOf``, and all objects are closed and require
    all their properties."""
    return schema.get("type") == "object" and "anyOf" not in schema and _follows_rules(schema)


def _follows_rules(schema: Json) -> bool:
    if not isinstance(schema, dict) or not schema.keys() <= ALLOWED:
        return False
    if not schema.keys() & {"type", "anyOf", "$ref", "enum", "const"}:
        return False
    if "format" in schema and schema["format"] not in FORMATS:
        return False
    kinds = schema.get("type")
    if kinds == "object" or "object" in as_list(kinds):
        # An object must allow no other properties and require all of its own.
        properties, required = schema.get("properties"), schema.get("required", [])
        if schema.get("additionalProperties") is not False or not isinstance(properties, dict):
            return False
        if not isinstance(required, list) or {*map(str, required)} != properties.keys():
            return False
    if kinds == "array" and "items" not in schema:
        return False
    below: list[Json] = []
    for table in ("properties", "$defs", "definitions"):
        nested = schema.get(table, {})
        below += nested.values() if isinstance(nested, dict) else [nested]
    choices = schema.get("anyOf", [])
    below += choices if isinstance(choices, list) else [choices]
    if "items" in schema:
        below.append(schema["items"])
    return all(map(_follows_rules, below))
