"""Schemas of every kind of type, and errors with path, expected and actual value."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import importlib
import json
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corral import errors
from corral._protocol.schema import MAX_ERRORS, Schema, schema_of
from corral.values import Json

jsonschema: Any = importlib.import_module("jsonschema")
"""The reference, for these tests alone."""


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Address:
    zip: str
    city: str = "Ghent"


@dataclasses.dataclass
class Person:
    name: str
    age: Annotated[int, msgspec.Meta(ge=0)]
    addresses: list[Address]
    color: Color | None = None
    born: datetime.date | None = None


class Point(TypedDict):
    x: int
    label: NotRequired[str]


class Node(msgspec.Struct):
    value: int
    children: list[Node] = []


class Inner(pydantic.BaseModel):
    count: int = pydantic.Field(ge=1)


class Model(pydantic.BaseModel):
    name: str
    inner: list[Inner]


@dataclasses.dataclass
class Mixed:
    model: Model
    inners: list[Inner]


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    barks: bool


@pytest.mark.parametrize(
    ("of", "value", "expected"),
    [
        (
            Person,
            {"name": "A", "age": 1, "addresses": [{"zip": "9"}], "born": "2024-02-01"},
            Person("A", 1, [Address("9")], None, datetime.date(2024, 2, 1)),
        ),
        (Point, {"x": 1}, {"x": 1}),
        (Node, {"value": 1, "children": [{"value": 2}]}, Node(1, [Node(2)])),
        (
            Model,
            {"name": "a", "inner": [{"count": 1}]},
            Model(name="a", inner=[Inner(count=1)]),
        ),
        (
            Mixed,
            {"model": {"name": "a", "inner": []}, "inners": [{"count": 2}]},
            Mixed(Model(name="a", inner=[]), [Inner(count=2)]),
        ),
        (list[int], [1, 2], [1, 2]),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Literal["a", "b"], "b", "b"),
        (Color, "red", Color.RED),
        (int | str, "x", "x"),
        (Cat | Dog, {"type": "dog", "barks": True}, Dog(True)),
        (tuple[int, str], [1, "a"], (1, "a")),
        (Annotated[str, msgspec.Meta(pattern="^a")], "ab", "ab"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1}, {"a": 1}),
        (Any, {"any": ["thing"]}, {"any": ["thing"]}),
        (dict[str, object], {"any": ["thing"]}, {"any": ["thing"]}),
    ],
    ids=str,
)
def test_a_value_that_fits_comes_back_typed(of: object, value: Json, expected: object) -> None:
    schema = schema_of(of)
    assert schema.typed_value(value) == expected
    assert type(schema.typed_value(value)) is type(expected)
    jsonschema.Draft202012Validator.check_schema(schema.json)
    jsonschema.validate(value, schema.json)
    json.dumps(schema.json)


def test_the_root_is_not_a_reference_and_has_a_type() -> None:
    for kind in (Person, Point, Node, Model, Mixed):
        assert schema_of(kind).json["type"] == "object"
    assert schema_of(Node).name == "Node"
    assert schema_of(Person, "someone").name == "someone"
    assert schema_of({"title": "Thing", "type": "object"}).name == "Thing"
    assert schema_of(list[int] | None).name == "result"


def test_a_schema_is_its_own_schema() -> None:
    schema = schema_of(Person)
    assert schema_of(schema) is schema


def test_all_errors_are_reported_at_once_with_their_paths() -> None:
    value: Json = {
        "name": 1,
        "age": -1,
        "addresses": [{"zip": "9"}, {"zip": 3}, {}],
        "color": "green",
    }
    _, complaints = schema_of(Person).fit(value)
    assert complaints == (
        "name: expected a string, got 1",
        "age: expected at least 0, got -1",
        "addresses[1].zip: expected a string, got 3",
        "addresses[2].zip: is required and missing",
        'color: expected one of "blue", "red" or null, got the string \'green\'',
    )
    with pytest.raises(errors.SchemaNotMet, match="does not fit Person:\n- name: expected") as info:
        schema_of(Person).typed_value(value)
    assert all(complaint in str(info.value) for complaint in complaints)


def test_constraints_that_only_the_type_has_are_checked_too() -> None:
    _, complaints = schema_of(Person).fit(
        {"name": "a", "age": 1, "addresses": [], "born": "yesterday"}
    )
    assert len(complaints) == 1
    assert complaints[0].startswith("born: ")


def test_the_error_messages_of_a_model_are_used() -> None:
    _, complaints = schema_of(Model).fit({"name": 2, "inner": [{"count": 0}, {}]})
    assert [complaint.split(":")[0] for complaint in complaints] == [
        "name",
        "inner[0].count",
        "inner[1].count",
    ]
    assert "got 2" in complaints[0]


def test_errors_of_alternatives_are_those_of_the_closest_one() -> None:
    schema = schema_of({"anyOf": [{"type": "null"}, schema_of(Address).json]})
    assert schema.fit({"zip": 1})[1] == ("zip: expected a string, got 1",)
    assert schema.fit(5)[1] == ("the value: expected null or an object, got 5",)


def test_the_error_for_a_misspelled_property_suggests_its_name() -> None:
    schema = schema_of(
        {"properties": {"colour": {}}, "additionalProperties": False, "required": ["colour"]}
    )
    assert schema.fit({"color": 1})[1] == (
        "colour: is required and missing",
        "color: is not a known property; did you mean colour?",
    )


def test_many_errors_and_long_values_are_truncated() -> None:
    value: list[Json] = ["x" * 500] * 100
    _, complaints = schema_of(list[int]).fit(value)
    assert len(complaints) == MAX_ERRORS + 1
    assert complaints[-1] == "and 80 more"
    assert all(len(complaint) < 150 for complaint in complaints)


def test_a_recursive_value_is_an_error_and_not_a_crash() -> None:
    value: Json = 1
    for _ in range(100_000):
        value = [value]
    loop: Any = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}
    _, complaints = schema_of(loop).fit(value)
    assert "nested too deeply" in complaints[0]


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ({"type": "strin"}, "schema.type: expected one of"),
        ({"properties": {"a": {"type": ["string", 5]}}}, "schema.properties.a.type"),
        ({"properties": []}, "schema.properties: expected an object"),
        ({"required": "name"}, "schema.required: expected a list"),
        ({"minLength": -1}, "schema.minLength: expected at least 0"),
        ({"items": [{"type": "string"}]}, "schema.items"),
        ({"anyOf": []}, "schema.anyOf: expected at least 1 items"),
        ({"not": {"type": "null"}}, "schema.not: must not be there"),
        ({"$defs": {"A": {"if": {}}}}, r"schema.\$defs.A.if"),
        ({"pattern": "("}, "pattern '\\('"),
        ({"$ref": "#/$defs/A"}, "does not lead to a schema"),
        ({"$ref": "https://example.com/schema"}, "does not lead to a schema"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "refers to itself"),
        ({"$ref": "#/x-part", "x-part": {"type": "strin"}}, "x-part.type: expected one of"),
        (None, "a schema must be a type"),
        ("Person", "a schema must be a type"),
        (object, "cannot be a JSON Schema"),
        (complex, "cannot be a JSON Schema"),
    ],
    ids=str,
)
def test_an_invalid_schema_is_rejected(of: object, message: str) -> None:
    with pytest.raises(errors.SchemaInvalid, match=message):
        schema_of(of)


def test_true_is_not_one() -> None:
    assert schema_of({"const": 1}).fit(True)[1]
    assert schema_of({"enum": [[1]]}).fit([True])[1]
    assert not schema_of({"const": 1}).fit(1.0)[1]


def test_an_unknown_keyword_is_an_annotation() -> None:
    schema = schema_of({"type": "string", "format": "email", "x-order": 3, "examples": ["a"]})
    assert schema.typed_value("no email") == "no email"


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([0.5, 1.0, "a", "bb", 10**18 + 1, 10**20, 2**64 - 1, 2**64, 10**400 + 1])
)
VALUES = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abc"), below, max_size=3)
    ),
    max_leaves=6,
)
SIMPLE = st.sampled_from(
    [
        *({"type": name} for name in ("string", "integer", "number", "boolean", "null", "array")),
        {"type": ["string", "null"], "minLength": 2},
        {"enum": [1, "a", None, [1]]},
        {"const": True},
        {"const": 1},
        {"minimum": 0, "exclusiveMaximum": 2},
        {"multipleOf": 0.5},
        {"multipleOf": 10},
        {"multipleOf": 2**64},
        {"maximum": 2**64, "exclusiveMinimum": 2**64 - 1},
        {"pattern": "^a"},
        {"maxItems": 1, "uniqueItems": True},
        {"maxProperties": 1},
        {"$ref": "#/$defs/tree"},
        True,
        False,
    ]
)


def deeper(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(below, min_size=1, max_size=3)
    return (
        st.fixed_dictionaries({"anyOf": some})
        | st.fixed_dictionaries({"oneOf": some})
        | st.fixed_dictionaries({"allOf": some})
        | st.fixed_dictionaries({"prefixItems": some, "items": below})
        | st.fixed_dictionaries(
            {
                "properties": st.dictionaries(st.sampled_from("abc"), below, max_size=2),
                "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
                "additionalProperties": below,
            }
        )
    )


@given(st.integers(-(10**8), 10**8), st.integers(1, 10**6), st.integers(0, 1), st.integers(0, 12))
@example(12_345_671, 7, 0, 2)
def test_a_decimal_number_is_a_multiple_as_its_digits_say(
    times: int, unit: int, more: int, digits: int
) -> None:
    value, of = msgspec.json.decode(f"[{times * unit + more}e-{digits},{unit}e-{digits}]")
    expected = (times * unit + more) % unit == 0
    assert (schema_of({"multipleOf": of}).fit(value)[1] == ()) == expected


@pytest.mark.parametrize("value", [2**53 + 1, 10**18 + 1, 2**64, 10**20 + 4, 10**310 + 1])
@pytest.mark.parametrize("unit", [2, 3, 10, 2**64, 0.5])
def test_large_integers_are_compared_by_all_their_digits(value: int, unit: float) -> None:
    expected = unit == 0.5 or value % int(unit) == 0
    assert (schema_of({"multipleOf": unit}).fit(value)[1] == ()) == expected
    assert schema_of({"type": "integer", "maximum": value}).fit(value + 1)[1]


@given(st.recursive(SIMPLE, deeper, max_leaves=5), VALUES)
def test_our_checker_agrees_with_the_reference(inner: Json, value: Json) -> None:
    tree: Json = {"type": ["array", "integer"], "items": {"$ref": "#/$defs/tree"}}
    complete: dict[str, Json] = {"allOf": [inner], "$defs": {"tree": tree}}
    theirs = jsonschema.Draft202012Validator(complete).is_valid(value)
    schema: Schema[Any] = schema_of(complete)
    assert (schema.fit(value)[1] == ()) == theirs
