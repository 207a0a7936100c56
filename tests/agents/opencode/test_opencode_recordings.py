"""Recordings of the real ``opencode run --format json``, as events."""

from __future__ import annotations

import msgspec
import pytest
from support.recordings import Recordings

from corral._agents.spec import stream_transport
from corral._protocol.ndjson import NdjsonStream
from corral.events import Error, Init, Log, Plan, Thinking, ToolResult, Unknown
from corral.values import Json

played = Recordings("opencode-cli")
done, NAMES = played.done, played.names


@pytest.mark.parametrize("name", NAMES)
def test_no_line_of_the_real_program_is_unknown_or_malformed(name: str) -> None:
    for event in played(name):
        assert not isinstance(event, Unknown | Log)
        assert not (isinstance(event, Error) and event.code == "malformed_line")


@pytest.mark.parametrize("size", [1, 7])
def test_boundaries_of_the_output_do_not_matter(size: int) -> None:
    assert played("mcp-default", size) == played("mcp-default")


def test_the_session_is_known_from_the_first_line() -> None:
    first = played("plain")[0]
    assert isinstance(first, Init)
    assert (first.session_id or "").startswith("ses_")


def test_usage_and_cost_are_the_sum_of_the_steps() -> None:
    one, two = done("plain"), done("write-default")
    assert msgspec.to_builtins(one.usage) == {
        "input": 1234,
        "output": 56,
        "reasoning": 7,
        "cache_read": 200,
        "cache_write": 0,
        "coverage": "complete",
    }
    assert two.usage.total == 2 * (one.usage.total or 0)
    assert two.cost.usd == pytest.approx(2 * (one.cost.usd or 0))
    assert one.cost.source == "reported"


def test_thinking_is_reported_if_it_was_requested() -> None:
    (thought,) = [event for event in played("think-flag") if isinstance(event, Thinking)]
    assert thought.delta == "Let me think about it. Two plus two."


def test_the_error_of_a_denial_does_not_repeat_the_rules() -> None:
    (refusal,) = done("outside-deny").denied
    assert "external_directory" not in (refusal.reason or "")


def test_a_failed_command_is_not_a_failed_tool() -> None:
    (result,) = [event for event in played("shellfail") if isinstance(event, ToolResult)]
    assert (result.status, result.output) == ("success", "oops\n")


def lines(*frames: object) -> list[object]:
    transport = stream_transport(played.agent)
    stream = NdjsonStream(transport.frames, transport.translator())
    return list(stream.receive(b"".join(msgspec.json.encode(frame) + b"\n" for frame in frames)))


def test_a_todo_list_is_a_plan() -> None:
    todos = [{"content": "first", "status": "pending", "priority": "high"}, "odd", {"id": 1}]
    state = {"status": "completed", "input": {"todos": todos}, "output": "[]"}
    part = {"tool": "todowrite", "callID": "c", "state": state}
    items = lines({"type": "tool_use", "sessionID": "ses_1", "part": part})
    (plan,) = [item for item in items if isinstance(item, Plan)]
    assert [(e.content, e.status, e.priority) for e in plan.entries] == [
        ("first", "pending", "high")
    ]


def test_a_line_of_an_unknown_kind_is_passed_on_unchanged() -> None:
    frame: Json = {"type": "novelty", "sessionID": "ses_1"}
    assert lines(frame) == [Unknown(frame)]
