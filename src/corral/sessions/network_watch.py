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
  ``retries`` failed attempts in a row (at least ``FEWEST_FAILURES``): no answer can come.
- If the model was heard before, the turn goes on. The agent may be busy with a tool, or have an
  open connection, and decides itself when to give up.

What counts as hearing the model are its text, its thinking, tool calls and token counts; not the
agent's own messages, such as those about its retries. The watch is a task of the turn: ``stop``
cancels it, and nothing else outlives the turn. A name lookup that hangs runs in a thread of its
own, which is not waited for.
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
from corral.system.http.reachability import why_unreachable

FIRST_SILENCE = 3.0
"""Seconds of silence before the first attempt, in a turn that has not heard the model."""
LATER_SILENCE = 20.0
"""Seconds of silence before an attempt, once the model was heard or could be reached."""
INTERVAL = 1.5
"""Seconds between attempts while the service cannot be reached."""
FEWEST_FAILURES = 2
HINT = "Check the network, the proxy variables (HTTPS_PROXY, NO_PROXY) and the base URL."
_VAGUE = (EmptyAnswer, ProcessFailed, ServerFailed, StreamBroken, TimedOut)
"""Errors that do not exclude the network as their cause."""
FROM_MODEL = (str, Text, Thinking, ToolUse, ToolResult, UsageReport)


class NetworkWatch:
    """The watch of one turn, which runs until ``stop``."""

    def __init__(
        self,
        url: str,
        retries: int,
        emit: Callable[[RawEvent], None],
        fail: Callable[[CorralError], None],
    ) -> None:
        """``emit`` adds an event to the turn, ``fail`` ends it. Both are methods and held weakly:
        the watch must not keep a dropped turn alive."""
        self._url = url
        self._failures = max(retries, FEWEST_FAILURES)
        self._emit = weakref.WeakMethod(emit)
        self._fail = weakref.WeakMethod(fail)
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._heard = False
        self._reason: str | None = None
        self._task = self._loop.create_task(self._run())

    def on_items(self, items: list[RawEvent]) -> None:
        """What the agent sent."""
        if any(isinstance(item, FROM_MODEL) for item in items):
            self._heard = True
            self._heard_at = self._loop.time()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def cause_of(self, error: CorralError | None) -> CorralError | None:
        """The same error, or ``NetworkFailed`` if the agent gave up for another reason, as it
        says, in a turn in which the service could not be reached and was not heard."""
        if self._reason is None or self._heard or not isinstance(error, _VAGUE):
            return error
        return unreachable(self._reason)

    async def _run(self) -> None:
        failed, warned, silence = 0, False, FIRST_SILENCE
        while True:
            await self._wait_for_silence(max(silence, LATER_SILENCE if self._heard else 0.0))
            reason = self._reason = await why_unreachable(self._url)
            if reason is None:
                failed, silence = 0, LATER_SILENCE
                self._heard_at = self._loop.time()
                continue
            failed += 1
            emit, fail = self._emit(), self._fail()
            if emit is None or fail is None:
                return
            if not warned:
                warned = True
                emit(_warning(reason))
            if failed >= self._failures and not self._heard:
                fail(unreachable(reason))
                return
            del emit, fail
            await asyncio.sleep(LATER_SILENCE if self._heard else INTERVAL)

    async def _wait_for_silence(self, seconds: float) -> None:
        left = seconds
        while left > 0:
            left = self._heard_at + seconds - self._loop.time()
            await asyncio.sleep(max(0.0, left))


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
