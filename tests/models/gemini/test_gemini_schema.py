"""JSON Schema in Gemini's format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral._models.gemini.schema import to_gemini_parameters, to_gemini_schema
from corral.errors import ConfigError

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "string", "description": "d"}, {"type": "STRING", "description": "d"}),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "gone"]},
        {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}, "required": ["a"]},
    ),
    (
        {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        {"type": "ARRAY", "items": {"type": "ARRAY", "items": {"type": "NUMBER"}}},
    ),
    ({"enum": ["a", "b"]}, {"type": "STRING", "enum": ["a", "b"]}),
    ({"const": "a"}, {"type": "STRING", "enum": ["a"]}),
    ({"enum": ["a", None]}, {"type": "STRING", "enum": ["a"], "nullable": True}),
    (
        {"type": "integer", "enum": [1, 2], "description": "n"},
        {"type": "INTEGER", "description": "n (one of: 1, 2)"},
    ),
    (
        {"description": "n", "type": "integer", "enum": [1, 2]},
        {"type": "INTEGER", "description": "n (one of: 1, 2)"},
    ),
    ({"type": ["string", "null"]}, {"type": "STRING", "nullable": True}),
    (
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "STRING", "nullable": True},
    ),
    (
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}]},
    ),
    ({"type": "file"}, {}),
    (
        {"$ref": "#/$defs/P", "$defs": {"P": {"type": "string"}}, "description": "d"},
        {"type": "STRING", "description": "d"},
    ),
    ({"allOf": [{"type": "string"}], "title": "t"}, {"type": "STRING", "title": "t"}),
    ({"type": "string", "format": "date-time"}, {"type": "STRING", "format": "date-time"}),
]


@pytest.mark.parametrize(("schema", "converted"), CASES)
def test_supported_keywords_are_converted(
    schema: dict[str, Any], converted: dict[str, Any]
) -> None:
    assert to_gemini_schema(schema) == (converted, [])


@pytest.mark.parametrize(
    "key",
    ["additionalProperties", "$schema", "$id", "patternProperties", "not", "if", "then", "else"],
)
def test_rejected_settings_are_left_out_with_a_warning(key: str) -> None:
    inner: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, key: {}}
    converted, warnings = to_gemini_schema({"type": "array", "items": inner})
    assert key not in str(converted)
    assert [key in warning for warning in warnings] == [True]


MERGED: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([{"type": "string"}, {"minLength": 1}], {"type": "STRING", "minLength": 1}),
    (
        [{"minLength": 1, "maxLength": 9}, {"type": "string", "minLength": 2, "maxLength": 10}],
        {"type": "STRING", "minLength": 2, "maxLength": 9},
    ),
    ([{"type": "number"}, {"type": "integer"}], {"type": "INTEGER"}),
    ([{"type": ["string", "null"]}, {"type": "string"}], {"type": "STRING"}),
    (
        [{"type": ["string", "null"]}, {"enum": ["a", None]}],
        {"type": "STRING", "enum": ["a"], "nullable": True},
    ),
    ([{"enum": ["a", "b"]}, {"enum": ["b", "c"]}], {"type": "STRING", "enum": ["b"]}),
    (
        [
            {"properties": {"a": {"type": "string"}}, "required": ["b"]},
            {"properties": {"b": {"type": "string"}, "a": {"minLength": 1}}, "required": ["a"]},
            {"type": "object", "allOf": [{"$ref": "#/$defs/C"}, {"$ref": "#/$defs/C"}]},
        ],
        {
            "type": "OBJECT",
            "properties": {
                "a": {"type": "STRING", "minLength": 1},
                "b": {"type": "STRING"},
                "c": {"type": "BOOLEAN"},
            },
            "required": ["b", "a"],
        },
    ),
    (
        [
            {"anyOf": [{"type": "string"}, {"type": "number"}]},
            {"anyOf": [{"type": "integer"}, {"minimum": 1}]},
        ],
        {
            "anyOf": [
                {"type": "STRING", "minimum": 1},
                {"type": "INTEGER"},
                {"type": "NUMBER", "minimum": 1},
            ]
        },
    ),
    (
        [{"type": "array", "items": {"type": "string"}}, {"items": {"minLength": 1}}],
        {"type": "ARRAY", "items": {"type": "STRING", "minLength": 1}},
    ),
]


@pytest.mark.parametrize(("parts", "converted"), MERGED)
def test_the_schemas_of_an_all_of_are_merged(
    parts: list[dict[str, Any]], converted: dict[str, Any]
) -> None:
    defs = {"C": {"type": "object", "properties": {"c": {"type": "boolean"}}}}
    schema: dict[str, Any] = {"allOf": parts, "$defs": defs, "title": "t"}
    assert to_gemini_schema(schema) == ({**converted, "title": "t"}, [])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "string"}, {"type": "object"}),
        ({"pattern": "a"}, {"pattern": "b"}),
        ({"enum": ["a"]}, {"enum": ["b"]}),
        (
            {"anyOf": [{"type": "string"}, {"type": "number"}]},
            {"anyOf": [{"type": "boolean"}, {"type": "object"}]},
        ),
        (
            {"anyOf": [{"type": "string", "maxLength": number} for number in range(9)]},
            {"anyOf": [{"type": "string", "minLength": number} for number in range(9)]},
        ),
    ],
)
def test_what_cannot_be_merged_is_left_out_with_a_warning(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    converted, warnings = to_gemini_schema({"allOf": [one, other]})
    assert converted == to_gemini_schema(one)[0]
    assert ["of an allOf" in warning for warning in warnings] == [True]


def test_properties_beside_a_reference_are_added_to_those_of_its_target() -> None:
    base: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
    schema: dict[str, Any] = {
        "$ref": "#/$defs/Base",
        "$defs": {"Base": base},
        "properties": {"b": {"$ref": "#/$defs/Base"}},
    }
    converted, warnings = to_gemini_schema(schema)
    plain = {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}
    assert converted["properties"] == {"a": {"type": "STRING"}, "b": plain}
    assert warnings == []


def test_alternatives_that_only_require_properties_are_left_out_with_a_warning() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    converted, warnings = to_gemini_schema(schema)
    assert converted == {
        "type": "OBJECT",
        "properties": {"a": {"type": "STRING"}, "b": {"type": "STRING"}},
    }
    assert "anyOf" in warnings[0]


def test_the_only_alternative_is_merged_with_what_stands_beside_it() -> None:
    one, other = (dict[str, Any]({"properties": {name: {"type": "string"}}}) for name in "ab")
    text = {"type": "STRING"}
    converted, warnings = to_gemini_schema({"anyOf": [other, {"type": "null"}], **one})
    assert converted == {"properties": {"a": text, "b": text}, "nullable": True}
    assert warnings == []


def kind(name: str, **fields: Any) -> dict[str, Any]:
    properties = {"kind": {"const": name, "title": name}, **fields}
    return {"type": "object", "properties": properties, "required": [*properties]}


@pytest.mark.parametrize("key", ["anyOf", "oneOf"])
def test_the_alternatives_of_a_tools_parameters_are_one_object(key: str) -> None:
    text, number, flag = ({"type": name} for name in ("string", "integer", "boolean"))
    inner = {"$ref": "#/$defs/Z"}
    schema: dict[str, Any] = {
        key: [kind("x", a=text, both=text), kind("y", both=number), inner, {"type": "null"}],
        "$defs": {"Z": {"anyOf": [kind("z", both=text), kind("zz", both=number, d=flag)]}},
        "properties": {"always": text},
        "required": ["always"],
    }
    converted, (warning,) = to_gemini_parameters("look", schema)
    assert converted["type"] == "OBJECT"
    assert converted["properties"] == {
        "always": {"type": "STRING"},
        "kind": {"type": "STRING", "enum": ["x", "y", "z", "zz"]},
        "a": {"type": "STRING"},
        "both": {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}]},
        "d": {"type": "BOOLEAN"},
    }
    assert converted["required"] == ["always", "both", "kind"]
    assert warning.startswith("look: the alternatives")


def test_no_parameter_of_several_alternatives_is_lost() -> None:
    parts: list[Any] = [
        {"anyOf": [{"type": "object", "properties": {name: {"type": "string"}}} for name in names]}
        for names in ("ab", "cd")
    ]
    converted, _ = to_gemini_parameters("look", {"allOf": parts})
    assert converted["properties"] == {name: {"type": "STRING"} for name in "acdb"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"anyOf": [{"type": "object"}, {"type": "string"}]},
        {"type": "integer", "anyOf": [{"minimum": 1}, {"maximum": -1}]},
        {"$ref": "#/$defs/A", "$defs": {"A": {"enum": ["a"]}}},
    ],
)
def test_parameters_that_are_no_object_are_refused_with_the_tool(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the tool 'look': its parameters are no object"):
        to_gemini_parameters("look", schema)


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"properties": {}}, {"type": "null"}])
def test_a_tool_without_parameters_has_none(schema: dict[str, Any]) -> None:
    assert to_gemini_parameters("look", schema) == ({}, [])


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"$id": {"type": "string"}}}
    assert to_gemini_schema(schema) == (
        {"type": "OBJECT", "properties": {"$id": {"type": "STRING"}}},
        [],
    )


def test_a_recursive_type_becomes_any_object() -> None:
    node: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    converted, warnings = to_gemini_schema({"$ref": "#/$defs/Node", "$defs": {"Node": node}})
    assert converted == {"type": "OBJECT", "properties": {"next": {"type": "OBJECT"}}}
    assert "recursive $ref" in warnings[0]


@pytest.mark.parametrize("reference", ["#/$defs/Gone", "https://example.org/s", "#/a/b/c", ""])
def test_an_unresolved_reference_becomes_any_object(reference: str) -> None:
    converted, warnings = to_gemini_schema({"$ref": reference})
    assert converted == {"type": "OBJECT"}
    assert "dangling $ref" in warnings[0]


def test_two_references_to_one_another_end() -> None:
    defs: dict[str, Any] = {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}
    converted, warnings = to_gemini_schema({"$ref": "#/$defs/A", "$defs": defs})
    assert converted == {"type": "OBJECT"}
    assert warnings


def test_a_list_of_anything_still_has_items() -> None:
    assert to_gemini_schema({"type": "array"})[0] == {"type": "ARRAY", "items": {}}


def test_types_that_name_one_another_do_not_grow_without_end() -> None:
    names = "abcdefgh"
    of_all: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"$ref": f"#/$defs/{name}"} for name in names},
    }
    converted, lost = to_gemini_schema({**of_all, "$defs": dict.fromkeys(names, of_all)})
    assert any("recursive" in each for each in lost)
    assert len(json.dumps(converted)) < 1_000_000


@pytest.mark.parametrize("keyword", ["properties", "anyOf", "allOf"])
def test_large_definitions_that_are_used_often_are_not_copied_each_time(keyword: str) -> None:
    """Without a limit of all parts the copies have 10 million of them."""
    large: dict[str, Any] = {
        "type": "object",
        "properties": {f"p{number}": {"type": "string"} for number in range(4_000)},
    }
    uses: Any = [{"$ref": "#/$defs/large"}] * 2_500
    if keyword == "properties":
        uses = {f"u{number}": use for number, use in enumerate(uses)}
    schema: dict[str, Any] = {"type": "object", keyword: uses, "$defs": {"large": large}}
    converted, lost = to_gemini_schema(schema)
    assert any("recursive" in each for each in lost)
    assert len(json.dumps(converted)) < 1_000_000
