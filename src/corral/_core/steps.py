"""The steps of an agent: what its model wrote, the tools that it called, and their results.

Agents do not report where one model call ends and the next begins. It can be seen in the events:
what a model writes after the result of a tool is its next step, and so is a message with another
id. ``StepTracker`` finds the steps while the events come, for the exports of a run and for
telemetry. If corral counts the model calls, it also finds out which call a step is the response of
(``_add_call``).

The agent and each of its sub-agents have their own row of steps. A step is returned when it has
ended: a later one has started and all its tool calls have their results. So a tracker holds only
what is under way, however long the run is, and of each text at most ``limit`` characters.
"""

from __future__ import annotations

import msgspec

from corral.events import (
    Done,
    Event,
    FileChange,
    Init,
    ModelCall,
    PermissionDecision,
    Plan,
    Text,
    Thinking,
    ToolOutput,
    ToolResult,
    ToolUse,
    UsageReport,
)
from corral.values import Cost, Usage

MAX_TEXT = 1_000_000
"""Characters of one text: of a message, of the thinking before it, or of the output of a tool."""


class CutText(msgspec.Struct):
    """A text that comes in pieces, of which the beginning is kept."""

    limit: int = MAX_TEXT
    pieces: list[str] = []
    kept: int = 0
    cut: int = 0
    """Characters that were left out."""

    def add(self, piece: str) -> None:
        room = self.limit - self.kept
        if room > 0 and piece:
            self.pieces.append(piece[:room])
            self.kept += min(room, len(piece))
        self.cut += max(0, len(piece) - max(0, room))

    def __str__(self) -> str:
        text = "".join(self.pieces)
        self.pieces = [text] if text else []
        return text


class StepCall(msgspec.Struct, kw_only=True):
    """A tool call of a step."""

    use: ToolUse
    result: ToolResult | None = None
    """None: the log ends before it."""
    streamed: CutText
    """What the tool wrote while it ran."""
    decision: PermissionDecision | None = None
    files: list[FileChange] = []
    has_steps: bool = False
    """It started a sub-agent that did something."""
    limit: int = MAX_TEXT

    @property
    def output(self) -> CutText:
        """The output of the result, else what the tool wrote while it ran."""
        found = self.result.output if self.result is not None else None
        if found is None:
            return self.streamed
        output = CutText(limit=self.limit)
        output.add(found)
        return output

    @property
    def status(self) -> str:
        return "unfinished" if self.result is None else self.result.status


class ModelStep(msgspec.Struct, kw_only=True):
    """What a model did at once."""

    turn: int
    """The number of the turn, from 1."""
    parent: str | None
    """The tool call that started the sub-agent of this step; None: the agent itself."""
    started: float
    """When the model was asked: the turn started, or the last result of the step before came."""
    ended: float
    """When the model had written everything."""
    text: CutText
    thinking: CutText
    calls: list[StepCall] = []
    plan: Plan | None = None
    usage: Usage = Usage()
    """The usage that was reported during the step; empty if the agent reports none."""
    cost_usd: float | None = None
    model_call: ModelCall | None = None
    """The call that this is the response of, if corral counted it."""
    text_id: str | None = None
    thinking_id: str | None = None

    @property
    def is_answered(self) -> bool:
        """Whether a tool has returned something: what the model writes now is another step."""
        return any(call.result is not None for call in self.calls)

    @property
    def is_open(self) -> bool:
        return any(call.result is None for call in self.calls)


class StepTracker:
    """Takes the events of a session in order, turn by turn, and returns the steps that ended."""

    def __init__(self, limit: int = MAX_TEXT) -> None:
        self._limit = limit
        self._turn = 0
        self._rows: dict[str | None, list[ModelStep]] = {}
        self._asked: dict[str | None, float] = {}
        """When the model of each row was last asked."""
        self._calls: dict[str, StepCall] = {}
        self._waiting_calls: list[ModelCall] = []
        """Model calls whose step has not started."""
        self._other_calls: list[ModelCall] = []
        self._reported = Usage()
        self._reported_usd = 0.0

    def add(self, event: Event) -> list[ModelStep]:
        """The steps that have ended with this event."""
        match event:
            case Init():
                ended = self.end()
                self._turn += 1
                self._asked = {None: event.ts}
                self._reported, self._reported_usd = Usage(), 0.0
                return ended
            case Done():
                if event.cost.source == "reported" and self._reported_usd:
                    self._add_cost(event.cost)  # of the last step
                return self.end()
            case Text() | Thinking() | ToolUse() | Plan():
                return self._written(event)
            case UsageReport():
                self._add_usage(event)
            case ModelCall():
                self._add_call(event)
            case ToolResult():
                call = self._calls.pop(event.call_id, None)
                if call is None:
                    return []
                call.result = event
                self._asked[call.use.parent] = event.ts
                self._asked.pop(event.call_id, None)
                return self._rows.pop(event.call_id, [])  # the sub-agent of this call has ended
            case ToolOutput() if event.call_id in self._calls:
                self._calls[event.call_id].streamed.add(event.delta)
            case PermissionDecision() if event.call_id in self._calls:
                self._calls[event.call_id].decision = event
            case FileChange() if event.call_id in self._calls:
                self._calls[event.call_id].files.append(event)
            case _:
                pass
        return []

    def end(self) -> list[ModelStep]:
        """All steps that are under way, those of sub-agents first."""
        rows, self._rows = self._rows, {}
        self._calls.clear()
        self._other_calls += self._waiting_calls
        self._waiting_calls = []
        main = rows.pop(None, [])
        return [step for row in [*rows.values(), main] for step in row]

    def take_other_calls(self) -> list[ModelCall]:
        """The model calls since the last time that no step is the response of: those beside the
        conversation, those that failed, and those whose response the agent did not report."""
        calls, self._other_calls = self._other_calls, []
        return calls

    def _written(self, event: Text | Thinking | ToolUse | Plan) -> list[ModelStep]:
        row = self._rows.setdefault(event.parent, [])
        if not row or _begins_step(row[-1], event):
            row.append(self._new_step(event))
        step = row[-1]
        match event:
            case Text():
                step.text.add(event.delta)
                step.text_id = event.message_id or step.text_id
            case Thinking():
                step.thinking.add(event.delta)
                step.thinking_id = event.message_id or step.thinking_id
            case ToolUse():
                streamed = CutText(limit=self._limit)
                call = StepCall(use=event, streamed=streamed, limit=self._limit)
                step.calls.append(call)
                self._calls[event.call_id] = call
            case Plan():
                step.plan = event
        step.ended = max(step.ended, event.ts)
        # Remove and return the steps at the beginning of the row that have ended.
        ended: list[ModelStep] = []
        while len(row) > 1 and not row[0].is_open:
            ended.append(row.pop(0))
        return ended

    def _new_step(self, event: Event) -> ModelStep:
        if event.parent is not None and event.parent in self._calls:
            call = self._calls[event.parent]
            call.has_steps = True
            self._asked.setdefault(event.parent, call.use.ts)
        return ModelStep(
            model_call=self._take_waiting_call(event.parent),
            turn=self._turn,
            parent=event.parent,
            started=min(self._asked.get(event.parent, event.ts), event.ts),
            ended=event.ts,
            text=CutText(limit=self._limit),
            thinking=CutText(limit=self._limit),
        )

    def _add_call(self, call: ModelCall) -> None:
        """An agent reports what a model wrote while the call goes on, or when it has ended. A call
        beside the conversation may end in between, so one of those gives way to another call."""
        if call.error is not None or (call.status or 200) >= 400:
            self._other_calls.append(call)
            return
        # The model proxy does not know which sub-agent makes a call.
        rows = [self._rows.get(call.parent, [])]
        rows += [] if call.parent is not None else self._rows.values()
        for row in rows:
            step = row[-1] if row else None
            if step is None or step.is_answered:
                continue
            before = step.model_call
            if before is None or (before.side and not call.side):
                step.model_call = call
                self._other_calls += [] if before is None else [before]
                return
        self._waiting_calls.append(call)

    def _take_waiting_call(self, parent: str | None) -> ModelCall | None:
        """The call that a step which begins now is the response of."""
        fitting = [each for each in self._waiting_calls if each.parent in (None, parent)]
        if not fitting:
            return None
        call = next((each for each in fitting if not each.side), fitting[-1])
        rest = [each for each in self._waiting_calls if each is not call]
        self._other_calls += [each for each in rest if each.side]
        self._waiting_calls = [each for each in rest if not each.side]
        return call

    def _add_usage(self, event: UsageReport) -> None:
        row = self._rows.get(None)
        if not row or event.parent is not None:
            return
        step = row[-1]
        step.usage = step.usage + (event.usage - self._reported)
        self._reported = event.usage
        if event.cost is not None:
            self._add_cost(event.cost)

    def _add_cost(self, cost: Cost) -> None:
        """``cost``: of the turn so far."""
        if cost.usd is not None and (row := self._rows.get(None)):
            more = max(0.0, cost.usd - self._reported_usd)
            row[-1].cost_usd = (row[-1].cost_usd or 0.0) + more
            self._reported_usd = cost.usd


def _begins_step(step: ModelStep, event: Text | Thinking | ToolUse | Plan) -> bool:
    if step.is_answered:
        return not isinstance(event, Plan)
    match event:
        case Text(message_id=str(found)):
            return step.text_id not in (None, found)
        case Thinking(message_id=str(found)):
            return step.thinking_id not in (None, found)
        case _:
            return False
