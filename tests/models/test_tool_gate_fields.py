"""A field that may hold a tool call must have the name and the type that the vendor documents."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corral._models.tool_gate import (
    Unjudgeable,
    check_other_fields,
    check_prototypes,
    optional_index,
    optional_object,
    optional_objects,
    optional_text,
)
from corral.values import Json, JsonObject

FIELDS: list[tuple[Callable[[JsonObject, str], object], Json, Json, list[Json]]] = [
    (optional_object, {"a": 1}, {}, [[], "x", 0, False]),
    (optional_objects, [{"a": 1}], [], [{}, "x", [1], [None], False]),
    (optional_text, "x", "", [1, [], {}, False]),
    (optional_index, 3, None, [-1, "1", 1.0, True, []]),
]
CALLS: list[JsonObject] = [
    {"function_call": 1},
    {"functionCall": None},
    {"Tool-Calls": []},
    {"metadata": {"deep": [{"toolUse": {}}]}},
    {"metadata": [{"type": "tool_use"}]},
    {"metadata": {"type": "function_call"}},
]


@pytest.mark.parametrize(("read", "given", "empty", "wrong"), FIELDS)
def test_a_field_is_missing_or_null_or_has_its_type(
    read: Callable[[JsonObject, str], object], given: Json, empty: Json, wrong: list[Json]
) -> None:
    assert read({"f": given}, "f") == given
    assert read({}, "f") == read({"f": None}, "f") == empty
    for value in wrong:
        with pytest.raises(Unjudgeable, match="f is not"):
            read({"f": value}, "f")


@pytest.mark.parametrize("other", CALLS)
def test_an_unknown_field_that_may_hold_a_call_is_refused(other: JsonObject) -> None:
    with pytest.raises(Unjudgeable, match="may hold a tool call"):
        check_other_fields({"known": 1, **other}, ("known",), "the response")
    check_other_fields(other, tuple(other), "the response")


def test_other_unknown_fields_pass() -> None:
    usage: Json = {"server_tool_use": {"requests": 1}, "toolUsePromptTokenCount": 3}
    fields: JsonObject = {"a": 1, "b": "tool_use", "usage": usage, "parallel_tool_calls": True}
    check_other_fields(fields, (), "the response")


def test_an_object_that_changes_how_others_are_read_is_refused() -> None:
    check_prototypes({"a": ["__proto__"]})
    with pytest.raises(Unjudgeable, match="__proto__"):
        check_prototypes([{"a": [{"__proto__": {"functionCall": {}}}]}])
