"""What servers of chat completions answer: chunks with deltas, or one message.

A whole message is read as one delta. Servers differ in what they leave out:
indices, ids, the usage, the ``[DONE]``; an answer is complete with either a
``finish_reason`` or a ``[DONE]``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from corral.errors import StreamBroken
from corral.events import Json
from corral.model_types import Reason
from corral.models.openai.errors import error_inside
from corral.models.spec import Provider, Translate, decoded
from corral.protocol.response_builder import ResponseBuilder
from corral.values import Usage

FINISHES: dict[str, Reason] = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "error": "error",
    "insufficient_system_resource": "error",
}


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Piece(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: Json = None


class _Delta(msgspec.Struct, gc=False):
    content: str | list[_Piece] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class _Groq(msgspec.Struct, gc=False):
    usage: _Usage | None = None
    error: Json = None


class _Chunk(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Json = None
    x_groq: _Groq | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


def translator(provider: Provider) -> Translate:
    return _Answer(provider).translate


def read(body: bytes, parts: ResponseBuilder, provider: Provider) -> Json:
    _Answer(provider).translate([body], parts)
    return decoded(body)


class _Answer:
    """One answer's state: its calls, by the server's index and by ours."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._answered = False
        """Any chunk came: a ``[DONE]`` alone ends no answer."""
        self._started = False
        self._refused = False
        self._calls: list[str | None] = []
        """The server's id of each call; its place here is the call's key."""
        self._places: dict[int, int] = {}
        """The server's index → the key of the call that it means now."""

    def translate(self, datas: list[bytes], parts: ResponseBuilder) -> None:
        for data in datas:
            if data == b"[DONE]":
                if parts.finish is None and self._answered:
                    parts.set_finish("other")  # complete, but it never said why
                continue
            try:
                chunk = _decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._odd(data, parts, error)
                continue
            if not self._started or chunk.error is not None:
                self._start(chunk, parts)
            choices = chunk.choices
            if choices:
                for choice in choices:
                    if choice.index:
                        continue  # one answer was asked for
                    delta = choice.delta or choice.message
                    if delta is not None:
                        self._tell(delta, parts)
                    if choice.finish_reason:
                        self._finish(choice.finish_reason, parts)
            elif choices is None:
                self._without_choices(chunk, data, parts)
            if chunk.usage is not None:
                parts.usage = _usage(chunk.usage)
            if chunk.x_groq is not None:
                self._groq(chunk.x_groq, parts)

    def _start(self, chunk: _Chunk, parts: ResponseBuilder) -> None:
        if chunk.error is not None:
            raise error_inside(self._provider, chunk.error, parts.model)
        self._answered = True
        if chunk.id or chunk.model:
            self._started = True
            parts.start(chunk.id, chunk.model)

    def _tell(self, delta: _Delta, parts: ResponseBuilder) -> None:
        thought = delta.reasoning_content or delta.reasoning
        if thought:
            parts.add_thinking(thought)
        content = delta.content
        if content:
            if isinstance(content, str):
                parts.add_text(content)
            else:
                _pieces(content, parts)
        if delta.refusal:
            self._refused = True
            parts.add_text(delta.refusal)
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._call(call, parts)
        if delta.function_call is not None:
            self._call(_Call(-1, None, delta.function_call), parts)

    def _call(self, call: _Call, parts: ResponseBuilder) -> None:
        function = call.function or _Function()
        key = self._key(call, function.name)
        if key is None:
            if not function.name:
                parts.add_provider_event("a piece of an unknown call", msgspec.to_builtins(call))
                return
            key = len(self._calls)
            self._calls.append(call.id)
            if call.index is not None:
                self._places[call.index] = key
            parts.start_call(key, function.name, call.id)
        arguments = function.arguments
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if arguments:
            parts.add_arguments(key, arguments)

    def _key(self, call: _Call, name: str | None) -> int | None:
        """The call that a piece belongs to; None for the first of another one. Some servers
        number no calls, and some number all of them 0: there a new id is a new call."""
        if call.index is not None:
            key = self._places.get(call.index)
        elif call.id:
            key = self._calls.index(call.id) if call.id in self._calls else None
        else:
            key = len(self._calls) - 1 if self._calls and not name else None
        if key is not None and name and call.id and call.id != self._calls[key]:
            return None
        return key

    def _finish(self, raw: str, parts: ResponseBuilder) -> None:
        for key in range(len(self._calls)):
            parts.end_call(key)
        reason = FINISHES.get(raw, "other")
        if self._refused and reason == "stop":
            parts.set_finish("content_filter", "refusal")
        else:
            parts.set_finish(reason, raw)

    def _groq(self, more: _Groq, parts: ResponseBuilder) -> None:
        if more.error is not None:
            raise error_inside(self._provider, more.error, parts.model)
        if more.usage is not None:
            parts.usage = _usage(more.usage)

    def _without_choices(self, chunk: _Chunk, data: bytes, parts: ResponseBuilder) -> None:
        match decoded(data):
            case {"object": "error"} | {"type": "error"} as whole:
                raise error_inside(self._provider, whole, parts.model)
            case whole if chunk.usage is None and chunk.x_groq is None:
                parts.add_provider_event("chunk", whole)
            case _:
                pass

    def _odd(self, data: bytes, parts: ResponseBuilder, error: Exception) -> None:
        if data.strip() == b"[DONE]":
            self.translate([b"[DONE]"], parts)
            return
        match decoded(data):
            case {"error": dict() | str() as told}:
                raise error_inside(self._provider, told, parts.model)
            case dict() as whole if "choices" not in whole:
                parts.add_provider_event("chunk", whole)
            case _:
                sample = data[:200].decode("utf-8", "replace")
                raise StreamBroken(
                    f"{self._provider.title} sent what is no answer of its API: {error}",
                    frame=sample,
                ) from error


def _pieces(pieces: list[_Piece], parts: ResponseBuilder) -> None:
    """Content in pieces, thoughts among them, as one vendor's thinkers send it."""
    for piece in pieces:
        if piece.text:
            parts.add_text(piece.text)
        match piece.thinking:
            case str(thought) if thought:
                parts.add_thinking(thought)
            case [*thoughts]:
                for each in thoughts:
                    match each:
                        case {"text": str(thought)} if thought:
                            parts.add_thinking(thought)
                        case _:
                            pass
            case _:
                pass


def _usage(usage: _Usage) -> Usage:
    read, written = usage.prompt_tokens, usage.completion_tokens
    went_in, came_out = usage.prompt_tokens_details, usage.completion_tokens_details
    thoughts = came_out.reasoning_tokens if came_out else None
    cached = went_in.cached_tokens if went_in else None
    # Some servers count thoughts apart from the output; their total gives it away.
    if thoughts and written is not None and usage.total_tokens == (read or 0) + written + thoughts:
        written += thoughts
    return Usage(
        input=read,
        output=written,
        reasoning=thoughts,
        cache_read=usage.prompt_cache_hit_tokens if cached is None else cached,
        cache_write=went_in.cache_write_tokens if went_in else None,
        coverage="partial" if read is None or written is None else "complete",
    )
