"""The token counts of the headless Gemini CLI."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral._agents.gemini.stream import Frames, read_refused_calls, translator
from corral._protocol.ndjson import NdjsonStream, TurnEnd
from corral.events import ToolResult, ToolUse
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


GOOD = {"total_tokens": 100, "input_tokens": 60, "output_tokens": 40, "cached": 5}


def result(stats: Any) -> bytes:
    return json.dumps({"type": "result", "status": "success", "stats": stats}).encode() + b"\n"


@pytest.mark.parametrize("odd", ["60", 1.5, True, -1, [], {"a": 1}])
@pytest.mark.parametrize("name", [*GOOD])
def test_an_odd_count_leaves_the_answer_complete(name: str, odd: Any) -> None:
    stats = {**GOOD, name: odd}
    (end,) = NdjsonStream(Frames, translator()).receive(result({**stats, "models": {"m": stats}}))
    assert isinstance(end, TurnEnd)
    assert (end.ok, end.model) == (True, "m")
    names = {"input_tokens": "input", "output_tokens": "output", "cached": "cache_read"}
    for used in (end.usage, end.usage_by_model["m"]):
        assert used.coverage == "partial"
        counts = {key: getattr(used, field) for key, field in names.items()}
        assert counts == {key: None if key == name else GOOD[key] for key in names}


@pytest.mark.parametrize("odd", [None, "none", [], {"models": []}, {"models": {"m": None}}])
def test_odd_statistics_leave_the_answer_complete(odd: Any) -> None:
    (end,) = NdjsonStream(Frames, translator()).receive(result(odd))
    assert isinstance(end, TurnEnd)
    assert (end.ok, end.usage) == (True, Usage())


def test_more_cached_tokens_than_input_are_not_counted_as_complete() -> None:
    assert counted(result({**GOOD, "cached": 61})) == Usage(input=60, output=40, coverage="partial")
    assert counted(result({**GOOD, "total_tokens": 99})).coverage == "partial"


def test_refused_calls_are_read_from_the_stored_conversation() -> None:
    def line(name: str, error: str, **message: Any) -> bytes:
        answer = {"id": f"{name}-1", "name": name, "response": {"error": error}}
        return json.dumps({"content": [{"functionResponse": answer}], **message}).encode()

    stored = [
        line("run_shell_command", 'Tool "run_shell_command" not found in registry.'),
        line("read_file", 'It says: Tool "read_file" not found in registry.'),
        line("no_such_tool", 'Tool "no_such_tool" not found in registry.'),
        b'{"$set":{"messages":[' + line("glob", 'Tool "glob" not found in registry.') + b"]}}",
        b'{"content": "not found in registry',
    ]
    events = read_refused_calls(b"\n".join(stored))
    results = {each.name: each.status for each in events if isinstance(each, ToolResult)}
    assert results == {"run_shell_command": "denied", "no_such_tool": "error"}
    assert [each.call_id for each in events if isinstance(each, ToolUse)] == [
        "run_shell_command-1",
        "no_such_tool-1",
    ]
