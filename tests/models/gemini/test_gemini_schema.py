"""JSON Schema in Gemini's format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral._models.gemini.schema import to_gemini_schema

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


def test_an_all_of_with_several_schemas_is_left_out_with_a_warning() -> None:
    converted, warnings = to_gemini_schema({"allOf": [{"type": "string"}, {"minLength": 1}]})
    assert converted == {}
    assert "allOf" in warnings[0]


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
