"""``on_limit="fallback:AGENT[,AGENT]"``: a turn that meets a limit continues in another agent.

The agents are checked when the session is opened (``check``): installed, with a policy that can be
enforced, options that they have, and credentials. When a turn ends with a rate or usage limit that
the agent's ``retries`` did not solve, a session with the next agent continues the conversation
(``sessions/handover``), the interrupted turn included, and gets the same prompt. The files stay as
they are. Further prompts go to that session, which has the remaining agents as its own fallbacks.

The caller sees one turn (``FallbackTurn``) with one stream of events (``joined_stream``). Its
states:

- the first agent works: all events are its own;
- a limit has ended it: its last event is the limit. ``done`` is kept;
- the next read opens the next session and starts its turn. If that fails, the kept ``done`` ends
  the stream, and its error says why;
- the next agent works: its events are rewritten. Its ``done`` is joined with the kept one.

Each agent has a stored session of its own, with its own ``init`` and ``done``; ``continued_from``
connects them. Policy, tools, budget, folder and the remaining time are the caller's. What belongs
to one agent is not passed on (``OF_ONE_AGENT``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakMethod

from msgspec.structs import replace

from corral.errors import CorralError, MissingKey
from corral.events import Done, Event
from corral.options import BUDGET_LIMITS, FALLBACK, SPELLINGS, fallback_agents
from corral.output_types import T_co
from corral.sessions import credentials
from corral.sessions.joined_stream import (
    JoinedStream,
    end_with_limit,
    end_without,
    is_limit,
    tool_calls,
)
from corral.sessions.prepare import COMMON
from corral.sessions.prepared_run import PreparedRun
from corral.sessions.turn import Turn
from corral.sessions.waiting_turn import WaitingTurn
from corral.system import config

if TYPE_CHECKING:
    from corral.run_kwargs import PromptKwargs
    from corral.sessions.session import Session
    from corral.sessions.store import SessionRecord
    from corral.sessions.structured_output import TypedAnswer

CONTINUE = (
    "Another agent began this and reached a limit of its model. Continue its work where it ended."
)
OF_ONE_AGENT = frozenset(
    (
        *("model", "program", "auth", "auth_method", "session_mode", "reasoning_effort"),
        *("resume", "fork", "record_to", "replay", "meter"),
        *("on_budget", *BUDGET_LIMITS),  # the budget itself is passed on
    )
)
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


def check(name: str, session: Session) -> None:
    """Check a fallback as if it were started now, with its session that is not open. Raises
    ``CorralError``."""
    try:
        found = session.check()
        credentials.check_model_key(found.agent, found.run)
        names = found.agent.secret_env
        has_key = any(found.environment.agent_values.get(each) for each in names)
        is_known = found.auth is not None or has_key or bool(found.credentials)
        if found.run.strict and names and not is_known and credentials.needed(found.agent):
            raise MissingKey(
                "no credentials were found",
                hint=f"Sign in, or set {names[0]}; strict=False (--no-strict) leaves this check"
                " out.",
            )
    except CorralError as error:
        error.message = f"on_limit: the fallback {name}: {error.message}"
        raise


class Given(NamedTuple):
    """What the caller gave for one turn."""

    text: str
    options: PromptKwargs
    typed: TypedAnswer | None
    timeout: float


async def open_next(
    session: Session, record: SessionRecord, given: Given, ended: Done
) -> tuple[Session, Turn]:
    """Open the session that continues this one, whose turn has ended. Its turn gets the same prompt
    and the rest of the time. Raises ``CorralError``."""
    prepared = session.prepared
    name, *others = fallback_agents(prepared.run.on_limit)
    following = session.for_fallback(name, others, prepared)
    following.source = record if record.has_transcript else None
    await following.__aenter__()
    try:
        text, typed = given.text, given.typed
        if typed is not None and session.takes_schema(typed) and not following.takes_schema(typed):
            text = typed.first_prompt(text, native=False)
        if following.sends_history:
            text = f"{text}\n\n{CONTINUE}"
        left = given.timeout - (ended.duration_ms - ended.waited_ms) / 1000
        options: PromptKwargs = {**given.options, "model": None, "timeout": max(1.0, left)}
        return following, following.turn(text, options, typed)
    except BaseException:
        await following.__aexit__()
        raise


async def hand_over(
    weak: WeakMethod[Callable[[Given, Done], Awaitable[Turn]]], given: Given, ended: Done
) -> Turn:
    """Call a method of the session, which its turn must not keep: a session that is dropped ends
    its agent."""
    method = weak()
    if method is None:
        raise RuntimeError("the session of this turn was closed")
    return await method(given, ended)


class FallbackTurn(WaitingTurn[T_co]):
    """A turn that other agents continue when one meets a limit. See the module."""

    _ended: Done | None = None
    """The end of the first agent, if the next one continues or is about to."""
    _following: Turn | None = None
    _joined: JoinedStream | None = None
    _is_over = False
    _is_cancelled = False

    async def next_batch(self) -> list[Event]:
        if self._is_over:
            return []
        if self._ended is not None:
            return self._take(await self._next_of_following(self._ended))
        batch = await super().next_batch()
        self._own_calls.update(tool_calls(batch))
        done = batch[-1] if batch else None
        if not isinstance(done, Done) or not is_limit(done) or self.hand_over is None:
            return batch
        following = fallback_agents(self._prepared.run.on_limit)[0]
        batch, self._ended = end_with_limit(batch, f"{following} continues")
        return batch

    @property
    def _own_calls(self) -> set[str]:
        """The ids of the tool calls of the first agent."""
        found: set[str] = self.__dict__.setdefault("_calls", set())
        return found

    async def _next_of_following(self, ended: Done) -> list[Event]:
        """The next events of the agent that continues, as part of this turn."""
        if self._joined is not None and self._following is not None:
            return self._joined.take(await self._following.next_batch())
        try:
            return await self._start_following(ended)
        except CorralError as error:
            self._following = None
            if self._prepared.run.notify is not None:
                super()._notify_end(ended)
            name = fallback_agents(self._prepared.run.on_limit)[0]
            return end_without(ended, f"{name} cannot continue: {error.message}")

    async def _start_following(self, ended: Done) -> list[Event]:
        if self.hand_over is None:
            raise RuntimeError("the turn has no fallback")
        self._following = await self.hand_over(ended)
        if self._is_cancelled:
            self._following.cancel()
        batch = await self._following.next_batch()
        self._joined = JoinedStream(ended, self._own_calls)
        return self._joined.take(batch)

    def _take(self, batch: list[Event]) -> list[Event]:
        """The events, added to the result. The text of ``done`` is that of all agents."""
        is_last = bool(batch) and isinstance(batch[-1], Done)
        self._store_text(batch[:-1] if is_last else batch)
        if is_last and isinstance(done := batch[-1], Done):
            text = self._builder.answer().text
            batch[-1] = replace(done, text=text, text_complete=not self._builder.is_cut)
            self._builder.add(batch[-1])
            self._is_over = True
        return batch

    def _notify_end(self, done: Done) -> None:
        """Not of a limit after which another agent continues: that one notifies."""
        if not is_limit(done) or self.hand_over is None:
            super()._notify_end(done)

    def cancel(self) -> None:
        if self._following is not None:
            self._following.cancel()
        elif self._ended is not None:
            self._is_cancelled = True
        else:
            super().cancel()

    @property
    def failed(self) -> bool:
        if self._following is not None:
            return self._following.failed
        return self._is_cancelled or super().failed

    @property
    def notes(self) -> tuple[str, ...]:
        return super().notes if self._following is None else self._following.notes
