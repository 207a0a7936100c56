"""What differs each time: the clock and random values; and the times in texts of agents.

``find_reset`` finds when a limit ends, in the text in which an agent reports it. Known forms:
``resets 3pm (Europe/Berlin)``, ``resets Oct 9 at 5pm``, ``try again at 3:05 PM``,
``try again in 2 days 3 hours``, ``retry in 22.5s``, ``will reset after 12h3m1s``, and a time in
seconds since 1970 after ``limit reached|``. A time without a zone is local time.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import time


def now() -> float:
    """Seconds since 1970. Other machines have similar values."""
    return time.time()


def today() -> str:
    """The local date, such as ``2026-01-31``."""
    return date_of(now())


def timestamp() -> str:
    """The local time, such as ``20260131-150405``: for the names of runs."""
    return time.strftime("%Y%m%d-%H%M%S")


def date_of(moment: float) -> str:
    """The local date of a time in seconds since 1970."""
    return time.strftime("%Y-%m-%d", time.localtime(moment))


def time_of_day(moment: float) -> str:
    """A time in seconds since 1970 as the local time, such as ``15:04:05``; with the date, and
    without seconds, if it is not within a day from now."""
    is_near = abs(moment - now()) < 24 * 3600
    return time.strftime("%H:%M:%S" if is_near else "%Y-%m-%d %H:%M", time.localtime(moment))


def local_minute(moment: float | None) -> str:
    """A time in seconds since 1970 as local time, such as ``2026-01-31 15:04``; a dash for none."""
    return "–" if not moment else time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def iso_time(moment: float) -> str:
    """A time in seconds since 1970 in UTC, such as ``2026-01-31T15:04:05Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


class Stopwatch:
    """Measures time from when it was made. Adjustments of the clock have no effect."""

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started


def random_hex(size: int) -> str:
    """``size`` random bytes, as twice as many hexadecimal digits."""
    return os.urandom(size).hex()


def new_secret() -> str:
    """For a URL or a header."""
    return secrets.token_urlsafe(32)


def random_fraction() -> float:
    """From 0 to below 1: for pauses that must not be the same for all."""
    return random.random()


# Kept as text: re compiles them when first needed.
_EPOCH = r"limit reached\|(\d{10})\b"
_AFTER = r"(?:try again|retry|retrying|resets?|available(?: again)?) (?:in|after) (?:about )?"
_UNIT = r"milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|h|days?|d"
_AMOUNT = rf"(?<!\d)(\d+(?:\.\d+)?)\s?({_UNIT})(?![a-z])"
_DURATION = rf"{_AFTER}((?:{_AMOUNT}(?:,? and |,? |,)?)+)"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATE = rf"(?:({'|'.join(_MONTHS)})[a-z]* (\d{{1,2}})(?:st|nd|rd|th)?,?(?: (\d{{4}}),?)? (?:at )?)?"
_CLOCK = r"(\d{1,2})(?::(\d{2}))?(?::\d{2})?\s?(am|pm)?"
_MOMENT = rf"(?:resets?|try again)(?: at| on)? {_DATE}{_CLOCK}\b(?:\s?\(([\w/+-]+)\))?"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def find_reset(text: str, now: float) -> float | None:
    """The time in seconds since 1970; None if the text has none. ``now`` is the current time."""
    if (epoch := re.search(_EPOCH, text, re.IGNORECASE)) is not None:
        return float(epoch[1])
    if (duration := re.search(_DURATION, text, re.IGNORECASE)) is not None:
        seconds = 0.0
        for number, unit in re.findall(_AMOUNT, duration[1], re.IGNORECASE):
            # ``ms`` and ``milliseconds`` are not minutes.
            name = "ms" if unit.lower().startswith(("ms", "milli")) else unit[0].lower()
            seconds += float(number) * _UNITS[name]
        return now + seconds
    moment = re.search(_MOMENT, text, re.IGNORECASE)
    return None if moment is None else _next_moment(moment, now)


def _next_moment(found: re.Match[str], now: float) -> float | None:
    """The next time of this date, or of this time of day, after ``now``."""
    from datetime import datetime, timedelta  # slow to load, and most runs meet no limit
    from zoneinfo import ZoneInfo

    month, day, year, hour, minute, half, zone = found.groups()
    if minute is None and half is None:
        return None  # a number, and not a time
    try:
        if zone is None:
            local = datetime.fromtimestamp(now).astimezone()
        else:
            local = datetime.fromtimestamp(now, ZoneInfo(zone))
        afternoon = 12 if half is not None and half.lower() == "pm" else 0
        moment = local.replace(
            hour=int(hour) if half is None else int(hour) % 12 + afternoon,
            minute=int(minute or 0),
            second=0,
            microsecond=0,
        )
        if month is not None:
            number = _MONTHS.index(month.lower()) + 1
            moment = moment.replace(year=int(year or local.year), month=number, day=int(day))
            if moment < local and year is None:
                moment = moment.replace(year=local.year + 1)
        elif moment <= local:
            moment += timedelta(days=1)
    except (OSError, ValueError, LookupError):  # an unknown zone, or the 25th hour
        return None
    return moment.timestamp()
