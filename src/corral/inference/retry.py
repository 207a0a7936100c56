"""Retries of failed model calls: how often, and how long to wait."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from corral.core.durations import backoff_delay
from corral.errors import ConfigError, CorralError

if TYPE_CHECKING:
    from corral.metering.rate_limits import CallWaits

_log = logging.getLogger("corral.models")

T = TypeVar("T")

BASE_DELAY = 1.0
MAX_DELAY = 60.0
"""Seconds. If the vendor says to wait longer, the error is raised at once."""


def retry_delay(attempt: int, error: CorralError) -> float | None:
    """Seconds before the next attempt; None if there should be none."""
    if not error.retryable:
        return None
    if error.retry_after is not None:
        return error.retry_after if error.retry_after <= MAX_DELAY else None
    return backoff_delay(attempt, first=BASE_DELAY, longest=MAX_DELAY, jitter=random.random())


def check_retries(most: int) -> None:
    """Raises ``ConfigError`` for a negative number."""
    if most < 0:
        raise ConfigError(f"retries must not be negative, got: {most}")


async def wait_to_retry(
    error: CorralError,
    attempt: int,
    most: int,
    *,
    on_retry: Callable[[CorralError, float], None] | None = None,
    waits: CallWaits | None = None,
) -> int | None:
    """Wait until the call that failed with this error may be made again. Returns the number of the
    next attempt; None if there should be none. ``attempt`` counts from 0. With ``waits``, it waits
    for a rate limit to end; that does not count as an attempt."""
    if waits is not None and await waits.after(error) is not None:
        return attempt
    wait = retry_delay(attempt, error) if attempt < most else None
    if wait is None:
        return None
    _log.info("attempt %d failed, next one in %.1f s: %s", attempt + 1, wait, error.message)
    if on_retry is not None:
        on_retry(error, wait)
    await asyncio.sleep(wait)
    return attempt + 1


async def wait_for_limit(waits: CallWaits) -> None:
    """Wait until a known rate limit ends. Raises its error if that takes too long."""
    if (limit := await waits.before()) is not None:
        raise limit.error()


async def with_retries(
    work: Callable[[], Awaitable[T]],
    most: int,
    *,
    on_retry: Callable[[CorralError, float], None] | None = None,
    waits: CallWaits | None = None,
) -> T:
    """Call ``work`` until it succeeds, at most ``most`` times after the first. See
    ``wait_to_retry``."""
    check_retries(most)
    attempt = 0
    while True:
        if waits is not None:
            await wait_for_limit(waits)
        try:
            return await work()
        except CorralError as error:
            following = await wait_to_retry(error, attempt, most, on_retry=on_retry, waits=waits)
            if following is None:
                raise
            attempt = following
