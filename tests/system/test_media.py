"""Images, audio and documents are read before they are sent, with their media type."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from corral._system.media import LARGEST, load_media
from corral.errors import ConfigError, MediaInvalid
from corral.messages import Audio, Document, Image, Media, Message

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


async def load(part: Media) -> Any:
    (message,) = await load_media([Message.user(part)])
    return message.content[0]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBP", "image/webp"),
        (b"nothing known", "image/png"),
    ],
)
async def test_the_media_type_of_bytes_comes_from_their_start(data: bytes, kind: str) -> None:
    assert await load(Image(data)) == Image(data, kind)


async def test_a_given_media_type_wins() -> None:
    assert await load(Image(PNG, "image/x-own")) == Image(PNG, "image/x-own")


async def test_the_media_type_of_a_file_comes_from_its_content(tmp_path: Path) -> None:
    path = tmp_path / "wrongly-named.jpg"
    path.write_bytes(PNG)
    assert await load(Image(str(path))) == Image(PNG, "image/png")


async def test_a_document_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("hello")
    assert await load(Document(str(path))) == Document(b"hello", "text/plain", "a.txt")


@pytest.mark.parametrize("place", ["missing.png", ".", "", "\0"])
async def test_a_path_that_is_not_a_file_is_an_error(tmp_path: Path, place: str) -> None:
    with pytest.raises(MediaInvalid, match="was not found"):
        await load(Image(str(tmp_path / place) if place not in ("", "\0") else place))


async def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    with pytest.raises(MediaInvalid, match="empty"):
        await load(Image(str(tmp_path / "a.png")))
    with pytest.raises(MediaInvalid, match="empty"):
        await load(Image(b""))


async def test_a_very_large_file_is_an_error_and_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(LARGEST + 1)  # a hole: nothing is written
    with pytest.raises(MediaInvalid, match="over"):
        await load(Image(str(tmp_path / "a.png")))


async def test_a_file_that_cannot_be_read_says_why() -> None:
    # A file of the kernel's that not even root may read; elsewhere there is nothing to test.
    path = Path("/proc/self/mem")
    if not path.is_file():
        pytest.skip("there is no /proc here")
    with pytest.raises(MediaInvalid, match=r"cannot be read|empty"):
        await load(Image(str(path), "image/png"))


@pytest.mark.parametrize("name", ["a.unknown-kind", "a.txt"])
async def test_an_image_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text")
    with pytest.raises(MediaInvalid, match="media type"):
        await load(Image(str(tmp_path / name)))


async def test_data_urls_are_decoded() -> None:
    assert await load(Image("data:image/gif;base64,R0lGODg=")) == Image(b"GIF88", "image/gif")
    assert await load(Document("data:,a%20b")) == Document(b"a b", "text/plain")


@pytest.mark.parametrize(
    "url", ["data:image/png;base64,***", "data:image/png", "data:,", "https://[::1"]
)
async def test_an_invalid_url_is_an_error(url: str) -> None:
    with pytest.raises(MediaInvalid):
        await load(Image(url))


@pytest.mark.parametrize("url", ["https://x.org/a.png", "https://x.org/a.png?sig=1#top"])
async def test_a_url_stays_a_url_and_its_path_gives_the_media_type(url: str) -> None:
    assert await load(Image(url)) == Image(url, "image/png")


async def test_the_media_type_of_audio_comes_from_its_content() -> None:
    assert await load(Audio(b"RIFF\0\0\0\0WAVE")) == Audio(b"RIFF\0\0\0\0WAVE", "audio/wav")


async def test_a_path_object_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    loaded_image = (await load_media([Message.user(Image(tmp_path / "a.png"))]))[0].content[0]
    assert isinstance(loaded_image, Image)
    assert loaded_image.source == PNG


@pytest.mark.parametrize("source", [None, 3, ["a.png"]])
def test_an_invalid_source_is_an_error_at_once(source: object) -> None:
    with pytest.raises(ConfigError, match="a path, a URL or bytes"):
        Image(cast("str", source))


@pytest.mark.parametrize("content", [{"text": "hi"}, b"hi", 3])
def test_invalid_content_of_a_message_is_an_error(content: object) -> None:
    with pytest.raises(ConfigError, match="must consist of text and parts"):
        Message("user", cast("tuple[()]", content))


async def test_an_image_is_not_accepted_as_audio(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    with pytest.raises(MediaInvalid, match="media type"):
        await load_media([Message.user(Audio(str(tmp_path / "a.png")))])
