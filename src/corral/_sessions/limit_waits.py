"""What a turn does when it meets a rate limit and may wait (``on_limit="wait"``).

Theory of operation
-------------------
Such a turn has one ``LimitMachine``; a turn that fails at a limit has none. The model proxy waits
for a limit while the agent waits for its response. This machine is for all other cases: the calls
do not go through the proxy, the limit takes longer than the agent waits for a response, or the
agent reports a limit itself. By then the agent has ended its turn, and often its process. The first
agent of a run that may continue in another one (``fallback``) has a machine that waits for no time:
it is not started while its limit is known.

Before the agent starts the turn calls ``hold``, which waits while another run has met a limit with
the same credentials. When the agent has ended with an error, ``take_error`` says whether the turn
goes on after it: then ``is_waiting`` is true, and the turn emits the limit. Nothing runs now.
``wait`` waits until the limit ends and returns the backend that continues. If the agent did nothing
in this turn it gets the same prompt again, else its conversation is continued with ``CONTINUE``. If
that conversation cannot be continued, the prompt is not repeated, because work could be done twice:
``take_error`` does not take such an error. ``stop_waiting`` ends the wait at once, and ``wait``
returns None.

Guarantees: an agent is never started while the machine waits; a prompt is never sent again after
the agent has worked on it; a turn that is cancelled ends, whatever the state. Nothing of the
machine survives the process: a run that is killed while it waits is a run that was interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeAlias, TypeVar

from corral._agents.spec import InProcess
from corral._metering.rate_limits import (
    LimitState,
    LimitWaits,
    credential_id,
    current,
    exchange,
    report,
)
from corral._sessions.backends.base import Backend
from corral._sessions.event_normalizer import EventNormalizer
from corral._sessions.prepared_run import PreparedRun
from corral._system.http.request import parse_url
from corral.errors import CorralError

CONTINUE = "A rate limit of the model's service interrupted you. Continue where you were."

T = TypeVar("T")
Restart: TypeAlias = Callable[[PreparedRun, str], Backend | None]


class LimitMachine:
    """See the module."""

    def __init__(self, prepared: PreparedRun, waits: LimitWaits, restart: Restart) -> None:
        """``restart`` makes another backend, which sends a text; None if the session was closed."""
        self._prepared = prepared
        self._waits = waits
        self._restart = restart
        # All models of an agent whose calls are not seen, by the secrets that it is given.
        secrets = sorted(prepared.environment.redacted.values())
        account = f"{prepared.agent.name} {prepared.auth or ''}"
        self._credential = credential_id(account, "\n".join(secrets))
        self._call = waits.call(self._credential)
        # Calls that corral sees or makes wait themselves.
        self._is_unseen = prepared.meter is None and not isinstance(
            prepared.agent.transport, InProcess
        )
        self._waiting: asyncio.Task[object] | None = None
        self._waits_no_more = False
        self._limit: LimitState | None = None
        self.error: CorralError | None = None
        """The limit that ended the agent, if the turn waits for it."""
        self.resumes: bool = False
        """Whether the conversation is continued after a wait."""

    @property
    def is_waiting(self) -> bool:
        """Whether a limit has ended the agent, and the turn waits for its end."""
        return self._limit is not None

    async def hold(self, listener: Callable[[LimitState | None], None]) -> CorralError | None:
        """Before the agent gets its prompt: wait while another run has met a limit. Returns the
        error if that takes too long. ``listener``, a method, is called from now on when a wait
        starts, and with None when it ends."""
        self._waits.add_listener(listener)
        if self._is_unseen:
            limit = await self._cancellable(self._call.before())
        else:
            limit = await self._cancellable(self._known_limit())
        return None if limit is None else limit.error()

    async def _known_limit(self) -> LimitState | None:
        """The limit that the first model call of the agent would meet, if it takes too long to
        wait for: then the agent need not be started. The proxy waits for a shorter one."""
        await exchange()
        route, model = self._prepared.meter, self._prepared.run.model
        if route is None or model is None:
            return None
        service = parse_url(route.url).origin.authority
        values = self._prepared.environment.agent_values
        for name in route.key_env:
            if key := values.get(name):
                limit = current(credential_id(service, key, model))
                if limit is not None and not self._call.may_wait(limit):
                    return limit
        return None

    def take_error(
        self, error: CorralError, normalizer: EventNormalizer, *, resumable: bool
    ) -> LimitState | None:
        """The limit that the turn waits for after this error; None if the turn ends.
        ``resumable``: its conversation can be continued."""
        limit = self._call.state_of(error)
        if limit is not None and self._is_unseen:
            report(self._credential, limit)
        self.resumes = normalizer.worked or normalizer.answered
        if limit is None or not self._call.may_wait(limit) or (self.resumes and not resumable):
            return None
        self.error, self._limit = error, limit
        return limit

    async def wait(self, prompt: str) -> Backend | None:
        """Wait until the limit ends: the backend that continues. None if the turn ends."""
        if self._limit is None:
            raise RuntimeError("the turn is not limited")
        await self._cancellable(self._call.wait_for(self._limit))
        self._limit = None
        if self._waits_no_more:
            return None
        return self._restart(self._prepared, CONTINUE if self.resumes else prompt)

    def stop_waiting(self) -> None:
        """The turn fails: end a wait at once."""
        self._waits_no_more = True
        if self._waiting is not None:
            self._waiting.cancel()

    def stop_listening(self, listener: Callable[[LimitState | None], None]) -> None:
        self._waits.remove_listener(listener)

    async def _cancellable(self, work: Coroutine[None, None, T]) -> T | None:
        """The result; None if it was cancelled."""
        if self._waits_no_more:
            work.close()
            return None
        task = asyncio.get_running_loop().create_task(work)
        self._waiting = task
        try:
            await asyncio.wait([task])
        finally:
            self._waiting = None
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        return None if task.cancelled() else task.result()
