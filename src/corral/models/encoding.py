"""What the wires share when they write a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from corral.errors import ConfigError
from corral.events import Json
from corral.messages import Media, Message, Text, ToolCall, is_address
from corral.model_types import Request
from corral.models.spec import JsonObject, Provider


def instructions(request: Request) -> list[str]:
    """The texts of system and developer messages, which are no entries of the history."""
    return [
        part.text
        for message in request.messages
        if message.role in ("system", "developer")
        for part in message.content
        if isinstance(part, Text)
    ]


def names_of_calls(messages: Iterable[Message]) -> dict[str, ToolCall]:
    """Every call under its id; a result names only the id."""
    return {call.id: call for message in messages for call in message.tool_calls}


def own_options(request: Request, provider: Provider) -> tuple[JsonObject, dict[str, str]]:
    """What is merged into this vendor's body as it is, and the headers that go along."""
    options = dict(request.provider_options.get(provider.name, {}))
    headers = options.pop("headers", None) or {}
    if not isinstance(headers, Mapping):
        raise ConfigError(f"provider_options[{provider.name!r}]['headers'] must be a table")
    return options, {name: str(value) for name, value in headers.items()}


def merged(body: JsonObject, more: Mapping[str, Json]) -> JsonObject:
    """``more`` wins; tables are merged, anything else replaced."""
    whole = dict(body)
    for name, value in more.items():
        held = whole.get(name)
        if isinstance(held, dict) and isinstance(value, dict):
            whole[name] = merged(held, value)
        else:
            whole[name] = value
    return whole


def address_of(part: Media) -> str | None:
    """The URL of a media part; None where its bytes are there."""
    return cast("str", part.source) if is_address(part.source) else None
