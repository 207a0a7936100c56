"""What happened in a stored session, turn by turn: prompts, answers, tool calls, results.

``turns`` reads the events of a transcript once. It is pure: it does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from corral._core.spending import dollars
from corral.events import (
    Done,
    Error,
    Event,
    Init,
    PermissionDecision,
    Text,
    ToolResult,
    ToolUse,
    Vendor,
)
from corral.values import Cost, FileChanged, Usage


class CallRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tool call."""

    id: str
    name: str
    title: str
    status: str = "unfinished"
    error: str | None = None
    output: str | None = None
    decision: str | None = None
    """How a permission request for it was answered, and by what."""


class TurnRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One prompt and what came of it."""

    number: int = 0
    """The number of the turn in the session, from 1."""
    prompt: str = ""
    started: float = 0.0
    """Seconds since the epoch."""
    model: str | None = None
    """The model that the agent reported."""
    status: str = "unfinished"
    parts: list[str | CallRecord] = []
    """The answer's messages and the tool calls, in order."""
    files: tuple[FileChanged, ...] = ()
    diff: str = ""
    """How the files changed, if it was asked for and stored."""
    usage: Usage = Usage()
    cost: Cost = Cost()
    duration_ms: int | None = None
    error: str | None = None
    verdict: str = ""
    """Of a turn that was verified."""
    gaps: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The answer."""
        return "\n\n".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> list[CallRecord]:
        return [part for part in self.parts if isinstance(part, CallRecord)]


def turns(events: Iterable[Event]) -> list[TurnRecord]:
    """The turns of a transcript. The last may be unfinished."""
    found: list[TurnRecord] = []
    calls: dict[str, CallRecord] = {}
    for event in events:
        if isinstance(event, Init):
            number = int(tail) if (tail := event.run_id.rpartition(".")[2]).isdecimal() else 0
            found.append(TurnRecord(number=number, started=event.ts, model=event.model))
            calls.clear()
        elif found:
            _add(found[-1], event, calls)
    return found


def _add(turn: TurnRecord, event: Event, calls: dict[str, CallRecord]) -> None:
    match event:
        case Vendor(name="prompt", data=str(data)):
            turn.prompt = data
        case Text() if event.parent is None:
            if turn.parts and isinstance(turn.parts[-1], str):
                turn.parts[-1] += event.delta
            else:
                turn.parts.append(event.delta)
        case ToolUse():
            call = CallRecord(id=event.call_id, name=event.name, title=event.title or event.name)
            calls[event.call_id] = call
            turn.parts.append(call)
        case ToolResult() if event.call_id in calls:
            call = calls[event.call_id]
            call.status, call.error, call.output = event.status, event.error, event.output
        case PermissionDecision() if event.call_id in calls:
            calls[event.call_id].decision = f"{event.decision} by {event.by}"
        case Error() if not event.recoverable:
            turn.error = event.message
        case Done():
            finish(turn, event)
        case _:
            pass


def finish(turn: TurnRecord, done: Done) -> None:
    """Add how the turn ended."""
    turn.status = done.status
    turn.model = done.model or turn.model
    turn.files, turn.usage, turn.cost = done.files, done.usage, done.cost
    turn.duration_ms = done.duration_ms
    if done.error is not None:
        turn.error = done.error.message
    if done.receipt is not None:
        turn.verdict, turn.gaps = done.receipt.verdict, done.receipt.gaps


def summary(turn: TurnRecord) -> str:
    """Status, model, duration, tokens and cost of a turn, in one line."""
    parts = [turn.status]
    if turn.model:
        parts.append(turn.model)
    if turn.duration_ms is not None:
        parts.append(f"{turn.duration_ms / 1000:.1f} s")
    if turn.usage.total is not None:
        parts.append(f"{turn.usage.input or 0:,} tokens in, {turn.usage.output or 0:,} out")
    if turn.cost.usd is not None:
        parts.append(f"{dollars(turn.cost.usd)} ({turn.cost.source})")
    if turn.error:
        parts.append(" ".join(turn.error.split()))
    return " · ".join(parts)


def fence(text: str, language: str = "text") -> str:
    """A code block in Markdown, which the text cannot leave."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    marks = "`" * (longest + 1)
    return f"{marks}{language}\n{text.rstrip()}\n{marks}"
