"""Converts a JSON Schema to Gemini's format: a subset of OpenAPI's, without references and
``allOf``. The parameters of a tool are one object there: its alternatives are merged."""

from __future__ import annotations

from functools import reduce

import msgspec

from corral.errors import ConfigError
from corral.values import Json, JsonObject, as_list, as_object, as_objects, as_texts

MAX_COPIED = 5000
"""Parts of schemas that replace references to them. Recursive types would need infinitely many, and
a few definitions that refer to one another often many millions."""
MAX_CHOICES = 32
"""Alternatives of which each is merged from one of two schemas."""
MAX_DEPTH = 64
"""References within one another that are replaced."""
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
_DESCRIPTIVE = frozenset({"default", "description", "example", "propertyOrdering", "title"})


def to_gemini_schema(schema: JsonObject) -> tuple[JsonObject, list[str]]:
    """The converted schema, and a warning for each keyword that was left out."""
    conversion = _Conversion(schema)
    converted = conversion.convert(schema, ())
    return converted, [
        f"the schema's {n} is left out: Gemini does not take it" for n in conversion.lost
    ]


def to_gemini_parameters(tool: str, schema: JsonObject) -> tuple[JsonObject, list[str]]:
    """The parameters of a tool, and a warning for each keyword that was left out; ``{}`` for a tool
    without parameters. Raises ``ConfigError``, which names the tool, if they are no object."""
    converted, warnings = to_gemini_schema(schema)
    if converted.get("anyOf"):
        warnings.append("the alternatives of the parameters are one object: Gemini takes no others")
    merged = _merge_alternatives(converted)
    if merged.get("type", "OBJECT") != "OBJECT":
        raise ConfigError(
            f"the tool {tool!r}: its parameters are no object, which Gemini requires",
            hint="Wrap the value: {'type': 'object', 'properties': {'value': …}}.",
        )
    parameters = {"type": "OBJECT", **merged} if merged.get("properties") else {}
    return parameters, [f"{tool}: {warning}" for warning in warnings]


def _merge_alternatives(schema: JsonObject) -> JsonObject:
    """One object that all alternatives of this one fit. It requires what all of them require. The
    type of an alternative that is no object is the type of the result."""
    merged = {key: value for key, value in schema.items() if key != "anyOf"}
    choices = [_merge_alternatives(choice) for choice in as_objects(schema.get("anyOf"))]
    if not choices or merged.get("type", "OBJECT") != "OBJECT":
        return merged
    properties = {**as_object(merged.get("properties"))}
    for choice in choices:
        if choice.get("type", "OBJECT") != "OBJECT":
            return choice
        for name, field in as_object(choice.get("properties")).items():
            properties[name] = _either(as_object(properties.get(name, field)), as_object(field))
    common = [{*as_texts(choice.get("required"))} for choice in choices]
    required = [*as_texts(merged.get("required"))]
    required += sorted(set.intersection(*common) - {*required})
    merged |= {"type": "OBJECT", "properties": properties}
    return {**merged, "required": [*required]} if required else merged


def _either(one: JsonObject, other: JsonObject) -> JsonObject:
    """What fits one of both."""
    if one == other:
        return one
    if one.get("enum") and other.get("enum"):  # such as the names of the alternatives
        names = dict.fromkeys((*as_texts(one["enum"]), *as_texts(other["enum"])))
        return {"type": "STRING", "enum": [*names]}
    choices = [
        choice
        for schema in (one, other)
        for choice in (as_list(schema["anyOf"]) if schema.keys() == {"anyOf"} else [schema])
    ]
    return {"anyOf": [choice for at, choice in enumerate(choices) if choice not in choices[:at]]}


class _Conversion:
    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self.lost: dict[str, None] = {}
        self._left = MAX_COPIED

    def convert(self, schema: JsonObject, inside: tuple[str, ...]) -> JsonObject:
        out = self._convert_parts(schema, inside)
        if required := as_list(out.pop("required", None)):
            defined = as_object(out.get("properties"))
            if listed := [name for name in dict.fromkeys(as_texts(required)) if name in defined]:
                out["required"] = [*listed]
        if out.get("type") == "ARRAY" and "items" not in out:
            out["items"] = {}  # without it the API rejects the request
        return out

    def _convert_parts(self, schema: JsonObject, inside: tuple[str, ...]) -> JsonObject:
        """The schema merged with those of its ``allOf`` and with the target of its reference: one
        of them may require what another one defines."""
        self._left -= bool(inside)
        own = {key: value for key, value in schema.items() if key not in ("allOf", "$ref")}
        parts = [self._convert_parts(part, inside) for part in as_objects(schema.get("allOf"))]
        if isinstance(reference := schema.get("$ref"), str):
            parts.append(self._convert_target(reference, inside))
        return reduce(self._merge, parts, self._convert_keywords(own, inside))

    def _convert_target(self, reference: str, inside: tuple[str, ...]) -> JsonObject:
        """A recursive reference becomes an object of any kind."""
        target = _find_target(reference, self._root)
        deep = reference in inside or len(inside) > MAX_DEPTH or self._left <= 0
        if deep or target is None:
            self.lost["recursive $ref" if deep else "dangling $ref"] = None
            return {"type": "OBJECT"}
        return self._convert_parts(target, (*inside, reference))

    def _convert_keywords(self, schema: JsonObject, inside: tuple[str, ...]) -> JsonObject:
        out: JsonObject = {}

        def below(value: Json) -> JsonObject:
            return self.convert(value, inside) if isinstance(value, dict) else {}

        # The description first: enum values that are not strings are appended to it. Alternatives
        # last: they are merged with what stands beside them.
        order = {"description": 0, "anyOf": 2, "oneOf": 2}
        for key, value in sorted(schema.items(), key=lambda entry: order.get(entry[0], 1)):
            match key:
                case "properties" if isinstance(value, dict):
                    out["properties"] = {name: below(each) for name, each in value.items()}
                case "items":
                    out["items"] = below(value)
                case "anyOf" | "oneOf" if isinstance(value, list):
                    out = self._with_alternatives(out, key, value, inside)
                case "type":
                    out.update(_type(value))
                case "enum" if isinstance(value, list):
                    _add_enum(out, value)
                case "const":
                    _add_enum(out, [value])
                case "required" if isinstance(value, list):
                    out["required"] = value
                case _ if key in COPIED_KEYWORDS:
                    out[key] = value
                case _:
                    self.lost |= {} if key in IGNORED_KEYWORDS else {key: None}
        return out

    def _with_alternatives(
        self, out: JsonObject, key: str, values: list[Json], inside: tuple[str, ...]
    ) -> JsonObject:
        """With null, ``anyOf`` becomes the other alternative, nullable."""
        choices: list[JsonObject] = []
        for value in as_objects(values):
            choices.append(self.convert(value, inside))
            if value and not choices[-1]:  # such as one that only requires a property
                self.lost[key] = None
        real = [choice for choice in choices if choice not in ({"nullable": True}, {})]
        if real:
            out = self._merge(out, real[0] if len(real) == 1 else {"anyOf": [*real]})
        if {"nullable": True} in choices:
            out["nullable"] = True
        return out

    def _merge(self, one: JsonObject, other: JsonObject) -> JsonObject:
        """What fits both. A keyword that cannot hold for both is that of the first."""
        both: JsonObject = {**other, **one}
        for key in one.keys() & other.keys():
            mine, theirs = one[key], other[key]
            if mine == theirs or key in _DESCRIPTIVE:
                continue
            if isinstance(mine, dict) and isinstance(theirs, dict):
                both[key] = (
                    self._merge_properties(mine, theirs)
                    if key == "properties"
                    else self._merge(mine, theirs)
                )
            elif key == "required":
                both[key] = [*as_list(mine), *as_list(theirs)]
            elif key == "enum" and (common := {*as_texts(theirs)}.intersection(as_texts(mine))):
                both[key] = [value for value in as_texts(mine) if value in common]
            elif key == "anyOf" and (choices := self._merge_choices(mine, theirs)):
                both[key] = [*choices]
            elif isinstance(mine, int | float) and isinstance(theirs, int | float):
                both[key] = (max if key.startswith("min") else min)(mine, theirs)
            elif (mine, theirs) in (("INTEGER", "NUMBER"), ("NUMBER", "INTEGER")):
                both[key] = "INTEGER"
            else:
                self.lost[f"second {key} of an allOf"] = None
        # A part with a type refuses null; one without may be an annotation of OpenAPI.
        typed = [part for part in (one, other) if part.keys() & {"type", "enum", "anyOf"}]
        if len(typed) == 2 and not (one.get("nullable") and other.get("nullable")):
            both.pop("nullable", None)
        return both

    def _merge_choices(self, mine: Json, theirs: Json) -> list[JsonObject]:
        """The alternatives of which each fits one of both; none if there would be too many."""
        pairs = [(one, other) for one in as_objects(mine) for other in as_objects(theirs)]
        fitting = [(one, other) for one, other in pairs if _types_fit(one, other)]
        return [self._merge(*pair) for pair in fitting] if len(pairs) <= MAX_CHOICES else []

    def _merge_properties(self, one: JsonObject, other: JsonObject) -> JsonObject:
        return {**one, **other} | {
            name: self._merge(as_object(one[name]), as_object(other[name]))
            for name in one
            if name in other
        }


def _types_fit(one: JsonObject, other: JsonObject) -> bool:
    types = {schema["type"] for schema in (one, other) if "type" in schema}
    return len(types) < 2 or types == {"INTEGER", "NUMBER"}


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
