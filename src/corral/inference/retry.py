"""Retries of failed model calls: how often, and how long to wait."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from corral.backoff import backoff_delay
from corral.errors import ConfigError, CorralError

if TYPE_CHECKING:
    from corral.system.rate_limits import CallWaits

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


async def with_retries(
    work: Callable[[], Awaitable[T]],
    most: int,
    *,
    on_retry: Callable[[CorralError, float], None] | None = None,
    waits: CallWaits | None = None,
) -> T:
    """Call ``work`` until it succeeds, at most ``most`` times after the first. With ``waits``, it
    waits for a rate limit to end; that is not one of these times."""
    if most < 0:
        raise ConfigError(f"retries must not be negative, got: {most}")
    attempt = 0
    while True:
        if waits is not None and (limit := await waits.before()) is not None:
            raise limit.error()
        try:
            return await work()
        except CorralError as error:
            if waits is not None and await waits.after(error) is not None:
                continue
            wait = retry_delay(attempt, error) if attempt < most else None
            if wait is None:
                raise
            _log.info("attempt %d failed, next one in %.1f s: %s", attempt + 1, wait, error.message)
            if on_retry is not None:
                on_retry(error, wait)
        attempt += 1
        await asyncio.sleep(wait)
