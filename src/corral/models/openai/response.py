"""Reads responses of OpenAI's Responses API: events, items, usage.

A response is a list of items. A stream sends each item as deltas, then complete
(``output_item.done``), and all items again at its end. Items of which deltas were read are not
read again.
"""

from __future__ import annotations

import msgspec

from corral.errors import StreamBroken
from corral.model_types import Reason
from corral.models.openai.errors import error_in_stream
from corral.models.spec import Provider, Translate
from corral.protocol.response_builder import ResponseBuilder
from corral.values import Json, Usage, decode_or_none, decoder_for

INCOMPLETE: dict[str, Reason] = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}
ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
BEGINS = frozenset({"response.created", "response.in_progress", "response.queued"})
REPEATED_EVENTS = frozenset(
    {
        "keepalive",
        "response.content_part.added",
        "response.content_part.done",
        "response.function_call_arguments.done",
        "response.output_text.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
        "response.reasoning_text.done",
        "response.refusal.done",
    }
)
"""Events that repeat what other events carry."""
ITEM_EVENTS = frozenset({"response.output_item.added", "response.output_item.done"})
THOUGHTS = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_READ = THOUGHTS | BEGINS | ENDS.keys()
_NONE = msgspec.Raw()


class _Text(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str = ""
    arguments: str | None = None
    content: list[_Text] | None = None
    summary: list[_Text] | None = None
    encrypted_content: str | None = None
    phase: str | None = None


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    error: Json = None
    incomplete_details: _Incomplete | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: str = ""
    output_index: int = -1
    item_id: str | None = None
    summary_index: int = 0
    content_index: int = 0
    item: msgspec.Raw = _NONE
    response: _Response | None = None


_decode = decoder_for(_Event).decode
_decode_item = decoder_for(_Item).decode
_decode_response = decoder_for(_Response).decode
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def translator(provider: Provider) -> Translate:
    return _ResponseReader(provider).translate


def read(body: bytes, builder: ResponseBuilder, provider: Provider) -> None:
    try:
        response = _decode_response(body)
    except _DECODE_ERRORS as error:
        raise _invalid_response(provider, body, error) from error
    _ResponseReader(provider).end(response, builder, response.status)


class _ResponseReader:
    """The state of one response: what was read already."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._read_indexes: set[object] = set()
        """Output indexes whose content was read; -1 if the server sends no indexes."""
        self._started_calls: set[object] = set()
        self._last_reasoning: tuple[object, ...] = ()
        """The position of the last reasoning delta. A blank line separates two positions."""
        self._refused = False

    def translate(self, datas: list[bytes], builder: ResponseBuilder) -> None:
        for data in datas:
            try:
                event = _decode(data)
            except _DECODE_ERRORS as error:
                self._handle_malformed(data, builder, error)
                continue
            if event.type == "response.output_text.delta":
                self._read_indexes.add(event.output_index)
                builder.add_text(event.delta)
            else:
                self._handle_event(event, data, builder)

    def _handle_event(self, event: _Event, data: bytes, builder: ResponseBuilder) -> None:
        kind, index = event.type, event.output_index
        if kind == "response.function_call_arguments.delta":
            key = index if index >= 0 else event.item_id
            if key in self._started_calls:  # otherwise they come complete, with the tool's name
                self._read_indexes.add(key)
                builder.add_arguments(key, event.delta)
        elif kind in THOUGHTS:
            self._handle_reasoning(event, builder)
        elif kind == "response.refusal.delta":
            self._read_indexes.add(index)
            self._refused = True
            builder.add_text(event.delta)
        elif kind in ITEM_EVENTS:
            self._handle_item(event.item, index, builder, is_done=kind.endswith(".done"))
        elif kind in ENDS:
            response = event.response or _Response()
            self.end(response, builder, response.status or ENDS[kind])
        elif kind in BEGINS:
            if event.response is not None:
                builder.start(event.response.id, event.response.model)
        elif kind not in REPEATED_EVENTS:
            self._handle_unknown(kind, data, builder)

    def end(self, response: _Response, builder: ResponseBuilder, status: str | None) -> None:
        """Read the complete response, after its deltas or without any."""
        if response.error is not None or status == "failed":
            raise error_in_stream(self._provider, response.error, builder.model)
        if response.id or response.model:
            builder.start(response.id, response.model)
        for index, raw in enumerate(response.output or ()):
            if index not in self._read_indexes and -1 not in self._read_indexes:
                self._handle_item(raw, index, builder, is_done=True)
        self._set_finish(response, builder, status)
        if response.usage is not None:
            builder.usage = _usage(response.usage)

    def _set_finish(
        self, response: _Response, builder: ResponseBuilder, status: str | None
    ) -> None:
        if status == "completed" and self._refused:
            builder.set_finish("content_filter", "refusal")
        elif status == "completed":
            builder.set_finish("stop", status)
        elif status == "incomplete":
            details = response.incomplete_details
            why = details.reason if details else None
            builder.set_finish(INCOMPLETE.get(why or "", "other"), why or status)
        elif status == "cancelled":
            builder.set_finish("other", status)

    def _handle_reasoning(self, event: _Event, builder: ResponseBuilder) -> None:
        index = (event.output_index, event.type, event.summary_index, event.content_index)
        if (
            self._last_reasoning
            and self._last_reasoning != index
            and self._last_reasoning[0] == event.output_index
        ):
            builder.add_thinking("\n\n", event.item_id)
        self._last_reasoning = index
        self._read_indexes.add(event.output_index)
        builder.add_thinking(event.delta, event.item_id)

    def _handle_item(
        self, raw: msgspec.Raw, index: int, builder: ResponseBuilder, *, is_done: bool
    ) -> None:
        try:
            item = _decode_item(raw)
        except _DECODE_ERRORS:
            item = _Item("unknown")  # an item type whose fields have other types
        if item.type == "function_call":
            self._handle_call(item, index, builder, is_done=is_done)
        elif not is_done:
            pass  # incomplete: it comes again when it is complete
        elif item.type == "message":
            self._handle_message(item, index not in self._read_indexes, builder)
        elif item.type == "reasoning":
            self._handle_reasoning_item(item, index not in self._read_indexes, builder)
        else:
            data = decode_or_none(bytes(raw))
            named = data.get("type") if isinstance(data, dict) else None
            builder.add_provider_event(str(named or item.type), data)
        if is_done:
            self._read_indexes.add(index)

    def _handle_call(
        self, item: _Item, index: int, builder: ResponseBuilder, *, is_done: bool
    ) -> None:
        key = index if index >= 0 else item.id
        if key not in self._started_calls:
            self._started_calls.add(key)
            builder.start_call(key, item.name, item.call_id, item_id=item.id)
        if is_done:
            if key not in self._read_indexes:
                builder.add_arguments(key, item.arguments or "")
            builder.end_call(key)
            self._read_indexes.add(key)

    def _handle_message(self, item: _Item, is_new: bool, builder: ResponseBuilder) -> None:
        texts = [piece.text or piece.refusal or "" for piece in item.content or ()]
        self._refused |= any(piece.type == "refusal" for piece in item.content or ())
        if is_new:
            for text in filter(None, texts):
                builder.add_text(text)
        if item.phase and any(texts):
            builder.set_signature(item.phase)  # sent back with the next request
        else:
            builder.end_part()

    def _handle_reasoning_item(self, item: _Item, is_new: bool, builder: ResponseBuilder) -> None:
        pieces = (*(item.summary or ()), *(item.content or ()))
        text = "\n\n".join(piece.text for piece in pieces if piece.text)
        if is_new and text:
            builder.add_thinking(text, item.id)
        if item.encrypted_content:
            builder.add_thinking("", item.id)
            builder.set_signature(item.encrypted_content, "thinking")
        else:
            builder.end_part()

    def _handle_unknown(self, kind: str, data: bytes, builder: ResponseBuilder) -> None:
        """Events without a unified form; and errors, in one of two formats."""
        decoded = decode_or_none(data)
        if isinstance(decoded, dict) and (kind == "error" or (not kind and decoded.get("error"))):
            raise error_in_stream(self._provider, decoded.get("error") or decoded, builder.model)
        builder.add_provider_event(kind or "unknown", decoded)

    def _handle_malformed(self, data: bytes, builder: ResponseBuilder, error: Exception) -> None:
        if data.strip() == b"[DONE]":
            return  # some servers send it at the end of every stream
        match decode_or_none(data):
            case {"type": str(kind)} as decoded if not _is_read(kind):
                builder.add_provider_event(kind, decoded)
            case {"error": dict() | str() as error_body}:
                raise error_in_stream(self._provider, error_body, builder.model)
            case _:
                raise _invalid_response(self._provider, data, error) from error


def _is_read(kind: str) -> bool:
    return kind in _READ or kind.startswith(
        ("response.output_text.delta", "response.refusal.delta", "response.output_item.",
         "response.function_call_arguments.delta")
    )  # fmt: skip


def _invalid_response(provider: Provider, data: bytes, error: Exception) -> StreamBroken:
    sample = data[:200].decode("utf-8", "replace")
    return StreamBroken(f"{provider.title} sent an invalid response: {error}", frame=sample)


def _usage(usage: _Usage) -> Usage:
    """Usage. Input includes cached tokens, output includes reasoning."""
    read, written = usage.input_tokens, usage.output_tokens
    input_details, output_details = usage.input_tokens_details, usage.output_tokens_details
    return Usage(
        input=read,
        output=written,
        reasoning=output_details.reasoning_tokens if output_details else None,
        cache_read=input_details.cached_tokens if input_details else None,
        cache_write=input_details.cache_write_tokens if input_details else None,
        coverage="partial" if read is None or written is None else "complete",
    )
