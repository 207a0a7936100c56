"""Reading untrusted JSON; usage and cost, where a count that was not reported is not 0; slugs."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral.values import (
    Cost,
    FileChanged,
    Json,
    Usage,
    as_list,
    as_object,
    as_objects,
    as_text,
    as_texts,
    int_or_none,
    join_files,
    number_or_none,
    slug,
    text_or_none,
)

COUNTS = st.none() | st.integers(0, 1000)
USAGES = st.builds(
    Usage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, st.sampled_from(["complete", "partial"])
)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON_VALUES: st.SearchStrategy[Json] = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@pytest.mark.deep
@no_deadline
@given(value=JSON_VALUES)
def test_a_value_of_another_type_is_read_as_missing(value: Json) -> None:
    assert as_object(value) == (value if isinstance(value, dict) else {})
    assert as_list(value) == (value if isinstance(value, list) else [])
    assert as_text(value) == (value if isinstance(value, str) else "")
    assert text_or_none(value) == (value if isinstance(value, str) else None)


def test_only_the_objects_or_strings_of_a_list_are_read() -> None:
    mixed: list[Json] = [{"a": 1}, "b", 3, None, ["c"]]
    assert as_objects(mixed) == [{"a": 1}]
    assert as_texts(mixed) == ["b"]
    assert not as_objects({"a": 1})
    assert not as_texts("b")


@pytest.mark.parametrize("value", [True, False, None, "1", [1]])
def test_a_boolean_or_a_string_is_not_a_number(value: Json) -> None:
    assert int_or_none(value) is None
    assert number_or_none(value) is None


def test_a_float_is_a_number_but_not_an_integer() -> None:
    assert (int_or_none(2), int_or_none(2.0)) == (2, None)
    assert (number_or_none(2), number_or_none(2.5)) == (2, 2.5)


def test_without_reported_counts_nothing_is_known() -> None:
    assert Usage().total is None
    assert Cost().usd is None


@pytest.mark.parametrize(
    ("usage", "total"),
    [(Usage(input=3), 3), (Usage(output=4), 4), (Usage(3, 4, reasoning=2), 7), (Usage(0, 0), 0)],
)
def test_the_total_is_input_and_output_and_counts_reasoning_once(usage: Usage, total: int) -> None:
    assert usage.total == total


@no_deadline
@given(a=USAGES, b=USAGES)
def test_a_sum_never_invents_a_count(a: Usage, b: Usage) -> None:
    summed = a + b
    for name in ("input", "output", "reasoning", "cache_read", "cache_write"):
        known = [n for n in (getattr(a, name), getattr(b, name)) if n is not None]
        assert getattr(summed, name) == (sum(known) if known else None)


@no_deadline
@given(usage=USAGES)
def test_adding_a_run_that_reported_nothing_changes_nothing(usage: Usage) -> None:
    assert usage + Usage() == usage == Usage() + usage


def test_a_count_that_only_one_run_reports_makes_the_sum_partial() -> None:
    complete = Usage(input=1, output=1, coverage="complete")
    more = Usage(input=1, output=1, reasoning=1, coverage="complete")
    assert (complete + complete).coverage == "complete"
    assert (complete + more).coverage == "partial"


def test_a_difference_is_the_usage_since_then_and_unknown_stays_unknown() -> None:
    now = Usage(input=10, output=7, cache_read=3, coverage="complete")
    then = Usage(input=4, output=7, reasoning=1, coverage="complete")
    assert now - then == Usage(input=6, output=0, cache_read=3, coverage="complete")
    assert now - Usage() == now


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("my run 2", "my-run-2"),
        ("../../etc/passwd", "etc-passwd"),
        ("a" * 99, "a" * 10),
        ("123456789 more", "123456789"),
        ("größe", "gr--e"),
        ("***", "run"),
        ("", "run"),
    ],
)
def test_a_slug_has_only_letters_digits_and_hyphens(text: str, name: str) -> None:
    assert slug(text, limit=10, default="run") == name


def test_allowed_characters_stay_and_dots_at_the_ends_go() -> None:
    assert slug(".hidden file.txt.", limit=30, allowed="._-", fill="_") == "hidden_file.txt"


def test_the_sum_of_costs_is_unknown_if_one_is() -> None:
    one, other = Cost(1.0, "metered"), Cost(0.5, "reported")
    assert one + one == Cost(2.0, "metered")
    assert one + other == Cost(1.5, "computed")
    assert one + Cost() == Cost() + one == Cost()


@pytest.mark.parametrize(
    ("earlier", "later", "joined"),
    [
        (("created", 5, 0), ("modified", 2, 3), ("created", 4, 0)),
        (("created", 5, 0), ("modified", None, None), ("created", None, 0)),
        (("modified", 1, 1), ("modified", 1, 1), ("modified", None, None)),
        (("modified", 1, 1), ("deleted", 0, 9), ("deleted", None, None)),
        (("deleted", 0, 9), ("created", 9, 0), ("modified", None, None)),
        (("created", 5, 0), ("deleted", 0, 5), None),
    ],
)
def test_a_file_that_two_turns_changed_is_listed_once(
    earlier: tuple[Literal["created"], int, int],
    later: tuple[Literal["created"], int, int],
    joined: tuple[Literal["created"], int, int] | None,
) -> None:
    other = FileChanged("/other", "modified", 1, 1)
    found = join_files(
        [FileChanged("/a", *earlier, by_tool=True), other], [FileChanged("/a", *later)]
    )
    expected = () if joined is None else (FileChanged("/a", *joined, by_tool=True),)
    assert found == (other, *expected)
