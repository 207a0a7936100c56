"""How a turn goes on after a rate limit that ended its agent.

The model proxy waits for a limit while the agent waits for its response. This is for all other
cases: the calls do not go through the proxy, the limit takes longer than the agent waits for a
response, or the agent reports its own limit. The agent has ended its turn, and often its
process. Nothing runs during the wait. Then:

- if the agent did nothing in this turn, it gets the same prompt again;
- if it did something, its conversation is continued with ``CONTINUE``;
- if that conversation cannot be continued, the turn fails: the prompt is not repeated, because work
  could be done twice.

Agents whose calls are not seen share their limit by their credentials: a turn that starts while
another one waits, waits as well (``hold``). If the calls are seen and a limit is known that takes
too long, the agent is not started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from corral.agents.spec import InProcess
from corral.errors import CorralError
from corral.sessions.event_normalizer import EventNormalizer
from corral.sessions.prepared_run import PreparedRun
from corral.system.http.request import parse_url
from corral.system.rate_limits import (
    CallWaits,
    LimitState,
    LimitWaits,
    credential_id,
    current,
    exchange,
    report,
)

CONTINUE = "A rate limit of the model's service interrupted you. Continue where you were."

T = TypeVar("T")


class AfterLimit:
    """The waits of one turn."""

    def __init__(self, prepared: PreparedRun, waits: LimitWaits) -> None:
        self._credential = _credential(prepared)
        self._call: CallWaits = waits.call(self._credential)
        self._prepared = prepared
        # Calls that corral sees or makes wait themselves.
        self._is_unseen = prepared.meter is None and not isinstance(
            prepared.agent.transport, InProcess
        )
        self._waiting: asyncio.Task[object] | None = None
        self._is_cancelled = False
        self.error: CorralError | None = None
        """The limit that ended the agent, if the turn goes on after it."""
        self.state: LimitState | None = None
        """The same, while the turn has not waited for it yet."""
        self.resumes = False
        """Whether the conversation is continued afterwards."""

    async def hold(self) -> CorralError | None:
        """Wait while another run has met a limit. Returns the error if that takes too long."""
        if self._is_unseen:
            state = await self._cancellable(self._call.before())
        else:
            state = await self._cancellable(self._known_limit())
        return None if state is None else state.error()

    async def _known_limit(self) -> LimitState | None:
        """The limit that the first model call of the agent would meet, if it takes too long to
        wait for: then the agent need not be started. The proxy waits for a shorter one."""
        await exchange()
        for credential in _metered_credentials(self._prepared):
            state = current(credential)
            if state is not None and not self._call.may_wait(state):
                return state
        return None

    def take(self, error: CorralError, normalizer: EventNormalizer, *, resumable: bool) -> bool:
        """Whether the turn goes on after this error. ``resumable``: its conversation can be
        continued."""
        state = self._call.state_of(error)
        if state is not None and self._is_unseen:
            report(self._credential, state)
        self.resumes = normalizer.worked or normalizer.answered
        if state is None or not self._call.may_wait(state) or (self.resumes and not resumable):
            return False
        self.error, self.state = error, state
        return True

    def prompt(self, given: str) -> str:
        """What the agent gets after the wait."""
        return CONTINUE if self.resumes else given

    async def wait(self) -> None:
        """Wait until the limit ends, or ``cancel`` is called."""
        state, self.state = self.state, None
        if state is not None:
            await self._cancellable(self._call.wait_for(state))

    def cancel(self) -> None:
        """End a wait at once."""
        self._is_cancelled = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _cancellable(self, work: Coroutine[None, None, T]) -> T | None:
        """The result; None if it was cancelled."""
        if self._is_cancelled:
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


def _credential(prepared: PreparedRun) -> str:
    """Of an agent whose calls are not seen: all its models, by the secrets that it is given."""
    secrets = sorted(prepared.environment.redacted.values())
    return credential_id(f"{prepared.agent.name} {prepared.auth or ''}", "\n".join(secrets))


def _metered_credentials(prepared: PreparedRun) -> list[str]:
    """Of an agent whose calls go through the proxy, for the model that the run names."""
    route, model = prepared.meter, prepared.run.model
    if route is None or model is None:
        return []
    service = parse_url(route.url).origin.authority
    values = prepared.environment.agent_values
    keys = [key for name in route.key_env if (key := values.get(name))]
    return [credential_id(service, key, model) for key in keys]
