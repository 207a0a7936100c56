"""Read the images, audio and documents of a prompt or conversation, and check type and size."""

from __future__ import annotations

import mimetypes
import os
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from msgspec.structs import replace

from corral._system.threads import in_thread
from corral.errors import ConfigError, MediaInvalid
from corral.messages import Audio, Document, Image, Media, Message, Part, Text, is_url
from corral.options import RunOptions

LARGEST = 20 * 1024 * 1024
"""Bytes. The largest request that all providers accept inline."""

MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
)
_WANTED: dict[type[Media], tuple[str, ...]] = {
    Image: ("image/",),
    Audio: ("audio/",),
    Document: ("application/", "text/"),
}
_SYNONYMS = {"audio/x-wav": "audio/wav", "audio/vnd.wave": "audio/wav", "audio/wave": "audio/wav"}
"""Names of one type that Python uses, by its version and the machine's tables. Models accept one.
"""
DEFAULT_TYPES: dict[type[Image | Audio | Document], str] = {
    Image: "image/png",
    Audio: "audio/wav",
    Document: "application/pdf",
}


async def load_media(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return the messages with file contents instead of paths. Raises ``MediaInvalid``."""
    given = tuple(messages)
    for message in given:
        if not message.is_only_text and any(map(_needs_loading, message.content)):
            return await in_thread(lambda: tuple(map(_with_contents, given)))
    return given


def _needs_loading(part: object) -> bool:
    if not isinstance(part, Image | Audio | Document):
        return False
    is_data = isinstance(part.source, str) and part.source[:5].lower() == "data:"
    return is_data or part.media_type is None or not is_url(part.source)


def _with_contents(message: Message) -> Message:
    parts = (
        _with_content(part) if isinstance(part, Image | Audio | Document) else part
        for part in message.content
    )
    return replace(message, content=tuple(parts))


def _with_content(part: Media) -> Media:
    source = part.source
    if isinstance(source, bytes):
        _check_size(len(source), "given as bytes")
        return replace(
            part,
            media_type=part.media_type or _type_from_content(source) or DEFAULT_TYPES[type(part)],
        )
    source = os.fspath(source)
    if source[:5].lower() == "data:":
        head, comma, body = source[5:].partition(",")
        kind, *marks = head.split(";")
        try:
            data = b64decode(body, validate=True) if "base64" in marks else unquote_to_bytes(body)
        except (NotBase64, ValueError) as error:
            raise MediaInvalid(f"an invalid data: URL: {error}") from error
        if not comma:
            raise MediaInvalid("a data: URL without data")
        _check_size(len(data), "given as data: URL")
        return replace(part, source=data, media_type=part.media_type or kind or "text/plain")
    if not is_url(source):
        return _from_file(part, source)
    # It gets a media type, and is not fetched: the vendor does that.
    try:
        path = urlsplit(source).path  # a query is not part of the name
    except ValueError as error:
        raise MediaInvalid(f"not a URL: {source}", hint=f"{error}.") from error
    return replace(part, media_type=part.media_type or mimetypes.guess_type(path)[0])


def _from_file(part: Media, source: str) -> Media:
    path = os.path.expanduser(source)
    if not os.path.isfile(path):
        raise MediaInvalid(
            f"a file to send was not found: {path}", hint="Give a file, a URL or the bytes."
        )
    try:
        _check_size(os.path.getsize(path), path)
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise MediaInvalid(f"a file to send cannot be read: {path}: {error.strerror}") from error
    _check_size(len(data), path)
    kind = part.media_type or media_type_of(data, path)
    if kind is None or not kind.startswith(_WANTED[type(part)]):
        raise MediaInvalid(
            f"the media type of {path} is not supported here: {kind or 'unknown'}",
            hint="Pass media_type=, such as image/png.",
        )
    if isinstance(part, Document):
        return replace(part, source=data, media_type=kind, name=part.name or os.path.basename(path))
    return replace(part, source=data, media_type=kind)


def media_type_of(data: bytes, name: str) -> str | None:
    """The media type of a file, from its content, else from its name."""
    kind = _type_from_content(data) or mimetypes.guess_type(name)[0]
    return _SYNONYMS.get(kind or "", kind)


def _type_from_content(data: bytes) -> str | None:
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12])
    if data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heif", b"avif"):
        return f"image/{data[8:12].decode()}"
    return next((kind for magic, kind in MAGIC if data.startswith(magic)), None)


def _check_size(size: int, what: str) -> None:
    if size > LARGEST:
        raise MediaInvalid(
            f"a file to send has {size:,} bytes, over {LARGEST:,}: {what}",
            hint="Make it smaller, or give a URL that the vendor can fetch.",
        )
    if size == 0:
        raise MediaInvalid(f"a file to send is empty: {what}")


async def prompt_message(prompt: str, run: RunOptions, cwd: Path) -> Message:
    """Build the message. Files are read now, because the agent may change them. Raises
    ``ConfigError``."""
    parts: list[Part] = [Text(prompt)]
    parts += [Image(str(cwd / path)) for path in run.images]
    parts += [Audio(str(cwd / path)) for path in run.audio]
    parts += [_attached(cwd / path) for path in run.attachments]
    return (await load_media([Message("user", tuple(parts))]))[0]


def _attached(path: Path) -> Part:
    """Text files as text, which every model accepts; other files by their type."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"a file for the prompt cannot be read: {path}: {error}") from error
    if media_type_of(data, "") == "application/pdf":  # some PDF files are all ASCII
        return Document(str(path))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        kind = media_type_of(data, path.name) or ""
        for start, part in (("image/", Image), ("audio/", Audio)):
            if kind.startswith(start):
                return part(str(path))
        raise ConfigError(
            f"a file for the prompt is neither text nor an image, audio or PDF: {path}",
            hint="Leave it in the workspace: the agent's tools may know what to do with it.",
        ) from error
    return Text(f'<file path="{path.name}">\n{text}\n</file>')
