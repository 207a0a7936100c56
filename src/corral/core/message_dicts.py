"""Messages as plain dicts, in the form of the chat completions API.

``{"role": "user", "content": "…"}`` becomes a ``Message``. The parts of a content list may also be
those of ``corral.messages`` as JSON, so that a stored conversation can be sent again.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Literal, get_args

import msgspec

from corral.errors import ConfigError
from corral.messages import (
    Audio,
    Document,
    Image,
    Message,
    Part,
    Role,
    Text,
    ToolCall,
    ToolResult,
    to_parts,
)
from corral.values import (
    Json,
    as_object,
    as_text,
    convert_to,
    is_mapping,
    is_sequence,
    text_or_none,
)

_ROLES: dict[str, Role] = {role: role for role in get_args(Role)}
_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "provider")
_DETAILS: dict[str, Literal["low", "high", "auto"]] = {"low": "low", "high": "high", "auto": "auto"}
_EXAMPLE = "For example: {'role': 'user', 'content': '…'}."


def message_from_dict(given: Mapping[str, object]) -> Message:
    """The message. Raises ``ConfigError`` for an unknown key, role or part. Keys with the value
    ``None`` are ignored: APIs return many of them."""
    fields = {name: value for name, value in given.items() if value is not None}
    for name in fields:
        if name not in _KEYS:
            near = get_close_matches(name, _KEYS, 1)
            advice = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(_KEYS)}."
            raise ConfigError(f"a message has the unknown key {name!r}", hint=advice)
    role = _role(fields.get("role"))
    parts = _parts(fields) + _tool_calls(fields.get("tool_calls", ()))
    if not parts:
        raise ConfigError(f"a message of the role {role} has no content", hint=_EXAMPLE)
    return Message(role, parts, text_or_none(fields.get("provider")))


def _role(given: object) -> Role:
    if given is None:
        raise ConfigError("a message has no role", hint=_EXAMPLE)
    role = _ROLES.get(as_text(given))
    if role is None:
        raise ConfigError(f"a role must be one of {', '.join(_ROLES)}, got: {given!r}")
    return role


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


def _file(given: Mapping[str, Json]) -> Part:
    return Document(_required(given, "file", "file_data"), name=text_or_none(given.get("filename")))


_CHAT_PARTS: dict[str, Callable[[Mapping[str, Json]], Part]] = {
    "image_url": _image,
    "input_audio": _audio,
    "file": _file,
}
"""Parts of the chat completions API whose fields are in an object with the name of the type."""


def _required(given: Mapping[str, Json], kind: str, name: str) -> str:
    value = as_text(given.get(name))
    if not value:
        raise ConfigError(f"a part of the type {kind} has no {name}")
    return value


def _tool_calls(given: object) -> tuple[Part, ...]:
    if not is_sequence(given):
        raise ConfigError(f"tool_calls must be a list, got: {given!r}")
    return tuple(_tool_call(as_object(each)) for each in given)


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
