"""The messages of a conversation with a model, and their parts.

A string stands for one ``Text`` part. The source of media is a file, a URL or bytes; a file is
read when the request is sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard

import msgspec

from corral.errors import ConfigError
from corral.values import Json

Role = Literal["system", "user", "assistant", "tool", "developer"]
ROLES = ("system", "user", "assistant", "tool", "developer")

if TYPE_CHECKING:
    Source: TypeAlias = str | bytes | os.PathLike[str]
else:
    Source = Any  # msgspec encodes bytes as base64 strings, which look like text


class _Part(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """The base of all parts. In JSON, ``type`` is the tag."""


class Text(_Part, frozen=True, tag="text", gc=False):
    """Text of a message."""

    text: str
    signature: str | None = None
    """The vendor's signature, sent back unchanged."""


class _Media(_Part, frozen=True):
    """``source`` is a file's path, a URL (``https:``, ``gs:``, ``data:``) or the bytes."""

    source: Source

    def __post_init__(self) -> None:
        if isinstance(self.source, os.PathLike):
            msgspec.structs.force_setattr(self, "source", os.fspath(self.source))
        source: object = self.source
        if not isinstance(source, str | bytes):
            raise ConfigError(
                f"the source of media must be a path, a URL or bytes, got: {type(source).__name__}"
            )


class Image(_Media, frozen=True, tag="image"):
    """A picture: a file, a URL or bytes.

    ::

        question = models.Message.user("What is this?", models.Image("photo.png"))
    """

    media_type: str | None = None
    """Derived from the name or the content if it is not set."""
    detail: Literal["low", "high", "auto"] | None = None


class Audio(_Media, frozen=True, tag="audio"):
    """Sound: a file, a URL or bytes.

    ::

        question = models.Message.user("What is said?", models.Audio("talk.mp3"))
    """

    media_type: str | None = None


class Document(_Media, frozen=True, tag="document"):
    """A PDF or text document.

    ::

        question = models.Message.user("Summarize this.", models.Document("report.pdf"))
    """

    media_type: str | None = None
    name: str | None = None


class ToolCall(_Part, frozen=True, tag="tool_call"):
    """``id`` is unique in a conversation; it is generated if the vendor sends none."""

    id: str
    name: str
    arguments: dict[str, Json] = {}
    signature: str | None = None
    raw: str | None = None
    """What the model wrote, if it is not a JSON object. ``arguments`` is empty then."""
    item_id: str | None = None
    """The vendor's id of the item that contains the call, if it differs from ``id``."""


class ToolResult(_Part, frozen=True, tag="tool_result"):
    """The result of a tool call, for the model.

    ::

        message = models.Message.tool(models.ToolResult("call-1", {"celsius": 21}))
    """

    call_id: str
    content: Json
    """Text or any JSON value."""
    is_error: bool = False
    name: str | None = None
    """The name of the tool; looked up by ``call_id`` if it is not set."""


class Thinking(_Part, frozen=True, tag="thinking"):
    """What the model thought, if the vendor sends it."""

    text: str
    signature: str | None = None
    item_id: str | None = None


class RedactedThinking(_Part, frozen=True, tag="redacted_thinking"):
    """Encrypted thinking, sent back unchanged."""

    data: str
    item_id: str | None = None


Media: TypeAlias = Image | Audio | Document
Part: TypeAlias = (
    Text | Image | Audio | Document | ToolCall | ToolResult | Thinking | RedactedThinking
)

_PARTS = (Text, Image, Audio, Document, ToolCall, ToolResult, Thinking, RedactedThinking)
_PART_TYPES: frozenset[type] = frozenset(_PARTS)
_TEXT_TYPE: frozenset[type] = frozenset({Text})


class Message(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One entry of the history. ``content`` may be a string, a part or a list.

    ::

        conversation = [models.Message.system("Be brief."), models.Message.user("Say hello")]
        answer = await models.generate("gemini:gemini-2.5-flash", messages=conversation)
    """

    role: Role
    content: tuple[Part, ...] = ()
    provider: str | None = None
    """The vendor of the model that wrote it. Signatures are sent back only to this vendor."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"a role must be one of {', '.join(ROLES)}, got: {self.role!r}")
        content = self.content
        if type(content) is not tuple or not _PART_TYPES.issuperset(map(type, content)):
            msgspec.structs.force_setattr(self, "content", to_parts(content))

    @classmethod
    def system(cls, *content: str | Part) -> Message:
        return cls("system", to_parts(content))

    @classmethod
    def user(cls, *content: str | Part) -> Message:
        return cls("user", to_parts(content))

    @classmethod
    def assistant(cls, *content: str | Part) -> Message:
        return cls("assistant", to_parts(content))

    @classmethod
    def tool(cls, *results: ToolResult) -> Message:
        return cls("tool", results)

    @property
    def text(self) -> str:
        """All text parts, joined."""
        content = self.content
        if len(content) == 1 and type(part := content[0]) is Text:
            return part.text  # most answers
        return "".join(part.text for part in content if isinstance(part, Text))

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, Thinking))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        if self.is_only_text:
            return ()
        return tuple(part for part in self.content if isinstance(part, ToolCall))

    @property
    def is_only_text(self) -> bool:
        """Whether there is nothing but text parts, as in most messages."""
        content = self.content
        if len(content) == 1:
            return type(content[0]) is Text
        return _TEXT_TYPE.issuperset(map(type, content))


def to_parts(content: object) -> tuple[Part, ...]:
    """The parts of a string, a part, or several of either."""
    if _are_parts(content):
        return content
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, _PARTS):
        return (content,)
    if not _is_iterable(content):
        raise ConfigError(f"a message must consist of text and parts, got: {content!r}")
    return tuple(_to_part(each) for each in content)


def _is_iterable(content: object) -> TypeGuard[Iterable[object]]:
    return isinstance(content, Iterable) and not isinstance(content, Mapping | bytes)


def _are_parts(content: object) -> TypeGuard[tuple[Part, ...]]:
    """Whether there is nothing to convert, which is the usual case."""
    return isinstance(content, tuple) and _PART_TYPES.issuperset(map(type, content))  # pyright: ignore[reportUnknownArgumentType]


def _to_part(each: object) -> Part:
    if isinstance(each, str):
        return Text(each)
    if isinstance(each, _PARTS):
        return each
    raise ConfigError(f"a message must consist of text and parts, got: {each!r}")


def is_url(source: Source) -> bool:
    """Whether a media source is a URL and not a file."""
    head = source[:8].lower() if isinstance(source, str) else ""
    return head.startswith(("http://", "https://", "gs://", "data:", "s3://"))
