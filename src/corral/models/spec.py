"""What a model's vendor is: a record of facts, and a wire that it may share with others.

To add a vendor, write one module in this package that exports ``PROVIDERS``, a
tuple of ``Provider`` records; most borrow a wire and set traits. It is found by
its name, there is no list to edit. Third parties do the same from their own
package through the entry point group ``corral.models``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import msgspec

from corral.errors import CorralError
from corral.events import Json
from corral.model_types import Request
from corral.protocol.response_builder import ResponseBuilder

JsonObject: TypeAlias = dict[str, Json]


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between vendors of one wire. A default changes nobody."""

    model_path: str = ""
    """Where the name of the model is part of the path: the part before it."""
    system_role: str = "system"
    """What the chat wire calls the role of instructions."""
    max_tokens_field: str = "max_tokens"
    """The chat wire has two names for it."""
    stream_usage: bool = True
    """Takes ``stream_options.include_usage``."""
    json_schema: bool = True
    """Answers by a schema; without it the schema is put into words."""
    reasoning_field: str | None = "reasoning_effort"
    """Where the effort goes; None where it cannot be set."""
    json_object: bool = True
    """Answers in any JSON when asked for it."""
    takes_metadata: bool = False
    names_tell_thinkers: bool = False
    """Its models are OpenAI's own: those that think refuse ``temperature``."""
    returned_thoughts: str | None = None
    """The field in which it wants thoughts back, with the calls that they led to."""
    short_ids: bool = False
    """Takes only ids of calls with nine letters or digits."""
    efforts: Mapping[str, JsonObject] = {}
    """Efforts that it is told of in other words."""


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """A request in the vendor's words."""

    path: str
    """Below the base URL."""
    body: JsonObject
    headers: Mapping[str, str] = {}
    warnings: tuple[str, ...] = ()
    """What of the request the vendor cannot take, and was left out."""


Translate: TypeAlias = Callable[[list[bytes], ResponseBuilder], None]
"""The data of events that came together, told to the parts. It holds the state of one stream.
Raises ``CorralError`` for an error inside the stream, and ``StreamBroken`` for what cannot be
read."""


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """One API's language, pure: who speaks it is told by a ``Provider``."""

    name: str
    encode: Callable[[Request, Provider, bool], Encoded]
    """(request with the bare name of the model, vendor, streamed) → what to send."""
    translator: Callable[[Provider], Translate]
    """A fresh one for each stream."""
    read: Callable[[bytes, ResponseBuilder, Provider], Json]
    """An answer that came whole, told to the parts; returns it decoded."""
    failure: Callable[[Failure], CorralError]
    """What an answer that is no success means."""
    limits: Mapping[str, str] = {}
    """Field of ``RateLimit`` → the header it is told in."""
    last_event_may_be_open: bool = False
    """A stream's last event counts also where no blank line ends it."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with a status that is no success."""

    provider: Provider
    model: str
    status: int
    body: bytes
    headers: Mapping[str, str]
    """Names in lower case."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    wire: Wire
    base_url: str
    """Without a slash at its end; empty where the environment must tell it."""
    key_env: tuple[str, ...] = ()
    """Variables that hold the key, the first that is set wins."""
    base_url_env: tuple[str, ...] = ()
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    key_optional: bool = False
    """Serves without a key, as servers on one's own machine do."""
    credentials: str | None = None
    """Instead of a key: how a token is got, such as ``google``."""
    headers: Mapping[str, str] = {}
    """Sent with every request."""
    traits: Traits = Traits()
    aliases: tuple[str, ...] = ()
    extra_env: Mapping[str, str] = {}
    """Name → variable: what the base URL or the path takes from the environment, as ``{name}``."""

    def __repr__(self) -> str:
        return f"Provider({self.name!r}, {self.base_url!r})"


def decoded(body: bytes) -> Json:
    """JSON, or None."""
    try:
        return cast("Json", msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
