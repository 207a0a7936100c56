"""Ids of stored things by a unique beginning, or by ``last``."""

from __future__ import annotations

import pytest

from corral.errors import ConfigError
from corral.id_lookup import find_id

IDS = ["review-20260102-3f9a", "review-20260101-77aa", "fix-20260101-0c11"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("last", IDS[0]),
        ("fix", IDS[2]),
        ("77", IDS[1]),
        ("review-20260102", IDS[0]),
        (IDS[1], IDS[1]),
        ("other", None),
        ("", None),
    ],
)
def test_a_name_is_an_id_or_a_unique_beginning_or_last(name: str, found: str | None) -> None:
    assert find_id(name, IDS, "runs") == found


def test_several_that_begin_so_are_listed() -> None:
    with pytest.raises(ConfigError, match=r"2 runs begin with 'rev': review-.*3f9a, review-.*77aa"):
        find_id("rev", IDS, "runs")


def test_an_id_wins_over_longer_ones_that_begin_with_it() -> None:
    assert find_id("fix", ["fix-2", "fix"], "batches") == "fix"


def test_the_newest_of_nothing_is_nothing() -> None:
    assert find_id("last", [], "runs") is None
