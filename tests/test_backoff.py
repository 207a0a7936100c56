"""Back-off: doubled delays, a longest delay, jitter."""

from __future__ import annotations

import pytest

from corral.backoff import backoff_delay


@pytest.mark.parametrize(
    ("retry", "jitter", "seconds"),
    [(0, 0.5, 0.2), (1, 0.5, 0.4), (3, 0.5, 1.6), (0, 0.0, 0.1), (0, 1.0, 0.3), (9, 0.5, 60.0)],
)
def test_the_delay_doubles_up_to_the_longest(retry: int, jitter: float, seconds: float) -> None:
    delay = backoff_delay(retry, first=0.2, longest=60.0, jitter=jitter)
    assert delay == pytest.approx(seconds)


def test_a_very_late_retry_does_not_overflow() -> None:
    assert backoff_delay(100_000, first=1.0, longest=60.0, jitter=0.5) == 60.0
