"""The events of several agents that work on one prompt, one after the other, as one stream.

``init`` is the first agent's, ``done`` the last one's. Where one agent ends and the next begins
stand two events: an ``error`` that is ``recoverable``, with the code and the facts of the limit
that ended the first, and a ``vendor`` event ``fallback`` in place of the next ``init``. Its data
are a ``HandOver``: the ``init`` of the next agent, and what the one before has used. All other
events stay as they are, with three changes: ``seq`` and ``run_id`` continue those of the first
agent; a ``usage`` counts both; an id of a tool call that the first agent has used gets a suffix.

Nothing here waits or reads: the ``LimitMachine`` says when the agent changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from corral.core.nesting import decode_json
from corral.events import FALLBACK, Done, Error, Event, HandOver, Init, ToolUse, UsageReport, Vendor
from corral.values import Cost, Json, Usage, add_by_model, join_files

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
    return [_at_end(error, done, ended.seq + 1), done]


def _at_end(error: Error, done: Done, seq: int) -> Error:
    """The event of the error that ``done`` has."""
    return replace(
        error,
        seq=seq,
        ts=done.ts,
        run_id=done.run_id,
        session_id=done.session_id,
        agent=done.agent,
        node=done.node,
        label=done.label,
    )


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
            taken[-2] = _at_end(done.error, done, done.seq - 1)
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
        return Vendor(
            FALLBACK,
            decode_json(msgspec.json.encode(data)),
            ts=init.ts,
            session_id=init.session_id,
            agent=init.agent,
            node=init.node,
            label=init.label,
        )

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
