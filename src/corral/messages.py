"""A conversation with a model: messages and the parts they are made of.

A message is built of parts; a string stands for one ``Text``. Media name a file,
a URL or bytes; a file is read when the request is sent, never before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec

from corral.errors import ConfigError
from corral.events import Json

Role = Literal["system", "user", "assistant", "tool", "developer"]
ROLES = ("system", "user", "assistant", "tool", "developer")

if TYPE_CHECKING:
    Source: TypeAlias = str | bytes | os.PathLike[str]
else:
    Source = Any  # to msgspec, bytes are base64 in a string and clash with text


class _Part(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """What all parts share: their JSON form has ``type`` as its tag."""


class Text(_Part, frozen=True, tag="text"):
    text: str
    signature: str | None = None
    """The vendor's own mark on it, to be sent back as it came."""


class _Media(_Part, frozen=True):
    """``source`` is a file's path, a URL (``https:``, ``gs:``, ``data:``) or the bytes."""

    def __post_init__(self) -> None:
        source: object = getattr(self, "source", None)
        if isinstance(source, os.PathLike):
            named = os.fspath(cast("os.PathLike[str]", source))
            msgspec.structs.force_setattr(self, "source", named)
        elif not isinstance(source, str | bytes):
            raise ConfigError(f"media are a path, a URL or bytes, got: {type(source).__name__}")


class Image(_Media, frozen=True, tag="image"):
    source: Source
    media_type: str | None = None
    """Told by the name or the content where it is left out."""
    detail: Literal["low", "high", "auto"] | None = None


class Audio(_Media, frozen=True, tag="audio"):
    source: Source
    media_type: str | None = None


class Document(_Media, frozen=True, tag="document"):
    """A PDF or a text."""

    source: Source
    media_type: str | None = None
    name: str | None = None


class ToolCall(_Part, frozen=True, tag="tool_call"):
    """``id`` is unique in a conversation, made up where the vendor sends none."""

    id: str
    name: str
    arguments: dict[str, Json] = {}
    signature: str | None = None
    raw: str | None = None
    """What the model wrote, where that is no JSON object; ``arguments`` is empty then."""
    item_id: str | None = None
    """The vendor's name for the item that holds the call, where it has two names."""


class ToolResult(_Part, frozen=True, tag="tool_result"):
    call_id: str
    content: Json
    """Text, or anything that is JSON."""
    is_error: bool = False
    name: str | None = None
    """The tool's; looked up by the call's id where it is left out."""


class Thinking(_Part, frozen=True, tag="thinking"):
    text: str
    signature: str | None = None
    item_id: str | None = None


class RedactedThinking(_Part, frozen=True, tag="redacted_thinking"):
    """Thoughts that only the vendor can read; sent back as they came."""

    data: str
    item_id: str | None = None


Media: TypeAlias = Image | Audio | Document
Part: TypeAlias = (
    Text | Image | Audio | Document | ToolCall | ToolResult | Thinking | RedactedThinking
)

_PARTS = (Text, Image, Audio, Document, ToolCall, ToolResult, Thinking, RedactedThinking)
_KINDS: frozenset[type] = frozenset(_PARTS)


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of the history. ``content`` may be given as a string, a part or a list."""

    role: Role
    content: tuple[Part, ...] = ()
    provider: str | None = None
    """Whose model said it: marks that only its vendor can read go back to no other."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"a role is one of {', '.join(ROLES)}, got: {self.role!r}")
        msgspec.structs.force_setattr(self, "content", parts_of(self.content))

    @classmethod
    def system(cls, *content: str | Part) -> Message:
        return cls("system", parts_of(content))

    @classmethod
    def user(cls, *content: str | Part) -> Message:
        return cls("user", parts_of(content))

    @classmethod
    def assistant(cls, *content: str | Part) -> Message:
        return cls("assistant", parts_of(content))

    @classmethod
    def tool(cls, *results: ToolResult) -> Message:
        return cls("tool", results)

    @property
    def text(self) -> str:
        """Every text part, joined."""
        return "".join(part.text for part in self.content if isinstance(part, Text))

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, Thinking))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.content if isinstance(part, ToolCall))


def parts_of(content: object) -> tuple[Part, ...]:
    """Parts out of what a caller gives: a string, a part, or several of either."""
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, _PARTS):
        return (content,)
    if isinstance(content, tuple) and _KINDS.issuperset(
        map(type, cast("tuple[object, ...]", content))
    ):
        return cast("tuple[Part, ...]", content)
    if not isinstance(content, Iterable) or isinstance(content, Mapping | bytes):
        raise ConfigError(f"a message is made of text and parts, got: {content!r}")
    return tuple(_part(each) for each in cast("Iterable[object]", content))


def _part(each: object) -> Part:
    if isinstance(each, str):
        return Text(each)
    if isinstance(each, _PARTS):
        return each
    raise ConfigError(f"a message is made of text and parts, got: {each!r}")


def is_address(source: Source) -> bool:
    """Whether a media source is a URL, and no file."""
    head = source[:8].lower() if isinstance(source, str) else ""
    return head.startswith(("http://", "https://", "gs://", "data:", "s3://"))
