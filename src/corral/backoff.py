"""How long to wait before the next attempt: exponential back-off with jitter."""

from __future__ import annotations

LARGEST_EXPONENT = 32


def backoff_delay(retry: int, *, first: float, longest: float, jitter: float) -> float:
    """Return the seconds to wait before a retry. ``retry`` counts from 0.

    The delay is ``first`` seconds, doubled with each retry, at most ``longest``, and then
    multiplied by a factor from 0.5 to 1.5. ``jitter``, from 0 to 1, chooses the factor. The caller
    passes it, so this function is pure.
    """
    doubled = first * 2 ** min(retry, LARGEST_EXPONENT)
    return float(min(doubled, longest) * (0.5 + jitter))
