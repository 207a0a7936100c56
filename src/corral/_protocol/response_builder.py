"""Builds the response of a model from deltas, for all vendors.

A vendor's module calls ``add_text``, ``add_thinking``, ``start_call`` and so on for what it reads.
The stream events collect in ``events``, and ``response`` returns the complete response. A response
that did not come as a stream is built with the same calls, so both are equal; texts that are
complete have a shorter one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from corral._core.nesting import decode_json
from corral.errors import StreamBroken
from corral.messages import Message, Part, RedactedThinking, Text, Thinking, ToolCall
from corral.model_types import (
    FinishReason,
    ProviderEvent,
    RateLimit,
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
from corral.values import Cost, Json, Usage

_NO_USAGE = Usage()
_NO_COST = Cost()


class _OpenPart(msgspec.Struct, eq=False):
    """A part that is still open."""

    kind: str
    index: int
    pieces: list[str] = []
    signature: str | None = None
    id: str = ""
    name: str = ""
    item_id: str | None = None


class ResponseBuilder(msgspec.Struct, eq=False):
    """One response while it is read. No tool call of it gets an id of one in ``history``.

    A struct is created faster than an object with ``__init__``, and every call has one."""

    provider: str
    model: str
    _history: Iterable[Message] = ()
    id: str = ""
    usage: Usage = _NO_USAGE
    finish: FinishReason | None = None
    warnings: list[str] = []
    events: list[StreamEvent] = []
    """Events that ``take_events`` has not returned yet."""
    _used_ids: set[str] | None = None
    """Made of ``history`` for the first call; None while there is no call, as in most responses.
    """
    _parts: list[_OpenPart | Part] = []
    _open: _OpenPart | None = None
    """The text or thinking that is still open."""
    _calls: dict[object, _OpenPart] = {}
    _started: bool = False

    def take_events(self) -> list[StreamEvent]:
        events, self.events = self.events, []
        return events

    def start(self, id: str | None = None, model: str | None = None) -> None:
        """The response has started. Later calls only set the id and the model."""
        if id:
            self.id = id
        if model:
            self.model = model
        if not self._started:
            self._started = True
            self.events.append(Start(self.id, self.model, self.provider))

    def add_text(self, piece: str) -> None:
        part = self._open
        if part is None or part.kind != "text":
            part = self._open_part("text")
            self.events.append(TextStart(part.index))
        if piece:
            part.pieces.append(piece)
            self.events.append(TextDelta(piece, part.index))

    def add_thinking(self, piece: str, item_id: str | None = None) -> None:
        part = self._open
        if part is None or part.kind != "thinking" or part.item_id != item_id:
            part = self._open_part("thinking")
            part.item_id = item_id
            self.events.append(ThinkingStart(part.index))
        if piece:
            part.pieces.append(piece)
            self.events.append(ThinkingDelta(piece, part.index))

    def set_signature(self, signature: str, kind: str = "text") -> None:
        """Set the signature of the open text or thinking, or of a new empty part of ``kind``.
        This completes the part."""
        if self._open is None or self._open.kind != kind:
            (self.add_text if kind == "text" else self.add_thinking)("")
        if self._open is not None:
            self._open.signature = signature
        self.end_part()

    def end_part(self) -> None:
        """The open text or thinking is complete."""
        part, self._open = self._open, None
        if part is not None:
            ended = TextEnd if part.kind == "text" else ThinkingEnd
            self.events.append(ended(part.index))

    def add_redacted(self, data: str, item_id: str | None = None) -> None:
        self.end_part()
        self._parts.append(RedactedThinking(data, item_id))

    def start_call(
        self,
        key: object,
        name: str,
        id: str | None = None,
        *,
        signature: str | None = None,
        item_id: str | None = None,
    ) -> None:
        """A tool call has started; ``key`` identifies it in later calls. An earlier call with
        the same key is complete."""
        self.end_part()
        self.end_call(key)
        part = _OpenPart("call", len(self._parts))
        # The vendor's id, or one that no other call of the conversation has: some vendors send
        # none, some restart counting in every response.
        if not self._started:
            self.start()
        if self._used_ids is None:
            self._used_ids = {call.id for each in self._history for call in each.tool_calls}
        number = len(self._used_ids)
        unique = id or f"call_{number}"
        while unique in self._used_ids:
            unique = f"call_{number}"
            number += 1
        self._used_ids.add(unique)
        part.id = unique
        part.name = name
        part.signature = signature
        part.item_id = item_id
        self._parts.append(part)
        self._calls[key] = part
        self.events.append(ToolCallStart(part.index, part.id, name))

    def add_arguments(self, key: object, piece: str) -> None:
        """Add a piece of the arguments' JSON. For an unknown call it becomes an event only."""
        part = self._calls.get(key)
        if part is None:
            self.add_provider_event("arguments of an unknown call", piece)
        elif piece:
            part.pieces.append(piece)
            self.events.append(ToolCallDelta(part.index, piece))

    def end_call(self, key: object) -> None:
        part = self._calls.pop(key, None)
        if part is not None:
            written = "".join(part.pieces)
            arguments: Json = {}
            if written.strip():
                try:
                    arguments = decode_json(written)
                except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                    arguments = None
            is_object = isinstance(arguments, dict)
            call = ToolCall(
                part.id,
                part.name,
                arguments if isinstance(arguments, dict) else {},
                part.signature,
                None if is_object else written,
                part.item_id,
            )
            self._parts[part.index] = call
            self.events.append(ToolCallEnd(part.index, call))

    def add_call(
        self,
        name: str,
        arguments: Json,
        id: str | None = None,
        *,
        signature: str | None = None,
        item_id: str | None = None,
    ) -> None:
        """Add a complete call with decoded arguments."""
        key = object()
        self.start_call(key, name, id, signature=signature, item_id=item_id)
        self.add_arguments(key, msgspec.json.encode(arguments).decode())
        self.end_call(key)

    def add_provider_event(self, name: str, data: Json) -> None:
        if not self._started:
            self.start()
        self.events.append(ProviderEvent(name, data))

    def set_finish(self, reason: Reason, raw: str | None = None) -> None:
        self.finish = FinishReason(reason, raw)

    def response(
        self,
        cost: Cost = _NO_COST,
        rate_limit: RateLimit | None = None,
        body: bytes = b"",
    ) -> Response:
        """The complete response; its last events are in ``events``. Raises ``StreamBroken`` if
        no finish reason came."""
        if self.finish is None:
            raise StreamBroken(
                f"the response of {self.provider} ended before it was complete",
                hint="The connection was closed, or a proxy timed out: try again.",
            )
        if not self._started:
            self.start()
        if self._open is not None:
            self.end_part()
        if self._calls:
            for key in list(self._calls):
                self.end_call(key)
        parts = tuple([_finish_part(p) if isinstance(p, _OpenPart) else p for p in self._parts])
        message = Message("assistant", parts, self.provider)
        finish = self.finish
        # In a truncated or filtered response a call may be incomplete: keep these reasons.
        if self._used_ids is not None and finish.reason in ("stop", "other"):
            finish = FinishReason("tool_calls", finish.raw)
        return Response(
            id=self.id,
            model=self.model,
            provider=self.provider,
            message=message,
            finish_reason=finish,
            usage=self.usage,
            cost=cost,
            warnings=tuple(self.warnings),
            rate_limit=rate_limit,
            body=body,
        )

    def _open_part(self, kind: str) -> _OpenPart:
        if not self._started:
            self.start()
        if self._open is not None:
            self.end_part()
        part = self._open = _OpenPart(kind, len(self._parts))
        self._parts.append(part)
        return part


def _finish_part(part: _OpenPart) -> Part:
    text = "".join(part.pieces)
    if part.kind == "text":
        return Text(text, part.signature)
    return Thinking(text, part.signature, part.item_id)
