"""When a turn ends that does not end by itself: at a deadline, or because its model's service
cannot be reached.

``Deadlines`` has the limits of a turn: startup, idle, total, and the time to exit after the turn's
end. One timer serves all of them. It is set again only when it fires, so an event costs one reading
of the clock. Time in which the caller does not read events does not count as idle.

``NetworkWatch`` detects, while an agent is silent, that the service of its model cannot be reached.
Agents retry a failed connection for minutes, most of them in silence, and then report whatever
failed last. So corral looks itself: if a turn has heard nothing from the model for
``FIRST_SILENCE`` seconds, a TCP connection to the model's service is tried (``why_unreachable``).

- If it can be made, the agent is only slow. The next attempt comes after ``LATER_SILENCE``.
- If not, an event ``unreachable`` (a warning) says why, once per turn, and further attempts follow
  every ``INTERVAL`` seconds.
- If the model was not heard at all in this turn, the turn ends with ``NetworkFailed`` after
  ``attempts`` failed attempts in a row (at least ``FEWEST_FAILURES``): no answer can come.
- If the model was heard before, the turn goes on. The agent may be busy with a tool, or have an
  open connection, and decides itself when to give up.

What counts as hearing the model are its text, its thinking, tool calls and token counts; not the
agent's own messages, such as those about its retries. The watch is a timer, and a task during an
attempt; ``stop`` ends both. A name lookup runs in its own thread, which is not waited
for if it hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakMethod

from corral._protocol.ndjson import RawEvent
from corral.errors import (
    CorralError,
    EmptyAnswer,
    IdleTimeout,
    NetworkFailed,
    ProcessFailed,
    ServerFailed,
    StartupTimeout,
    StreamBroken,
    TimedOut,
    TotalTimeout,
)
from corral.events import Error, Text, Thinking, ToolResult, ToolUse, UsageReport
from corral.options import RunOptions
from corral.values import weak_callback

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._metering.rate_limits import LimitWaits


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
        if self._budget is not None and any(budget.is_paused for budget in self._budget.chain()):
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
            message = f"timed out after {run.timeout:g}s in all"
            hint = "Raise timeout (--timeout) if the task needs longer."
            self._report(TotalTimeout(message, hint=hint))
            return
        if not self._alive:
            left = self._started + waited + run.startup_timeout - now
        elif self._waiting:
            left = last_activity + run.idle_timeout - now
        else:
            left = run.idle_timeout
        if left > 0:
            self._arm(min(left, total))
        elif self._alive:
            message = f"timed out after {run.idle_timeout:g}s without any event"
            hint = "Raise idle_timeout (--idle-timeout) if the agent works long in silence."
            self._report(IdleTimeout(message, hint=hint))
        else:
            message = f"no output {run.startup_timeout:g}s after the start"
            hint = "Raise startup_timeout, or run `corral agents doctor`."
            self._report(StartupTimeout(message, hint=hint))

    def _report(self, error: CorralError | None) -> None:
        self._handle = None
        on_expired = self._on_expired()
        if on_expired is not None:
            on_expired(error)


FIRST_SILENCE = 3.0
"""Seconds of silence before the first attempt, in a turn that has not heard the model."""
LATER_SILENCE = 20.0
"""Seconds of silence before an attempt, once the model was heard or could be reached."""
INTERVAL = 1.5
"""Seconds between attempts while the service cannot be reached."""
FEWEST_FAILURES = 2
HINT = "Check the network, the proxy variables (HTTPS_PROXY, NO_PROXY) and the base URL."
VAGUE = (EmptyAnswer, ProcessFailed, ServerFailed, StreamBroken, TimedOut)
"""Errors that do not exclude the network as their cause."""
FROM_MODEL = (str, Text, Thinking, ToolUse, ToolResult, UsageReport)


class NetworkWatch:
    """The watch of one turn, which runs until ``stop``."""

    def __init__(
        self,
        url: str,
        attempts: int,
        emit: Callable[[RawEvent], None],
        fail: Callable[[CorralError], None],
    ) -> None:
        """``emit`` adds an event to the turn, ``fail`` ends it. Both are methods and held weakly,
        as the timer holds this object: a dropped turn must not stay alive."""
        self._url = url
        self._failures = max(attempts, FEWEST_FAILURES)
        self._emit = WeakMethod(emit)
        self._fail = WeakMethod(fail)
        self._loop = asyncio.get_running_loop()
        self._silent_since = self._loop.time()
        self._silence = FIRST_SILENCE
        """Seconds of silence before the next attempt."""
        self._received = False
        self._failed = 0
        """Failed attempts in a row."""
        self._reason: str | None = None
        self._warned = False
        self._attempt: asyncio.Task[None] | None = None
        self._timer = self._arm(FIRST_SILENCE)

    def on_items(self, items: list[RawEvent]) -> None:
        """What the agent sent."""
        if any(isinstance(item, FROM_MODEL) for item in items):
            self._received = True
            self._silence = LATER_SILENCE
            self._silent_since = self._loop.time()

    async def stop(self) -> None:
        self._timer.cancel()
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait([self._attempt])

    def cause_of(self, error: CorralError | None) -> CorralError | None:
        """The same error, or ``NetworkFailed`` if the agent gave up for another reason, as it
        says, in a turn in which the service could not be reached and was not heard."""
        if self._reason is None or self._received or not isinstance(error, VAGUE):
            return error
        return unreachable(self._reason)

    def _arm(self, seconds: float) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, weak_callback(self._check))

    def _check(self) -> None:
        left = self._silent_since + self._silence - self._loop.time()
        if left > 0:
            self._timer = self._arm(left)
        else:
            self._attempt = self._loop.create_task(self._try_to_connect())

    async def _try_to_connect(self) -> None:
        from corral._system.http.reachability import why_unreachable  # most turns need no attempt

        reason = self._reason = await why_unreachable(self._url)
        self._failed = 0 if reason is None else self._failed + 1
        emit, fail = self._emit(), self._fail()
        if emit is None or fail is None:
            return
        if reason is not None and not self._warned:
            self._warned = True
            emit(
                Error(
                    "unreachable",
                    unreachable(reason).message,
                    hint=HINT,
                    recoverable=True,
                    retryable=True,
                    level="warning",
                    phase="request",
                )
            )
        if reason is not None and not self._received and self._failed >= self._failures:
            fail(unreachable(reason))
            return
        quickly = reason is not None and not self._received
        self._silence = INTERVAL if quickly else LATER_SILENCE
        self._silent_since = self._loop.time()
        self._timer = self._arm(self._silence)


def unreachable(reason: str) -> NetworkFailed:
    return NetworkFailed(f"the model's service cannot be reached: {reason}", hint=HINT)
