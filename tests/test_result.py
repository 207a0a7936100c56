"""The result is built from the events alone."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from corral import errors
from corral.events import Done, Error, Event, Init, Log, Text, Thinking, ToolResult, ToolUse
from corral.result import Result, ResultBuilder, result_from_events
from corral.values import Cost, DeniedCall, FileChanged, Usage

DONE = Done(status="success")


def text_of(*events: Event) -> tuple[str, str]:
    result = result_from_events([Init(), *events, DONE])
    return result.text, result.final_text


def test_deltas_become_one_message() -> None:
    assert text_of(Text("Hel"), Text("lo")) == ("Hello", "Hello")


def test_messages_before_and_after_a_tool_are_separated_by_a_blank_line() -> None:
    events = (
        Text("I look.\n"),
        ToolUse("c", "look"),
        ToolResult("c", "success"),
        Text("\nDone."),
        Text(" Bye"),
    )
    assert text_of(*events) == ("I look.\n\nDone. Bye", "\nDone. Bye")


@pytest.mark.parametrize(
    "between", [(Thinking("hm"),), (ToolUse("c", "t"),), (ToolResult("c", "success"),)]
)
def test_a_thought_or_a_tool_ends_a_message(between: tuple[Event, ...]) -> None:
    assert text_of(Text("a"), *between, Text("b")) == ("a\n\nb", "b")


def test_another_message_id_is_another_message() -> None:
    events = (Text("a", message_id="1"), Text("b", message_id="1"), Text("c", message_id="2"))
    assert text_of(*events) == ("ab\n\nc", "c")


def test_a_log_line_between_deltas_does_not_end_the_message() -> None:
    assert text_of(Text("a"), Log("noise"), Text("b")) == ("ab", "ab")


def test_a_single_message_keeps_its_whitespace() -> None:
    assert text_of(Text("\n a \n")) == ("\n a \n", "\n a \n")


def test_a_message_of_whitespace_is_left_out() -> None:
    assert text_of(Text("a"), ToolUse("c", "t"), Text(" \n")) == ("a", "a")


def test_a_stream_without_done_is_incomplete() -> None:
    result = result_from_events([Init(model="m", agent="a", run_id="r"), Text("half")])
    assert (result.status, result.text, result.model, result.agent, result.run_id) == (
        "incomplete",
        "half",
        "m",
        "a",
        "r",
    )
    assert not result.ok


def test_the_result_has_all_fields_of_done() -> None:
    same: dict[str, Any] = {
        "status": "max_turns",
        "stop_reason": "stop",
        "model": "real",
        "usage": Usage(input=1),
        "cost": Cost(1.0, "reported"),
        "files": (FileChanged("/a", "created"),),
        "files_complete": False,
        "denied": (DeniedCall("t"),),
        "denied_complete": False,
        "resume_token": "token",
        "error": Error("turn_limit", "too many"),
        "run_id": "r",
        "agent": "a",
        "session_id": "s",
    }
    result = result_from_events(
        [Init(model="asked", agent_version="1.0"), Done(**same, duration_ms=1500)]
    )
    assert result == Result(**same, duration=1.5, agent_version="1.0")


def test_a_success_is_returned_and_a_failure_raises_its_error() -> None:
    good = result_from_events([Init(), DONE])
    assert good.raise_for_status() is good
    bad = result_from_events(
        [Init(), Text("half"), Done(status="error", error=Error("rate_limit", "slow"))]
    )
    with pytest.raises(errors.RateLimited, match="slow") as raised:
        bad.raise_for_status()
    assert raised.value.result is bad


def test_a_failure_without_an_error_event_raises_too() -> None:
    with pytest.raises(errors.CorralError, match="the run ended as incomplete"):
        result_from_events([Init()]).raise_for_status()


def test_text_without_an_id_continues_the_message_before_it() -> None:
    pieces = (Text("Hel", message_id="a"), Text("lo."), Text("Bye.", message_id="b"))
    assert result_from_events([*pieces, Done(status="success")]).text == "Hello.\n\nBye."


@pytest.mark.deep
def test_a_long_answer_takes_little_more_memory_than_its_text() -> None:
    size, piece = 32 * 1024 * 1024, "x" * 512
    tracemalloc.start()
    try:
        folding = ResultBuilder()
        for _ in range(size // len(piece)):
            folding.add(Text(piece[:-1] + "y"))
        result = folding.result()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(result.text) == size
    assert result.final_text is result.text
    assert peak < 1.3 * size


def test_the_result_can_be_built_twice() -> None:
    folding = ResultBuilder()
    for delta in ("a", "b"):
        folding.add(Text(delta))
    assert folding.result() == folding.result()
    folding.add(Text("c"))
    assert folding.result().text == "abc"


@pytest.mark.parametrize("limit", [None, 0, 3, 5, 9, 100])
def test_events_in_a_batch_give_the_same_answer_as_one_by_one(limit: int | None) -> None:
    events: list[Event] = [
        Init(),
        Text("one "),
        Text("more", message_id="a"),
        Text("of a sub-agent", parent="c0"),
        Text("!"),
        ToolUse("c1", "read"),
        ToolResult("c1", "success"),
        Text("next", message_id="b"),
        Thinking("..."),
        Text("last"),
        Done(status="success"),
    ]
    together, apart = ResultBuilder(limit), ResultBuilder(limit)
    together.add_all(events)
    for event in events:
        apart.add(event)
    assert together.result() == apart.result()
    assert together.is_cut == apart.is_cut == (limit is not None and limit < 17)
    if limit == 9:  # the first piece that does not fit ends the answer
        assert together.answer().text == "one \n\nmore!"
