"""Detects, while an agent is silent, that the service of its model cannot be reached.

Theory of operation
-------------------

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
import weakref
from collections.abc import Callable

from corral.errors import (
    CorralError,
    EmptyAnswer,
    NetworkFailed,
    ProcessFailed,
    ServerFailed,
    StreamBroken,
    TimedOut,
)
from corral.events import Error, Text, Thinking, ToolResult, ToolUse, UsageReport
from corral.protocol.ndjson import RawEvent

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
        self._emit = weakref.WeakMethod(emit)
        self._fail = weakref.WeakMethod(fail)
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
        weak = weakref.ref(self)

        def fire() -> None:
            watch = weak()
            if watch is not None:
                watch._check()

        return self._loop.call_later(seconds, fire)

    def _check(self) -> None:
        left = self._silent_since + self._silence - self._loop.time()
        if left > 0:
            self._timer = self._arm(left)
        else:
            self._attempt = self._loop.create_task(self._try_to_connect())

    async def _try_to_connect(self) -> None:
        from corral.system.http.reachability import why_unreachable  # most turns need no attempt

        reason = self._reason = await why_unreachable(self._url)
        self._failed = 0 if reason is None else self._failed + 1
        emit, fail = self._emit(), self._fail()
        if emit is None or fail is None:
            return
        if reason is not None and not self._warned:
            self._warned = True
            emit(_warning(reason))
        if reason is not None and not self._received and self._failed >= self._failures:
            fail(unreachable(reason))
            return
        quickly = reason is not None and not self._received
        self._silence = INTERVAL if quickly else LATER_SILENCE
        self._silent_since = self._loop.time()
        self._timer = self._arm(self._silence)


def unreachable(reason: str) -> NetworkFailed:
    return NetworkFailed(f"the model's service cannot be reached: {reason}", hint=HINT)


def _warning(reason: str) -> Error:
    return Error(
        "unreachable",
        f"the model's service cannot be reached: {reason}",
        hint=HINT,
        recoverable=True,
        retryable=True,
        level="warning",
        phase="request",
    )
