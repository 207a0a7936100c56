"""The token counts of the headless Gemini CLI."""

from __future__ import annotations

from corral._agents.gemini.stream import Frames, translator
from corral._protocol.ndjson import NdjsonStream, TurnEnd
from corral.values import Usage

SEARCH = b'{"type":"tool_use","tool_name":"google_web_search","tool_id":"s","parameters":{}}\n'
RESULT = (
    b'{"type":"result","status":"success","stats":{"total_tokens":100,"input_tokens":60,'
    b'"output_tokens":10,"cached":5}}\n'
)


def counted(lines: bytes) -> Usage:
    (finish,) = [
        item
        for item in NdjsonStream(Frames, translator()).receive(lines)
        if isinstance(item, TurnEnd)
    ]
    return finish.usage


def test_tokens_that_are_only_in_the_total_are_reasoning() -> None:
    assert counted(RESULT) == Usage(
        input=60, output=40, reasoning=30, cache_read=5, coverage="complete"
    )


def test_the_prompts_of_web_tools_are_not_counted_as_reasoning() -> None:
    assert counted(SEARCH + RESULT) == Usage(input=60, output=10, cache_read=5, coverage="partial")
