"""Reads Gemini's responses: chunks, usage, errors."""

from __future__ import annotations

import re
from contextlib import suppress

import msgspec

from corral._core.nesting import MAX_DEPTH, TOO_DEEP
from corral._models.errors import VendorFacts, error_from_failure, next_midnight, vendor_error
from corral._models.spec import FailedResponse, Provider, Translate
from corral._protocol.response_builder import ResponseBuilder
from corral.errors import ContentRefused, CorralError, StreamBroken
from corral.model_types import Reason
from corral.values import (
    Json,
    JsonObject,
    Usage,
    convert_to,
    decode_or_none,
    decoder_for,
    is_object,
)

FINISHES: dict[str, Reason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "LANGUAGE": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
    "MALFORMED_FUNCTION_CALL": "error",
    "UNEXPECTED_TOOL_CALL": "error",
    "TOO_MANY_TOOL_CALLS": "error",
    "MALFORMED_RESPONSE": "error",
}


class _PartialArgument(msgspec.Struct, rename="camel", gc=False):
    json_path: str = ""
    string_value: str | None = None
    number_value: float | int | None = None
    bool_value: bool | None = None

    @property
    def value(self) -> Json:
        values = (self.string_value, self.number_value, self.bool_value)
        return next((value for value in values if value is not None), None)


class _GeminiCall(msgspec.Struct, rename="camel", gc=False):
    name: str | None = None
    args: Json = None
    id: str | None = None
    partial_args: list[_PartialArgument] | None = None
    will_continue: bool | None = None


class _GeminiPart(msgspec.Struct, rename="camel", gc=False):
    text: str | None = None
    thought: bool = False
    thought_signature: str | None = None
    function_call: _GeminiCall | None = None
    inline_data: Json = None
    executable_code: Json = None
    code_execution_result: Json = None


class _Content(msgspec.Struct, gc=False):
    parts: list[_GeminiPart] = []


class _Candidate(msgspec.Struct, rename="camel", gc=False):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    index: int = 0
    grounding_metadata: Json = None


class _GeminiUsage(msgspec.Struct, rename="camel", gc=False):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


class _Failed(msgspec.Struct):
    code: int | None = None
    message: str = ""
    status: str | None = None
    details: Json = None


class _GeminiChunk(msgspec.Struct, rename="camel", gc=False):
    candidates: list[_Candidate] = []
    usage_metadata: _GeminiUsage | None = None
    model_version: str | None = None
    response_id: str | None = None
    prompt_feedback: _Feedback | None = None
    error: _Failed | None = None


_decode = decoder_for(_GeminiChunk).decode


class _StreamedCall(msgspec.Struct, eq=False):
    """The tool call whose arguments arrive in several chunks, as
    ``streamFunctionCallArguments`` asks for. The last chunk is without ``willContinue``."""

    is_open: bool = False
    arguments: JsonObject = {}

    def add(self, made: _GeminiCall, signature: str | None, parts: ResponseBuilder) -> None:
        if made.name:
            self.end(parts)
            parts.start_call(self, made.name, made.id, signature=signature, item_id=made.id)
            self.is_open, self.arguments = True, {}
        if is_object(made.args):
            self.arguments |= made.args
        for piece in made.partial_args or ():
            _set_argument(self.arguments, piece)
        if not made.will_continue:
            self.end(parts)

    def end(self, parts: ResponseBuilder) -> None:
        if self.is_open:
            self.is_open = False
            parts.add_arguments(self, msgspec.json.encode(self.arguments).decode())
            parts.end_call(self)


_PATH_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")


def _set_argument(arguments: JsonObject, piece: _PartialArgument) -> None:
    """Set the value at the piece's path. A string continues the one that is there."""
    here: Json = arguments
    steps: list[str | int] = [
        int(step[2]) if step[2] is not None else step[1] or step[3] or step[4] or ""
        for step in _PATH_STEP.finditer(piece.json_path)
    ]
    if len(steps) >= MAX_DEPTH:
        raise StreamBroken(f"an argument cannot be read: {TOO_DEEP}", hint="Try again.")
    for at, step in enumerate(steps):
        is_last = at == len(steps) - 1
        new: Json = piece.value if is_last else [] if isinstance(steps[at + 1], int) else {}
        if isinstance(here, list) and isinstance(step, int):
            index = min(step, len(here))
            if index == len(here):
                here.append(None)
            here[index] = _continued(here[index], new)
            here = here[index]
        elif isinstance(here, dict):
            name = str(step)
            here[name] = _continued(here.get(name), new)
            here = here[name]


def _continued(old: Json, new: Json) -> Json:
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    return old if isinstance(old, dict | list) and type(old) is type(new) else new


def translator(provider: Provider) -> Translate:
    streamed = _StreamedCall()

    def translate(datas: list[bytes], parts: ResponseBuilder) -> None:
        counted: _GeminiUsage | None = None
        for data in datas:
            chunk = _chunk(data, provider)
            _handle_chunk(chunk, parts, provider, streamed)
            # Each covers the response so far: the last is enough.
            counted = chunk.usage_metadata or counted
        _count(counted, parts)

    return translate


def read(body: bytes, parts: ResponseBuilder, provider: Provider) -> None:
    chunk = _chunk(body, provider)
    _handle_chunk(chunk, parts, provider, _StreamedCall())
    _count(chunk.usage_metadata, parts)


def _chunk(data: bytes, provider: Provider) -> _GeminiChunk:
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        sample = data[:200].decode("utf-8", "replace")
        raise StreamBroken(
            f"{provider.title} sent an invalid response: {error}",
            hint="Try again; a proxy may truncate or change responses.",
            frame=sample,
        ) from error


def _handle_chunk(
    chunk: _GeminiChunk, parts: ResponseBuilder, provider: Provider, streamed: _StreamedCall
) -> None:
    if chunk.error is not None:
        raise _error(provider, chunk.error, parts.model)
    feedback = chunk.prompt_feedback
    if feedback is not None and feedback.block_reason and not chunk.candidates:
        raise ContentRefused(
            f"{provider.title} refused the prompt: "
            f"{feedback.block_reason_message or feedback.block_reason}",
            hint="Rephrase the prompt: the vendor's content policy refused it.",
            provider=provider.name,
            provider_code=feedback.block_reason,
        )
    id, model = chunk.response_id, chunk.model_version
    if (id != parts.id or model != parts.model) and (id or model):
        parts.start(id, model)
    for candidate in chunk.candidates:
        if candidate.index:
            continue  # only one answer was requested
        if candidate.content is not None:
            for piece in candidate.content.parts:
                _handle_piece(piece, parts, streamed)
        if candidate.grounding_metadata is not None:
            parts.add_provider_event("groundingMetadata", candidate.grounding_metadata)
        raw = candidate.finish_reason
        if raw is not None:
            streamed.end(parts)
            parts.set_finish(FINISHES.get(raw, "other"), raw)
            if candidate.finish_message:
                parts.warnings.append(candidate.finish_message)


def _handle_piece(piece: _GeminiPart, parts: ResponseBuilder, streamed: _StreamedCall) -> None:
    if piece.function_call is not None:
        made, signature = piece.function_call, piece.thought_signature
        if made.will_continue or made.partial_args or (streamed.is_open and not made.name):
            streamed.add(made, signature, parts)
            return
        streamed.end(parts)
        args: Json = {} if made.args is None else made.args
        parts.add_call(made.name or "", args, made.id, signature=signature, item_id=made.id)
        return
    text = piece.text
    if text is not None:
        if piece.thought:
            parts.add_thinking(text)
        elif text:
            parts.add_text(text)
    if piece.inline_data is not None:
        parts.add_provider_event("inlineData", piece.inline_data)
    if piece.executable_code is not None:
        parts.add_provider_event("executableCode", piece.executable_code)
    if piece.code_execution_result is not None:
        parts.add_provider_event("codeExecutionResult", piece.code_execution_result)
    if piece.thought_signature is not None:
        parts.set_signature(piece.thought_signature, "thinking" if piece.thought else "text")


def _count(usage: _GeminiUsage | None, parts: ResponseBuilder) -> None:
    if usage is None:
        return
    read, written = usage.prompt_token_count, usage.candidates_token_count
    thoughts, tool = usage.thoughts_token_count, usage.tool_use_prompt_token_count
    if read is not None and tool is not None:
        read += tool
    if written is not None or thoughts is not None:
        written = (written or 0) + (thoughts or 0)
    parts.usage = Usage(
        input=read,
        output=written,
        reasoning=thoughts,
        cache_read=usage.cached_content_token_count,
        coverage="partial" if read is None or written is None else "complete",
    )


_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
    502: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


_QUOTA_ZONE = "America/Los_Angeles"
"""A daily quota resets at midnight there."""


def error_body(status: int, message: str) -> JsonObject:
    name = _STATUS_NAMES.get(status, "FAILED_PRECONDITION")
    return {"error": {"code": status, "message": message, "status": name}}


def failure(failure: FailedResponse) -> CorralError:
    match decode_or_none(failure.body):
        case {"error": dict(error)} | [{"error": dict(error)}, *_]:
            try:
                failed = convert_to(error, _Failed, strict=False)
            except msgspec.ValidationError:  # an error of a proxy in a similar format
                return error_from_failure(failure, None)
            return _error(failure.provider, failed, failure.model, failure)
        case _:
            return error_from_failure(failure, None)


def _error(
    provider: Provider, error: _Failed, model: str, failure: FailedResponse | None = None
) -> CorralError:
    """Google's ``details`` hold the retry delay, the quota that is spent, and a bad key. Its
    message is the same for the quota of a minute and of a day."""
    name = error.status
    delay: float | None = None
    spent = is_transient = False
    code: str | None = None
    for detail in error.details if isinstance(error.details, list) else []:
        match detail:
            case {"retryDelay": str(delay_text)} if delay_text.endswith("s"):
                with suppress(ValueError):
                    delay = float(delay_text[:-1])
                    is_transient = True
            case {"violations": list(violations)}:
                violations_text = msgspec.json.encode(violations).decode()
                spent = spent or "PerDay" in violations_text
                is_transient = True
            case {"reason": ("API_KEY_INVALID" | "API_KEY_SERVICE_BLOCKED") as code}:
                name = "UNAUTHENTICATED"  # though the status is 400
            case _:
                pass
    day_ends = None
    if spent and failure is not None:
        day_ends = next_midnight(_QUOTA_ZONE, failure.now)
    facts = VendorFacts(
        name=name,
        code=code,
        # The delay that comes with the quota of a day is that of a minute.
        retry_after=None if spent else delay,
        resets_at=day_ends,
        spent=spent,
        is_transient=is_transient,
    )
    if failure is not None:
        return error_from_failure(failure, error.message, facts)
    return vendor_error(provider, error.message, facts, status=error.code, model=model)
