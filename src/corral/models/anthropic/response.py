"""What Anthropic answers: the events of its stream, its usage, its errors.

A schema is asked for as a tool (see ``anthropic_request``); what the model hands in
to that tool is told as text, so that an answer looks the same whoever gave it.
"""

from __future__ import annotations

from corral.errors import CorralError, StreamBroken
from corral.events import Json
from corral.model_types import Reason
from corral.models.anthropic.frames import (
    BLOCKS,
    DELTAS,
    KNOWN,
    UNREADABLE,
    Begin,
    Block,
    Change,
    Counts,
    Delta,
    End,
    Failed,
    Fault,
    InputDelta,
    Message,
    SignatureDelta,
    Start,
    TextDelta,
    ThinkingDelta,
    decode,
    decode_whole,
)
from corral.models.anthropic.request import RESULT, VALUE
from corral.models.errors import error_of, failed
from corral.models.spec import Failure, JsonObject, Provider, Translate, decoded
from corral.protocol.response_builder import ResponseBuilder
from corral.values import Usage

FINISHES: dict[str, Reason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "stop",  # the parts know whether there are calls; a schema's tool is none
    "refusal": "content_filter",
    "pause_turn": "other",
}

MEANINGS = {
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
"""Its words for an error in those of gRPC: inside a stream there is no status to go by."""

SPENT = ("credit balance is too low", "usage limits", "spend limit")
"""Told as an invalid request: the money is gone, or the limit that its owner set is reached."""


class _Handed:
    """What is handed in to a schema's tool, on its way to being the text.

    Blanks between tokens are dropped: streamed and whole, the same answer must read the
    same. Of a wrapped value the wrapping goes: the head once it is there, the last brace
    is held back.
    """

    __slots__ = ("_escaped", "_head", "_held", "_quoted", "_wrapped")

    def __init__(self, wrapped: bool) -> None:
        self._wrapped = wrapped
        self._head: str | None = "" if wrapped else None
        self._held = ""
        self._quoted = False
        self._escaped = False

    def receive(self, piece: str) -> str:
        text = self._squeezed(piece)
        if self._head is not None:
            self._head += text
            opening = '{"value":'
            if len(self._head) < len(opening) and opening.startswith(self._head):
                return ""
            text, self._head = self._head, None
            self._wrapped = text.startswith(opening)
            text = text.removeprefix(opening)
        if not self._wrapped:
            return text
        text, self._held = self._held + text, ""
        if text.endswith("}"):
            text, self._held = text[:-1], "}"
        return text

    def _squeezed(self, piece: str) -> str:
        kept: list[str] = []
        for char in piece:
            if self._quoted:
                kept.append(char)
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._quoted = False
            elif char not in " \t\r\n":
                kept.append(char)
                self._quoted = char == '"'
        return "".join(kept)


class _Answer:
    """One answer under way: the block that grows, and the usage so far."""

    __slots__ = ("_given", "_handed", "_index", "_kind", "_provider", "_signature", "_usage")

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._usage = Counts()
        self._kind = ""
        self._index = 0
        self._signature: str | None = None
        self._handed: _Handed | None = None
        self._given = ""
        """The input that came with the block itself; pieces that follow replace it."""

    def translate(self, datas: list[bytes], parts: ResponseBuilder) -> None:
        for data in datas:
            try:
                event = decode(data)
            except UNREADABLE as error:
                self._unknown(data, parts, error)
                continue
            if type(event) is Delta:
                delta = event.delta
                if type(delta) is TextDelta:
                    parts.add_text(delta.text)
                elif type(delta) is ThinkingDelta:
                    parts.add_thinking(delta.thinking)
                else:
                    self._grow(event.index, delta, parts)
            else:
                self._tell(event, data, parts)

    def _grow(self, index: int, delta: object, parts: ResponseBuilder) -> None:
        if isinstance(delta, SignatureDelta):
            self._signature = delta.signature
        elif isinstance(delta, InputDelta):
            piece = delta.partial_json
            if piece:
                self._given = ""
            if self._handed is not None:
                if text := self._handed.receive(piece):
                    parts.add_text(text)
            elif self._kind == "tool_use":
                parts.add_arguments(index, piece)
            else:
                parts.add_provider_event(
                    "input_json_delta", {"index": index, "partial_json": piece}
                )

    def _tell(self, event: object, data: bytes, parts: ResponseBuilder) -> None:
        match event:
            case Begin():
                self.begin(event.content_block, event.index, parts)
                if event.content_block.type not in BLOCKS:
                    parts.add_provider_event(
                        event.content_block.type, _within(decoded(data), "content_block")
                    )
            case End():
                self.end(parts)
            case Start():
                parts.start(event.message.id, event.message.model)
                self._count(event.message.usage, parts)
            case Change():
                self.finish(event.delta, event.usage, parts)
            case Failed():
                raise _error(self._provider, event.error, parts.model)
            case _:
                pass  # a ping; and the end, which message_delta has told

    def _unknown(self, data: bytes, parts: ResponseBuilder, error: Exception) -> None:
        """New events may come at any time, and are no reason to fail."""
        match decoded(data):
            case {"type": "content_block_delta", "delta": {"type": str(kind)}} as event if (
                kind not in DELTAS
            ):
                parts.add_provider_event(kind, event)
            case {"type": str(kind)} as event if kind not in KNOWN:
                parts.add_provider_event(kind, event)
            case _:
                raise _broken(self._provider, data, error)

    def begin(self, block: Block, index: int, parts: ResponseBuilder) -> None:
        if self._kind:
            self.end(parts)
        self._kind, self._index = block.type, index
        match block.type:
            case "text":
                if block.text:
                    parts.add_text(block.text)
            case "thinking":
                self._signature = block.signature
                if block.thinking:
                    parts.add_thinking(block.thinking)
            case "redacted_thinking":
                parts.add_redacted(block.data)
            case "tool_use":
                given = bytes(block.input).decode("utf-8", "replace")
                if block.name in (RESULT, VALUE):
                    self._handed = _Handed(block.name == VALUE)
                else:
                    parts.start_call(index, block.name, block.id)
                    given = "" if given.strip() in ("{}", "null") else given
                self._given = given
            case _:
                pass

    def end(self, parts: ResponseBuilder) -> None:
        if self._given:
            self._grow(self._index, InputDelta(self._given), parts)
        if self._kind == "thinking" and self._signature:
            parts.set_signature(self._signature, "thinking")
        parts.end_part()
        parts.end_call(self._index)
        self._kind, self._signature, self._handed, self._given = "", None, None, ""

    def finish(self, message: Message, usage: Counts | None, parts: ResponseBuilder) -> None:
        self._count(usage, parts)
        if message.stop_reason is None:
            return
        if self._kind:
            self.end(parts)
        parts.set_finish(FINISHES.get(message.stop_reason, "other"), message.stop_reason)
        if message.stop_details is not None and message.stop_details.explanation:
            parts.warnings.append(message.stop_details.explanation)

    def _count(self, usage: Counts | None, parts: ResponseBuilder) -> None:
        """Counts are of the whole answer so far; one that is left out keeps its last value."""
        if usage is None:
            return
        for name in Counts.__struct_fields__:
            if (count := getattr(usage, name)) is not None:
                setattr(self._usage, name, count)
        parts.usage = _counted(self._usage)


def _counted(usage: Counts) -> Usage:
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    fresh, output = usage.input_tokens, usage.output_tokens
    details = usage.output_tokens_details
    return Usage(
        # Its own count leaves out what the cache took part in.
        input=None if fresh is None else fresh + (read or 0) + (written or 0),
        output=output,
        reasoning=details.thinking_tokens if details else None,
        cache_read=read,
        cache_write=written,
        coverage="partial" if fresh is None or output is None else "complete",
    )


def translator(provider: Provider) -> Translate:
    return _Answer(provider).translate


def read(body: bytes, parts: ResponseBuilder, provider: Provider) -> Json:
    try:
        message = decode_whole(body)
    except UNREADABLE as error:
        raise _broken(provider, body, error) from error
    if isinstance(message, Failed):
        raise _error(provider, message.error, parts.model)
    whole = decoded(body)
    parts.start(message.id, message.model)
    answer = _Answer(provider)
    for index, block in enumerate(message.content):
        answer.begin(block, index, parts)
        if block.type not in BLOCKS:
            parts.add_provider_event(block.type, _within(whole, "content", index))
        answer.end(parts)
    answer.finish(message, message.usage, parts)
    return whole


def _within(found: Json, *steps: str | int) -> Json:
    """A piece of JSON as it came, of which the structs know only a part."""
    for step in steps:
        if isinstance(found, dict) and isinstance(step, str):
            found = found.get(step)
        elif isinstance(found, list) and isinstance(step, int):
            found = found[step]
    return found


def _broken(provider: Provider, data: bytes, error: Exception) -> StreamBroken:
    sample = data[:200].decode("utf-8", "replace")
    return StreamBroken(
        f"{provider.title} sent what is no answer of its API: {error}", frame=sample
    )


def failure(failure: Failure) -> CorralError:
    match decoded(failure.body):
        case {"error": dict(error)}:
            return _error(failure.provider, _error_of(error), failure.model, failure)
        case _:
            return failed(failure, None)


def _error_of(error: JsonObject) -> Fault:
    kind, message = error.get("type"), error.get("message")
    return Fault(
        kind if isinstance(kind, str) else "",
        message if isinstance(message, str) else "",
        error.get("details"),
    )


def _error(
    provider: Provider, error: Fault, model: str, failure: Failure | None = None
) -> CorralError:
    said = f"{error.message} {error.details}".lower().replace("_", " ")
    spent = any(words in said for words in SPENT)
    name = "RESOURCE_EXHAUSTED" if spent else MEANINGS.get(error.type)
    if failure is not None:
        return failed(failure, error.message, name=name, code=error.type or None, spent=spent)
    return error_of(
        provider,
        error.message or error.type,
        model=model,
        name=name,
        code=error.type or None,
        spent=spent,
    )
