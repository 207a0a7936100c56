"""The messages of a conversation with a model, and their parts.

A string stands for one ``Text`` part. The source of media is a file, a URL or bytes; a file is
read when the request is sent.

Messages may also be plain dicts in the form of the chat completions API:
``{"role": "user", "content": "…"}`` becomes a ``Message``. The parts of a content list may be those
of this module as JSON, so that a stored conversation can be sent again.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, get_args

import msgspec

from corral._core.lookup import nearest
from corral.errors import ConfigError
from corral.values import (
    Json,
    as_object,
    as_text,
    convert_to,
    is_mapping,
    is_sequence,
    text_or_none,
)

Role = Literal["system", "user", "assistant", "tool", "developer"]
ROLES: tuple[Role, ...] = get_args(Role)

if TYPE_CHECKING:
    Source: TypeAlias = str | bytes | os.PathLike[str]
else:
    Source = Any  # msgspec encodes bytes as base64 strings, which look like text

__all__ = [
    "Audio", "Document", "Image", "Media", "Message", "Part", "RedactedThinking", "Role",
    "Text", "Thinking", "ToolCall", "ToolResult",
]  # fmt: skip


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
    """``id`` is unique in a conversation; it is generated if the vendor sends none.

    ::

        answer = await models.generate("gemini:gemini-2.5-flash", "Read a.txt", tools=[spec])
        for call in answer.tool_calls:
            print(call.name, call.arguments)
    """

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
    images: tuple[Image, ...] = ()
    """Pictures of the result. A message has them as parts of its own, after its results."""


class Thinking(_Part, frozen=True, tag="thinking"):
    """What the model thought, if the vendor sends it.

    ::

        thoughts = [part.text for part in message.content if isinstance(part, Thinking)]
    """

    text: str
    signature: str | None = None
    item_id: str | None = None


class RedactedThinking(_Part, frozen=True, tag="redacted_thinking"):
    """Encrypted thinking, sent back unchanged.

    ::

        is_hidden = any(isinstance(part, RedactedThinking) for part in message.content)
    """

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
        if self.role == "tool":
            self._move_images()

    def _move_images(self) -> None:
        """Every vendor takes images after the results, few take them inside."""
        content = self.content
        images = [i for part in content if isinstance(part, ToolResult) for i in part.images]
        if images:
            parts = (
                msgspec.structs.replace(part, images=()) if isinstance(part, ToolResult) else part
                for part in content
            )
            msgspec.structs.force_setattr(self, "content", (*parts, *images))

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
    parts: list[Part] = []
    for part in content if _is_iterable(content) else (content,):
        if not isinstance(part, str | _Part):
            raise ConfigError(f"a message must consist of text and parts, got: {part!r}")
        parts += to_parts(part)
    return tuple(parts)


def _is_iterable(content: object) -> TypeGuard[Iterable[object]]:
    return isinstance(content, Iterable) and not isinstance(content, Mapping | bytes)


def _are_parts(content: object) -> TypeGuard[tuple[Part, ...]]:
    """Whether there is nothing to convert, which is the usual case."""
    return isinstance(content, tuple) and _PART_TYPES.issuperset(map(type, content))  # pyright: ignore[reportUnknownArgumentType]


def is_url(source: Source) -> bool:
    """Whether a media source is a URL and not a file."""
    head = source[:8].lower() if isinstance(source, str) else ""
    return head.startswith(("http://", "https://", "gs://", "data:", "s3://"))


_ROLES: dict[str, Role] = {role: role for role in ROLES}
_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "provider")
_DETAILS: dict[str, Literal["low", "high", "auto"]] = {"low": "low", "high": "high", "auto": "auto"}
_EXAMPLE = "For example: {'role': 'user', 'content': '…'}."


def message_from_dict(given: Mapping[str, object]) -> Message:
    """The message. Raises ``ConfigError`` for an unknown key, role or part. Keys with the value
    ``None`` are ignored: APIs return many of them."""
    fields = {name: value for name, value in given.items() if value is not None}
    for name in fields:
        if name not in _KEYS:
            advice = nearest(name, _KEYS, f"known: {', '.join(_KEYS)}.")
            hint = advice[:1].upper() + advice[1:]
            raise ConfigError(f"a message has the unknown key {name!r}", hint=hint)
    if "role" not in fields:
        raise ConfigError("a message has no role", hint=_EXAMPLE)
    role = _ROLES.get(as_text(fields["role"]))
    if role is None:
        raise ConfigError(f"a role must be one of {', '.join(_ROLES)}, got: {fields['role']!r}")
    calls = fields.get("tool_calls", ())
    if not is_sequence(calls):
        raise ConfigError(f"tool_calls must be a list, got: {calls!r}")
    parts = (*_parts(fields), *(_tool_call(as_object(call)) for call in calls))
    if not parts:
        raise ConfigError(f"a message of the role {role} has no content", hint=_EXAMPLE)
    return Message(role, parts, text_or_none(fields.get("provider")))


def _parts(fields: Mapping[str, object]) -> tuple[Part, ...]:
    content = fields.get("content", ())
    if "tool_call_id" in fields:
        result = ToolResult(
            as_text(fields["tool_call_id"]),
            "".join(part.text for part in _content_parts(content) if isinstance(part, Text)),
            name=text_or_none(fields.get("name")),
        )
        return (result,)
    if "name" in fields:
        raise ConfigError("only the result of a tool has a name: tool_call_id is missing")
    return _content_parts(content)


def _content_parts(content: object) -> tuple[Part, ...]:
    if is_mapping(content):
        return (_part(content),)
    if not is_sequence(content):
        return to_parts(content)
    return to_parts([_part(each) if is_mapping(each) else each for each in content])


def _part(given: Mapping[str, Json]) -> Part:
    kind = as_text(given.get("type"))
    if convert := _CHAT_PARTS.get(kind):
        return convert(as_object(given.get(kind)))
    try:
        part: Part = convert_to(given, Part)
    except msgspec.ValidationError as error:
        known = "text, image_url, input_audio, file, or a part of corral.models"
        raise ConfigError(
            f"a part of a message is invalid: {error}", hint=f"Its type must be {known}."
        ) from error
    return part


def _image(given: Mapping[str, Json]) -> Part:
    detail = as_text(given.get("detail")) or None
    if detail is not None and detail not in _DETAILS:
        raise ConfigError(f"detail must be low, high or auto, got: {detail!r}")
    source = _required(given, "image_url", "url")
    return Image(source, detail=None if detail is None else _DETAILS[detail])


def _audio(given: Mapping[str, Json]) -> Part:
    data = _required(given, "input_audio", "data")
    try:
        sound = base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ConfigError(f"the data of input_audio is not base64: {error}") from error
    return Audio(sound, f"audio/{as_text(given.get('format')) or 'wav'}")


_CHAT_PARTS: dict[str, Callable[[Mapping[str, Json]], Part]] = {
    "image_url": _image,
    "input_audio": _audio,
    "file": lambda given: Document(
        _required(given, "file", "file_data"), name=text_or_none(given.get("filename"))
    ),
}
"""Parts of the chat completions API whose fields are in an object with the name of the type."""


def _required(given: Mapping[str, Json], kind: str, name: str) -> str:
    value = as_text(given.get(name))
    if not value:
        raise ConfigError(f"a part of the type {kind} has no {name}")
    return value


def _tool_call(given: Mapping[str, Json]) -> ToolCall:
    function = as_object(given.get("function"))
    call_id, name = as_text(given.get("id")), as_text(function.get("name"))
    if not call_id or not name:
        raise ConfigError(
            "a tool call needs an id and a function with a name",
            hint="{'id': '…', 'type': 'function', 'function': {'name': '…', 'arguments': '{}'}}",
        )
    written = function.get("arguments") or "{}"
    if isinstance(written, str):
        try:
            written = json.loads(written)
        except ValueError as error:
            raise ConfigError(f"the arguments of the call {name} are not JSON: {error}") from error
    return ToolCall(call_id, name, as_object(written))
