"""Deltas become whole parts: the one assembler of every vendor's answer.

A wire tells what it reads (``text``, ``thinking``, ``call`` …); the events of the
stream gather in ``events``, and ``response`` is the whole. An answer that came in
one piece is told the same way, so both give equal responses.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from corral.errors import StreamBroken
from corral.events import Json
from corral.messages import Message, Part, RedactedThinking, Text, Thinking, ToolCall
from corral.model_types import (
    FinishReason,
    ProviderEvent,
    Reason,
    Response,
    Start,
    StreamEvent,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from corral.nesting import decode_json
from corral.values import Usage


class _Growing:
    """A part under way."""

    __slots__ = ("id", "index", "item_id", "kind", "name", "pieces", "signature")

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.pieces: list[str] = []
        self.signature: str | None = None
        self.id = ""
        self.name = ""
        self.item_id: str | None = None


class Parts:
    """One answer, as it grows. ``used`` are the ids of calls that the history holds."""

    def __init__(self, provider: str, model: str, used: Iterable[str] = ()) -> None:
        self.provider = provider
        self.model = model
        self.id = ""
        self.usage = Usage()
        self.finish: FinishReason | None = None
        self.warnings: list[str] = []
        self.events: list[StreamEvent] = []
        """Not yet handed out; ``take`` empties it."""
        self._used = set(used)
        self._parts: list[_Growing | Part] = []
        self._open: _Growing | None = None
        """The text or the thoughts under way."""
        self._calls: dict[object, _Growing] = {}
        self._started = False

    def take(self) -> list[StreamEvent]:
        events, self.events = self.events, []
        return events

    def start(self, id: str | None = None, model: str | None = None) -> None:
        """The answer has begun. Told again it only fills what is missing."""
        if id:
            self.id = id
        if model:
            self.model = model
        if not self._started:
            self._started = True
            self.events.append(Start(self.id, self.model, self.provider))

    def text(self, piece: str) -> None:
        growing = self._open
        if growing is None or growing.kind != "text":
            growing = self._begin("text")
            self.events.append(TextStart(growing.index))
        if piece:
            growing.pieces.append(piece)
            self.events.append(TextDelta(piece, growing.index))

    def thinking(self, piece: str, item_id: str | None = None) -> None:
        growing = self._open
        if growing is None or growing.kind != "thinking" or growing.item_id != item_id:
            growing = self._begin("thinking")
            growing.item_id = item_id
            self.events.append(ThinkingStart(growing.index))
        if piece:
            growing.pieces.append(piece)
            self.events.append(ThinkingDelta(piece, growing.index))

    def sign(self, signature: str, kind: str = "text") -> None:
        """The mark of the text or the thoughts under way, or of an empty part of ``kind``.
        It completes the part: what comes after it is another one."""
        if self._open is None or self._open.kind != kind:
            (self.text if kind == "text" else self.thinking)("")
        if self._open is not None:
            self._open.signature = signature
        self.end_part()

    def end_part(self) -> None:
        """The text or the thoughts under way are complete."""
        growing, self._open = self._open, None
        if growing is not None:
            ended = TextEnd if growing.kind == "text" else ThinkingEnd
            self.events.append(ended(growing.index))

    def redacted(self, data: str, item_id: str | None = None) -> None:
        self.end_part()
        self._parts.append(RedactedThinking(data, item_id))

    def call(
        self,
        key: object,
        name: str,
        id: str | None = None,
        *,
        signature: str | None = None,
        item_id: str | None = None,
    ) -> None:
        """A call has begun; ``key`` names it in what follows. Another of that key has ended."""
        self.end_part()
        self.end_call(key)
        growing = _Growing("call", len(self._parts))
        growing.id = self._fresh(id)
        growing.name = name
        growing.signature = signature
        growing.item_id = item_id
        self._parts.append(growing)
        self._calls[key] = growing
        self.events.append(ToolCallStart(growing.index, growing.id, name))

    def arguments(self, key: object, piece: str) -> None:
        """A piece of the arguments' JSON. Of a call that never began it is only an event."""
        growing = self._calls.get(key)
        if growing is None:
            self.other("arguments of an unknown call", piece)
        elif piece:
            growing.pieces.append(piece)
            self.events.append(ToolCallDelta(growing.index, piece))

    def end_call(self, key: object) -> None:
        growing = self._calls.pop(key, None)
        if growing is not None:
            whole = _call(growing)
            self._parts[growing.index] = whole
            self.events.append(ToolCallEnd(growing.index, whole))

    def whole_call(
        self,
        name: str,
        arguments: Json,
        id: str | None = None,
        *,
        signature: str | None = None,
        item_id: str | None = None,
    ) -> None:
        """A call that comes in one piece, its arguments decoded."""
        key = object()
        self.call(key, name, id, signature=signature, item_id=item_id)
        self.arguments(key, msgspec.json.encode(arguments).decode())
        self.end_call(key)

    def other(self, name: str, data: Json) -> None:
        if not self._started:
            self.start()
        self.events.append(ProviderEvent(name, data))

    def stop(self, reason: Reason, raw: str | None = None) -> None:
        self.finish = FinishReason(reason, raw)

    def response(self) -> Response:
        """The whole answer; its last events are in ``events``. Raises ``StreamBroken`` for
        an answer without an end."""
        if self.finish is None:
            raise StreamBroken(
                f"{self.provider} stopped in the middle of its answer",
                hint="The connection was cut, or a proxy gave up: try again.",
            )
        self.start()
        self.end_part()
        for key in list(self._calls):
            self.end_call(key)
        parts = tuple(_done(part) for part in self._parts)
        finish = self.finish
        # Cut short or filtered, a call may be half of one: these reasons win over it.
        if finish.reason in ("stop", "other") and any(isinstance(p, ToolCall) for p in parts):
            finish = FinishReason("tool_calls", finish.raw)
        return Response(
            id=self.id,
            model=self.model,
            provider=self.provider,
            message=Message("assistant", parts, self.provider),
            finish_reason=finish,
            usage=self.usage,
            warnings=tuple(self.warnings),
        )

    def _begin(self, kind: str) -> _Growing:
        if not self._started:
            self.start()
        self.end_part()
        growing = self._open = _Growing(kind, len(self._parts))
        self._parts.append(growing)
        return growing

    def _fresh(self, id: str | None) -> str:
        """The vendor's id, or one that no other call of the conversation has: some vendors
        send none, some count anew in every answer."""
        if not self._started:
            self.start()
        number = len(self._used)
        fresh = id or f"call_{number}"
        while fresh in self._used:
            fresh = f"call_{number}"
            number += 1
        self._used.add(fresh)
        return fresh


def _done(part: _Growing | Part) -> Part:
    if not isinstance(part, _Growing):
        return part
    text = "".join(part.pieces)
    if part.kind == "text":
        return Text(text, part.signature)
    return Thinking(text, part.signature, part.item_id)


def _call(growing: _Growing) -> ToolCall:
    written = "".join(growing.pieces)
    arguments: Json = {}
    if written.strip():
        try:
            arguments = decode_json(written)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            arguments = None
    is_object = isinstance(arguments, dict)
    return ToolCall(
        growing.id,
        growing.name,
        arguments if isinstance(arguments, dict) else {},
        growing.signature,
        None if is_object else written,
        growing.item_id,
    )
