"""Rate limits as a state: until when a credential may not be used, and the waits for that.

Theory of operation
-------------------
A service limits the calls of one credential, mostly for each model. So the state is kept for the
service, a hash of the key and the model, once for all runs of this process: when one call meets a
limit, the others wait before their next call instead of meeting it too. A state is replaced only by
one that ends later. What has no key (a sign-in, a local model) belongs to a user of one machine.

``LimitWaits`` belongs to one run, or to several that share an agent's process. Each model call has
a ``CallWaits``:

- ``before`` waits while the credential is limited;
- ``after``, with the error of the call, records the limit, waits until it ends, and says that the
  call should be made again.

Neither waits longer than the run allows. A limit without a known end is tried again after a delay
that is doubled each time. A spent quota without a known end is not a limit that ends: it fails.
A wait that is cancelled ends at once.

Waits are counted (``waited``), so that deadlines do not include them. Listeners get the state when
a wait begins, and None when the last one ends.

Nothing is stored here. A durable run shares the states with other processes through its database
(``share``): they are exchanged before a call, and when one has met a limit. Without that, the first
call after a crash meets the limit again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import platform
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping

import msgspec

from corral._core.durations import backoff_delay
from corral._system import clock
from corral.errors import CorralError, QuotaSpent, RateLimited
from corral.events import Error

FIRST_DELAY = 5.0
LONGEST_DELAY = 600.0
"""Seconds to wait for a limit whose end is not known: the first time, and at most."""
JITTER = 0.1
LONGEST_JITTER = 5.0
"""A wait is longer by a random part of it, so that not all calls are made at the same moment."""
LONGEST_WAIT = 86400.0
"""Seconds that a call waits for a limit, unless the caller says otherwise."""
SLICE = 30.0
"""Seconds after which a wait reads the clock again: a machine may sleep meanwhile."""
_HINT = "Wait and try again, or set on_limit=wait (--on-limit wait)."

Listener = Callable[["LimitState | None"], None]


class LimitState(msgspec.Struct, frozen=True):
    """Calls with one credential are limited."""

    until: float
    """When the limit ends, in seconds since 1970."""
    message: str
    """What the service said."""
    is_known: bool = True
    """Whether the service said when it ends; else ``until`` is when to try again."""
    is_spent: bool = False
    """Whether a quota is spent."""

    def error(self) -> RateLimited:
        """The error of a call that does not wait."""
        kind = QuotaSpent if self.is_spent else RateLimited
        resets_at = self.until if self.is_known else None
        return kind(self.message, hint=_HINT, resets_at=resets_at)

    def event(self, *, is_wait: bool = True) -> Error:
        """The event that reports it."""
        when = clock.time_of_day(self.until)
        how = f"until {when}" if self.is_known else f"next try at {when}"
        action = " (waits)" if is_wait else ""
        return Error(
            "rate_limited",
            f"rate limited, {how}{action}: {self.message}",
            recoverable=True,
            retryable=True,
            level="warning",
            phase="request",
            facts={"resets_at": self.until if self.is_known else None, "waits_until": self.until},
        )


_states: dict[str, LimitState] = {}
_lock = threading.Lock()


def credential_id(service: str, key: str, model: str = "") -> str:
    """The name of a credential, from which the key cannot be found. ``service`` is the host."""
    owner = () if key else (platform.node(), os.path.expanduser("~"))
    parts = "\0".join((service, key, model, *owner))
    return hashlib.sha256(parts.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def report(credential: str, state: LimitState) -> None:
    """A call met a limit, in this process or another one."""
    now = clock.now()
    with _lock:
        for name in [name for name, each in _states.items() if each.until <= now]:
            del _states[name]
        known = _states.get(credential)
        if known is None or known.until < state.until:
            _states[credential] = state


def all_current() -> Mapping[str, LimitState]:
    """The limits of all credentials now."""
    now = clock.now()
    with _lock:
        return {name: each for name, each in _states.items() if each.until > now}


_exchange: Callable[[], Awaitable[None]] | None = None


def share(exchange: Callable[[], Awaitable[None]] | None) -> None:
    """From now on, ``exchange`` tells other processes the limits of this one, and reports theirs
    (``report``); None: no longer. It raises nothing but a cancellation: without it, each process
    meets a limit itself."""
    global _exchange  # noqa: PLW0603
    _exchange = exchange


async def exchange() -> None:
    """Exchange limits with other processes, if they are shared."""
    if _exchange is not None:
        await _exchange()


def current(credential: str) -> LimitState | None:
    """The limit of this credential now."""
    with _lock:
        state = _states.get(credential)
    return None if state is None or state.until <= clock.now() else state


def state_of(error: CorralError, tries: int = 0) -> LimitState | None:
    """The limit that the error reports; None if it is no limit, or one that does not end by itself.
    ``tries`` counts the waits so far."""
    if not isinstance(error, RateLimited):
        return None
    now = clock.now()
    until = error.resets_at
    if until is None and error.retry_after is not None:
        until = now + error.retry_after
    is_spent = isinstance(error, QuotaSpent)
    if until is None and is_spent:
        return None
    is_known = until is not None
    if until is None:
        jitter = clock.random_fraction()
        until = now + backoff_delay(tries, first=FIRST_DELAY, longest=LONGEST_DELAY, jitter=jitter)
    return LimitState(until, error.message, is_known, is_spent)


def wait_end(until: float) -> float:
    """When a wait for a limit until this time ends: a random part of it later."""
    left = max(0.0, until - clock.now())
    return until + clock.random_fraction() * min(LONGEST_JITTER, JITTER * left)


class LimitWaits:
    """The waits of one run, or of the prompts that share an agent's process."""

    def __init__(self, longest: float) -> None:
        """``longest``: seconds that one call may wait; 0 if it fails at a limit."""
        self.longest = longest
        self._waiting = 0
        self._since = clock.Stopwatch()
        self._waited = 0.0
        self._last_end: clock.Stopwatch | None = None
        self._listeners: list[weakref.WeakMethod[Listener]] = []
        self._time_limits: dict[asyncio.Timeout, float | None] = {}
        """Time limits that do not run during a wait, and the seconds that they have left."""
        self.state: LimitState | None = None
        """The limit that is waited for now."""

    @property
    def is_waiting(self) -> bool:
        return self._waiting > 0

    @property
    def waited(self) -> float:
        """Seconds in which at least one call waited, so far."""
        return self._waited + (self._since.seconds if self._waiting else 0.0)

    @property
    def seconds_since_wait(self) -> float:
        """Seconds since the last wait ended; 0 during one, infinite if there was none."""
        if self._waiting:
            return 0.0
        return math.inf if self._last_end is None else self._last_end.seconds

    def add_listener(self, listener: Listener) -> None:
        """Have a method called when the state changes. It is held weakly."""
        self._listeners.append(weakref.WeakMethod(listener))
        if self.state is not None:
            listener(self.state)

    def remove_listener(self, listener: Listener) -> None:
        self._listeners = [each for each in self._listeners if each() not in (None, listener)]

    @contextlib.contextmanager
    def exempt_from(self, time_limit: asyncio.Timeout) -> Generator[None]:
        """Within this block, inside of that of ``time_limit``, waits do not count for it."""
        self._time_limits[time_limit] = None
        try:
            yield
        finally:
            del self._time_limits[time_limit]

    def call(self, credential: str, longest_hold: float = math.inf) -> CallWaits:
        """The waits of a new call. ``longest_hold``: seconds that it may be held at a time."""
        return CallWaits(self, credential, longest_hold)

    async def sleep(self, state: LimitState) -> None:
        """Wait until the limit ends, and a random part longer."""
        if not self._waiting:
            self._since = clock.Stopwatch()
            now = asyncio.get_running_loop().time()
            for limit in self._time_limits:
                if (limit_ends := limit.when()) is not None:
                    self._time_limits[limit] = limit_ends - now
                    limit.reschedule(None)
        self._waiting += 1
        self._set_state(state)
        try:
            ends = wait_end(state.until)
            while (left := ends - clock.now()) > 0:  # noqa: ASYNC110 (nothing else ends it)
                await asyncio.sleep(min(left, SLICE))
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._last_end = clock.Stopwatch()
                self._waited += self._since.seconds
                now = asyncio.get_running_loop().time()
                for limit, rest in self._time_limits.items():
                    if rest is not None and not limit.expired():
                        limit.reschedule(now + rest)
                self._set_state(None)

    def _set_state(self, state: LimitState | None) -> None:
        if state == self.state:
            return
        self.state = state
        for each in tuple(self._listeners):
            listener = each()
            if listener is not None:
                listener(state)


class CallWaits:
    """The waits of one model call."""

    def __init__(self, waits: LimitWaits, credential: str, longest_hold: float) -> None:
        self._waits = waits
        self._credential = credential
        self._longest_hold = longest_hold
        self._tries = 0
        self._left = waits.longest

    async def before(self) -> LimitState | None:
        """Wait while the credential is limited. Returns the limit if that takes too long."""
        await exchange()
        while (state := current(self._credential)) is not None:
            if not self.may_wait(state):
                return state
            await self._wait(state)
            await exchange()
        return None

    async def after(self, error: CorralError) -> LimitState | None:
        """Record the limit that the error reports, and wait until it ends. Returns the limit after
        a wait: the call should be made again. None: the error is final."""
        state = self.state_of(error)
        if state is None:
            return None
        report(self._credential, state)
        await exchange()
        if not self.may_wait(state):
            return None
        await self._wait(state)
        return state

    def state_of(self, error: CorralError) -> LimitState | None:
        """The limit that the error reports. Each one without a known end is waited for longer."""
        state = state_of(error, self._tries)
        self._tries += 1
        return state

    async def wait_for(self, state: LimitState) -> None:
        """Record a limit that the call may wait for, and wait until it ends."""
        report(self._credential, state)
        await exchange()
        await self._wait(state)

    def may_wait(self, state: LimitState) -> bool:
        """Whether the call may wait so long."""
        seconds = state.until - clock.now()
        return seconds <= min(self._left, self._longest_hold)

    async def _wait(self, state: LimitState) -> None:
        self._left -= max(0.0, state.until - clock.now())
        await self._waits.sleep(state)
