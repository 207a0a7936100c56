"""Helpers that all vendors use to encode a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corral.errors import ConfigError
from corral.messages import Media, Message, Text, ToolCall, is_url
from corral.model_types import Request
from corral.models.spec import Provider
from corral.values import Json, JsonObject


def instructions(request: Request) -> list[str]:
    """The texts of the system and developer messages, which are sent apart from the history."""
    texts: list[str] = []
    for message in request.messages:
        if message.role in ("system", "developer"):
            texts += [part.text for part in message.content if isinstance(part, Text)]
    return texts


def calls_by_id(messages: Iterable[Message]) -> dict[str, ToolCall]:
    """Every tool call by its id; a tool result has only the id."""
    calls: dict[str, ToolCall] = {}
    for message in messages:
        if not message.is_only_text:
            calls.update((call.id, call) for call in message.tool_calls)
    return calls


def vendor_options(request: Request, provider: Provider) -> tuple[JsonObject, dict[str, str]]:
    """The provider options that are merged into the body, and the headers among them."""
    if not request.provider_options:
        return {}, {}
    options = dict(request.provider_options.get(provider.name, {}))
    headers = options.pop("headers", None) or {}
    if not isinstance(headers, Mapping):
        raise ConfigError(f"provider_options[{provider.name!r}]['headers'] must be a table")
    return options, {name: str(value) for name, value in headers.items()}


def deep_merge(body: JsonObject, more: Mapping[str, Json]) -> JsonObject:
    """Both merged: objects are merged recursively, anything else is replaced by ``more``."""
    if not more:
        return body
    result = dict(body)
    for name, value in more.items():
        before = result.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            result[name] = deep_merge(before, value)
        else:
            result[name] = value
    return result


def media_url(part: Media) -> str | None:
    """The URL of a media part; None if the part holds bytes."""
    source = part.source
    return source if isinstance(source, str) and is_url(source) else None


def media_bytes(part: Media) -> bytes:
    """The bytes of a media part without a URL: files are read before a request is encoded."""
    if not isinstance(part.source, bytes):
        raise TypeError(f"the file was not read: {part.source}")
    return part.source
