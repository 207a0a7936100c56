"""What happened in a stored session, turn by turn: prompts, answers, tool calls, results.

``turns`` reads the events of a transcript once. It is pure: it does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from corral._core.spending import dollars
from corral._core.steps import ModelStep, StepTracker
from corral.events import Done, Error, Event, Init, Vendor
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
    turns: list[TurnRecord] = []
    tracker = StepTracker()
    for event in events:
        ended = tracker.add(event)
        if turns:
            _add_steps(turns[-1], ended)
        match event:
            case Init():
                turns.append(begin(event))
            case _ if not turns:
                pass
            case Vendor(name="prompt", data=str(data)):
                turns[-1].prompt = data
            case Error() if not event.recoverable:
                turns[-1].error = event.message
            case Done():
                finish(turns[-1], event)
            case _:
                pass
    if turns:
        _add_steps(turns[-1], tracker.end())
    return turns


def _add_steps(turn: TurnRecord, steps: Iterable[ModelStep]) -> None:
    for step in steps:
        if step.parent is None and (text := str(step.text)):
            turn.parts.append(text)
        for call in step.calls:
            decision = call.decision
            turn.parts.append(
                CallRecord(
                    id=call.use.call_id,
                    name=call.use.name,
                    title=call.use.title or call.use.name,
                    status=call.status,
                    error=call.result.error if call.result is not None else None,
                    output=str(call.output) or None,
                    decision=f"{decision.decision} by {decision.by}" if decision else None,
                )
            )


def begin(init: Init) -> TurnRecord:
    """A turn that begins."""
    number = init.run_id.rpartition(".")[2]
    return TurnRecord(
        number=int(number) if number.isdecimal() else 0, started=init.ts, model=init.model
    )


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
