"""Which model call a request on the wire is, and what its response uses.

The model proxy (``corral._metering.proxy``) passes the bytes of an agent's requests and of the
vendor's responses through. This module reads them: it says which requests are model calls, which
cost nothing and which are not known, and a ``CallMeter`` reads the usage from the body of a
response. The usage is read with the vendor's wire format (``Wire.translator`` and ``Wire.read``),
as for corral's own model calls. There is no I/O and no clock here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from corral._models.spec import EVENT_STREAM, LARGEST_BODY, Provider
from corral._protocol.response_builder import ResponseBuilder
from corral._protocol.sse import SseDecoder
from corral.errors import CorralError
from corral.model_types import TextDelta, ThinkingDelta, ToolCallDelta
from corral.values import (
    Cost,
    Json,
    JsonObject,
    Usage,
    as_list,
    as_object,
    as_text,
    decode_or_none,
    int_or_none,
    is_list,
    is_object,
)

MEDIA_STRING = 4096
"""Characters. Only media that are longer are counted as such."""
_MEDIA_TYPES = ("image/", "audio/", "video/", "application/pdf")
_MEDIA_URLS = tuple(f"data:{each}" for each in _MEDIA_TYPES)
BYTES_PER_TOKEN = 2
"""A lower bound for the text of prompts: most text and code has 3 to 4 bytes per token."""
MEDIA_BYTES_PER_TOKEN = 50
"""The same for media in base64."""
OUTPUT_BYTES_PER_TOKEN = 3
LARGEST_COUNTED_BODY = 256 * 1024
"""Bytes that count of a response that was not streamed, if its usage is not known. A larger one has
media."""
LARGEST_USAGE_EVENT = 64 * 1024
"""Bytes. An event with nothing but usage has a few hundred."""
_BLANK = re.compile(rb"\r?\n\r?\n")
_LONGEST_BLANK = 4
_LISTS = ("/models", "/models/{model}")
"""The paths of all vendors that list models, and describe one."""
_VERSION = re.compile(r"/v\d{1,3}(?:(?:alpha|beta)\d{0,3})?(?=/)")
_OUTPUT_LIMITS = ("max_tokens", "max_output_tokens", "max_completion_tokens")


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model call, as the agent sent it."""

    provider: Provider
    model: str
    """As requested."""
    is_streamed: bool = False
    tools: int = 0
    """How many tools it declares."""
    input_bound: int = 0
    """No fewer tokens than the input of a usual prompt has."""
    output_limit: int | None = None
    """The limit on output tokens in the request."""
    added_usage: bytes | None = None
    """The body that asks for the usage, where the agent's own does not."""

    @property
    def model_id(self) -> str:
        """The model as the catalogue names it."""
        return f"{self.provider.name}:{self.model}"


class FreeRequest(msgspec.Struct, frozen=True):
    """A request that costs nothing."""


class UnknownRequest(msgspec.Struct, frozen=True):
    """A request that is not passed on, and why."""

    reason: str


def read_request(
    providers: Sequence[Provider], method: str, path: str, body: bytes
) -> ModelRequest | FreeRequest | UnknownRequest:
    """What a request is, if the agent may use the APIs of ``providers``. ``path`` is decoded and
    below the base URL. Only exactly these paths are known: a server may read any other one as that
    of a model call."""
    endpoint = path[found.end() :] if (found := _VERSION.match(path)) else path
    for provider in providers:
        for template in provider.wire.billed_paths:
            model = _match(template, endpoint)
            if model is not None and method == "POST":
                return _read_call(provider, model, endpoint, body)
            if model is not None:
                return UnknownRequest(f"{method} {path} is not a model call")
    if _is_free(providers, method, endpoint):
        return FreeRequest()
    return UnknownRequest(f"{method} {path} is not a model call that can be counted")


def _is_free(providers: Sequence[Provider], method: str, endpoint: str) -> bool:
    free = {
        "GET": _LISTS,
        "POST": tuple(path for each in providers for path in each.wire.free_paths),
    }
    names = [_match(template, endpoint) for template in free.get(method, ())]
    # Where the path of a model call has a method after its model, a name cannot have a colon.
    has_methods = any("{model}:" in path for each in providers for path in each.wire.billed_paths)
    return any(name is not None and not (has_methods and ":" in name) for name in names)


def _match(template: str, endpoint: str) -> str | None:
    """The name of the model in a path; empty if the template has none, None if it does not fit."""
    before, placeholder, after = template.partition("{model}")
    if not placeholder:
        return "" if endpoint == template else None
    if not (endpoint.startswith(before) and endpoint.endswith(after)):
        return None
    return endpoint[len(before) : len(endpoint) - len(after)] or None


def _read_call(
    provider: Provider, model: str, endpoint: str, body: bytes
) -> ModelRequest | UnknownRequest:
    request = decode_or_none(body)
    if not is_object(request):
        return UnknownRequest("the body of the model call is not a JSON object")
    if _has_repeated_names(body):
        return UnknownRequest("an object in the body of the model call has a name twice")
    ask = provider.wire.ask_for_usage if provider.traits.stream_usage else None
    # A tool may be a list of functions.
    groups = [as_object(each) for each in as_list(request.get("tools"))]
    nested = [next((v for v in group.values() if is_list(v)), None) for group in groups]
    given = [int_or_none(request.get(name)) for name in _OUTPUT_LIMITS]
    given.append(int_or_none(as_object(request.get("generationConfig")).get("maxOutputTokens")))
    return ModelRequest(
        provider=provider,
        model=model or as_text(request.get("model")).removeprefix("models/"),
        is_streamed=request.get("stream") is True or ":stream" in endpoint,
        tools=sum(1 if each is None else len(each) for each in nested),
        input_bound=input_bound(request, len(body)),
        output_limit=next((limit for limit in given if limit is not None), None),
        added_usage=None if ask is None else ask(body, request),
    )


def _has_repeated_names(body: bytes) -> bool:
    """Whether servers could read its objects differently: of two values with one name, some take
    the first, others the last."""

    def check(pairs: list[tuple[str, object]]) -> None:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError(pairs[0][0])

    try:
        json.loads(body, object_pairs_hook=check)
    except (ValueError, RecursionError):
        return True
    return False


def input_bound(request: JsonObject, size: int) -> int:
    """An estimate of the input tokens that is too high rather than too low. ``size`` is that of the
    request in bytes."""
    media = 0
    open_values: list[Json] = [request]
    while open_values:
        value = open_values.pop()
        if is_object(value):
            for name, child in value.items():
                if isinstance(child, str):
                    media += len(child) if _is_media(name, child, value) else 0
                else:
                    open_values.append(child)
        elif is_list(value):
            open_values.extend(value)
    return max(0, size - media) // BYTES_PER_TOKEN + media // MEDIA_BYTES_PER_TOKEN + 1


def _is_media(name: str, text: str, owner: JsonObject) -> bool:
    """Whether a string is media for the vendor: text is not, whatever it looks like."""
    if len(text) <= MEDIA_STRING:
        return False
    if name in ("url", "image_url", "file_data"):
        return text.startswith(_MEDIA_URLS)
    types = [owner.get(key) for key in ("mimeType", "mime_type", "media_type")]
    has_type = any(isinstance(each, str) and each.startswith(_MEDIA_TYPES) for each in types)
    return name == "data" and (has_type or "format" in owner)


def estimated_usage(request: ModelRequest, reported: Usage, output: int) -> Usage:
    """The usage of a call that was sent, and whose usage the vendor did not report: its input by
    the size of the request, and ``output`` tokens, which have come."""
    known = reported.input
    return replace(
        reported,
        input=request.input_bound if known is None else known,
        output=max(output, reported.output or 0),
        coverage="estimated",
    )


class CallMeter:
    """Reads the usage of one call from its response: ``start`` with the head, ``receive`` with the
    body as it comes, ``end``."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        provider = request.provider
        self._builder = ResponseBuilder(provider.name, request.model)
        self._translate = provider.wire.translator(provider)
        self._events = SseDecoder()
        self._body: list[bytes] | None = None
        """The pieces of a body that is not a stream of events."""
        self._size = 0
        self._is_success = False
        self._is_broken = False
        self._ended_well = False
        self.streamed_bytes: int = 0
        """Bytes of the answer that have come, as text."""

    def start(self, status: int, media_type: str) -> None:
        """The head of the response has come. An error is not billed, and its body is not read."""
        self._is_success = 200 <= status < 300
        if media_type != EVENT_STREAM:
            self._body = []

    def receive(self, data: bytes) -> None:
        """A piece of the body, decoded. It may be cut anywhere."""
        if not self._is_success or self._is_broken:
            return
        if self._body is not None:
            self._body.append(data)
            self._size += len(data)
            self._is_broken = self._size > LARGEST_BODY
            return
        try:
            self._read_events(self._events.receive(data))
        except CorralError:  # an error inside the stream, or one that cannot be read
            self._is_broken = True

    def end(self, *, complete: bool) -> None:
        """The response has ended; ``complete`` tells whether that is its real end."""
        self._read_end(complete=complete)
        is_known = self._builder.usage.output is not None
        if self._body is not None and self.is_partial and not is_known:
            self.streamed_bytes = min(self._size, LARGEST_COUNTED_BODY)

    def _read_end(self, *, complete: bool) -> None:
        if not self._is_success or self._is_broken:
            return
        try:
            if self._body is not None:
                body = b"".join(self._body)
                wire = self.request.provider.wire
                if (
                    body[:1] == b"["
                ):  # a stream that was not asked for as events is a list of chunks
                    chunks = as_list(decode_or_none(body))
                    self._read_events([msgspec.json.encode(chunk) for chunk in chunks])
                else:
                    wire.read(body, self._builder, self.request.provider)
            elif self.request.provider.wire.last_event_may_be_open:
                rest = self._events.take_rest()
                self._read_events([data for data in rest if decode_or_none(data) is not None])
        except CorralError:
            self._is_broken = True
        self._ended_well = complete and self._builder.finish is not None

    @property
    def model(self) -> str:
        """The model that answered, else the one that was asked."""
        return self._builder.model or self.request.model

    @property
    def is_partial(self) -> bool:
        """Whether the response was cut, or had no complete usage: more may be billed."""
        is_complete = self._ended_well and self._builder.usage.coverage == "complete"
        return self._is_success and not is_complete

    @property
    def output(self) -> int:
        """Tokens of output so far: as reported, or by the length of what came."""
        return max(self._builder.usage.output or 0, self.streamed_bytes // OUTPUT_BYTES_PER_TOKEN)

    @property
    def usage(self) -> Usage:
        """The usage as far as the vendor has reported it."""
        usage = self._builder.usage.plausible()
        if usage != Usage() and self.is_partial:
            return replace(usage, coverage="partial")
        return usage

    def _read_events(self, data: list[bytes]) -> None:
        self._translate(data, self._builder)
        for event in self._builder.take_events():
            if isinstance(event, TextDelta | ThinkingDelta):
                self.streamed_bytes += len(event.text)
            elif isinstance(event, ToolCallDelta):
                self.streamed_bytes += len(event.arguments)


class UsageEventFilter:
    """Takes the events with nothing but usage out of a stream, for an agent that did not ask for
    them. All other bytes are passed on unchanged. Linear in the number of bytes, however they are
    cut; at most ``LARGEST_USAGE_EVENT`` of them are held."""

    def __init__(self, provider: Provider) -> None:
        self._is_usage = provider.wire.is_usage_event
        self._buffer = bytearray()
        """The beginning of an event that is not complete."""
        self._searched = 0
        """Where a blank line of the buffer may begin."""
        self._is_long = False
        """The event is too long to be one with usage: its beginning was passed on."""

    def receive(self, data: bytes) -> bytes:
        """The bytes to pass on: of complete events, and of long ones."""
        self._buffer += data
        out: list[bytes] = []
        start = 0
        for blank in _BLANK.finditer(self._buffer, self._searched):
            event = bytes(self._buffer[start : blank.end()])
            lines = SseDecoder().receive(event)
            has_only_usage = len(lines) == 1 and self._is_usage(lines[0])
            if self._is_long or not has_only_usage:
                out.append(event)
            start, self._is_long = blank.end(), False
        del self._buffer[:start]
        if self._is_long or len(self._buffer) > LARGEST_USAGE_EVENT:
            self._is_long = True
            out.append(bytes(self._buffer[:-_LONGEST_BLANK]))
            del self._buffer[:-_LONGEST_BLANK]
        self._searched = max(0, len(self._buffer) - _LONGEST_BLANK)
        return b"".join(out)

    def take_rest(self) -> bytes:
        """What is left at the end of the stream."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


class MeteredCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model call that has ended, in whatever way."""

    request: ModelRequest
    model: str
    """The model that answered, else the one that was asked."""
    usage: Usage = Usage()
    """As the vendor reported it, or estimated (``Usage.coverage``)."""
    cost: Cost = Cost()
    status: int | None = None
    """The HTTP status; None if there was no response."""
    is_partial: bool = False
    """The request was sent, and the response did not come, was cut, or had no complete usage: more
    may be billed than ``usage``."""
    output: int = 0
    """Tokens of output, as far as they were reported, or by the length of what came."""
    first_byte: float | None = None
    """Seconds from the request to the first byte of the response."""
    duration: float = 0.0
    error: str | None = None
    """Why there is no complete response."""
    owner: object = None
    """What it belongs to, as ``on_start`` of the proxy returned it."""
