"""Wait for what running processes publish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from corral import live

T = TypeVar("T")
LONGEST = 60.0
"""Seconds; waits end as soon as there is something."""


def wait_for(look: Callable[[], T | None]) -> T:
    """The first thing that is found."""
    until = time.monotonic() + LONGEST
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("nothing was found in time")


def one_pending() -> live.Pending | None:
    found = live.pending()
    return found[0] if found else None


def one_run() -> live.LiveRun | None:
    found = live.runs()
    return found[0] if found else None


async def pending_request() -> live.Pending:
    """The request that waits for a person."""
    return await asyncio.to_thread(wait_for, one_pending)


async def running() -> live.LiveRun:
    """The run that is visible."""
    return await asyncio.to_thread(wait_for, one_run)
