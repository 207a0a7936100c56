"""Intervals of proportions: published values."""

from __future__ import annotations

import pytest

from corral._core.intervals import wilson


@pytest.mark.parametrize(
    ("passed", "count", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_intervals_are_those_of_newcombe_1998(
    passed: int, count: int, low: float, high: float
) -> None:
    assert wilson(passed / count, count) == pytest.approx((low, high), abs=5e-5)
