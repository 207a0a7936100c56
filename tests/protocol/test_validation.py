"""A check ends, whatever the schema and the value are: both may come from a caller.

Without the limits each of these checks takes minutes or for ever, and pytest's time limit ends it.
"""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._protocol import validation
from corral._protocol.schema import schema_of
from corral._protocol.validation import Steps, check
from corral._sessions.structured_output import find
from corral.errors import SchemaInvalid
from corral.values import Json, JsonObject


def tree(keyword: str, width: int = 8, depth: int = 9) -> JsonObject:
    """Definitions of which each refers to the next one ``width`` times."""
    defs: dict[str, Json] = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * width}
        for level in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{depth}": {"type": "integer"}}}


def nested(keyword: str, depth: int = 11) -> JsonObject:
    schema: Json = {"type": "integer"}
    for _ in range(depth):
        schema = {keyword: [schema, schema]}
    return {"allOf": [schema]}


NAMES: list[Json] = [f"name{number}" for number in range(2_000)]
HOSTILE: dict[str, tuple[JsonObject, Json]] = {
    "pattern": ({"pattern": "^(a+)+$"}, "a" * 5_000 + "!"),
    "pattern of a long value": ({"pattern": "(a|aa)*b"}, "a" * 3_000_000),
    "patterns of many values": (
        {"items": {"pattern": "(a{0,30}){0,30}b"}},
        ["a" * 1_000 + str(number) for number in range(5_000)],
    ),
    "tree of anyOf": (tree("anyOf"), "no integer"),
    "tree of oneOf": (tree("oneOf"), 1),
    "tree of allOf": (tree("allOf"), "no integer"),
    "nested anyOf": (nested("anyOf"), "no integer"),
    "nested allOf": (nested("allOf"), "no integer"),
    "nested anyOf of a list": ({"items": nested("anyOf")}, [*range(100_000)]),
    "unique items": ({"uniqueItems": True}, [[number] for number in range(300_000)]),
    "equal hashes": ({"uniqueItems": True}, [n * (2**61 - 1) for n in range(30_000)]),
    "an enum of large values": (
        {"items": {"enum": [[*range(900), n] for n in range(20)]}},
        [[*range(900), -1] for _ in range(500)],
    ),
    "required names": ({"items": {"required": NAMES}}, [{}] * 5_000),
    "unknown names": (
        {
            "properties": {str(name): {} for name in NAMES},
            "additionalProperties": False,
        },
        {f"nome{number}": 1 for number in range(5_000)},
    ),
    "long names": (
        {"additionalProperties": {"items": {"type": "string"}}},
        {"x" * 2_000_000: [*range(20_000)]},
    ),
    "types": ({"items": {"type": ["string"] * 15_000}}, [*range(20_000)]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_check_ends_whatever_is_checked(name: str) -> None:
    schema, value = HOSTILE[name]
    errors = schema_of(schema).fit(value)[1]
    assert sum(map(len, errors)) < 100_000
    if name not in ("tree of oneOf", "unique items", "equal hashes"):
        assert errors


def test_a_check_that_takes_too_many_steps_says_so() -> None:
    schema: JsonObject = {"items": nested("anyOf")}
    assert schema_of(schema).fit(["a"])[1] == ("[0]: expected an integer, got the string 'a'",)
    (error,) = schema_of(schema).fit([*range(100_000)])[1]
    assert "too large to be checked" in error


def test_what_is_equal_is_compared_once() -> None:
    """The steps grow with the parts of the schema, not with the ways that lead to them."""
    steps = Steps()
    assert schema_of(tree("anyOf")).fit_within("a", steps)[1]
    assert validation.MAX_STEPS - steps.left < 1_000


def test_all_values_in_an_answer_share_the_steps() -> None:
    """An answer may have thousands of values that do not fit."""
    limits: Json = {"allOf": [{"minimum": number} for number in range(1_000)]}
    schema = schema_of({"type": "array", "items": limits})
    assert "[0]: expected at least" in find("[-1]", schema).complaints[0]
    assert not find("[-1] [1000]", schema).complaints
    assert find("[-1] " * 10_000 + "[1000]", schema).complaints


def patterns(count: int, pattern: str) -> JsonObject:
    """A schema with patterns that differ at their ends."""
    return {"properties": {f"p{n}": {"pattern": f"{pattern}{n}"} for n in range(count)}}


def test_the_patterns_of_a_usual_schema_are_compiled() -> None:
    for pattern in (r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}", r"^[a-z][a-z0-9_]{0,62}$", "^sha256:"):
        schema_of(patterns(50, pattern))
    schema_of({"pattern": "|".join(f"word{n}" for n in range(900))})


CHAIN: dict[str, Json] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3_000)}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"pattern": "(?=a)"}, "pattern '\\(\\?=a\\)': .*in linear time"),
        ({"pattern": r"(a)\1"}, "in linear time"),
        ({"pattern": "a{0,1001}"}, "repetition size"),
        ({"pattern": r"(\pL{100}){100}"}, "too large|repetition size"),
        ({"pattern": "\ud800"}, "pattern"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "refers to itself"),
        ({"$ref": "#/$defs/d0", "$defs": {**CHAIN, "d3000": {}}}, "deep|too large"),
        ({"properties": {f"p{n}": {} for n in range(300_000)}}, "too large"),
        ({"enum": [[[number]] for number in range(10_000)]}, "too large"),
        ({"pattern": "(a|b)" * 3_000}, "pattern .* more than 10,000 characters"),
        (patterns(3_000, "a"), "too large"),
        (patterns(20, "(x{1,900})" * 3), "too large"),  # each takes milliseconds
        (patterns(20, r"((\pL{9}){9}){9}"), "too large"),
        (patterns(90, r"[^\pL\pN\pS\pP]{1000}"), "too large"),
        (patterns(5, r"\pL+\p{Greek}*" * 50), "too large"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_schema_that_cannot_be_checked_in_bounded_time_is_refused(
    schema: JsonObject, message: str
) -> None:
    with pytest.raises(SchemaInvalid, match=message) as refused:
        schema_of(schema)
    assert len(str(refused.value)) < 5_000


@given(
    st.text("ab(|)*+?^$.", max_size=8).filter(lambda text: "++" not in text),
    st.text("ab", max_size=8),
)
def test_a_plain_pattern_matches_as_that_of_python(pattern: str, value: str) -> None:
    try:
        expected = re.search(pattern, value) is not None
        schema = schema_of({"pattern": pattern})
    except (re.error, SchemaInvalid):
        return
    assert (schema.fit(value)[1] == ()) is expected


def test_patterns_have_the_meaning_of_json_schema() -> None:
    def fits(pattern: str, value: str) -> bool:
        return not schema_of({"pattern": pattern}).fit(value)[1]

    assert fits("^a$", "a")
    assert not fits("^a$", "a\n")
    assert fits("ä{2}", "xäätx")
    assert not fits(r"^\d$", "٣")
    assert fits(r"^[^\]\/]+$", "\ud800")  # a lone surrogate, which stands for any character


def test_names_in_errors_are_short() -> None:
    (error,) = check({"x" * 500: 1}, {"additionalProperties": {"type": "string"}})
    assert error.startswith("x" * 60 + "…: expected a string")
    (error,) = check(5, {"enum": list(string.ascii_letters * 50)})
    assert len(error) < 1_000


def test_equal_numbers_are_equal_however_they_are_written() -> None:
    unique: JsonObject = {"uniqueItems": True}
    assert check([1, 1.0], unique)
    assert check([10**300, 1e300], unique) == check([int(1e300), 10**300], unique) == []
    assert check([2**60, float(2**60)], unique)
    assert check([{"a": [1]}, {"a": [1.0]}], unique)
    assert not check([1, True, "1", None, [1], {"1": 1}, 0, False, "", [], {}], unique)
    assert not check(True, {"enum": [True, 1]})
    assert check(True, {"enum": [1]})
    assert not check(1.0, {"const": 1})
