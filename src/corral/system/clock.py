"""Read the clock."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since 1970. Other machines have similar values."""
    return time.time()


def today() -> str:
    """The local date, such as ``2026-01-31``."""
    return date_of(now())


def date_of(moment: float) -> str:
    """The local date of a time in seconds since 1970."""
    return time.strftime("%Y-%m-%d", time.localtime(moment))


def time_of_day(moment: float) -> str:
    """A time in seconds since 1970 as the local time, such as ``15:04:05``; with the date if it is
    on another day."""
    local = time.localtime(moment)
    is_today = local[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", local)


class Stopwatch:
    """Measures time from when it was made. Adjustments of the clock have no effect."""

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started
