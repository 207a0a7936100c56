"""One builder for the response of every vendor: deltas in, complete parts and valid events out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral._protocol.response_builder import ResponseBuilder
from corral.errors import StreamBroken
from corral.messages import Message, Part, RedactedThinking, Text, Thinking, ToolCall
from corral.model_types import (
    FinishReason,
    ProviderEvent,
    Reason,
    Response,
    Start,
    StreamEvent,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)

Step = tuple[str, str]


def fresh(used: Sequence[str] = ()) -> ResponseBuilder:
    history = [Message.assistant(ToolCall(id, "tool")) for id in used]
    return ResponseBuilder("gemini", "model-x", history)


def complete(parts: ResponseBuilder) -> tuple[list[StreamEvent], Response]:
    parts.set_finish("stop", "STOP")
    response = parts.response()
    return parts.take_events(), response


def from_events(events: Sequence[StreamEvent]) -> tuple[Part, ...]:
    """The parts as a reader of the events alone would build them."""
    built: dict[int, Part] = {}
    for event in events:
        match event:
            case TextStart(part):
                built[part] = Text("")
            case TextDelta(text, part):
                held = built[part]
                assert isinstance(held, Text)
                built[part] = Text(held.text + text)
            case ThinkingStart(part):
                built[part] = Thinking("")
            case ThinkingDelta(text, part):
                held = built[part]
                assert isinstance(held, Thinking)
                built[part] = Thinking(held.text + text)
            case ToolCallEnd(part, call):
                built[part] = call
            case _:
                pass
    return tuple(built[index] for index in sorted(built))


def lawful(events: Sequence[StreamEvent]) -> None:
    """One start, first; every part opened once, closed once, and silent outside of that."""
    assert isinstance(events[0], Start)
    assert sum(isinstance(event, Start) for event in events) == 1
    opened: set[int] = set()
    closed: set[int] = set()
    for event in events:
        match event:
            case TextStart(part) | ThinkingStart(part) | ToolCallStart(part=part):
                assert part not in opened
                opened.add(part)
            case TextDelta(_, part) | ThinkingDelta(_, part) | ToolCallDelta(part=part):
                assert part in opened - closed
            case TextEnd(part) | ThinkingEnd(part) | ToolCallEnd(part=part):
                assert part in opened - closed
                closed.add(part)
            case _:
                pass
    assert opened == closed


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["text", "thinking", "end", "call", "arguments", "end_call", "whole"]),
        st.text(max_size=4),
    ),
    max_size=20,
)


def report(parts: ResponseBuilder, steps: Sequence[Step]) -> None:
    for kind, answer in steps:
        match kind:
            case "text":
                parts.add_text(answer)
            case "thinking":
                parts.add_thinking(answer)
            case "end":
                parts.end_part()
            case "call":
                parts.start_call("key", answer or "f")
            case "arguments":
                parts.add_arguments("key", answer)
            case "end_call":
                parts.end_call("key")
            case _:
                parts.add_call("f", {"said": answer})


@no_deadline
@given(steps=STEPS)
def test_events_are_valid_and_build_the_response_for_any_input(steps: list[Step]) -> None:
    parts = fresh()
    report(parts, steps)
    events, response = complete(parts)
    lawful(events)
    assert from_events(events) == response.message.content
    ids = [call.id for call in response.tool_calls]
    assert len(set(ids)) == len(ids)


@no_deadline
@given(text=st.text(min_size=1), cuts=st.lists(st.integers(0, 40)))
def test_text_in_pieces_is_the_text_in_one(text: str, cuts: list[int]) -> None:
    pieces, at = fresh(), 0
    for cut in [*sorted({c for c in cuts if 0 < c < len(text)}), len(text)]:
        pieces.add_text(text[at:cut])
        at = cut
    one = fresh()
    one.add_text(text)
    assert complete(pieces)[1] == complete(one)[1]


@no_deadline
@given(
    arguments=st.dictionaries(
        st.text(max_size=5), st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5)
    ),
    cuts=st.lists(st.integers(0, 60)),
)
def test_arguments_in_pieces_are_the_arguments_in_one(
    arguments: dict[str, Any], cuts: list[int]
) -> None:
    written = json.dumps(arguments)
    parts, at = fresh(), 0
    parts.start_call(0, "f", "id-1")
    for cut in [*sorted({c for c in cuts if 0 < c < len(written)}), len(written)]:
        parts.add_arguments(0, written[at:cut])
        at = cut
    _, response = complete(parts)
    assert response.tool_calls == (ToolCall("id-1", "f", arguments),)


@pytest.mark.parametrize(
    "written",
    ["{", "[1]", '"text"', "null", "nonsense", '{"a": 1} and more', "[" * 5000, '{"a":\ud800}'],
)
def test_arguments_that_are_not_an_object_are_stored_as_written(written: str) -> None:
    parts = fresh()
    parts.start_call(0, "f")
    parts.add_arguments(0, written)
    (call,) = complete(parts)[1].tool_calls
    assert (call.arguments, call.raw) == ({}, written)


@pytest.mark.parametrize("written", ["", " ", "\n"])
def test_a_call_without_arguments_has_none(written: str) -> None:
    parts = fresh()
    parts.start_call(0, "f")
    parts.add_arguments(0, written)
    (call,) = complete(parts)[1].tool_calls
    assert (call.arguments, call.raw) == ({}, None)


def test_a_missing_id_is_generated_and_unique_in_the_conversation() -> None:
    parts = fresh(used=["call_2", "call_1"])
    for _ in range(3):
        parts.add_call("f", {})
    ids = [call.id for call in complete(parts)[1].tool_calls]
    assert len({*ids, "call_1", "call_2"}) == 5
    assert "f" not in ids


def test_an_id_that_comes_twice_names_one_call_only() -> None:
    parts = fresh(used=["old"])
    for id in ("old", "new", "new"):
        parts.add_call("f", {}, id)
    ids = [call.id for call in complete(parts)[1].tool_calls]
    assert ids[1] == "new"
    assert len({*ids, "old"}) == 4


def test_parallel_calls_grow_side_by_side_and_keep_their_order() -> None:
    parts = fresh()
    parts.start_call("a", "f", "1")
    parts.start_call("b", "g", "2")
    parts.add_arguments("b", '{"y":')
    parts.add_arguments("a", '{"x": 1}')
    parts.add_arguments("b", " 2}")
    parts.end_call("b")
    events, response = complete(parts)
    lawful(events)
    assert response.tool_calls == (ToolCall("1", "f", {"x": 1}), ToolCall("2", "g", {"y": 2}))


def test_arguments_of_an_unknown_call_are_only_an_event() -> None:
    parts = fresh()
    parts.add_arguments("unknown", "{}")
    events, response = complete(parts)
    assert response.message.content == ()
    assert [event for event in events if isinstance(event, ProviderEvent)]


def test_a_signature_completes_its_part() -> None:
    parts = fresh()
    parts.add_thinking("hm")
    parts.set_signature("t", "thinking")
    parts.add_text("a")
    parts.set_signature("x")
    parts.add_text("b")
    parts.set_signature("alone", "thinking")
    assert complete(parts)[1].message.content == (
        Thinking("hm", "t"),
        Text("a", "x"),
        Text("b"),
        Thinking("", "alone"),
    )


def test_thinking_of_two_items_becomes_two_parts() -> None:
    parts = fresh()
    parts.add_thinking("a", "item-1")
    parts.add_thinking("b", "item-2")
    parts.add_redacted("secret", "item-3")
    assert complete(parts)[1].message == Message(
        "assistant",
        (
            Thinking("a", None, "item-1"),
            Thinking("b", None, "item-2"),
            RedactedThinking("secret", "item-3"),
        ),
        "gemini",
    )


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ("stop", "tool_calls"),
        ("other", "tool_calls"),
        ("tool_calls", "tool_calls"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("error", "error"),
    ],
)
def test_a_truncated_or_filtered_response_keeps_its_finish_reason_despite_calls(
    stated: Reason, reason: Reason
) -> None:
    parts = fresh()
    parts.add_call("f", {})
    parts.set_finish(stated, "RAW")
    assert parts.response().finish_reason == FinishReason(reason, "RAW")


def test_a_response_without_a_finish_reason_is_an_error() -> None:
    parts = fresh()
    parts.add_text("half")
    with pytest.raises(StreamBroken, match="ended before") as caught:
        parts.response()
    assert caught.value.hint


def test_an_empty_response_has_a_start_event() -> None:
    events, response = complete(fresh())
    assert events == [Start("", "model-x", "gemini")]
    assert response.message.content == ()
