"""What a turn does when it meets a rate limit: it waits, or another agent continues.

Theory of operation
-------------------
A turn with ``on_limit="wait"`` or ``on_limit="fallback:AGENT[,AGENT]"`` has one ``LimitMachine``; a
turn that fails at a limit has none. The model proxy waits for a limit while the agent waits for its
response. This machine is for all other cases: the calls do not go through the proxy, the limit
takes longer than the agent waits for a response, or the agent reports a limit itself. By then the
agent has ended its turn, and often its process.

The states, and what the turn calls in each of them:

``working``
    The agent works; all events are its own. Before its start the turn calls ``hold``, which waits
    while another run has met a limit with the same credentials. When the agent has ended with an
    error, ``take_error`` says whether the turn goes on after it: then the state is ``limited``, and
    the turn emits the limit. Otherwise the turn ends, and ``take_done`` gets its last events: if a
    limit ended it and there is a fallback, ``done`` is kept, and the state is ``ended``.
``limited``
    Nothing runs. ``wait`` waits until the limit ends and returns the backend that continues:
    ``working`` again. If the agent did nothing in this turn it gets the same prompt again, else its
    conversation is continued with ``CONTINUE``. If that conversation cannot be continued, the
    prompt is not repeated, because work could be done twice: ``take_error`` does not take such an
    error. ``cancel`` ends the wait at once, and ``wait`` returns None.
``ended``
    A limit has ended the first agent for good. ``following_events`` opens the session of the next
    agent (``fallback``) and starts its turn: ``following``. If that fails, the kept ``done`` ends
    the stream, and its error says why: ``over``.
``following``
    The next agent works. Its events are rewritten, so that the caller sees one stream
    (``JoinedStream``), and its ``done`` is joined with the kept one: ``over``.
``over``
    ``done`` was emitted.

Guarantees: an agent is never started while the machine waits; a prompt is never sent again after
the agent has worked on it; a turn that is cancelled ends, whatever the state. Nothing of the
machine survives the process: a run that is killed while it waits is a run that was interrupted.

Which agents may continue a turn at a rate limit: ``on_limit="fallback:AGENT[,AGENT]"``.

The agents are checked when the session is opened: installed, with a policy that can be enforced,
options that they have, and credentials. When a turn ends with a rate or usage limit that the
agent's ``retries`` did not solve, a session with the next agent continues the conversation
(``handover``), the interrupted turn included, and gets the same prompt. The files stay as
they are. Further prompts go to that session, which has the remaining agents as its own fallbacks.
The caller sees one turn with one stream of events (``LimitMachine``).

Each agent has a stored session of its own, with its own ``init`` and ``done``; ``continued_from``
connects them. Policy, tools, budget, folder and the remaining time are the caller's. What belongs
to one agent is not passed on (``OF_ONE_AGENT``).

``JoinedStream`` makes one stream of the events of these agents. ``init`` is the first agent's,
``done`` the last one's. Where one agent ends and the next begins stand two events: an ``error``
that is ``recoverable``, with the code and the facts of the limit that ended the first, and a
``vendor`` event ``fallback`` in place of the next ``init``. Its data are a ``HandOver``: the
``init`` of the next agent, and what the one before has used. All other events stay as they are,
with three changes: ``seq`` and ``run_id`` continue those of the first agent; a ``usage`` counts
both; an id of a tool call that the first agent has used gets a suffix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from corral._agents.spec import InProcess
from corral._core.nesting import decode_json
from corral._metering.rate_limits import (
    LimitState,
    LimitWaits,
    credential_id,
    current,
    exchange,
    report,
)
from corral._option_definitions import with_trait
from corral._sessions import credentials
from corral._sessions.backends.base import Backend
from corral._sessions.event_normalizer import EventNormalizer, with_envelope_of
from corral._sessions.prepare import COMMON
from corral._sessions.prepared_run import PreparedRun
from corral._system import config
from corral._system.http.request import parse_url
from corral.errors import CorralError, MissingKey
from corral.events import FALLBACK as FALLBACK_EVENT
from corral.events import Done, Error, Event, HandOver, Init, ToolUse, UsageReport, Vendor
from corral.options import FALLBACK, SPELLINGS, fallback_agents
from corral.values import Cost, Json, Usage, add_by_model, join_files

CONTINUE = "A rate limit of the model's service interrupted you. Continue where you were."

T = TypeVar("T")
State: TypeAlias = Literal["working", "limited", "ended", "following", "over"]
Restart: TypeAlias = Callable[[PreparedRun, str], Backend | None]


class FollowingTurn(Protocol):
    """The turn of the agent that continues."""

    @property
    def failed(self) -> bool: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    async def next_batch(self) -> list[Event]: ...

    def cancel(self) -> None: ...


OpenNext: TypeAlias = Callable[[Done], Awaitable[FollowingTurn]]


class LimitMachine:
    """See the module."""

    def __init__(
        self,
        prepared: PreparedRun,
        waits: LimitWaits,
        restart: Restart,
        hand_over: OpenNext | None = None,
    ) -> None:
        """``restart`` makes another backend, which sends a text; None if the session was closed.
        ``hand_over`` opens the turn of the next agent."""
        self._prepared = prepared
        self._waits = waits
        self._restart = restart
        self._hand_over = hand_over
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
        self._is_cancelled = False
        self._limit: LimitState | None = None
        self._tool_calls: set[str] = set()
        """The ids of the tool calls of the first agent."""
        self._ended: Done | None = None
        self._joined: JoinedStream | None = None
        self.state: State = "working"
        self.error: CorralError | None = None
        """The limit that ended the agent, if the turn waits for it."""
        self.resumes: bool = False
        """Whether the conversation is continued after a wait."""
        self.following: FollowingTurn | None = None
        """The turn of the agent that continues."""

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
        self.error, self._limit, self.state = error, limit, "limited"
        return limit

    async def wait(self, prompt: str) -> Backend | None:
        """Wait until the limit ends: the backend that continues. None if the turn ends."""
        if self._limit is None:
            raise RuntimeError("the turn is not limited")
        await self._cancellable(self._call.wait_for(self._limit))
        self.state, self._limit = "working", None
        if self._waits_no_more:
            return None
        return self._restart(self._prepared, CONTINUE if self.resumes else prompt)

    def take_done(self, batch: list[Event]) -> list[Event]:
        """Events of the first agent, for the caller. The end of an agent that another one continues
        is kept."""
        self._tool_calls.update(tool_calls(batch))
        if isinstance(done := batch[-1], Done):
            self.state = "over"
            if is_limit(done) and self._hand_over is not None:
                self.state = "ended"
                batch, self._ended = end_with_limit(batch, f"{self._next_agent} continues")
        return batch

    async def following_events(self, notify_end: Callable[[Done], None]) -> list[Event]:
        """The next events of the agent that continues, as part of this turn. ``notify_end`` is
        called if no agent can continue: the turn has ended after all."""
        if self._ended is None or self._hand_over is None:
            raise RuntimeError("no other agent continues this turn")
        try:
            if self.following is None:
                self.following = await self._hand_over(self._ended)
                if self._is_cancelled:
                    self.following.cancel()
            batch = await self.following.next_batch()
        except CorralError as error:
            if self._joined is not None:  # it had started: this error is not about its start
                raise
            self.following, self.state = None, "over"
            notify_end(self._ended)
            return end_without(self._ended, f"{self._next_agent} cannot continue: {error.message}")
        if self._joined is None:
            self._joined = JoinedStream(self._ended, self._tool_calls)
            self.state = "following"
        batch = self._joined.take(batch)
        if batch and isinstance(batch[-1], Done):
            self.state = "over"
        return batch

    @property
    def _next_agent(self) -> str:
        return fallback_agents(self._prepared.run.on_limit)[0]

    def continues(self, done: Done) -> bool:
        """Whether another agent continues after this end, and notifies of its own."""
        return self._hand_over is not None and is_limit(done)

    @property
    def has_ended_first(self) -> bool:
        """Whether the first agent is no longer part of the turn."""
        return self.following is not None or self.state == "ended"

    @property
    def following_failed(self) -> bool:
        """``failed`` of a turn whose first agent has ended."""
        return self._is_cancelled if self.following is None else self.following.failed

    def stop_waiting(self) -> None:
        """The first agent's part of the turn fails: end a wait at once."""
        self._waits_no_more = True
        if self._waiting is not None:
            self._waiting.cancel()

    def cancel_following(self) -> None:
        """Cancel the agent that continues, now or when it starts."""
        self._is_cancelled = True
        if self.following is not None:
            self.following.cancel()

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


WORK_CONTINUES = (
    "Another agent began this and reached a limit of its model. Continue its work where it ended."
)
OF_ONE_AGENT = with_trait("one_agent")
"""Options whose values are of one agent: another one that continues does not get them."""


def options_for(
    name: str, others: Sequence[str], given: Mapping[str, object], prepared: PreparedRun
) -> dict[str, object]:
    """The options of a session with the fallback ``name``, of which ``others`` are the fallbacks.
    An option that it does not have is an error of that session; without ``strict`` it is left
    out."""
    options = {key: value for key, value in given.items() if key not in OF_ONE_AGENT}
    if not prepared.run.strict:
        known = config.find_agent(name).supports | COMMON | {*SPELLINGS}
        options = {key: value for key, value in options.items() if key in known}
    on_limit = f"{FALLBACK}{','.join(others)}" if others else "fail"
    return {**options, "cwd": prepared.cwd, "on_limit": on_limit}


def check_credentials(prepared: PreparedRun) -> None:
    """Check that the fallback can sign in. Raises ``CorralError``."""
    agent, run = prepared.agent, prepared.run
    credentials.check_model_key(agent, run)
    names = agent.secret_env
    has_key = any(prepared.environment.agent_values.get(name) for name in names)
    is_known = prepared.auth is not None or has_key or bool(prepared.credentials)
    if run.strict and names and not is_known and credentials.needed(agent):
        raise MissingKey(
            "no credentials were found",
            hint=f"Sign in, or set {names[0]}; strict=False (--no-strict) leaves this check out.",
        )


LIMITS = ("rate_limit", "quota_spent")
"""The codes of errors after which another agent continues."""
ALL_LIMITED = "All agents are limited. Wait, or name another one: on_limit='fallback:AGENT'."


def is_limit(done: Done) -> bool:
    """Whether a rate or usage limit ended the turn."""
    return done.error is not None and done.error.code in LIMITS


def end_with_limit(batch: list[Event], message: str) -> tuple[list[Event], Done]:
    """The last events of an agent that met a limit, without its end: the limit is ``recoverable``,
    and says what is done about it. Also the end, with the number of the last event."""
    *before, error, done = batch
    if not isinstance(error, Error) or not isinstance(done, Done):
        raise TypeError("an error comes before the end of a turn that failed")
    limit = replace(
        error,
        message=f"{done.agent}: {error.message}: {message}",
        recoverable=True,
        retryable=False,
        level="warning",
    )
    return [*before, limit], replace(done, seq=error.seq)


def end_without(ended: Done, why: str) -> list[Event]:
    """The end of the first agent, which no other could continue."""
    given = ended.error or Error("rate_limit", ended.status)
    error = replace(given, message=f"{given.message}; {why}")
    done = replace(ended, seq=ended.seq + 2, error=error)
    return [replace(with_envelope_of(error, ended), seq=ended.seq + 1), done]


class JoinedStream:
    """Rewrites the events of the next agent so that they continue the stream of the first."""

    def __init__(self, first: Done, calls: set[str]) -> None:
        """``first`` is the end of the first agent (``end_with_limit``); ``calls`` are the ids of
        its tool calls."""
        self._first = first
        self._seq = first.seq
        self._calls = calls

    def take(self, batch: list[Event]) -> list[Event]:
        """The same events in the joined stream."""
        taken: list[Event] = []
        for event in batch:
            self._seq += 1
            taken.append(self._rewritten(event))
        if taken and isinstance(done := taken[-1], Done) and done.error is not None:
            taken[-2] = replace(with_envelope_of(done.error, done), seq=done.seq - 1)
        return taken

    def _rewritten(self, event: Event) -> Event:
        own_run = event.run_id
        match event:
            case Init():
                event = self._hand_over(event)
            case UsageReport():
                cost = None if event.cost is None else self._cost(event.usage, event.cost)
                event = replace(event, usage=self._first.usage + event.usage, cost=cost)
            case Done():
                event = self._joined(event)
            case _:
                pass
        changes: dict[str, object] = {"seq": self._seq, "run_id": self._first.run_id}
        for name in ("call_id", "parent"):
            known = getattr(event, name, None)
            if known in self._calls:
                changes[name] = f"{known}@{own_run}"
        return replace(event, **changes)

    def _hand_over(self, init: Init) -> Vendor:
        first = self._first
        data = HandOver(
            init=init,
            agent=first.agent,
            status=first.status,
            usage=first.usage,
            cost=first.cost,
            resume_token=first.resume_token,
        )
        handed: Json = decode_json(msgspec.json.encode(data))
        return with_envelope_of(Vendor(FALLBACK_EVENT, handed), init)

    def _joined(self, last: Done) -> Done:
        """The end of the last agent, with what all of them used and changed."""
        first = self._first
        same = first.usage_source == last.usage_source or first.usage == Usage()
        return replace(
            last,
            usage=first.usage + last.usage,
            usage_by_model=add_by_model(_by_model(first), _by_model(last)),
            cost=self._cost(last.usage, last.cost),
            usage_source=last.usage_source if same else "reported",
            files=join_files(first.files, last.files),
            files_complete=first.files_complete and last.files_complete,
            denied=(*first.denied, *last.denied),
            denied_complete=first.denied_complete and last.denied_complete,
            questions=(*first.questions, *last.questions),
            duration_ms=first.duration_ms + last.duration_ms,
            waited_ms=first.waited_ms + last.waited_ms,
            error=_error(first, last),
        )

    def _cost(self, usage: Usage, cost: Cost) -> Cost:
        """Unknown if one of them is, unless that one has used nothing."""
        if self._first.usage == Usage() and self._first.cost == Cost():
            return cost
        return self._first.cost if usage == Usage() and cost == Cost() else self._first.cost + cost


def _by_model(done: Done) -> dict[str, Usage]:
    """The shares of the models; of an agent that reports none, all of it is that of its model."""
    if done.usage_by_model or done.model is None or done.usage == Usage():
        return done.usage_by_model
    return {done.model: done.usage}


def _error(first: Done, last: Done) -> Error | None:
    """The error of the last agent; if all are limited, with the reset that comes first."""
    if last.error is None or first.error is None or not is_limit(last):
        return last.error
    known = (each.facts.get("resets_at") for each in (first.error, last.error))
    resets = [at for at in known if isinstance(at, int | float)]
    facts: dict[str, Json] = {k: v for k, v in last.error.facts.items() if k != "retry_after"}
    if resets:
        facts["resets_at"] = min(resets)
    is_joined = last.error.hint == ALL_LIMITED
    names = last.error.message if is_joined else f"{last.agent}: {last.error.message}"
    message = f"{first.agent}: {first.error.message}; {names}"
    return replace(last.error, message=message, hint=ALL_LIMITED, facts=facts)


def tool_calls(batch: list[Event]) -> Iterator[str]:
    """The ids of the tool calls that begin in the batch."""
    return (event.call_id for event in batch if isinstance(event, ToolUse))
