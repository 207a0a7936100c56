"""Tool calls in messages of Anthropic: one form is read, and everything else is refused."""

from __future__ import annotations

import pytest
from support.judged_streams import judged, judged_body

from corral._models.tool_gate import Unjudgeable, wire_call
from corral.values import Json, JsonObject

START: JsonObject = {"type": "message_start", "message": {"id": "m", "content": [], "usage": {}}}
CALL: JsonObject = {"type": "tool_use", "id": "t", "name": "ls", "input": {}}
END: list[JsonObject] = [
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
    {"type": "message_stop"},
]
TEXT: JsonObject = {"type": "text", "text": ""}


def started(index: Json, block: Json) -> JsonObject:
    return {"type": "content_block_start", "index": index, "content_block": block}


def changed(index: Json, kind: str, **fields: Json) -> JsonObject:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stopped(index: Json) -> JsonObject:
    return {"type": "content_block_stop", "index": index}


def arguments(index: Json, text: Json) -> JsonObject:
    return changed(index, "input_json_delta", partial_json=text)


def test_the_agent_gets_the_input_of_a_call_in_one_piece() -> None:
    pieces = [arguments(0, '{"a": 1,'), arguments(0, ""), arguments(0, ' "a": 2}')]
    events, calls = judged("anthropic", START, started(0, CALL), *pieces, stopped(0), *END)
    assert calls == [wire_call("t", "ls", {"a": 2})]
    assert events == [START, started(0, CALL), arguments(0, '{"a":2}'), stopped(0), *END]


def test_the_input_may_come_with_the_start() -> None:
    given: JsonObject = {**CALL, "input": {"a": 1}, "caller": {"type": "direct"}}
    events, calls = judged("anthropic", START, started(0, given), stopped(0), *END)
    assert calls == [wire_call("t", "ls", {"a": 1})]
    made = started(0, {**CALL, "caller": {"type": "direct"}})
    assert events == [START, made, arguments(0, '{"a":1}'), stopped(0), *END]


def test_text_after_a_call_is_held_and_a_refusal_drops_it() -> None:
    events, calls = judged(
        "anthropic", START, started(0, CALL), stopped(0), started(1, TEXT), stopped(1), *END
    )
    assert len(calls) == 1
    assert [event["type"] for event in events[4:6]] == ["content_block_start", "content_block_stop"]


def test_pings_errors_and_unknown_metadata_pass() -> None:
    events: list[Json] = [
        {"type": "ping"},
        {**START, "new": {"a": 1}},
        started(0, TEXT),
        changed(0, "text_delta", text="hi"),
        {"type": "ping"},
        stopped(0),
        {"type": "error", "error": {"type": "overloaded_error"}},
    ]
    assert judged("anthropic", *events) == (events, [])


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([{"type": "message_start", "message": {"content": [CALL]}}], "begins with content"),
        ([{"type": "message_start", "message": [CALL]}], "message is not an object"),
        ([{"type": "message_start", "message": {"content": {"0": CALL}}}], "content is not a list"),
        ([START, START], "message_start comes inside"),
        ([started(0, CALL)], "comes before the message"),
        ([START, started(1, CALL)], "do not follow each other"),
        ([START, started("0", CALL)], "do not follow each other"),
        ([START, started(0, TEXT), started(1, CALL)], "do not follow each other"),
        ([START, started(0, TEXT), stopped(0), started(0, CALL)], "do not follow each other"),
        ([START, started(0, CALL), arguments(1, "{}")], "block that is not open"),
        ([START, started(0, CALL), stopped(0), arguments(0, "{}")], "block that is not open"),
        ([START, started(0, CALL), stopped(1)], "block that is not open"),
        ([START, started(0, TEXT), arguments(0, "{}")], "input_json_delta"),
        ([START, started(0, CALL), changed(0, "text_delta", text="x")], "text_delta"),
        ([START, started(0, TEXT), changed(0, "new_delta")], "new_delta"),
        ([START, started(0, CALL), arguments(0, {"a": 1})], "partial_json is not a string"),
        (
            [START, started(0, {**CALL, "input": {"a": 1}}), arguments(0, '{"b":1}'), stopped(0)],
            "its input twice",
        ),
        ([START, started(0, {"type": "new_tool_use"})], "unknown kind: 'new_tool_use'"),
        ([START, started(0, {"type": "server_tool_use"})], "did not ask for: 'server_tool_use'"),
        ([START, started(0, {"type": "mcp_tool_use"})], "did not ask for: 'mcp_tool_use'"),
        ([START, started(0, {**TEXT, "tool_use": CALL})], "tool_use"),
        ([START, {**started(0, TEXT), "extra": [CALL]}], "extra"),
        ([START, started(0, CALL), *END], "does not stop"),
        ([START, *END, started(0, CALL)], "comes after the message"),
        ([START, *END, START], "comes after the message"),
    ],
)
def test_every_other_order_or_form_is_refused(events: list[Json], error: str) -> None:
    with pytest.raises(Unjudgeable, match=error):
        judged("anthropic", *events)


def test_blocks_of_the_vendors_tools_pass_if_the_request_asks_for_them() -> None:
    use: JsonObject = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found: JsonObject = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    events: list[Json] = [
        START,
        started(0, use),
        arguments(0, '{"query":"x"}'),
        stopped(0),
        started(1, found),
        stopped(1),
        *END,
    ]
    tools: Json = [{"type": "web_search_20250305", "name": "web_search"}]
    assert judged("anthropic", *events, tools=tools) == (events, [])


def test_a_message_that_is_not_streamed_is_read_in_the_same_way() -> None:
    body: JsonObject = {"type": "message", "content": [TEXT, {**CALL, "input": {"a": 1}}]}
    assert judged_body("anthropic", body) == (body, [wire_call("t", "ls", {"a": 1})])
    [call] = judged_body("anthropic", {"content": [{**CALL, "input": "{}"}]})[1]
    assert "not a JSON object" in call.problem
    for other, error in (
        ({"content": {"0": CALL}}, "not a list"),
        ({"content": [{"type": "new"}]}, "unknown kind"),
        ({"content": [{**CALL, "name": 1}]}, "name is not a string"),
        ({"content": [], "tool_calls": [CALL]}, "tool_calls"),
    ):
        with pytest.raises(Unjudgeable, match=error):
            judged_body("anthropic", other)
