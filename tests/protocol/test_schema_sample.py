"""Values that are made for a schema: each fits it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal
from uuid import UUID

import msgspec
import pytest

from corral._protocol.schema import schema_of
from corral._protocol.schema_sample import sample_value
from corral.values import JsonObject

Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Finding:
    file: str
    line: Annotated[int, msgspec.Meta(ge=5)]
    severity: Literal["high", "low"]
    note: str = ""


@dataclass
class Tree:
    name: str
    children: list[Tree]
    parent: Tree | None


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (str, "text"),
        (bool, True),
        (int, 1),
        (float, 1),
        (Color, "blue"),
        (list[str], ["text"]),
        (tuple[int, bool], [1, True]),
        (dict[str, int], {}),
        (str | None, "text"),
        (Finding, {"file": "text", "line": 5, "severity": "high"}),
        (Annotated[str, msgspec.Meta(max_length=2)], "te"),
        (Annotated[list[int], msgspec.Meta(min_length=2)], [1, 1]),
        (Annotated[float, msgspec.Meta(gt=0, lt=1)], 0.5),
    ],
)
def test_a_value_is_the_simplest_that_fits(of: object, expected: object) -> None:
    schema = schema_of(of)
    value = sample_value(schema.json, "text")
    assert value == expected
    schema.typed_value(value)


@pytest.mark.parametrize("of", [Time, date, UUID, Decimal, Tree, list[Finding | None]])
def test_a_value_can_be_converted(of: object) -> None:
    schema = schema_of(of)
    schema.typed_value(sample_value(schema.json, "text"))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[0-9]+$"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_schema_without_such_a_value_is_an_error(schema: JsonObject) -> None:
    with pytest.raises(ValueError, match=r"a match of|itself"):
        sample_value(schema, "text")


def test_parts_of_a_schema_are_put_together() -> None:
    part: JsonObject = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
    }
    schema: JsonObject = {
        "allOf": [part],
        "properties": {"b": {"enum": ["x"]}},
        "required": ["b"],
    }
    assert sample_value(schema, "text") == {"a": 1, "b": "x"}
