"""Images, audio and documents as OpenAI's two APIs take them."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import cast

from corral.errors import MediaInvalid
from corral.messages import Audio, Document, Image, Media
from corral.models.encoding import address_of
from corral.models.spec import Provider

FORMATS = {
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/wav": "wav",
    "audio/wave": "wav",
    "audio/x-wav": "wav",
    "audio/vnd.wave": "wav",
}


def url_of(part: Image | Document, provider: Provider) -> str:
    """Its address on the web, or its bytes as a ``data:`` URL."""
    address = address_of(part)
    if address is None:
        return f"data:{_media_type(part)};base64,{_base64(part)}"
    if address[:5].lower() in ("http:", "https", "data:"):
        return address
    scheme = address.partition(":")[0]
    raise MediaInvalid(
        f"{provider.title} cannot fetch {address[:80]!r}",
        hint=f"It takes https addresses and files, no {scheme}: address.",
    )


def audio_of(part: Audio, provider: Provider) -> tuple[str, str]:
    """Base64 and the format. Only bytes can be sent, and only of two kinds."""
    media_type, data = _held(part, provider)
    if media_type not in FORMATS:
        raise MediaInvalid(
            f"{provider.title} takes no audio of type {media_type}",
            hint="Send it as WAV or MP3.",
        )
    return data, FORMATS[media_type]


def file_of(part: Document, provider: Provider) -> tuple[str, str]:
    """The type and Base64 of a document whose bytes are there."""
    return _held(part, provider)


def text_of(data: str) -> str:
    return b64decode(data).decode("utf-8", "replace")


def name_of(part: Document, media_type: str) -> str:
    """Both APIs ask for a file's name and tell its kind by the ending."""
    if part.name:
        return part.name
    ending = media_type.partition(";")[0].rpartition("/")[2]
    return f"document.{'txt' if ending == 'plain' else ending or 'pdf'}"


def _held(part: Media, provider: Provider) -> tuple[str, str]:
    address = address_of(part)
    if address is None:
        return _media_type(part), _base64(part)
    head, comma, data = address.partition(",")
    if head[:5].lower() == "data:" and head.endswith(";base64") and comma:
        return part.media_type or head[5:-7].partition(";")[0].lower(), data
    kind = type(part).__name__.lower()
    raise MediaInvalid(
        f"{provider.title} takes no {kind} by its address: {address[:80]!r}",
        hint=f"Download the {kind} and send the file.",
    )


def _media_type(part: Media) -> str:
    if not part.media_type:
        raise MediaInvalid(
            f"of what type is this {type(part).__name__.lower()}?",
            hint="Give media_type, as in media_type='image/png'.",
        )
    return part.media_type


def _base64(part: Media) -> str:
    return b64encode(cast("bytes", part.source)).decode()
