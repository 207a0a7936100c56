"""Tool calls in OpenAI's responses: they agree in all events, and everything else is refused."""

from __future__ import annotations

import pytest
from support.judged_streams import judged, judged_body
from support.openai_streams import called, responded, text_item, thought

from corral._models.tool_gate import Incomplete, Unjudgeable, wire_call
from corral._protocol.sse import SseDecoder
from corral.values import Json, JsonObject, as_list, as_object, decode_or_none

CALL: JsonObject = {
    "type": "function_call",
    "id": "fc",
    "call_id": "c",
    "name": "ls",
    "arguments": '{"a":1}',
}
MESSAGE: JsonObject = {"type": "message", "id": "m", "role": "assistant", "content": []}
OUTER: JsonObject = {"id": "r", "output": []}
CREATED: JsonObject = {"type": "response.created", "response": OUTER}


def added(index: Json, item: Json) -> JsonObject:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: Json, item: Json) -> JsonObject:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(index: Json, text: Json) -> JsonObject:
    kind = "response.function_call_arguments.delta"
    return {"type": kind, "output_index": index, "delta": text}


def arguments(index: Json, text: Json) -> JsonObject:
    kind = "response.function_call_arguments.done"
    return {"type": kind, "output_index": index, "arguments": text}


def completed(*items: Json) -> JsonObject:
    return {"type": "response.completed", "response": {"id": "r", "output": [*items]}}


def events_of(stream: bytes) -> list[JsonObject]:
    return [as_object(decode_or_none(data)) for data in SseDecoder().receive(stream)]


def test_a_stream_without_calls_passes_as_it_is() -> None:
    events = events_of(responded(thought(("hm",)), text_item("Hel", "lo")).stream)
    assert judged("openai", *events) == (events, [])


def test_the_agent_gets_calls_one_after_the_other_and_in_one_piece() -> None:
    """Their pieces may come by turns. Some clients join each to the call that started last."""
    first = called("ls", '{"a":', " 1}", id="f1", call_id="c1")
    second = called("rm", '{"b":', " 2}", id="f2", call_id="c2")
    events, calls = judged("openai", *events_of(responded(first, second).stream))
    assert calls == [wire_call("c1", "ls", {"a": 1}), wire_call("c2", "rm", {"b": 2})]
    kinds = [str(event["type"]).removeprefix("response.") for event in events]
    one_call = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert kinds == ["created", "in_progress", *one_call, *one_call, "completed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["output_index"] for event in events[2:-1]] == [0] * 4 + [1] * 4
    assert [events[3]["delta"], events[7]["delta"]] == ['{"a":1}', '{"b":2}']
    output = as_list(as_object(events[-1]["response"])["output"])
    assert [as_object(item)["arguments"] for item in output] == ['{"a":1}', '{"b":2}']


def test_custom_calls_and_calls_that_come_only_at_their_end() -> None:
    custom: JsonObject = {
        "type": "custom_tool_call",
        "id": "ct",
        "call_id": "d",
        "name": "patch",
        "input": "text",
    }
    events, calls = judged("openai", CREATED, done(0, CALL), done(1, custom), completed())
    assert calls == [wire_call("c", "ls", {"a": 1}), wire_call("d", "patch", {"input": "text"})]
    assert as_object(events[-1]["response"])["output"] == [CALL, custom]


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([{**CREATED, "response": {"output": [CALL]}}], "begins with output"),
        ([added(1, CALL)], "do not follow each other"),
        ([added("0", CALL)], "output_index is not a number"),
        ([done(3, CALL)], "do not follow each other"),
        ([added(0, [CALL])], "item is not an object"),
        ([delta(0, "{}")], "item that is not open"),
        ([added(0, MESSAGE), delta(0, "{}")], "item that is not open"),
        ([added(0, CALL), delta(0, {"a": 1})], "delta is not a string"),
        ([added(0, CALL), done(0, MESSAGE)], "ends as another one"),
        ([added(0, CALL), done(0, {**CALL, "id": "x"})], "ends as another one"),
        ([added(0, MESSAGE), done(0, CALL)], "ends as another one"),
        ([added(0, {**CALL, "name": "rm"}), done(0, CALL)], "another name"),
        ([added(0, CALL), delta(0, '{"a":2}'), done(0, CALL)], "not what was streamed"),
        ([added(0, CALL), arguments(0, '{"a":2}'), done(0, CALL)], "not what was streamed"),
        ([done(0, {**CALL, "arguments": {"a": 1}})], "arguments is not a string"),
        ([done(0, {**CALL, "namespace": "other"})], "namespace that is not known: 'other'"),
        ([done(0, CALL), completed({**CALL, "name": "rm"})], "other tool calls"),
        ([done(0, CALL), completed(CALL, {**CALL, "call_id": "d"})], "other tool calls"),
        ([done(0, MESSAGE), completed(MESSAGE, CALL)], "other tool calls"),
        ([completed(CALL)], "did not come before"),
        ([completed(), added(0, CALL)], "after the end"),
        ([completed(), completed()], "after the end"),
        ([{"type": "response.completed", "response": {"output": {"0": CALL}}}], "not a list"),
        ([added(0, {"type": "new_call"})], "unknown kind: 'new_call'"),
        ([added(0, {"type": "computer_call"})], "unknown kind: 'computer_call'"),
        ([added(0, {"type": "local_shell_call"})], "did not ask for: 'local_shell_call'"),
        ([added(0, {"type": "mcp_call"})], "did not ask for: 'mcp_call'"),
        ([added(0, {"type": "code_interpreter_call"})], "did not ask for"),
        ([added(0, {**MESSAGE, "content": [{"type": "tool_use"}]})], "unknown kind: 'tool_use'"),
        ([added(0, {**MESSAGE, "tool_calls": [CALL]})], "tool_calls"),
        ([{"type": "response.content_part.added", "part": CALL}], "unknown kind"),
        ([{**CREATED, "extra": [CALL]}], "extra"),
    ],
)
def test_every_other_order_or_form_is_refused(events: list[Json], error: str) -> None:
    with pytest.raises(Unjudgeable, match=error):
        judged("openai", *events)


def test_a_call_that_has_not_ended_is_not_complete() -> None:
    with pytest.raises(Incomplete):
        judged("openai", added(0, CALL), completed())


def test_the_last_event_lists_what_came_before() -> None:
    """Also if the vendor leaves it out."""
    events, _ = judged("openai", CREATED, added(0, MESSAGE), done(0, MESSAGE), completed())
    assert as_object(events[-1]["response"])["output"] == [MESSAGE]


def test_groups_and_built_in_tools_that_the_request_has() -> None:
    tools: Json = [{"type": "namespace", "name": "srv"}, {"type": "local_shell"}]
    grouped: JsonObject = {**CALL, "namespace": "srv"}
    shell: JsonObject = {
        "type": "local_shell_call",
        "id": "l",
        "call_id": "d",
        "action": {"command": ["ls"]},
    }
    events, calls = judged("openai", done(0, grouped), done(1, shell), completed(), tools=tools)
    assert calls == [wire_call("c", "srv__ls", {"a": 1}), wire_call("d", "local_shell", shell)]
    assert [event.get("item") for event in events[4:6]] == [shell, shell]


def test_events_of_the_vendors_tools_pass_if_the_request_asks_for_them() -> None:
    item: JsonObject = {"type": "web_search_call", "id": "ws", "status": "completed"}
    search: JsonObject = {"type": "response.web_search_call.searching", "output_index": 0}
    events = [CREATED, added(0, item), search, done(0, item), completed(item)]
    assert judged("openai", *events, tools=[{"type": "web_search"}]) == (events, [])
    assert judged("openai", CREATED, search, completed())[0] == [CREATED, completed()]


def test_a_response_that_is_not_streamed_is_read_in_the_same_way() -> None:
    body: JsonObject = {**OUTER, "output": [MESSAGE, CALL]}
    assert judged_body("openai", body) == (body, [wire_call("c", "ls", {"a": 1})])
    for other, error in (
        ({"output": {"0": CALL}}, "not a list"),
        ({"output": [{"type": "new_call"}]}, "unknown kind"),
        ({"output": [], "tool_calls": [CALL]}, "tool_calls"),
    ):
        with pytest.raises(Unjudgeable, match=error):
            judged_body("openai", other)


def test_what_a_response_repeats_of_its_request_is_not_taken_for_a_call() -> None:
    tool: Json = {"type": "function", "name": "x", "parameters": {"tool_calls": {"type": "list"}}}
    event: JsonObject = {**CREATED, "response": {**OUTER, "tools": [tool]}}
    assert judged("openai", event) == ([event], [])
