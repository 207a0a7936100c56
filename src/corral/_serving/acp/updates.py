"""The events of a turn as updates of the Agent Client Protocol.

The inverse of ``corral._protocol.acp.conversation``, with the same frames and the same table of
kinds. Pieces of text that come at once are one update. What has no form in the protocol (logs,
changes of files, facts of a run) is left out: it is in the session that corral stores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from corral._metering.prices import catalogue
from corral._protocol.acp.frames import (
    CostAmount,
    Location,
    MessageChunk,
    PlanEntryFrame,
    PlanUpdate,
    TextContent,
    ThoughtChunk,
    ToolCallFrame,
    ToolCallUpdate,
    ToolContent,
    ToolFields,
    Update,
    UsageUpdate,
    UserChunk,
)
from corral._protocol.acp.tool_calls import KINDS
from corral._runs.permission_details import file_edits
from corral.events import (
    Done,
    Error,
    Event,
    Init,
    ModelCall,
    Plan,
    Text,
    Thinking,
    ToolKind,
    ToolOutput,
    ToolResult,
    ToolUse,
    UsageReport,
    Vendor,
)
from corral.values import Json, as_text

WAITS = frozenset({"rate_limited", "budget_paused"})
"""Warnings that a person must see: the agent does nothing meanwhile."""
LARGEST_OUTPUT = 65_536
"""Characters of the output of a running tool that are shown: each update repeats all of it. The
result of the call is complete."""

Updates: TypeAlias = list[Update]


class SessionUpdates:
    """What the client of one session was sent, as far as later updates depend on it."""

    def __init__(self, cwd: str, vendor: str) -> None:
        """``vendor`` is the vendor of a model that is named without one, for its window."""
        self._cwd = cwd
        self._vendor = vendor
        self._earlier: set[str] = set()
        """The ids of the calls of earlier turns: an id is unique in a session."""
        self._ids: dict[str, str] = {}
        self._outputs: dict[str, str] = {}
        self._with_diff: set[str] = set()
        """Calls that show a change of files. Content replaces what was shown before."""
        self._model = ""
        self._context = 0
        self._cost = 0.0
        """Of the turns that have ended."""
        self._usage: UsageUpdate | None = None
        """The last one that was sent."""

    def start_turn(self) -> None:
        self._earlier.update(self._ids.values())
        self._ids.clear()
        self._outputs.clear()
        self._with_diff.clear()

    def call_id(self, call_id: str) -> str:
        """The id of a call, as the client knows it."""
        if call_id not in self._ids:
            name, number = call_id, 1
            while name in self._earlier:
                number += 1
                name = f"{call_id}-{number}"
            self._ids[call_id] = name
        return self._ids[call_id]

    def of_batch(self, batch: Iterable[Event]) -> Updates:
        """The updates for events that came at once."""
        updates: Updates = []
        pieces: list[str] = []
        message: str | None = None
        for event in batch:
            if isinstance(event, Text):
                if event.parent is None:  # else a sub-agent writes to its agent
                    if pieces and event.message_id != message:
                        updates.append(MessageChunk(TextContent("".join(pieces)), message))
                        pieces = []
                    message = event.message_id
                    pieces.append(event.delta)
                continue
            if pieces:
                updates.append(MessageChunk(TextContent("".join(pieces)), message))
                pieces = []
            self._add(event, updates)
        if pieces:
            updates.append(MessageChunk(TextContent("".join(pieces)), message))
        return updates

    def of_history(self, events: Sequence[Event]) -> Updates:
        """The updates for stored events, with the prompts."""
        updates: Updates = []
        for event in events:
            match event:
                case Init():
                    self.start_turn()
                case Vendor(name="prompt", data=str(text)):
                    updates.append(UserChunk({"type": "text", "text": text}))
                case _:
                    updates += self.of_batch((event,))
        return updates

    def _add(self, event: Event, updates: Updates) -> None:
        match event:
            case Thinking() if event.parent is None:
                updates.append(ThoughtChunk(TextContent(event.delta), event.message_id))
            case ToolUse():
                updates.append(self._tool_call(event))
            case ToolOutput():
                shown = self._outputs.get(event.call_id, "")
                if len(shown) < LARGEST_OUTPUT and event.call_id not in self._with_diff:
                    shown = (shown + event.delta)[:LARGEST_OUTPUT]
                    self._outputs[event.call_id] = shown
                    id = self.call_id(event.call_id)
                    update = ToolCallUpdate(id, status="in_progress", content=[_text(shown)])
                    updates.append(update)
            case ToolResult():
                updates.append(self._tool_result(event))
            case Plan():
                entries = [
                    PlanEntryFrame(e.content, e.status or "pending", e.priority or "medium")
                    for e in event.entries
                ]
                updates.append(PlanUpdate(entries))
            case Error() if event.code in WAITS:
                updates.append(ThoughtChunk(TextContent(f"{event.message}\n")))
            case Init() | ModelCall() | UsageReport() | Done():
                self._add_usage(event, updates)
            case _:
                pass

    def _tool_call(self, event: ToolUse) -> ToolCallFrame:
        fields = self.tool_fields(event.call_id, event.kind, event.title or event.name, event.input)
        return ToolCallFrame(
            fields.tool_call_id,
            name=event.name,
            title=fields.title,
            kind=fields.kind,
            status="in_progress",
            content=fields.content,
            locations=[Location(os.path.join(self._cwd, path)) for path in event.paths] or None,
            raw_input=event.input,
        )

    def tool_fields(
        self, call_id: str, kind: ToolKind, title: str | None, input: Json
    ) -> ToolFields:
        """A call with its changes of files, also for a permission request."""
        edits = file_edits(input, self._cwd)
        content = [
            ToolContent(
                "diff",
                path=os.path.join(self._cwd, edit.path),
                old_text=edit.old,
                new_text=edit.new,
            )
            for edit in edits
        ]
        if content:
            self._with_diff.add(call_id)
        return ToolFields(
            self.call_id(call_id),
            title=title,
            kind=kind if kind in KINDS else "other",
            content=content or None,
            raw_input=input,
        )

    def _tool_result(self, event: ToolResult) -> ToolCallUpdate:
        text = event.output if event.status == "success" else event.error or event.status
        status = "completed" if event.status == "success" else "failed"
        update = ToolCallUpdate(self.call_id(event.call_id), status=status)
        if event.call_id in self._with_diff and status == "completed":
            update.raw_output = text
        elif text:
            update.content = [_text(text)]
        return update

    def _add_usage(self, event: Init | ModelCall | UsageReport | Done, updates: Updates) -> None:
        """Of a model whose window is not known nothing is sent: the protocol requires it."""
        cost = 0.0
        match event:
            case Init():
                self._model = event.model or self._model
                return
            case ModelCall():
                if event.side:
                    return
                self._model = event.model
                self._context = event.usage.total or self._context
                return
            case UsageReport():
                self._context = event.context_size or self._context
                cost = (event.cost.usd if event.cost else None) or 0.0
            case Done():
                self._model = event.model or self._model
                self._cost += event.cost.usd or 0.0
        entry = catalogue().lookup(
            self._model if ":" in self._model else f"{self._vendor}:{self._model}"
        )
        if self._context and entry is not None and entry.window is not None:
            total = round(self._cost + cost, 9)
            update = UsageUpdate(self._context, entry.window, CostAmount(total) if total else None)
            if update != self._usage:
                updates.append(update)
            self._usage = update


def _text(text: str) -> ToolContent:
    return ToolContent("content", content={"type": "text", "text": as_text(text)})
