"""Reads Anthropic's responses: stream events, usage, errors.

A JSON schema is sent as a tool (see ``request``). The input of that tool is returned as text, so
that a response looks the same for every vendor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, get_args

import msgspec

from corral._models.anthropic.request import RESULT_TOOL, VALUE_TOOL
from corral._models.errors import VendorFacts, error_from_failure, invalid_response, vendor_error
from corral._models.spec import FailedResponse, Provider, Translate
from corral._protocol.response_builder import ResponseBuilder
from corral.errors import CorralError
from corral.model_types import Reason
from corral.values import (
    Json,
    JsonObject,
    Usage,
    as_list,
    as_object,
    as_text,
    decode_or_none,
    decoder_for,
)


class Details(msgspec.Struct, gc=False):
    thinking_tokens: int | None = None


class UsageCounts(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: Details | None = None


class StopDetails(msgspec.Struct, gc=False):
    explanation: str | None = None


class ResponseBlock(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str | None = None
    data: str = ""
    id: str | None = None
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"")


class AnthropicMessage(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None
    content: list[ResponseBlock] = []
    stop_reason: str | None = None
    stop_details: StopDetails | None = None
    usage: UsageCounts | None = None


class AnthropicError(msgspec.Struct):
    type: str = ""
    message: str = ""
    details: Json = None


class TextChange(msgspec.Struct, tag="text_delta", gc=False):
    text: str


class ThinkingChange(msgspec.Struct, tag="thinking_delta", gc=False):
    thinking: str


class InputDelta(msgspec.Struct, tag="input_json_delta", gc=False):
    partial_json: str


class SignatureDelta(msgspec.Struct, tag="signature_delta", gc=False):
    signature: str


class BlockDelta(msgspec.Struct, tag="content_block_delta", gc=False):
    delta: TextChange | ThinkingChange | InputDelta | SignatureDelta
    index: int = 0


class BlockStart(msgspec.Struct, tag="content_block_start"):
    content_block: ResponseBlock
    index: int = 0


class BlockStop(msgspec.Struct, tag="content_block_stop"):
    index: int = 0


class MessageStart(msgspec.Struct, tag="message_start"):
    message: AnthropicMessage


class MessageDelta(msgspec.Struct, tag="message_delta"):
    delta: AnthropicMessage
    usage: UsageCounts | None = None


class MessageStop(msgspec.Struct, tag="message_stop"):
    pass


class Ping(msgspec.Struct, tag="ping"):
    pass


class ErrorEvent(msgspec.Struct, tag="error"):
    error: AnthropicError


class WholeMessage(AnthropicMessage, tag="message", gc=False):
    """A response that is not streamed."""


Event: TypeAlias = (
    BlockDelta
    | BlockStart
    | BlockStop
    | MessageStart
    | MessageDelta
    | MessageStop
    | Ping
    | ErrorEvent
)
KNOWN = {event.__struct_config__.tag for event in get_args(Event)}
DELTAS = {
    delta.__struct_config__.tag
    for delta in (TextChange, ThinkingChange, InputDelta, SignatureDelta)
}
BLOCKS = {"text", "thinking", "redacted_thinking", "tool_use"}
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

decode: Callable[[bytes | str], Event] = decoder_for(Event).decode
decode_whole: Callable[[bytes | str], WholeMessage | ErrorEvent] = decoder_for(
    WholeMessage | ErrorEvent
).decode


FINISHES: dict[str, Reason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "stop",  # the builder knows whether there are calls; the schema tool does not count
    "refusal": "content_filter",
    "pause_turn": "other",
}

GRPC_NAMES = {
    "invalid_request_error": "INVALID_ARGUMENT",
    "authentication_error": "UNAUTHENTICATED",
    "billing_error": "RESOURCE_EXHAUSTED",
    "permission_error": "PERMISSION_DENIED",
    "not_found_error": "NOT_FOUND",
    "request_too_large": "INVALID_ARGUMENT",
    "rate_limit_error": "RESOURCE_EXHAUSTED",
    "timeout_error": "DEADLINE_EXCEEDED",
    "api_error": "INTERNAL",
    "overloaded_error": "UNAVAILABLE",
}
"""Anthropic's error types → gRPC status names: an error inside a stream has no HTTP status."""

SPENT = ("credit balance is too low", "usage limits", "spend limit")
"""Reported as an invalid request: the credit or the configured limit is spent."""


class _SchemaToolInput(msgspec.Struct, eq=False):
    """Turns the streamed input of the schema tool into text.

    Whitespace between tokens is removed, so that the text is the same with and without
    streaming. For a wrapped value the wrapping object is removed: its beginning once it is
    complete, its last brace by holding it back.
    """

    _wrapped: bool
    _head: str | None = ""
    _last_brace: str = ""
    _quoted: bool = False
    _escaped: bool = False

    def receive(self, piece: str) -> str:
        chars: list[str] = []
        for char in piece:
            if self._quoted:
                chars.append(char)
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._quoted = False
            elif char not in " \t\r\n":
                chars.append(char)
                self._quoted = char == '"'
        text = "".join(chars)
        if self._wrapped and self._head is not None:
            self._head += text
            opening = '{"value":'
            if len(self._head) < len(opening) and opening.startswith(self._head):
                return ""
            text, self._head = self._head, None
            self._wrapped = text.startswith(opening)
            text = text.removeprefix(opening)
        if not self._wrapped:
            return text
        text, self._last_brace = self._last_brace + text, ""
        if text.endswith("}"):
            text, self._last_brace = text[:-1], "}"
        return text


class _MessageReader(msgspec.Struct, eq=False):
    """The state of one response: the growing block, and the usage so far."""

    _provider: Provider
    _usage: UsageCounts | None = None
    _kind: str = ""
    _index: int = 0
    _signature: str | None = None
    _schema_input: _SchemaToolInput | None = None
    _initial_input: str = ""
    """The input that came with the block itself; deltas replace it."""

    def translate(self, datas: list[bytes], builder: ResponseBuilder) -> None:
        for data in datas:
            try:
                event = decode(data)
            except DECODE_ERRORS as error:
                # The vendor may add events and deltas of new types: they are passed on.
                match decode_or_none(data):
                    case {"type": "content_block_delta", "delta": {"type": str(kind)}} as raw if (
                        kind not in DELTAS
                    ):
                        builder.add_provider_event(kind, raw)
                    case {"type": str(kind)} as raw if kind not in KNOWN:
                        builder.add_provider_event(kind, raw)
                    case _:
                        raise invalid_response(self._provider, data, error) from error
                continue
            if type(event) is BlockDelta:
                delta = event.delta
                if type(delta) is TextChange:
                    builder.add_text(delta.text)
                elif type(delta) is ThinkingChange:
                    builder.add_thinking(delta.thinking)
                else:
                    self._add_delta(event.index, delta, builder)
            else:
                self._handle_event(event, data, builder)

    def _add_delta(self, index: int, delta: object, builder: ResponseBuilder) -> None:
        if isinstance(delta, SignatureDelta):
            self._signature = delta.signature
        elif isinstance(delta, InputDelta):
            piece = delta.partial_json
            if piece:
                self._initial_input = ""
            if self._schema_input is not None:
                if text := self._schema_input.receive(piece):
                    builder.add_text(text)
            elif self._kind == "tool_use":
                builder.add_arguments(index, piece)
            else:
                builder.add_provider_event(
                    "input_json_delta", {"index": index, "partial_json": piece}
                )

    def _handle_event(self, event: object, data: bytes, builder: ResponseBuilder) -> None:
        match event:
            case BlockStart():
                self.begin(event.content_block, event.index, builder)
                if event.content_block.type not in BLOCKS:
                    # The structs do not cover its content.
                    raw = as_object(decode_or_none(data)).get("content_block")
                    builder.add_provider_event(event.content_block.type, raw)
            case BlockStop():
                self.end(builder)
            case MessageStart():
                builder.start(event.message.id, event.message.model)
                self._count(event.message.usage, builder)
            case MessageDelta():
                self.finish(event.delta, event.usage, builder)
            case ErrorEvent():
                raise _error(self._provider, event.error, builder.model)
            case _:
                pass  # a ping, or the end, which message_delta reported

    def begin(self, block: ResponseBlock, index: int, builder: ResponseBuilder) -> None:
        if self._kind:
            self.end(builder)
        self._kind, self._index = block.type, index
        match block.type:
            case "text":
                if block.text:
                    builder.add_text(block.text)
            case "thinking":
                self._signature = block.signature
                if block.thinking:
                    builder.add_thinking(block.thinking)
            case "redacted_thinking":
                builder.add_redacted(block.data)
            case "tool_use":
                given = bytes(block.input).decode("utf-8", "replace")
                if block.name in (RESULT_TOOL, VALUE_TOOL):
                    self._schema_input = _SchemaToolInput(block.name == VALUE_TOOL)
                else:
                    builder.start_call(index, block.name, block.id)
                    given = "" if given.strip() in ("{}", "null") else given
                self._initial_input = given
            case _:
                pass

    def end(self, builder: ResponseBuilder) -> None:
        if self._initial_input:
            self._add_delta(self._index, InputDelta(self._initial_input), builder)
        if self._kind == "thinking" and self._signature:
            builder.set_signature(self._signature, "thinking")
        builder.end_part()
        builder.end_call(self._index)
        self._kind, self._signature, self._schema_input, self._initial_input = "", None, None, ""

    def finish(
        self, message: AnthropicMessage, usage: UsageCounts | None, builder: ResponseBuilder
    ) -> None:
        self._count(usage, builder)
        if message.stop_reason is None:
            return
        if self._kind:
            self.end(builder)
        builder.set_finish(FINISHES.get(message.stop_reason, "other"), message.stop_reason)
        if message.stop_details is not None and message.stop_details.explanation:
            builder.warnings.append(message.stop_details.explanation)

    def _count(self, usage: UsageCounts | None, builder: ResponseBuilder) -> None:
        """Counts cover the response so far; a missing count keeps its last value."""
        if usage is None:
            return
        if self._usage is not None:
            for name in UsageCounts.__struct_fields__:
                if getattr(usage, name) is None:
                    setattr(usage, name, getattr(self._usage, name))
        self._usage = usage
        read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
        fresh, output = usage.input_tokens, usage.output_tokens
        details = usage.output_tokens_details
        builder.usage = Usage(
            # Anthropic's input count does not include cached tokens.
            input=None if fresh is None else fresh + (read or 0) + (written or 0),
            output=output,
            reasoning=details.thinking_tokens if details else None,
            cache_read=read,
            cache_write=written,
            coverage="partial" if fresh is None or output is None else "complete",
        )


def translator(provider: Provider) -> Translate:
    return _MessageReader(provider).translate


def read(body: bytes, builder: ResponseBuilder, provider: Provider) -> None:
    try:
        message = decode_whole(body)
    except DECODE_ERRORS as error:
        raise invalid_response(provider, body, error) from error
    if isinstance(message, ErrorEvent):
        raise _error(provider, message.error, builder.model)
    builder.start(message.id, message.model)
    reader = _MessageReader(provider)
    for index, block in enumerate(message.content):
        reader.begin(block, index, builder)
        if block.type not in BLOCKS:
            raw = as_list(as_object(decode_or_none(body)).get("content"))[index]
            builder.add_provider_event(block.type, raw)
        reader.end(builder)
    reader.finish(message, message.usage, builder)


_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


def error_body(status: int, message: str) -> JsonObject:
    kind = _ERROR_TYPES.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def failure(failure: FailedResponse) -> CorralError:
    match decode_or_none(failure.body):
        case {"error": dict(error)}:
            body = AnthropicError(
                as_text(error.get("type")), as_text(error.get("message")), error.get("details")
            )
            return _error(failure.provider, body, failure.model, failure)
        case _:
            return error_from_failure(failure, None)


def _error(
    provider: Provider, error: AnthropicError, model: str, failure: FailedResponse | None = None
) -> CorralError:
    text = f"{error.message} {error.details}".lower().replace("_", " ")
    spent = any(phrase in text for phrase in SPENT)
    name = "RESOURCE_EXHAUSTED" if spent else GRPC_NAMES.get(error.type)
    facts = VendorFacts(name=name, code=error.type or None, spent=spent)
    if failure is not None:
        return error_from_failure(failure, error.message, facts)
    return vendor_error(provider, error.message or error.type, facts, model=model)
