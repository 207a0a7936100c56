"""Tool calls in chat completions: one form is read, and everything else is refused."""

from __future__ import annotations

import pytest
from support.judged_streams import judged, judged_body

from corral._models.tool_gate import Incomplete, Unjudgeable, wire_call
from corral.values import Json, JsonObject

CALL: JsonObject = {
    "index": 0,
    "id": "c",
    "type": "function",
    "function": {"name": "ls", "arguments": '{"a":1}'},
}


def chunk(delta: Json = None, finish: Json = None, **more: Json) -> JsonObject:
    return {"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


def piece(text: str, index: Json = 0, **more: Json) -> JsonObject:
    return chunk({"tool_calls": [{"index": index, "function": {"arguments": text}, **more}]})


END = chunk({}, "tool_calls")


def test_the_agent_gets_all_calls_in_one_change_before_the_end() -> None:
    """Some clients join pieces by their id or to the last call; some make a call as soon as its
    arguments are complete."""
    first: Json = {**CALL, "function": {"name": "ls", "arguments": ""}}
    second: Json = {"index": 3, "id": "d", "function": {"name": "rm", "arguments": ""}}
    changes = [
        chunk({"role": "assistant", "content": None, "tool_calls": [first]}),
        chunk({"tool_calls": [second]}),
        piece('{"b"', 3),
        piece('{"a": 1, '),
        piece(": 2}", 3),
        piece('"a": 3}'),
    ]
    events, calls = judged("openai-chat", *changes, END)
    assert calls == [wire_call("c", "ls", {"a": 3}), wire_call("d", "rm", {"b": 2})]
    made: Json = [
        {**CALL, "function": {"name": "ls", "arguments": '{"a":3}'}},
        {"index": 1, "id": "d", "function": {"name": "rm", "arguments": '{"b":2}'}},
    ]
    assert events == [
        chunk({"role": "assistant", "content": None}),
        chunk({"tool_calls": made}),
        END,
    ]


def test_the_end_may_come_with_the_call() -> None:
    events, calls = judged("openai-chat", chunk({"tool_calls": [CALL]}, "tool_calls"))
    assert len(calls) == 1
    assert events == [chunk({"tool_calls": [CALL]}), END]


def test_text_usage_and_unknown_metadata_pass() -> None:
    details: Json = [{"type": "reasoning.encrypted", "data": "x"}]
    events: list[Json] = [
        chunk({"content": "hi", "reasoning_details": details, "function_call": None}),
        chunk({"content": [{"type": "text", "text": "x"}]}),
        chunk({"tool_calls": None}, ""),
        {"choices": [], "usage": {"total_tokens": 3}},
        {"error": {"message": "busy"}},
    ]
    assert judged("openai-chat", *events) == (events, [])


REFUSED: list[tuple[JsonObject, str]] = [
    ({"choices": {"0": {"delta": {"tool_calls": [CALL]}}}}, "choices is not a list"),
    ({"choices": [chunk()["choices"], {}]}, "not an object"),
    ({"choices": [{"delta": {}}, {"delta": {}}]}, "several choices"),
    ({"choices": [{"index": 1, "delta": {}}]}, "several choices"),
    (chunk([CALL]), "delta is not an object"),
    (chunk({"tool_calls": {"0": CALL}}), "tool_calls is not a list"),
    (chunk({"tool_calls": ["x"]}), "not an object"),
    (chunk({"function_call": {"name": "ls"}}), "old versions"),
    (chunk({"functionCall": {"name": "ls"}}), "functionCall"),
    (chunk({"toolCalls": [CALL]}), "toolCalls"),
    (chunk({}, message={"tool_calls": [CALL]}), "message"),
    ({"tool_calls": [CALL], "choices": []}, "tool_calls"),
    (chunk({"tool_calls": [{**CALL, "type": "new"}]}), "unknown kind: 'new'"),
    (chunk({"tool_calls": [{**CALL, "custom": {"name": "rm"}}]}), "two kinds"),
    (chunk({"tool_calls": [{**CALL, "type": "custom"}]}), "two kinds"),
    (chunk({"tool_calls": [{**CALL, "index": "0"}]}), "index is not a number"),
    (chunk({"tool_calls": [{**CALL, "function": ["ls"]}]}), "function is not an object"),
    (
        chunk({"tool_calls": [{**CALL, "function": {"name": "ls", "arguments": {"a": 1}}}]}),
        "arguments is not a string",
    ),
    (chunk({"content": [{"type": "tool_use"}]}), "unknown kind: 'tool_use'"),
    (chunk({"content": {"a": 1}}), "content is not a string"),
]


@pytest.mark.parametrize(("event", "error"), REFUSED)
def test_every_other_form_is_refused(event: JsonObject, error: str) -> None:
    with pytest.raises(Unjudgeable, match=error):
        judged("openai-chat", event)


def test_a_call_after_the_end_or_without_one_is_not_passed_on() -> None:
    with pytest.raises(Unjudgeable, match="after the end"):
        judged("openai-chat", END, chunk({"tool_calls": [CALL]}))
    with pytest.raises(Incomplete):
        judged("openai-chat", chunk({"tool_calls": [CALL]}))


def test_custom_calls_are_read() -> None:
    custom: JsonObject = {
        "index": 0,
        "id": "c",
        "type": "custom",
        "custom": {"name": "patch", "input": "te"},
    }
    more: Json = {"index": 0, "custom": {"input": "xt"}}
    events, calls = judged(
        "openai-chat", chunk({"tool_calls": [custom]}), chunk({"tool_calls": [more]}), END
    )
    assert calls == [wire_call("c", "patch", {"input": "text"})]
    made: Json = {**custom, "custom": {"name": "patch", "input": "text"}}
    assert events == [chunk({"tool_calls": [made]}), END]


def test_a_message_that_is_not_streamed_is_read_in_the_same_way() -> None:
    call = {name: value for name, value in CALL.items() if name != "index"}

    def body(message: Json) -> JsonObject:
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    given = body({"role": "assistant", "content": None, "tool_calls": [call]})
    assert judged_body("openai-chat", given) == (given, [wire_call("c", "ls", {"a": 1})])
    plain = body({"role": "assistant", "content": "hi"})
    assert judged_body("openai-chat", plain) == (plain, [])
    for other, error in (
        (body({"tool_calls": {"0": call}}), "not a list"),
        (body({"function_call": {"name": "ls"}}), "old versions"),
        (body([call]), "message is not an object"),
        ({"choices": {"0": {"message": {"tool_calls": [call]}}}}, "not a list"),
    ):
        with pytest.raises(Unjudgeable, match=error):
            judged_body("openai-chat", other)
