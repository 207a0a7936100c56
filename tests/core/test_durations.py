"""Durations as people write them, and delays before a retry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._core.durations import backoff_delay, seconds, text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("90", 90),
        (90, 90),
        (1.5, 1.5),
        ("500ms", 0.5),
        (" 30s ", 30),
        ("15m", 900),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("1d2h3m4s5ms", 93_784.005),
        ("0", 0),
    ],
)
def test_a_duration_is_read_as_seconds(value: str | float, expected: float) -> None:
    assert seconds(value) == pytest.approx(expected)


@pytest.mark.parametrize(
    "value",
    ["", "m", "5 minutes", "-5m", "30m1h", "1h1h", "1h 30m", "5x", "1e3", "inf", True],
)
def test_anything_else_is_an_error_that_shows_how_to_write_it(value: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(value)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "9" * 400, "9" * 400 + "d"])
def test_an_endless_time_is_an_error(value: str | float) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|is too long"):
        seconds(value)


@given(st.integers(min_value=0, max_value=10**7))
def test_text_is_read_back(number: int) -> None:
    assert seconds(text(number)) == number


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0s"), (0.25, "250ms"), (2.5, "2.5s"), (60, "1m"), (5400, "1h30m")]
)
def test_text_is_short(number: float, expected: str) -> None:
    assert text(number) == expected


@pytest.mark.parametrize(
    ("retry", "jitter", "seconds"),
    [(0, 0.5, 0.2), (1, 0.5, 0.4), (3, 0.5, 1.6), (0, 0.0, 0.1), (0, 1.0, 0.3), (9, 0.5, 60.0)],
)
def test_the_delay_doubles_up_to_the_longest(retry: int, jitter: float, seconds: float) -> None:
    delay = backoff_delay(retry, first=0.2, longest=60.0, jitter=jitter)
    assert delay == pytest.approx(seconds)


def test_a_very_late_retry_does_not_overflow() -> None:
    assert backoff_delay(100_000, first=1.0, longest=60.0, jitter=0.5) == 60.0
