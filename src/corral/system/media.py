"""Images, audio and documents of a conversation: read, named and bounded before they are sent."""

from __future__ import annotations

import mimetypes
import os
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes, urlsplit

from msgspec.structs import replace

from corral.errors import MediaInvalid
from corral.messages import Audio, Document, Image, Media, Message, is_url
from corral.system.threads import in_thread

LARGEST = 20 * 1024 * 1024
"""Bytes. The largest request that all vendors take inline."""

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
_ALIKE = {"audio/x-wav": "audio/wav", "audio/vnd.wave": "audio/wav", "audio/wave": "audio/wav"}
"""What Python calls a kind, by its version and the machine's tables; models know one name."""
USUAL = {Image: "image/png", Audio: "audio/wav", Document: "application/pdf"}


async def loaded(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The same with every file's content in place of its path. Raises ``MediaInvalid``."""
    whole = tuple(messages)
    if not any(_to_load(part) for message in whole for part in message.content):
        return whole
    return await in_thread(_load, whole)


def _to_load(part: object) -> bool:
    if not isinstance(part, Image | Audio | Document):
        return False
    is_data = isinstance(part.source, str) and part.source[:5].lower() == "data:"
    return is_data or part.media_type is None or not is_url(part.source)


def _load(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(
        replace(
            message,
            content=tuple(
                _with_content(part) if isinstance(part, Image | Audio | Document) else part
                for part in message.content
            ),
        )
        for message in messages
    )


def _with_content(part: Media) -> Media:
    source = part.source
    if isinstance(source, bytes):
        _bounded(len(source), "given as bytes")
        return replace(part, media_type=part.media_type or _of_content(source) or _usual(part))
    source = os.fspath(source)
    if source[:5].lower() == "data:":
        return _decoded(part, source)
    if is_url(source):
        try:
            path = urlsplit(source).path  # a query is no part of the name
        except ValueError as error:
            raise MediaInvalid(f"not a URL: {source}", hint=f"{error}.") from error
        return replace(part, media_type=part.media_type or mimetypes.guess_type(path)[0])
    path = os.path.expanduser(source)
    if not os.path.isfile(path):
        raise MediaInvalid(
            f"there is no such file to send: {path}", hint="Give a file, a URL or the bytes."
        )
    try:
        _bounded(os.path.getsize(path), path)
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise MediaInvalid(f"a file to send cannot be read: {path}: {error.strerror}") from error
    _bounded(len(data), path)
    kind = part.media_type or kind_of(data, path)
    if kind is None or not kind.startswith(_WANTED[type(part)]):
        raise MediaInvalid(
            f"what kind of file is {path}? It looks like {kind or 'nothing known'}",
            hint="Say media_type=, such as image/png.",
        )
    if isinstance(part, Document):
        return replace(part, source=data, media_type=kind, name=part.name or os.path.basename(path))
    return replace(part, source=data, media_type=kind)


def _decoded(part: Media, source: str) -> Media:
    head, comma, body = source[5:].partition(",")
    kind, *marks = head.split(";")
    try:
        data = b64decode(body, validate=True) if "base64" in marks else unquote_to_bytes(body)
    except (NotBase64, ValueError) as error:
        raise MediaInvalid(f"a data: URL that cannot be read: {error}") from error
    if not comma:
        raise MediaInvalid("a data: URL without data")
    _bounded(len(data), "given as data: URL")
    return replace(part, source=data, media_type=part.media_type or kind or "text/plain")


def kind_of(data: bytes, name: str) -> str | None:
    """What a file is: its content tells, else its name."""
    kind = _of_content(data) or mimetypes.guess_type(name)[0]
    return _ALIKE.get(kind or "", kind)


def _of_content(data: bytes) -> str | None:
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12])
    if data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heif", b"avif"):
        return f"image/{data[8:12].decode()}"
    return next((kind for magic, kind in MAGIC if data.startswith(magic)), None)


def _usual(part: Media) -> str:
    return USUAL[type(part)]


def _bounded(size: int, what: str) -> None:
    if size > LARGEST:
        raise MediaInvalid(
            f"a file to send has {size:,} bytes, over {LARGEST:,}: {what}",
            hint="Make it smaller, or give a URL that the vendor can fetch.",
        )
    if size == 0:
        raise MediaInvalid(f"a file to send is empty: {what}")
