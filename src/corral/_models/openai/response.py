"""Reads responses of OpenAI's Responses API: events, items, usage.

A response is a list of items. A stream sends each item as deltas, then complete
(``output_item.done``), and all items again at its end. Items of which deltas were read are not
read again.
"""

from __future__ import annotations

import re

import msgspec

from corral._models.errors import VendorFacts, error_from_failure, invalid_response, vendor_error
from corral._models.spec import FailedResponse, Provider, Translate
from corral._protocol.response_builder import ResponseBuilder
from corral.errors import ContentRefused, CorralError
from corral.model_types import Reason
from corral.values import Json, JsonObject, Usage, decode_or_none, decoder_for

LIMITS = {
    f"{kind}_{fact}": f"x-ratelimit-{fact}-{kind}"
    for kind in ("requests", "tokens")
    for fact in ("limit", "remaining", "reset")
}

RESETS = ("x-ratelimit-reset",)
"""Sent by other servers with the same format."""

REFUSED = frozenset(
    {
        "bio_policy",
        "content_filter",
        "content_policy_violation",
        "cyber_policy",
        "image_content_policy_violation",
        "invalid_prompt",  # its message: the prompt was flagged as violating the usage policy
        "misalignment_policy_violation",
        "moderation_blocked",
    }
)

BY_CODE = {
    "context_length_exceeded": "INVALID_ARGUMENT",
    "insufficient_quota": "RESOURCE_EXHAUSTED",
    "invalid_api_key": "UNAUTHENTICATED",
    "model_not_found": "NOT_FOUND",
    "rate_limit_exceeded": "RESOURCE_EXHAUSTED",
}
"""Codes that are more specific than their HTTP status."""

BY_TYPE = {
    "authentication_error": "UNAUTHENTICATED",
    "insufficient_quota": "RESOURCE_EXHAUSTED",
    "invalid_request_error": "INVALID_ARGUMENT",
    "not_found_error": "NOT_FOUND",
    "permission_error": "PERMISSION_DENIED",
    "rate_limit_error": "RESOURCE_EXHAUSTED",
    "tokens": "RESOURCE_EXHAUSTED",
    "requests": "RESOURCE_EXHAUSTED",
}
"""Used only for errors inside a stream, which have no HTTP status."""

_IMAGE = re.compile(r"(invalid|unsupported|empty|failed_to_download)_image|^image_")
_WAIT = re.compile(r"try again in (?:(\d+)m(?!s))?(?:([\d.]+)(ms|s))?", re.IGNORECASE)


_ERROR_CODES = {401: "invalid_api_key", 402: "budget_exceeded", 429: "rate_limit_exceeded"}


def error_body(status: int, message: str) -> JsonObject:
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = _ERROR_CODES.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def failure(failure: FailedResponse) -> CorralError:
    return _error(
        failure.provider, _error_object(decode_or_none(failure.body)), failure.model, failure
    )


def error_in_stream(provider: Provider, error: Json, model: str) -> CorralError:
    """The error for an error object in a response whose HTTP status was a success."""
    return _error(provider, _error_object({"error": error}), model, None)


def _error_object(body: Json) -> JsonObject:
    """The error object. Not all servers nest it, and some send only a text."""
    match body:
        case {"error": dict(error)} | [{"error": dict(error)}, *_]:
            return error
        case {"error": str(message), "code": str(code)}:
            return {"message": message, "code": code}
        case {"error": str(message)} | {"detail": str(message)}:
            return {"message": message}
        case {"detail": [{"msg": str(message)}, *_]}:
            return {"message": message}
        case _:
            return body if isinstance(body, dict) and "message" in body else {}


def _error(
    provider: Provider, error: JsonObject, model: str, failure: FailedResponse | None
) -> CorralError:
    message, code, kind = _text(error, "message"), _text(error, "code"), _text(error, "type")
    named = code or kind
    match error:
        case {"metadata": {"raw": str(raw)}}:  # a router's copy of the vendor's message
            message = f"{message}: {raw[:300]}"
        case _:
            pass
    status = failure.status if failure else None
    # Routers put the status of the vendor into the code.
    if status is None and code and code.isdecimal() and 400 <= int(code) < 600:
        status = int(code)
    if named in REFUSED:
        return ContentRefused(
            f"{provider.title} refused: {message or named}",
            hint="Rephrase the prompt: the vendor's content policy refused it.",
            provider=provider.name,
            http_status=status,
            provider_code=named,
        )
    name, delay = _name(code or "", kind or "", status), _delay_from_message(message or "")
    facts = VendorFacts(name=name, code=named, retry_after=delay)
    if failure is None:
        text = message or named or "an error without a message"
        return vendor_error(provider, text, facts, status=status, model=model)
    if any(header in failure.headers for header in ("retry-after", "retry-after-ms")):
        facts = msgspec.structs.replace(facts, retry_after=None)
    return error_from_failure(failure, message, facts)


def _name(code: str, kind: str, status: int | None) -> str | None:
    """The name of the error, where the code or the type is more specific than the status."""
    if code in BY_CODE or status is not None:
        return BY_CODE.get(code)
    return BY_TYPE.get(kind) or ("INVALID_ARGUMENT" if _IMAGE.search(code) else None)


def _text(error: JsonObject, name: str) -> str | None:
    value = error.get(name)
    return str(value) if isinstance(value, str | int) and value != "" else None


def _delay_from_message(message: str) -> float | None:
    found = _WAIT.search(message)
    if found is None or not (found[1] or found[2]):
        return None
    try:
        rest = float(found[2] or 0)
    except ValueError:
        return None
    return int(found[1] or 0) * 60 + (rest / 1000 if found[3] == "ms" else rest)


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
_READ_PREFIXES = (
    "response.output_text.delta",
    "response.refusal.delta",
    "response.output_item.",
    "response.function_call_arguments.delta",
)
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


class _ResponseUsage(msgspec.Struct, gc=False):
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
    usage: _ResponseUsage | None = None
    error: Json = None
    incomplete_details: _Incomplete | None = None
    output: list[msgspec.Raw] | None = None


class _ResponseEvent(msgspec.Struct, gc=False):
    type: str = ""
    delta: str = ""
    output_index: int = -1
    item_id: str | None = None
    summary_index: int = 0
    content_index: int = 0
    item: msgspec.Raw = _NONE
    response: _Response | None = None


_decode = decoder_for(_ResponseEvent).decode
_decode_item = decoder_for(_Item).decode
_decode_response = decoder_for(_Response).decode
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def translator(provider: Provider) -> Translate:
    return _ResponseReader(provider).translate


def read(body: bytes, builder: ResponseBuilder, provider: Provider) -> None:
    try:
        response = _decode_response(body)
    except _DECODE_ERRORS as error:
        raise invalid_response(provider, body, error) from error
    _ResponseReader(provider).end(response, builder)


class _ResponseReader(msgspec.Struct, eq=False):
    """The state of one response: what was read already."""

    _provider: Provider
    _read_indexes: set[object] = set()
    """Output indexes whose content was read; -1 if the server sends no indexes."""
    _started_calls: set[object] = set()
    _last_reasoning: tuple[object, ...] = ()
    """The position of the last reasoning delta. A blank line separates two positions."""
    _refused: bool = False

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

    def _handle_event(self, event: _ResponseEvent, data: bytes, builder: ResponseBuilder) -> None:
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
            self.end(event.response or _Response(), builder, ENDS[kind])
        elif kind in BEGINS:
            if event.response is not None:
                builder.start(event.response.id, event.response.model)
        elif kind not in REPEATED_EVENTS:
            # Events without a unified form; and errors, in one of two formats.
            decoded = decode_or_none(data)
            is_error = kind == "error" or not kind
            if is_error and isinstance(decoded, dict) and (kind or decoded.get("error")):
                body = decoded.get("error") or decoded
                raise error_in_stream(self._provider, body, builder.model)
            builder.add_provider_event(kind or "unknown", decoded)

    def end(
        self, response: _Response, builder: ResponseBuilder, event_status: str | None = None
    ) -> None:
        """Read the complete response, after its deltas or without any. ``event_status`` is used
        if it has no status."""
        status = response.status or event_status
        if response.error is not None or status == "failed":
            raise error_in_stream(self._provider, response.error, builder.model)
        if response.id or response.model:
            builder.start(response.id, response.model)
        for index, raw in enumerate(response.output or ()):
            if index not in self._read_indexes and -1 not in self._read_indexes:
                self._handle_item(raw, index, builder, is_done=True)
        if response.usage is not None:
            builder.usage = _usage(response.usage)
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

    def _handle_reasoning(self, event: _ResponseEvent, builder: ResponseBuilder) -> None:
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
        is_new = index not in self._read_indexes
        if item.type == "function_call":
            self._handle_call(item, index, builder, is_done=is_done)
        elif not is_done:
            return  # it comes again when it is complete
        elif item.type == "message":
            self._handle_message(item, is_new, builder)
        elif item.type == "reasoning":
            pieces = (*(item.summary or ()), *(item.content or ()))
            text = "\n\n".join(piece.text for piece in pieces if piece.text)
            if is_new and text:
                builder.add_thinking(text, item.id)
            if item.encrypted_content:
                builder.add_thinking("", item.id)
                builder.set_signature(item.encrypted_content, "thinking")
            else:
                builder.end_part()
        else:
            data = decode_or_none(bytes(raw))
            kind = data.get("type") if isinstance(data, dict) else None
            builder.add_provider_event(str(kind or item.type), data)
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
        if any(piece.type == "refusal" for piece in item.content or ()):
            self._refused = True
        if is_new:
            for text in filter(None, texts):
                builder.add_text(text)
        if item.phase and any(texts):
            builder.set_signature(item.phase)  # sent back with the next request
        else:
            builder.end_part()

    def _handle_malformed(self, data: bytes, builder: ResponseBuilder, error: Exception) -> None:
        if data.strip() == b"[DONE]":
            return  # some servers send it at the end of every stream
        match decode_or_none(data):
            case {"type": str(kind)} as decoded if not (
                kind in _READ or kind.startswith(_READ_PREFIXES)
            ):
                builder.add_provider_event(kind, decoded)
            case {"error": dict() | str() as error_body}:
                raise error_in_stream(self._provider, error_body, builder.model)
            case _:
                raise invalid_response(self._provider, data, error) from error


def _usage(usage: _ResponseUsage) -> Usage:
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
