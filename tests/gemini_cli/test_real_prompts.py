"""The prompt goes in as text and as nothing else, whatever it looks like."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import file_names, sent_json

from corral.errors import PromptError
from corral.testing import say

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ODD = (
    "naïve “quotes” 漢字 👩‍👩‍👧‍👦 \u2028 \u2029 \x7f"
    " tab\there \\ back\\nslash $HOME `id` 'x' \"y\" {z}"
)

OWN = "# Core Mandates"
"""A heading of the CLI's own system prompt."""


@pytest.fixture(autouse=True)
def seed(workspace: Path) -> None:
    (workspace / "seed.txt").write_text("the words of the file\n")


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param("/init " + ODD, id="slash"),
        pytest.param("/memory show", id="command"),
        pytest.param("--help", id="flag"),
        pytest.param(f"look at @seed.txt and x@seed.txt, (@*.txt) {ODD}\n@.\n", id="at"),
        pytest.param("  \n padded, ? and ! and # first\n\n", id="padded"),
        pytest.param("/quit\n" + "word " * 60_000 + ODD + " @seed.txt", id="300 kB after a slash"),
    ],
)
async def test_a_prompt_arrives_literally(gemini: Gemini, workspace: Path, prompt: str) -> None:
    result = await gemini.run([say("heard")], prompt)

    assert result.ok
    assert result.text == "heard"
    assert gemini.requests[0].last_text == prompt
    assert "the words of the file" not in sent_json(gemini.requests)
    assert file_names(workspace) == ["seed.txt"]


async def test_what_the_cli_would_fill_in_stays_as_it_is(gemini: Gemini, workspace: Path) -> None:
    prompt = "/init {{args}} !{touch ran.txt} @{seed.txt} and @seed.txt"

    result = await gemini.run([say("heard")], prompt, policy="all")

    assert result.ok
    heard = gemini.requests[0].last_text
    # No way leads around the CLI here but an escape that stays in the text.
    assert heard == "\n" + prompt.replace("@", "\\@")
    assert "the words of the file" not in sent_json(gemini.requests)
    assert file_names(workspace) == ["seed.txt"]


async def test_a_long_prompt_arrives_whole(gemini: Gemini) -> None:
    prompt = "".join(f"line {n} {ODD}\n" for n in range(3000))
    assert len(prompt.encode()) > 300_000

    result = await gemini.run([say("heard")], prompt)

    assert result.ok
    assert result.text == "heard"
    assert gemini.requests[0].last_text == prompt


async def test_files_are_put_in_where_that_is_asked_for(gemini: Gemini) -> None:
    result = await gemini.run([say("heard")], "/see @seed.txt", expand_files=True)

    assert result.ok
    assert "the words of the file" in gemini.requests[0].last_text
    assert "/see @seed.txt" in gemini.requests[0].last_text


async def test_the_file_beats_the_prompt_and_the_system_prompt_comes_first(
    gemini: Gemini, workspace: Path
) -> None:
    (workspace / "prompt.md").write_text("from the file ✓\n")

    result = await gemini.run(
        [say("heard")], "not this", prompt_file="prompt.md", system_prompt="Answer in verse."
    )

    assert result.ok
    request = gemini.requests[0]
    assert request.last_text == "Answer in verse.\n\nfrom the file ✓\n"
    assert "not this" not in sent_json(gemini.requests)
    assert OWN in request.system


async def test_a_system_prompt_can_be_replaced(gemini: Gemini) -> None:
    result = await gemini.run(
        [say("heard")], "hello", replace_system_prompt="You are a tea-pot. ${x} 漢"
    )

    assert result.ok
    assert gemini.requests[0].system.startswith("You are a tea-pot. ${x} 漢")
    assert OWN not in gemini.requests[0].system
    assert gemini.requests[0].last_text == "hello"


async def test_images_arrive_as_images(gemini: Gemini, workspace: Path, tmp_path: Path) -> None:
    (workspace / "one.png").write_bytes(PIXEL)
    elsewhere = tmp_path / "two words.png"
    elsewhere.write_bytes(PIXEL + b"\0")

    result = await gemini.run(
        [say("seen")], "/what is this, @seed.txt?", images=["one.png", elsewhere]
    )

    assert result.ok
    *counting, request = gemini.requests
    assert [r.method for r in counting] == ["countTokens"]
    history = sent_json([request])
    assert base64.b64encode(PIXEL).decode() in history
    assert base64.b64encode(PIXEL + b"\0").decode() in history
    assert history.count('"mimeType": "image/png"') == 2
    assert request.last_text.strip() == "/what is this, @seed.txt?"
    assert "the words of the file" not in history
    assert list((tmp_path / "corral-home" / "sessions").glob("*/images")) == []


async def test_over_eight_mebibytes_is_refused_before_anything_starts(gemini: Gemini) -> None:
    with pytest.raises(PromptError, match="bytes"):
        await gemini.run([say("never")], "x" * (8 * 1024 * 1024))

    assert gemini.requests == []
