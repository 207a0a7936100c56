"""Images, sounds and files beside a prompt, as the model gets them from the Gemini CLI."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import sent_json

import corral
from corral import errors
from corral.testing import say

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli

SOUND = b"RIFF\x24\0\0\0WAVEfmt " + random.Random(3).randbytes(64)
PICTURE = b"\x89PNG\r\n\x1a\n" + random.Random(4).randbytes(64)


async def test_sounds_and_pictures_arrive_with_their_kind(gemini: Gemini, workspace: Path) -> None:
    (workspace / "word.wav").write_bytes(SOUND)
    (workspace / "dot.png").write_bytes(PICTURE)
    options = gemini.options([say("heard")], audio=["word.wav"], images=["dot.png"])
    async with corral.session("gemini-acp", **options) as session:
        result = await session.run("what is it?")
    assert result.text == "heard"
    told = sent_json(gemini.requests[-1:])
    for kind, data in (("audio/wav", SOUND), ("image/png", PICTURE)):
        assert kind in told
        assert base64.b64encode(data).decode() in told
    assert gemini.requests[-1].last_text.startswith("what is it?")


async def test_an_attached_file_arrives_with_its_words(
    gemini: Gemini, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "two words.txt").write_text("the words inside\n")
    outside = tmp_path / "outside.md"
    outside.write_text("# words from 漢 outside\n")
    options = gemini.options([say("read")], attachments=["two words.txt", outside])
    async with corral.session("gemini-acp", **options) as session:
        result = await session.run("what do they say?")
    assert result.text == "read"
    told = sent_json(gemini.requests[-1:])
    assert "the words inside" in told
    assert "# words from 漢 outside" in told
    assert "what do they say?" in told


async def test_what_would_be_dropped_is_refused_before_anything_starts(
    gemini: Gemini, workspace: Path
) -> None:
    (workspace / "word.wav").write_bytes(SOUND)
    (workspace / "note.txt").write_text("words")
    options = gemini.options([say("never")], audio=["word.wav"], attachments=["note.txt"])
    with pytest.raises(errors.ConfigError):
        async with corral.session("gemini-acp", **options):
            pass
    assert gemini.requests == []
