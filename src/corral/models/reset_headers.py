"""When a rate limit ends, from the headers of a response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from corral.core.durations import seconds

_MILLISECONDS_FROM = 1e12
"""A larger number is a time in milliseconds since 1970."""
_SINCE_1970_FROM = 1e9
"""A larger number is a time in seconds since 1970, a smaller one a duration."""


def resets_at(names: Iterable[str], headers: Mapping[str, str], now: float) -> float | None:
    """The latest time at which a limit ends that is used up, in seconds since 1970. ``names`` are
    the headers with such times. A limit of which something remains is not the cause."""
    found: list[float] = []
    for name in names:
        value = headers.get(name)
        remaining = headers.get(name.replace("reset", "remaining"), "0").strip()
        if value is not None and remaining in ("0", "0.0"):
            moment = read_time(value, now)
            if moment is not None:
                found.append(moment)
    return max(found, default=None)


def read_time(value: str, now: float) -> float | None:
    """A time in seconds since 1970: RFC 3339, a number, or a duration such as ``6m0s``."""
    text = value.strip()
    try:
        number = float(text)
    except ValueError:
        try:
            return _after(seconds(text), now)
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        return None if moment.tzinfo is None else moment.timestamp()
    if number >= _MILLISECONDS_FROM:
        return number / 1000
    return number if number >= _SINCE_1970_FROM else _after(number, now)


def _after(duration: float, now: float) -> float | None:
    """None if the current time is not known."""
    return now + duration if now and duration >= 0 else None


def next_midnight(zone: str, now: float) -> float | None:
    """When the day ends in a time zone; None if the time or the zone is not known."""
    from zoneinfo import ZoneInfo

    if not now:
        return None
    try:
        local = datetime.fromtimestamp(now, ZoneInfo(zone))
    except (OSError, ValueError, LookupError):  # the machine has no such zone
        return None
    day = (local + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return day.timestamp()
