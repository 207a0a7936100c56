"""The description of a vendor: facts, and a wire format that it may share with others.

To add a vendor, write one module in this package that exports ``PROVIDERS``, a tuple of
``Provider`` records; most use an existing wire format and set traits. It is found by its name:
there is no list to edit. Third parties do the same in their own package with the entry point
group ``corral.models``.

The functions at the end are those that all vendors need to encode a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from corral._protocol.response_builder import ResponseBuilder
from corral.errors import ConfigError, CorralError
from corral.messages import Media, Text, is_url
from corral.model_types import Request
from corral.values import JsonObject

EVENT_STREAM = "text/event-stream"
LARGEST_BODY = 256 * 1024 * 1024
"""Bytes of a response in one piece that is read. It may contain images."""


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between the vendors of one wire format.

    ::

        traits = models.Traits(max_tokens_field="max_completion_tokens")
    """

    model_path: str = ""
    """The part of the path before the model's name, for APIs with the name in the path."""
    system_role: str = "system"
    """The role of instructions in chat completions."""
    max_tokens_field: str = "max_tokens"
    """Chat completions have two names for this field."""
    stream_usage: bool = True
    """Accepts ``stream_options.include_usage``."""
    json_schema: bool = True
    """Supports JSON Schema output. Otherwise the schema is added to the instructions."""
    reasoning_field: str | None = "reasoning_effort"
    """The field for the reasoning effort; None if it cannot be set."""
    json_object: bool = True
    """Supports JSON output without a schema."""
    takes_metadata: bool = False
    openai_model_names: bool = False
    """Serves OpenAI's models, whose names show whether they reject ``temperature``."""
    reasoning_content_field: str | None = None
    """The field in which the reasoning of a tool call must be sent back."""
    short_ids: bool = False
    """Accepts only tool call ids of nine letters or digits."""
    effort_overrides: Mapping[str, JsonObject] = {}
    """Effort → the fields that set it, where the usual field does not."""


class Encoded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request in the vendor's format."""

    path: str
    """Below the base URL."""
    body: JsonObject
    headers: Mapping[str, str] = {}
    warnings: tuple[str, ...] = ()
    """What the vendor does not support and was left out of the request."""


Translate: TypeAlias = Callable[[list[bytes], ResponseBuilder], None]
"""Reads the data of events that came together into the builder. Holds the state of one stream.
Raises ``CorralError`` for an error inside the stream, and ``StreamBroken`` for malformed data."""


class KeyPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request has its key: a header, or a parameter of the query."""

    header: str = ""
    prefix: str = ""
    """Before the key, in the header."""
    parameter: str = ""


BEARER = KeyPlace(header="Authorization", prefix="Bearer ")


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """The wire format of one API, as pure functions. A ``Provider`` says which vendor uses it.

    ::

        def read(body, builder, provider):
            builder.add_text(json.loads(body)["text"])

        wire = models.Wire(
            name="mine", encode=encode, translator=translator, read=read, failure=failure
        )
    """

    name: str
    encode: Callable[[Request, Provider, bool], Encoded]
    """(request with the model's name without vendor, vendor, streamed) → what to send."""
    translator: Callable[[Provider], Translate]
    """Makes a new translator for each stream."""
    read: Callable[[bytes, ResponseBuilder, Provider], None]
    """Reads a response that is not streamed into the builder."""
    failure: Callable[[FailedResponse], CorralError]
    """The error for a response whose status is not a success."""
    rate_limit_headers: Mapping[str, str] = {}
    """Field of ``RateLimit`` → the header that holds it."""
    reset_headers: tuple[str, ...] = ()
    """Further headers with the time at which a limit ends."""
    last_event_may_be_open: bool = False
    """The last event of a stream counts even without a blank line after it."""
    billed_paths: tuple[str, ...] = ()
    """The paths of model calls, below the base URL and a version such as ``/v1``. ``{model}`` is
    the name of a model."""
    free_paths: tuple[str, ...] = ()
    """The paths of calls that cost nothing, such as those that count tokens."""
    key_places: tuple[KeyPlace, ...] = ()
    """Where the API also accepts a key, besides ``Provider.key_header``."""
    error_body: Callable[[int, str], JsonObject] = lambda status, message: {
        "error": {"code": status, "message": message}
    }
    """(status, message) → the body of an error, as this API sends it."""
    ask_for_usage: Callable[[bytes, JsonObject], bytes | None] | None = None
    """(body of a request, the same decoded) → the body that makes the stream report its usage; None
    if it does so anyway. For APIs whose streams report none unless asked."""
    is_usage_event: Callable[[bytes], bool] = lambda _data: False
    """Whether the data of an event is only the usage that ``ask_for_usage`` asked for."""


class FailedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response whose status is not a success."""

    provider: Provider
    model: str
    status: int
    body: bytes
    headers: Mapping[str, str]
    """Names in lower case."""
    now: float = 0.0
    """When it came, in seconds since 1970; 0 if that is not known."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One vendor: where its API is, how it is authenticated, and its wire format.

    ::

        own = models.Provider(
            name="mine", title="Mine", wire=wire, base_url="https://x.org/v1", key_env=("MINE_KEY",)
        )
        client = models.Client(providers=[own])
    """

    name: str
    title: str
    wire: Wire
    base_url: str
    """Without a slash at its end; empty if the environment must set it."""
    key_env: tuple[str, ...] = ()
    """Environment variables for the key; the first that is set wins."""
    base_url_env: tuple[str, ...] = ()
    version: str = ""
    """With which the paths of requests begin, such as ``/v1``: a base URL may end in it."""
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    key_optional: bool = False
    """Works without a key, as local servers do."""
    otel_name: str = ""
    """How OpenTelemetry names the vendor, if not like ``name``."""
    credentials: str | None = None
    """Instead of a key: how a token is obtained, such as ``google``."""
    headers: Mapping[str, str] = {}
    """Sent with every request."""
    traits: Traits = Traits()
    aliases: tuple[str, ...] = ()
    extra_env: Mapping[str, str] = {}
    """Name → environment variable that replaces ``{name}`` in the base URL or path."""

    @property
    def key_places(self) -> tuple[KeyPlace, ...]:
        """Where its API accepts a key."""
        return (KeyPlace(header=self.key_header, prefix=self.key_prefix), *self.wire.key_places)

    def __repr__(self) -> str:
        return f"Provider({self.name!r}, {self.base_url!r})"


def instructions(request: Request) -> list[str]:
    """The texts of the system and developer messages, which are sent apart from the history."""
    texts: list[str] = []
    for message in request.messages:
        if message.role in ("system", "developer"):
            texts += [part.text for part in message.content if isinstance(part, Text)]
    return texts


def vendor_options(request: Request, provider: Provider) -> tuple[JsonObject, dict[str, str]]:
    """The provider options that are merged into the body, and the headers among them."""
    if not request.provider_options:
        return {}, {}
    options = dict(request.provider_options.get(provider.name, {}))
    headers = options.pop("headers", None) or {}
    if not isinstance(headers, Mapping):
        raise ConfigError(f"provider_options[{provider.name!r}]['headers'] must be a table")
    return options, {name: str(value) for name, value in headers.items()}


def media_url(part: Media) -> str | None:
    """The URL of a media part; None if the part holds bytes."""
    source = part.source
    return source if isinstance(source, str) and is_url(source) else None


def media_bytes(part: Media) -> bytes:
    """The bytes of a media part without a URL: files are read before a request is encoded."""
    if not isinstance(part.source, bytes):
        raise TypeError(f"the file was not read: {part.source}")
    return part.source
