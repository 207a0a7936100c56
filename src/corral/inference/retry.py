"""Trying again: how often, and how long to wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from corral.backoff import backoff_delay
from corral.errors import ConfigError, CorralError

T = TypeVar("T")

BASE = 1.0
LONGEST = 60.0
"""Seconds. Told to wait longer than this, we say so at once."""


def delay(attempt: int, error: CorralError) -> float | None:
    """Seconds before the attempt after this one; None where there should be none."""
    if not error.retryable:
        return None
    if error.retry_after is not None:
        return error.retry_after if error.retry_after <= LONGEST else None
    return backoff_delay(attempt, first=BASE, longest=LONGEST, jitter=random.random())


async def attempts(
    work: Callable[[], Awaitable[T]],
    most: int,
    *,
    on_retry: Callable[[CorralError, float], None] | None = None,
) -> T:
    """``work`` until it succeeds, at most ``most`` times after the first."""
    if most < 0:
        raise ConfigError(f"max_retries cannot be negative: {most}")
    for attempt in range(most + 1):
        try:
            return await work()
        except CorralError as error:
            wait = delay(attempt, error) if attempt < most else None
            if wait is None:
                raise
            if on_retry is not None:
                on_retry(error, wait)
        await asyncio.sleep(wait)
    raise AssertionError("the last attempt returns or raises")
