"""Read the clock."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since 1970. Other machines have similar values."""
    return time.time()


def today() -> str:
    """The local date, such as ``2026-01-31``."""
    return time.strftime("%Y-%m-%d")


class Stopwatch:
    """Measures time from when it was made. Adjustments of the clock have no effect."""

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started
