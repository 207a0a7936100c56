"""Encodes images, audio and documents for OpenAI's two APIs."""

from __future__ import annotations

from base64 import b64decode, b64encode

from corral.errors import MediaInvalid
from corral.messages import Audio, Document, Image, Media
from corral.models.encoding import media_bytes, media_url
from corral.models.spec import Provider

FORMATS = {
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/wav": "wav",
    "audio/wave": "wav",
    "audio/x-wav": "wav",
    "audio/vnd.wave": "wav",
}


def encode_url(part: Image | Document, provider: Provider) -> str:
    """The web URL of the part, or its bytes as a ``data:`` URL."""
    address = media_url(part)
    if address is None:
        return f"data:{_media_type(part)};base64,{_base64(part)}"
    if address[:5].lower() in ("http:", "https", "data:"):
        return address
    scheme = address.partition(":")[0]
    raise MediaInvalid(
        f"{provider.title} cannot fetch {address[:80]!r}",
        hint=f"It accepts https URLs and files, but no {scheme}: URL.",
    )


def encode_audio(part: Audio, provider: Provider) -> tuple[str, str]:
    """Base64 and the format. Only bytes can be sent, in one of two formats."""
    media_type, data = _type_and_data(part, provider)
    if media_type not in FORMATS:
        raise MediaInvalid(
            f"{provider.title} does not accept audio of type {media_type}",
            hint="Send it as WAV or MP3.",
        )
    return data, FORMATS[media_type]


def encode_file(part: Document, provider: Provider) -> tuple[str, str]:
    """The media type and Base64 of a document that holds bytes."""
    return _type_and_data(part, provider)


def decode_text(data: str) -> str:
    return b64decode(data).decode("utf-8", "replace")


def file_name(part: Document, media_type: str) -> str:
    """A file name: both APIs need one and derive the file type from its extension."""
    if part.name:
        return part.name
    ending = media_type.partition(";")[0].rpartition("/")[2]
    return f"document.{'txt' if ending == 'plain' else ending or 'pdf'}"


def _type_and_data(part: Media, provider: Provider) -> tuple[str, str]:
    address = media_url(part)
    if address is None:
        return _media_type(part), _base64(part)
    head, comma, data = address.partition(",")
    if head[:5].lower() == "data:" and head.endswith(";base64") and comma:
        return part.media_type or head[5:-7].partition(";")[0].lower(), data
    kind = type(part).__name__.lower()
    raise MediaInvalid(
        f"{provider.title} does not accept the URL of a {kind}: {address[:80]!r}",
        hint=f"Download the {kind} and send the file.",
    )


def _media_type(part: Media) -> str:
    if not part.media_type:
        raise MediaInvalid(
            f"the type of this {type(part).__name__.lower()} is unknown",
            hint="Set media_type, for example media_type='image/png'.",
        )
    return part.media_type


def _base64(part: Media) -> str:
    return b64encode(media_bytes(part)).decode()
