"""Redacts secrets in the items of a turn, also if a secret is split over several deltas.

Each line of an agent is redacted before it is decoded. This module finds secrets that span lines.
Text and thinking are followed per sub-agent, tool output per call. Held-back text is released when
its message ends, by the same rule by which ``ResultBuilder`` joins messages.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from corral._protocol.ndjson import RawEvent, TurnEnd
from corral._system.environment import SecretRedactor, StreamRedactor
from corral.events import Event, Text, Thinking, ToolOutput, ToolResult, ToolUse


class _HeldMessage(msgspec.Struct):
    """The message under way of the agent, or of one of its sub-agents."""

    pieces: StreamRedactor
    parent: str | None
    is_text: bool = True
    message_id: str | None = None

    def rest(self) -> RawEvent | None:
        pending = self.pieces.finish()
        if not pending:
            return None
        if self.is_text and self.parent is None:
            return pending
        kind = Text if self.is_text else Thinking
        return kind(pending, message_id=self.message_id, parent=self.parent)


class EventRedactor:
    """Redacts the items of one turn: ``take`` them in order, and call ``end`` after the last."""

    def __init__(self, redactor: SecretRedactor) -> None:
        self._redactor = redactor
        self._messages: dict[str | None, _HeldMessage] = {}
        self._outputs: dict[str, tuple[StreamRedactor, str | None]] = {}

    def take(self, items: list[RawEvent]) -> list[RawEvent]:
        texts: list[str] = []  # redacted together: deltas come by the hundred thousand
        add = texts.append
        for item in items:
            if type(item) is str:
                add(item)
            elif (
                type(item) is not ToolUse and type(item) is not ToolResult
            ) or item.parent is not None:
                return self._take_each(items)
        start = 0  # of the last message
        if len(texts) < len(items):
            if not self._are_clean(texts):
                return self._take_each(items)
            self._messages.pop(None, None)  # a call ends it
            start = len(items)
            while type(items[start - 1]) is str:
                start -= 1
        out = items[:start]
        if start < len(items):
            self._texts(texts[start - len(items) :], out)
        return out

    def _are_clean(self, texts: list[str]) -> bool:
        """Whether no secret is in these texts, nothing before them is held back, and none of them
        is empty."""
        message = self._messages.get(None)
        if self._outputs or (message is not None and message.pieces.pending):
            return False
        text = "".join(texts)
        for value in self._redactor.values:
            if value in text:
                return False
        return all(texts)

    def _take_each(self, items: list[RawEvent]) -> list[RawEvent]:
        out: list[RawEvent] = []
        pieces: list[str] = []
        for item in items:
            if isinstance(item, str):
                pieces.append(item)
                continue
            if pieces:
                self._texts(pieces, out)
                pieces.clear()
            if isinstance(item, (ToolUse, ToolResult)):
                self._tool_call(item, out)
            elif isinstance(item, TurnEnd):
                out.append(item)
            else:
                self._event(item, out)
        if pieces:
            self._texts(pieces, out)
        return out

    def _texts(self, pieces: list[str], out: list[RawEvent]) -> None:
        out += self._message(None, None, out, is_text=True).pieces.add_all(pieces)

    def end(self) -> list[RawEvent]:
        pending = [message.rest() for message in self._messages.values()]
        out: list[RawEvent] = [item for item in pending if item is not None]
        for call_id, (pieces, parent) in self._outputs.items():
            if rest := pieces.finish():
                out.append(ToolOutput(call_id, rest, parent=parent))
        self._messages.clear()
        self._outputs.clear()
        return out

    def _event(self, event: Event, out: list[RawEvent]) -> None:
        if isinstance(event, (Text, Thinking)):
            is_text = isinstance(event, Text)
            message = self._message(event.parent, event.message_id, out, is_text=is_text)
            shown = message.pieces.add(event.delta)
            if shown or not event.delta:
                out.append(event if shown == event.delta else replace(event, delta=shown))
            return
        if getattr(event, "call_id", None) is not None and event.parent in self._messages:
            self._release(self._messages.pop(event.parent), out)
        if not isinstance(event, ToolOutput):
            out.append(event)
            return
        pieces, _ = self._outputs.setdefault(
            event.call_id, (StreamRedactor(self._redactor), event.parent)
        )
        if shown := pieces.add(event.delta):
            out.append(event if shown == event.delta else replace(event, delta=shown))
        if not pieces.pending:
            del self._outputs[event.call_id]

    def _tool_call(self, event: ToolUse | ToolResult, out: list[RawEvent]) -> None:
        """The begin or the end of a call, which ends the message before it."""
        message = self._messages.pop(event.parent, None)
        if message is not None:
            self._release(message, out)
        if self._outputs and isinstance(event, ToolResult) and event.call_id in self._outputs:
            pieces, parent = self._outputs.pop(event.call_id)
            if rest := pieces.finish():
                out.append(ToolOutput(event.call_id, rest, parent=parent))
        out.append(event)

    def _message(
        self, parent: str | None, message_id: str | None, out: list[RawEvent], *, is_text: bool
    ) -> _HeldMessage:
        """The message that a delta continues; a message that it ends is released."""
        message = self._messages.get(parent)
        if message is not None and (
            message.is_text != is_text or message_id not in (None, message.message_id)
        ):
            self._release(message, out)
            message = None
        if message is None:
            message = _HeldMessage(StreamRedactor(self._redactor), parent, is_text, message_id)
            self._messages[parent] = message
        return message

    def _release(self, message: _HeldMessage, out: list[RawEvent]) -> None:
        if message.pieces.pending and (rest := message.rest()) is not None:
            out.append(rest)
