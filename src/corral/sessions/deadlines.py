"""The deadlines of a turn: startup, idle, total, and the time to exit after the turn's end.

One timer serves all of them. It is set again only when it fires, so an event costs one reading of
the clock. Time in which the caller does not read events does not count as idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakMethod

from corral.errors import CorralError, IdleTimeout, StartupTimeout, TotalTimeout
from corral.options import RunOptions
from corral.values import weak_callback

if TYPE_CHECKING:
    from corral.metering.budget import Budget
    from corral.metering.rate_limits import LimitWaits

EXIT_TIMEOUT = 10.0
"""Seconds that a program may take to exit after the turn's end."""

PAUSE_INTERVAL = 1.0
"""Seconds between looks at a budget that holds a model call."""


class Deadlines:
    """``start`` when the agent has its prompt, ``stop`` at the end."""

    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        run: RunOptions,
        on_expired: Callable[[CorralError | None], None],
        budget: Budget | None = None,
        waits: LimitWaits | None = None,
    ) -> None:
        """``on_expired`` is called once with the error, or with None if a finished agent does
        not exit. It is held weakly: a timer must not keep a dropped turn alive. Time in which a
        model call waits for ``budget`` to be raised, or for a rate limit (``waits``), does not
        count."""
        self._run = run
        self._budget = budget
        self._waits = waits
        self._waited_before = 0.0
        self._on_expired = WeakMethod(on_expired)
        self._started = self._last_activity = 0.0
        self._alive = False
        self._finished = False
        self._waiting = False
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started = self._last_activity = self._loop.time()
        self._waited_before = 0.0 if self._waits is None else self._waits.waited
        self._arm(min(self._run.startup_timeout, self._run.timeout))

    @property
    def waited(self) -> float:
        """Seconds of this turn in which it waited for rate limits."""
        return 0.0 if self._waits is None else self._waits.waited - self._waited_before

    def start_waiting(self) -> None:
        """The caller waits for the agent from now on."""
        if not self._waiting:
            self._waiting = True
            self._last_activity = self._loop.time()

    def on_activity(self) -> None:
        """The agent has sent something."""
        self._last_activity = self._loop.time()
        self._waiting = False
        if not self._alive:
            self._alive = True
            # Check at this time at the latest. A timer that fires earlier stays: one that is
            # cancelled would take memory until its time.
            deadline = self._last_activity + self._run.idle_timeout
            if self._handle is None or self._handle.when() > deadline:
                self._arm(deadline - self._loop.time())

    def on_restart(self) -> None:
        """The turn goes on in another process of the agent."""
        self._finished = self._waiting = False
        self._last_activity = self._loop.time()
        self._arm(0.0)

    def on_turn_end(self) -> None:
        """The turn has ended."""
        if not self._finished:
            self._finished = True
            left = self._started + self._run.timeout - self._loop.time()
            self._arm(max(0.0, min(EXIT_TIMEOUT, left)))

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, seconds: float) -> None:
        self.stop()
        self._handle = self._loop.call_later(seconds, weak_callback(self._check))

    def _check(self) -> None:
        now = self._loop.time()
        run = self._run
        if self._budget is not None and any(each.is_paused for each in self._budget.chain()):
            self._started += PAUSE_INTERVAL
            self._last_activity = now
            self._arm(PAUSE_INTERVAL)
            return
        waited, last_activity = 0.0, self._last_activity
        if self._waits is not None:
            if self._waits.is_waiting:
                self._arm(PAUSE_INTERVAL)
                return
            waited = self.waited
            last_activity = max(last_activity, now - self._waits.seconds_since_wait)
        total = self._started + waited + run.timeout - now
        if self._finished:  # an answered turn stays answered, whichever deadline passes
            self._report(None)
            return
        if total <= 0:
            self._report(_total_timeout(run))
            return
        if not self._alive:
            left = self._started + waited + run.startup_timeout - now
        elif self._waiting:
            left = last_activity + run.idle_timeout - now
        else:
            left = run.idle_timeout
        if left <= 0:
            self._report(_idle_timeout(run) if self._alive else _startup_timeout(run))
        else:
            self._arm(min(left, total))

    def _report(self, error: CorralError | None) -> None:
        self._handle = None
        on_expired = self._on_expired()
        if on_expired is not None:
            on_expired(error)


def _total_timeout(run: RunOptions) -> CorralError:
    return TotalTimeout(
        f"timed out after {run.timeout:g}s in all",
        hint="Raise timeout (--timeout) if the task needs longer.",
    )


def _startup_timeout(run: RunOptions) -> CorralError:
    return StartupTimeout(
        f"no output {run.startup_timeout:g}s after the start",
        hint="Raise startup_timeout, or run `corral agents doctor`.",
    )


def _idle_timeout(run: RunOptions) -> CorralError:
    return IdleTimeout(
        f"timed out after {run.idle_timeout:g}s without any event",
        hint="Raise idle_timeout (--idle-timeout) if the agent works long in silence.",
    )
