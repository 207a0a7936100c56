"""When a limit ends, from the text in which an agent reports it.

Known forms: ``resets 3pm (Europe/Berlin)``, ``resets Oct 9 at 5pm``, ``try again at 3:05 PM``,
``try again in 2 days 3 hours``, ``retry in 22.5s``, ``will reset after 12h3m1s``, and a time in
seconds since 1970 after ``limit reached|``. A time without a zone is local time.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo

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
    if (found := re.search(_DURATION, text, re.IGNORECASE)) is not None:
        parts = re.findall(_AMOUNT, found[1], re.IGNORECASE)
        return now + sum(float(number) * _unit(unit.lower()) for number, unit in parts)
    moment = re.search(_MOMENT, text, re.IGNORECASE)
    return None if moment is None else _moment(moment, now)


def _unit(name: str) -> float:
    """``ms`` and ``milliseconds`` are not minutes."""
    if name == "ms" or name.startswith("milli"):
        return _UNITS["ms"]
    return _UNITS[name[0]]


def _moment(found: re.Match[str], now: float) -> float | None:
    month, day, year, hour, minute, half, zone = found.groups()
    if minute is None and half is None:
        return None  # a number, and not a time
    local = _local(now, zone)
    if local is None:
        return None
    try:
        moment = local.replace(
            hour=_hour(int(hour), half), minute=int(minute or 0), second=0, microsecond=0
        )
        if month is not None:
            number = _MONTHS.index(month.lower()) + 1
            moment = moment.replace(year=int(year or local.year), month=number, day=int(day))
            if moment < local and year is None:
                moment = moment.replace(year=local.year + 1)
        elif moment <= local:
            moment += timedelta(days=1)
    except ValueError:  # the 25th hour
        return None
    return moment.timestamp()


def _hour(hour: int, half: str | None) -> int:
    if half is None:
        return hour
    return hour % 12 + (12 if half.lower() == "pm" else 0)


def _local(now: float, zone: str | None) -> datetime | None:
    """The current time in the zone; None if the zone is not known."""
    if zone is None:
        return datetime.fromtimestamp(now).astimezone()
    from zoneinfo import ZoneInfo

    try:
        known: tzinfo = ZoneInfo(zone)
    except (OSError, ValueError, LookupError):
        return None
    return datetime.fromtimestamp(now, known)
