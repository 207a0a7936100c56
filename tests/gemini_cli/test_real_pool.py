"""Warm Gemini CLIs: many prompts, few processes, and nothing shared between them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import processes_matching, write
from support.scripted_agent import child_pids

import corral
from corral.system import paths
from corral.testing import Request, Turn, say

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = [pytest.mark.gemini_cli, pytest.mark.timeout(240)]

PROMPTS = 44


async def test_many_prompts_share_a_pool_and_nothing_else(
    gemini: Gemini, workspace: Path, tmp_path: Path
) -> None:
    def answer(request: Request) -> Turn:
        number = request.last_text.split()[-1]
        if request.tool_results:
            return say(f"answer {number}")
        return Turn(calls=[write("mine.txt", f"{number}\n")])

    places = [workspace / f"part-{number}" for number in range(PROMPTS)]
    for place in places:
        place.mkdir()
    options = gemini.options(answer, policy="edits", timeout=200)
    async with corral.pool("gemini-acp", prompts_at_once=4, **options) as pool:
        prompts = (pool.run(f"question {n}", cwd=place) for n, place in enumerate(places))
        async with asyncio.timeout(220):
            results = await asyncio.gather(*prompts)
        assert pool.started == 2  # one is replaced after 40 sessions
        assert len(child_pids()) == 1

    assert [result.error for result in results if not result.ok] == []
    assert len({result.session_id for result in results}) == PROMPTS
    for number, (result, place) in enumerate(zip(results, places, strict=True)):
        assert result.text == f"answer {number}"
        assert (place / "mine.txt").read_text() == f"{number}\n"
        assert [Path(f.path) for f in result.files] == [place / "mine.txt"]
    asked = [request for request in gemini.requests if not request.aside]
    assert len(asked) == 2 * PROMPTS
    for request in asked:
        said = [text for message in request.history for text in message.texts]
        assert said == [request.last_text]
    assert processes_matching(str(tmp_path)) == []
    assert list(paths.sessions().iterdir()) == []
    assert os.listdir(tmp_path / "user-home") == []
