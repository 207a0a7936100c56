"""Images, audio and documents in OpenAI's two APIs, and unsupported media."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, cast

import pytest

from corral._models.chat import spec
from corral._models.openai import spec as openai_spec
from corral._models.spec import Provider
from corral.errors import MediaInvalid
from corral.messages import Audio, Document, Image, Media, Message
from corral.model_types import Request

OPENAI, CHAT = openai_spec.PROVIDERS[0], spec.PROVIDERS[0]
PNG, PDF, WAV = b"\x89PNG\r\n", b"%PDF-1.7", b"RIFF"
PNG_URL = "data:image/png;base64," + b64encode(PNG).decode()
PDF_URL = "data:application/pdf;base64," + b64encode(PDF).decode()
WAV_DATA = b64encode(WAV).decode()


def shown(provider: Provider, *parts: Media, role: str = "user") -> Any:
    """The encoded parts of one message."""
    message = Message(cast("Any", role), parts)
    encoded = provider.wire.encode(Request(model="m", messages=(message,)), provider, False)
    entries = cast("list[Any]", encoded.body.get("input") or encoded.body["messages"])
    return entries[0]["content"]


@pytest.mark.parametrize(
    ("part", "responses"),
    [
        (Image(PNG, "image/png"), {"type": "input_image", "image_url": PNG_URL, "detail": "auto"}),
        (Image(PNG_URL), {"type": "input_image", "image_url": PNG_URL, "detail": "auto"}),
        (
            Image("https://a.test/b.png", detail="low"),
            {"type": "input_image", "image_url": "https://a.test/b.png", "detail": "low"},
        ),
        (
            Document(PDF, "application/pdf"),
            {"type": "input_file", "filename": "document.pdf", "file_data": PDF_URL},
        ),
        (
            Document(PDF_URL, name="x.pdf"),
            {"type": "input_file", "filename": "x.pdf", "file_data": PDF_URL},
        ),
        (
            Document("https://a.test/b.pdf"),
            {"type": "input_file", "file_url": "https://a.test/b.pdf"},
        ),
        (
            Document(b"Hi", "text/plain"),
            {
                "type": "input_file",
                "filename": "document.txt",
                "file_data": "data:text/plain;base64,SGk=",
            },
        ),
    ],
)
def test_media_in_the_responses_api(part: Media, responses: Any) -> None:
    assert shown(OPENAI, part) == [responses]


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (Image(PNG, "image/png"), {"type": "image_url", "image_url": {"url": PNG_URL}}),
        (
            Image("https://a.test/b.png", detail="low"),
            {"type": "image_url", "image_url": {"url": "https://a.test/b.png", "detail": "low"}},
        ),
        (
            Audio(WAV, "audio/x-wav"),
            {"type": "input_audio", "input_audio": {"data": WAV_DATA, "format": "wav"}},
        ),
        (
            Audio(f"data:audio/mpeg;base64,{WAV_DATA}"),
            {"type": "input_audio", "input_audio": {"data": WAV_DATA, "format": "mp3"}},
        ),
        (
            Document(PDF, "application/pdf", "a.pdf"),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF_URL}},
        ),
    ],
)
def test_media_in_chat_completions(part: Media, sent: Any) -> None:
    assert shown(CHAT, part) == [sent]


def test_chat_completions_send_a_text_document_as_text() -> None:
    assert shown(CHAT, Document("ü".encode(), "text/markdown")) == "ü"
    assert shown(CHAT, Document(b"{}", "application/json", "a.json")) == "a.json:\n\n{}"


REFUSED: list[tuple[Provider, Media, str]] = [
    (OPENAI, Audio(WAV, "audio/wav"), "user"),
    (CHAT, Audio(WAV, "audio/ogg"), "user"),
    (CHAT, Audio("https://a.test/b.wav"), "user"),
    (CHAT, Document("https://a.test/b.pdf"), "user"),
    (CHAT, Document(b"PK", "application/msword"), "user"),
    *((each, Image("gs://bucket/a.png"), "user") for each in (OPENAI, CHAT)),
    *((each, Document("s3://bucket/a.pdf"), "user") for each in (OPENAI, CHAT)),
    *((each, Image(PNG), "user") for each in (OPENAI, CHAT)),
    *((each, Image(PNG, "image/png"), "assistant") for each in (OPENAI, CHAT)),
]


@pytest.mark.parametrize(("provider", "part", "role"), REFUSED)
def test_unsupported_media_are_refused_with_a_hint(
    provider: Provider, part: Media, role: str
) -> None:
    with pytest.raises(MediaInvalid) as caught:
        shown(provider, part, role=role)
    assert caught.value.hint
