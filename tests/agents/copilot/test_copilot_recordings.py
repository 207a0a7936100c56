"""Recordings of the real ``copilot --output-format json``, as events."""

from __future__ import annotations

import msgspec
import pytest
from support.recordings import Recordings

from corral._agents.copilot.stream import read_report
from corral._agents.spec import stream_transport
from corral._protocol.ndjson import NdjsonStream, TurnEnd
from corral.events import (
    Error,
    FileChange,
    Init,
    Text,
    ToolOutput,
    ToolResult,
    Unknown,
)
from corral.result import result_from_events
from corral.values import Json

played = Recordings("copilot-cli")
done, NAMES = played.done, played.names


@pytest.mark.parametrize("name", NAMES)
def test_no_line_of_the_real_program_is_unknown_or_malformed(name: str) -> None:
    for event in played(name):
        assert not isinstance(event, Unknown)
        assert not (isinstance(event, Error) and event.code == "malformed_line")


@pytest.mark.parametrize("size", [1, 7])
def test_boundaries_of_the_output_do_not_matter(size: int) -> None:
    assert played("parallel", size) == played("parallel")


def test_text_that_came_in_deltas_is_reported_once() -> None:
    answer = "".join(event.delta for event in played("plain") if isinstance(event, Text))
    assert answer == "Hello from the fake model. The answer is 42."


def test_the_model_and_the_changes_are_reported() -> None:
    events = played("readedit")
    assert isinstance(events[0], Init)
    assert events[0].model == "fake-model"
    assert done("readedit").model == "fake-model"
    changes = [(event.path, event.kind) for event in events if isinstance(event, FileChange)]
    assert changes == [("/workspace/existing.txt", "modified")]


def test_a_failed_command_is_not_a_failed_tool_and_its_output_is_streamed() -> None:
    events = played("shellfail")
    assert [event.delta for event in events if isinstance(event, ToolOutput)] == ["oops\n"]
    assert [event.status for event in events if isinstance(event, ToolResult)] == ["success"]


def test_each_retry_is_reported() -> None:
    reported = [event for event in played("e429") if isinstance(event, Error) and event.recoverable]
    assert [(event.code, event.level) for event in reported] == [("retrying", "warning")] * 5


def test_exit_code_0_after_a_signal_is_not_a_success() -> None:
    assert b'"exitCode":0' in (played.folder / "sigterm-group.ndjson").read_bytes()
    assert done("sigterm-group").status == "interrupted"


def lines(*frames: object) -> list[object]:
    transport = stream_transport(played.agent)
    stream = NdjsonStream(transport.frames, transport.translator())
    return list(stream.receive(b"".join(msgspec.json.encode(frame) + b"\n" for frame in frames)))


def test_text_of_a_sub_agent_is_not_part_of_the_answer() -> None:
    data = {"messageId": "m", "deltaContent": "aside", "parentToolCallId": "c"}
    frame = {"type": "assistant.message_delta", "data": data, "agentId": "a"}
    (item,) = lines(frame)
    assert isinstance(item, Text)
    assert item.parent == "c"
    assert result_from_events([item]).text == ""


def test_a_message_without_deltas_is_reported_completely() -> None:
    data = {"messageId": "m", "content": "whole", "model": "x"}
    assert lines({"type": "assistant.message", "data": data}) == ["whole"]


def test_a_line_of_an_unknown_kind_is_passed_on_unchanged() -> None:
    frame: Json = {"type": "session.novelty", "data": {"x": 1}}
    assert lines(frame) == [Unknown(frame)]


def test_tokens_are_the_sum_of_the_models_in_its_report() -> None:
    usage = {
        "inputTokens": 120,
        "outputTokens": 10,
        "cacheReadTokens": 20,
        "cacheWriteTokens": 0,
        "reasoningTokens": 3,
    }
    report = {"modelMetrics": {"a": {"usage": usage}, "b": {"usage": usage}}, "new": {}}
    reported = read_report(msgspec.json.encode(report), TurnEnd(ok=True)).usage
    assert msgspec.to_builtins(reported) == {
        "input": 240,
        "output": 20,
        "reasoning": 6,
        "cache_read": 40,
        "cache_write": 0,
        "coverage": "complete",
    }
    assert read_report(b"torn {", TurnEnd(ok=True)) == TurnEnd(ok=True)
