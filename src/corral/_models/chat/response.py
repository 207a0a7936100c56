"""Reads responses of chat-completions servers: chunks with deltas, or one message.

A message that is not streamed is read as one delta. Servers omit different things: indices, ids,
usage, ``[DONE]``. A response is complete with a ``finish_reason`` or a ``[DONE]``.
"""

from __future__ import annotations

import msgspec

from corral._models.errors import invalid_response
from corral._models.openai.response import error_in_stream
from corral._models.spec import Provider, Translate
from corral._protocol.response_builder import ResponseBuilder
from corral.model_types import Reason
from corral.values import Json, JsonObject, Usage, decode_or_none, decoder_for

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
    arguments: str | JsonObject | None = None


class _ChatCall(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _ChatPiece(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: Json = None


class _Delta(msgspec.Struct, gc=False):
    content: str | list[_ChatPiece] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ChatCall] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _ChatUsage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class _Groq(msgspec.Struct, gc=False):
    usage: _ChatUsage | None = None
    error: Json = None


class _ChatChunk(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _ChatUsage | None = None
    error: Json = None
    x_groq: _Groq | None = None


_NO_DELTA = _Delta()
_decode = decoder_for(_ChatChunk).decode


def translator(provider: Provider) -> Translate:
    return _ChatReader(provider).translate


def is_usage_event(data: bytes) -> bool:
    """Whether the chunk has the usage and nothing of the answer."""
    match decode_or_none(data):
        case {"choices": [], "usage": dict()}:
            return True
        case _:
            return False


def read(body: bytes, builder: ResponseBuilder, provider: Provider) -> None:
    _ChatReader(provider).translate([body], builder)


class _ChatReader(msgspec.Struct, eq=False):
    """The state of one response: its tool calls, by the server's index and by our key."""

    _provider: Provider
    _answered: bool = False
    """A chunk came: a ``[DONE]`` alone does not complete a response."""
    _started: bool = False
    _refused: bool = False
    _calls: list[str | None] = []
    """The server's id of each call. The index in this list is the key of the call."""
    _keys_by_index: dict[int, int] = {}
    """The server's index → the key of the call that it stands for now."""

    def translate(self, datas: list[bytes], builder: ResponseBuilder) -> None:
        for data in datas:
            try:
                chunk = _decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._handle_malformed(data, builder, error)
                continue
            if not self._started or chunk.error is not None:
                self._start(chunk, builder)
            choices = chunk.choices
            if choices:
                for choice in choices:
                    if not choice.index:  # only one answer was requested
                        self._handle_choice(choice, builder)
            elif choices is None:
                self._without_choices(chunk, data, builder)
            if chunk.usage is not None:
                builder.usage = _usage(chunk.usage)
            if chunk.x_groq is not None:
                more = chunk.x_groq
                if more.error is not None:
                    raise error_in_stream(self._provider, more.error, builder.model)
                if more.usage is not None:
                    builder.usage = _usage(more.usage)

    def _handle_choice(self, choice: _Choice, builder: ResponseBuilder) -> None:
        delta = (choice.message if choice.delta is None else choice.delta) or _NO_DELTA
        thought = delta.reasoning_content or delta.reasoning
        if thought:
            builder.add_thinking(thought)
        content = delta.content
        if content:
            if isinstance(content, str):
                builder.add_text(content)
            else:
                _add_pieces(content, builder)
        if delta.refusal:
            self._refused = True
            builder.add_text(delta.refusal)
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._handle_call(call, builder)
        if delta.function_call is not None:
            self._handle_call(_ChatCall(-1, None, delta.function_call), builder)
        if choice.finish_reason:
            for key in range(len(self._calls)):
                builder.end_call(key)
            reason = FINISHES.get(choice.finish_reason, "other")
            if self._refused and reason == "stop":
                builder.set_finish("content_filter", "refusal")
            else:
                builder.set_finish(reason, choice.finish_reason)

    def _start(self, chunk: _ChatChunk, builder: ResponseBuilder) -> None:
        if chunk.error is not None:
            raise error_in_stream(self._provider, chunk.error, builder.model)
        self._answered = True
        if chunk.id or chunk.model:
            self._started = True
            builder.start(chunk.id, chunk.model)

    def _handle_call(self, call: _ChatCall, builder: ResponseBuilder) -> None:
        function = call.function or _Function()
        # Some servers number no calls, and some number all of them 0: there a new id is a new call.
        if call.index is not None:
            key = self._keys_by_index.get(call.index)
        elif call.id:
            key = self._calls.index(call.id) if call.id in self._calls else None
        else:
            key = len(self._calls) - 1 if self._calls and not function.name else None
        if key is not None and function.name and call.id and call.id != self._calls[key]:
            key = None
        if key is None:
            if not function.name:
                builder.add_provider_event("a piece of an unknown call", msgspec.to_builtins(call))
                return
            key = len(self._calls)
            self._calls.append(call.id)
            if call.index is not None:
                self._keys_by_index[call.index] = key
            builder.start_call(key, function.name, call.id)
        arguments = function.arguments
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if arguments:
            builder.add_arguments(key, arguments)

    def _without_choices(self, chunk: _ChatChunk, data: bytes, builder: ResponseBuilder) -> None:
        match decode_or_none(data):
            case {"object": "error"} | {"type": "error"} as decoded:
                raise error_in_stream(self._provider, decoded, builder.model)
            case decoded if chunk.usage is None and chunk.x_groq is None:
                builder.add_provider_event("chunk", decoded)
            case _:
                pass

    def _handle_malformed(self, data: bytes, builder: ResponseBuilder, error: Exception) -> None:
        if data.strip() == b"[DONE]":
            if builder.finish is None and self._answered:
                builder.set_finish("other")  # complete, but without a reason
            return
        match decode_or_none(data):
            case {"error": dict() | str() as error_body}:
                raise error_in_stream(self._provider, error_body, builder.model)
            case dict() as decoded if "choices" not in decoded:
                builder.add_provider_event("chunk", decoded)
            case _:
                raise invalid_response(self._provider, data, error) from error


def _add_pieces(pieces: list[_ChatPiece], builder: ResponseBuilder) -> None:
    """Content as a list of pieces, some of them thinking, as one vendor sends it."""
    for piece in pieces:
        if piece.text:
            builder.add_text(piece.text)
        match piece.thinking:
            case str(thought) if thought:
                builder.add_thinking(thought)
            case [*thoughts]:
                for each in thoughts:
                    match each:
                        case {"text": str(thought)} if thought:
                            builder.add_thinking(thought)
                        case _:
                            pass
            case _:
                pass


def _usage(usage: _ChatUsage) -> Usage:
    read, written = usage.prompt_tokens, usage.completion_tokens
    input_details, output_details = usage.prompt_tokens_details, usage.completion_tokens_details
    thoughts = output_details.reasoning_tokens if output_details else None
    cached = input_details.cached_tokens if input_details else None
    # Some servers do not count reasoning as output; their total shows it.
    if thoughts and written is not None and usage.total_tokens == (read or 0) + written + thoughts:
        written += thoughts
    return Usage(
        input=read,
        output=written,
        reasoning=thoughts,
        cache_read=usage.prompt_cache_hit_tokens if cached is None else cached,
        cache_write=input_details.cache_write_tokens if input_details else None,
        coverage="partial" if read is None or written is None else "complete",
    )
