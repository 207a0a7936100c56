"""Durations as people write them (``90``, ``500ms``, ``30s``, ``5m``, ``1h30m``, ``2d``), and how
long to wait before a retry."""

from __future__ import annotations

import itertools
import math
import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Kept as text: re compiles them when first needed.
_NUMBER = r"\d+(?:\.\d+)?"
_PART = r"(?<!\d)(\d+(?:\.\d+)?)(ms|s|m|h|d)"


def seconds(value: str | float) -> float:
    """A duration in seconds. A bare number is seconds. Raises ``ValueError``."""
    if not isinstance(value, str):
        if isinstance(value, bool) or not math.isfinite(value):
            raise ValueError(f"{value} is not a duration")
        return float(value)
    found = _read(value)
    if not math.isfinite(found):
        raise ValueError(f"{value[:40]}… is too long")
    return found


def _read(value: str) -> float:
    text = value.strip()
    if re.fullmatch(_NUMBER, text):
        return float(text)
    parts = re.findall(_PART, text)
    # The largest unit first, each at most once, and nothing between the parts.
    sizes = [_UNITS[unit] for _, unit in parts]
    is_ordered = all(left > right for left, right in itertools.pairwise(sizes))
    if not parts or "".join(number + unit for number, unit in parts) != text or not is_ordered:
        raise ValueError(f"{value!r} is not a duration: write 500ms, 30s, 15m, 1h30m or 2d")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def text(duration: float) -> str:
    """A duration as ``seconds`` reads it, rounded to seconds from one minute on: ``1h30m``."""
    if duration < 60:
        return f"{duration:g}s" if duration >= 1 or duration == 0 else f"{duration * 1000:g}ms"
    rest = round(duration)
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, int(_UNITS[unit]))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def backoff_delay(retry: int, *, first: float, longest: float, jitter: float) -> float:
    """Return the seconds to wait before a retry. ``retry`` counts from 0.

    The delay is ``first`` seconds, doubled with each retry, at most ``longest``, and then
    multiplied by a factor from 0.5 to 1.5. ``jitter``, from 0 to 1, chooses the factor. The caller
    passes it, so this function is pure.
    """
    doubled = first * 2 ** min(retry, 32)  # a larger power would overflow
    return float(min(doubled, longest) * (0.5 + jitter))
