"""The deadlines of a turn: startup, idle, total; and the time to exit after the turn's end.

One timer serves all of them. It is set again only when it fires, so an event costs one reading of
the clock. Time in which the caller does not read events does not count as idle.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from corral.errors import CorralError, IdleTimeout, StartupTimeout, TotalTimeout
from corral.options import RunOptions

EXIT_TIMEOUT = 10.0
"""Seconds that a program may take to exit after the turn's end."""


class Deadlines:
    def __init__(self, run: RunOptions, on_expired: Callable[[CorralError | None], None]) -> None:
        """``on_expired`` is called once with the error, or with None if a finished agent does
        not exit. It is held weakly: a timer must not keep a dropped turn alive."""
        self._run = run
        self._on_expired = weakref.WeakMethod(on_expired)
        self._loop = asyncio.get_running_loop()
        self._started = self._last_activity = self._loop.time()
        self._alive = False
        self._finished = False
        self._waiting = False
        self._handle: asyncio.TimerHandle | None = None
        self._arm(min(run.startup_timeout, run.timeout))

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
        weak = weakref.ref(self)

        def fire() -> None:
            deadlines = weak()
            if deadlines is not None:
                deadlines._check()

        self._handle = self._loop.call_later(seconds, fire)

    def _check(self) -> None:
        now = self._loop.time()
        run = self._run
        total = self._started + run.timeout - now
        if self._finished:  # an answered turn stays answered, whichever deadline passes
            self._report(None)
            return
        if total <= 0:
            self._report(_total_timeout(run))
            return
        if not self._alive:
            left = self._started + run.startup_timeout - now
            error: CorralError = _startup_timeout(run)
        elif self._waiting:
            left = self._last_activity + run.idle_timeout - now
            error = _idle_timeout(run)
        else:
            left, error = run.idle_timeout, _idle_timeout(run)
        if left <= 0:
            self._report(error)
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
        f"no sign of life {run.startup_timeout:g}s after the start",
        hint="Raise startup_timeout, or run `corral agents doctor`.",
    )


def _idle_timeout(run: RunOptions) -> CorralError:
    return IdleTimeout(
        f"timed out after {run.idle_timeout:g}s without any event",
        hint="Raise idle_timeout (--idle-timeout) if the agent works long in silence.",
    )
