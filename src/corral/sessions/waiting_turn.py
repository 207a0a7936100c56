"""A turn that waits for rate limits to end: ``on_limit="wait"``.

Its states beside those of a turn: before its start it waits while another run has met a limit
with the same credentials. When a limit has ended the agent, its event is emitted; the next read
waits until the limit ends, and continues with another backend (``after_limit``). A wait is over at
once if the turn is cancelled. Calls that go through the model proxy wait there; the turn only
reports it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from corral.errors import CorralError, RemoteError
from corral.events import Event
from corral.output_types import T_co
from corral.sessions.after_limit import AfterLimit
from corral.sessions.backends.base import HasService
from corral.sessions.event_normalizer import EventNormalizer
from corral.sessions.turn import Turn

if TYPE_CHECKING:
    from corral.system.rate_limits import LimitState


class WaitingTurn(Turn[T_co]):
    """See the module."""

    _after_limit: AfterLimit | None = None
    _emits_limits = True

    async def _hold_start(self) -> None:
        """Wait while another run has met a limit with the same credentials."""
        waits = self._prepared.limit_waits
        if waits is None:
            return
        waits.add_listener(self._on_limit)
        self._after_limit = AfterLimit(self._prepared, waits)
        error = await self._after_limit.hold()
        if error is not None and self._failure is None:
            self._failure = error

    @property
    def _is_limited(self) -> bool:
        return self._after_limit is not None and self._after_limit.state is not None

    def _take_limit(self, normalizer: EventNormalizer, error: CorralError) -> list[Event] | None:
        after = self._after_limit
        if after is None or self._failure is not None or self.restart is None:
            return None
        resumable = self._is_resumable(normalizer, normalizer.finish, error)
        may_wait = after.take(error, normalizer, resumable=resumable or self._backend.stays_open)
        if not may_wait or after.state is None:
            return None
        return normalizer.take([after.state.event()], time.time())

    async def _continue_after_limit(self) -> list[Event]:
        """Wait until the limit ends, and continue with another backend. The wait is over at once
        if the turn is cancelled."""
        after, normalizer, deadlines = self._after_limit, self._normalizer, self._deadlines
        if after is None or normalizer is None or deadlines is None:
            raise RuntimeError("the turn was not started")
        error, text = after.error, after.prompt(self._prompt)
        self._emits_limits = False
        await after.wait()
        self._emits_limits = True
        backend = None
        if self._failure is None and self.restart is not None:
            backend = self.restart(self._prepared, text)
        if backend is None:
            return await self._conclude(normalizer, deadlines, self._failure or error)
        if after.resumes and normalizer.session_id is not None and not self._backend.stays_open:
            self._record.meta.session_id = normalizer.session_id
        adds_usage = not self._prepared.agent.cumulative_usage
        batch = normalizer.restart(time.time(), adds_usage=adds_usage)
        self._backend, self._lingered = backend, False
        try:
            await backend.prepare()
            await backend.begin(self._fail)
        except RemoteError as problem:
            self._failure = self._failure or problem
        deadlines.on_restart()
        self._watch_network()
        return batch

    def _fail(self, error: CorralError) -> None:
        super()._fail(error)
        if self._failure is not None and self._after_limit is not None:
            self._after_limit.cancel()

    def _on_limit(self, state: LimitState | None) -> None:
        """A wait for a rate limit has started, or ended (None)."""
        if state is not None and self._emits_limits and isinstance(self._backend, HasService):
            self._backend.emit(state.event())
        link = self.publish() if state is not None else self._record.link
        if link is not None:
            link.show_limit(None if state is None else state.until)

    def _forget_limits(self) -> None:
        if self._prepared.limit_waits is not None:
            self._prepared.limit_waits.remove_listener(self._on_limit)
