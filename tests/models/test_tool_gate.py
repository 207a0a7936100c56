"""Tool calls are held back until they are decided; everything else is passed on at once. What the
agent gets is made again from what was read."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.judged_streams import gate_of, sent
from support.model_calls import FORMATS, recorded_streams
from support.raw_answers import post

from corral._models.registry import find_provider
from corral._models.spec import EVENT_STREAM, Wire
from corral._models.tool_gate import (
    NOT_PLAIN,
    ONE_ID,
    Incomplete,
    ToolGate,
    Unjudgeable,
    WireCall,
    wire_call,
)
from corral._protocol.response_builder import ResponseBuilder
from corral._protocol.sse import SseDecoder
from corral.model_types import Response
from corral.testing import Call, ModelServer, Turn
from corral.values import Json, JsonObject, decode_or_none, is_list, is_object

VENDORS = [name for name in sorted(FORMATS) if find_provider(name).wire.call_format]
CALLS: list[tuple[str, JsonObject]] = [("read_file", {"path": "a"}), ("ls", {})]


def wire_of(vendor: str) -> Wire:
    return find_provider(vendor).wire


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    return [data[start:end] for start, end in pairwise(places)]


def passed(gate: ToolGate, stream: bytes, cuts: list[int]) -> bytes:
    gate.start(EVENT_STREAM)
    return b"".join(map(gate.receive, pieces(stream, cuts)))


def responses(vendor: str, *turns: Turn, **more: object) -> list[bytes]:
    made = FORMATS[vendor]
    with ModelServer([*turns]) as server:
        return [post(server, made.path, {**made.body, **more}).encode() for _ in turns]


def response_of(vendor: str, stream: bytes) -> Response:
    """What a client reads from a stream."""
    provider, decoder = find_provider(vendor), SseDecoder()
    builder = ResponseBuilder(vendor, "model")
    events = [*decoder.receive(stream), *decoder.take_rest()]
    provider.wire.translator(provider)(events, builder)
    return builder.response()


def read_by_client(vendor: str, stream: bytes) -> tuple[str, list[str]]:
    """The text and the calls that a client reads from a stream."""
    response = response_of(vendor, stream)
    return response.text, [call.name for call in response.tool_calls]


def decoded(stream: bytes) -> list[Json]:
    """The events of a stream."""
    return [decode_or_none(data) or data.decode() for data in SseDecoder().receive(stream)]


@pytest.mark.parametrize("vendor", VENDORS)
@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 20_000), max_size=12))
def test_the_agent_reads_what_the_vendor_sent_however_it_is_cut(
    vendor: str, cuts: list[int]
) -> None:
    text_only, with_calls = recorded_streams(vendor)
    gate = gate_of(vendor)
    seen = passed(gate, text_only, cuts)
    assert gate.end() == ()
    assert decoded(seen + gate.release()) == decoded(text_only)
    gate = gate_of(vendor)
    seen = passed(gate, with_calls, cuts)
    assert [(call.name, call.arguments) for call in gate.end()] == CALLS
    # With the usage, the ids of the calls and the reason of the end.
    assert response_of(vendor, seen + gate.release()) == response_of(vendor, with_calls)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("vendor", VENDORS)
def test_calls_are_found_with_every_line_end_and_every_cut_at_one(
    vendor: str, line_end: bytes
) -> None:
    recorded = recorded_streams(vendor)[1]
    stream = recorded.replace(b"\r\n", b"\n").replace(b"\n", line_end)
    ends = [at for at, byte in enumerate(stream) if byte in b"\r\n"]
    for cut in {place for at in ends for place in (at, at + 1)}:
        gate = gate_of(vendor)
        seen = passed(gate, stream, [cut])
        assert [(call.name, call.arguments) for call in gate.end()] == CALLS, cut
        assert b"read_file" not in seen
        assert response_of(vendor, seen + gate.release()) == response_of(vendor, recorded)


def test_an_event_that_is_cut_is_not_passed_on() -> None:
    gate = gate_of("openai-chat")
    gate.start(EVENT_STREAM)
    gate.receive(b'data: {"choices":[')
    with pytest.raises(Incomplete):
        gate.end()


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_last_event_may_have_no_blank_line(vendor: str) -> None:
    stream = recorded_streams(vendor)[1]
    gate = gate_of(vendor)
    seen = passed(gate, stream.rstrip(b"\r\n"), [])
    assert len(gate.end()) == 2
    assert response_of(vendor, seen + gate.release()) == response_of(vendor, stream)


@pytest.mark.parametrize("vendor", VENDORS)
def test_text_is_passed_on_and_calls_are_held(vendor: str) -> None:
    text_only, with_calls = recorded_streams(vendor)
    gate = gate_of(vendor)
    seen = passed(gate, text_only, [])
    assert (gate.end(), gate.release()) == ((), b"")
    assert b"hel" in seen
    gate = gate_of(vendor)
    seen = passed(gate, with_calls, [])
    assert b"I look." in seen
    assert b"read_file" not in seen
    assert [(call.name, call.arguments) for call in gate.end()] == CALLS
    assert b"read_file" in gate.release()


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_response_that_is_not_streamed_is_judged_too(vendor: str) -> None:
    made = FORMATS[vendor]
    path = made.path.replace(":streamGenerateContent?alt=sse", ":generateContent")
    body = {k: v for k, v in made.body.items() if k not in ("stream", "stream_options")}
    calls = [Call(name, given) for name, given in CALLS]
    with ModelServer([Turn(text="I look.", calls=calls)]) as server:
        answer = post(server, path, body).encode()
    gate = gate_of(vendor)
    gate.start("application/json")
    assert b"".join(map(gate.receive, pieces(answer, [7, 100]))) == b""
    assert [(call.name, call.arguments) for call in gate.end()] == CALLS
    assert msgspec.json.decode(gate.release()) == _with_plain_arguments(msgspec.json.decode(answer))
    closed = gate.close("refused")
    builder = ResponseBuilder(vendor, "model")
    wire_of(vendor).read(closed, builder, find_provider(vendor))
    response = builder.response()
    assert (response.text, response.tool_calls) == ("refused", ())


def _with_plain_arguments(value: Json) -> Json:
    """The same JSON with the arguments of calls, which are JSON in a string, in one form."""
    if is_list(value):
        return list(map(_with_plain_arguments, value))
    if not is_object(value):
        return value
    found = {name: _with_plain_arguments(inner) for name, inner in value.items()}
    if isinstance(text := found.get("arguments"), str):
        found["arguments"] = msgspec.json.encode(msgspec.json.decode(text)).decode()
    return found


@pytest.mark.parametrize("vendor", VENDORS)
@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 20_000), max_size=6))
def test_the_response_after_a_refusal_continues_the_one_before(
    vendor: str, cuts: list[int]
) -> None:
    first = recorded_streams(vendor)[1]
    [second] = responses(vendor, Turn(text="then", calls=[Call("glob", {"pattern": "*"})]))
    gate = gate_of(vendor)
    seen = passed(gate, first, cuts)
    gate.end()
    request = msgspec.json.decode(gate.refuse(["denied", "not made"]) or b"")
    assert "denied" in str(request)
    seen += passed(gate, second, cuts)
    assert [call.name for call in gate.end()] == ["glob"]
    assert read_by_client(vendor, seen + gate.release()) == ("I look.then", ["glob"])


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_refused_response_can_be_ended_with_a_text(vendor: str) -> None:
    gate = gate_of(vendor)
    seen = passed(gate, recorded_streams(vendor)[1], [])
    gate.end()
    assert read_by_client(vendor, seen + gate.close(" Refused.")) == ("I look. Refused.", [])


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_model_gets_the_calls_and_the_refusals(vendor: str) -> None:
    """The vendor's own format of the request, as the scripted model reads it."""
    gate = gate_of(vendor)
    passed(gate, recorded_streams(vendor)[1], [])
    gate.end()
    body: JsonObject = msgspec.json.decode(gate.refuse(["denied by rule", "not made"]) or b"")
    with ModelServer([Turn(text="ok")]) as server:
        post(server, FORMATS[vendor].path, body)
        [request] = server.requests
    texts = [str(result) for _, result in request.tool_results]
    assert "denied by rule" in texts[0]
    assert "not made" in texts[1]
    calls = [call.name for message in request.history for call in message.calls]
    assert calls == [name for name, _ in CALLS]


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        ("text/html", b""),
        (EVENT_STREAM, b"data: {not json}\n\n"),
        (EVENT_STREAM, b"data: [1]\n\n"),
        (EVENT_STREAM, b"data: [DONE]\n\n"),
        (EVENT_STREAM, b'{"candidates":[]}\n\n'),
        (EVENT_STREAM, b' data: {"candidates":[]}\n\n'),
        (EVENT_STREAM, b'data: {"candidates":[]}\r\r'),
        (EVENT_STREAM, b'\xef\xbb\xbfdata: {"candidates":[]}\n\n'),
        (EVENT_STREAM, b'data: {"candidates":\ndata: []}\n\n'),
        (EVENT_STREAM, b'data: {"a":"\xff"}\n\n'),
        (EVENT_STREAM, b'data: {"a":{"__proto__":{}}}\n\n'),
        ("application/json", b"<html>"),
        ("application/json", b""),
        ("application/json", b'data: {"candidates":[]}\n\n'),
        ("application/json", b"[[]]"),
        ("application/json", b'\xef\xbb\xbf{"candidates":[]}'),
    ],
)
def test_what_cannot_be_read_is_not_passed_on(media_type: str, body: bytes) -> None:
    gate = gate_of("gemini")
    with pytest.raises(Unjudgeable):
        gate.start(media_type)
        assert gate.receive(body) == b""
        gate.end()


def test_a_stream_of_gemini_as_a_list_is_judged() -> None:
    made = FORMATS["gemini"]
    turn = Turn(text="I look.", calls=[Call("ls", {})])
    with ModelServer([turn]) as server:
        answer = post(server, made.path.partition("?")[0], made.body).encode()
    assert answer.startswith(b"[")
    gate = gate_of("gemini")
    gate.start("application/json")
    assert gate.receive(answer) == b""
    assert [call.name for call in gate.end()] == ["ls"]


def test_what_the_agent_gets_has_no_repeated_keys_and_no_other_line_ends() -> None:
    gate = gate_of("gemini")
    text = b'{"candidates":[],"x":1,"candidates":[{"content":{"parts":[{"text":"a\\u2028b"}]}}]}'
    seen = passed(gate, b": comment\nid: 7\ndata:" + text + b"\nretry: 10\n\n", [])
    expected = rb'{"candidates":[{"content":{"parts":[{"text":"a\u2028b"}]}}],"x":1}'
    assert seen == b"data: " + expected + b"\n\n"


def test_comments_of_the_vendor_become_empty_lines_even_while_a_call_is_held() -> None:
    gate = gate_of("openai-chat")
    start: Json = {"index": 0, "id": "c", "function": {"name": "ls", "arguments": "{}"}}
    held = sent({"choices": [{"index": 0, "delta": {"tool_calls": [start]}}]})
    assert passed(gate, held + b": PROCESSING\n\n", []) == b"\n"


def test_an_event_after_the_last_one_is_not_passed_on() -> None:
    gate = gate_of("openai-chat")
    with pytest.raises(Unjudgeable, match="goes on after"):
        passed(gate, b"data: [DONE]\n\n" + sent({"choices": []}), [])


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
def test_the_name_of_an_event_is_its_type(vendor: str) -> None:
    gate = gate_of(vendor)
    with pytest.raises(Unjudgeable, match="another type"):
        passed(gate, b'event: ping\ndata: {"type":"error"}\n\n', [])
    gate = gate_of(vendor)
    seen = passed(gate, b'event: error\ndata: {"error":{"message":"busy"}}\n\n', [])
    assert seen == b'event: error\ndata: {"error":{"message":"busy"},"type":"error"}\n\n'


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
def test_events_of_an_unknown_type_are_left_out(vendor: str) -> None:
    start, rest = _start_of(recorded_streams(vendor)[0]), recorded_streams(vendor)[0]
    new = b'event: response.new.delta\ndata: {"type":"response.new.delta","delta":"x"}\n\n'
    gate = gate_of(vendor)
    seen = passed(gate, start + new + rest.removeprefix(start), [])
    gate.end()
    assert decoded(seen + gate.release()) == decoded(rest)


@pytest.mark.parametrize("name", [" ls", "ls\n", "l\u017f", "", "a" * 300])
def test_a_name_that_agents_may_read_differently_is_a_problem_of_the_call(name: str) -> None:
    assert wire_call("", name, {}).problem == NOT_PLAIN


def test_two_calls_with_one_id_are_not_made() -> None:
    part: Json = {"functionCall": {"id": "1", "name": "ls", "args": {}}}
    gate = gate_of("gemini")
    passed(gate, sent({"candidates": [{"content": {"parts": [part, part]}}]}), [])
    assert [call.problem for call in gate.end()] == [ONE_ID, ONE_ID]


def test_signatures_of_gemini_are_sent_back_and_thoughts_are_not() -> None:
    [stream] = responses(
        "gemini", Turn(thoughts="hm", signature="signed", calls=[Call("ls", {}, "id-1")])
    )
    gate = gate_of("gemini")
    passed(gate, stream, [])
    gate.end()
    request = msgspec.json.decode(gate.refuse(["denied"]) or b"")
    [_, model, user] = request["contents"]
    [part] = model["parts"]
    assert "thoughtSignature" in part
    answer = {"id": "id-1", "name": "ls", "response": {"error": "denied"}}
    assert user == {"role": "user", "parts": [{"functionResponse": answer}]}


def test_tools_that_the_vendor_runs_are_found() -> None:
    tools: Json = [{"functionDeclarations": []}, {"googleSearch": {}}]
    assert gate_of("gemini", tools=tools).provider_tools == ["googleSearch"]


SEALED = {"include": ["reasoning.encrypted_content"], "store": False}


@pytest.mark.parametrize(("vendor", "more"), [("openai", SEALED), ("anthropic", {})])
def test_signed_reasoning_waits_for_what_follows_it(vendor: str, more: JsonObject) -> None:
    """A refused call takes its reasoning with it. Before a text it is passed on."""
    with_call, with_text = responses(
        vendor,
        Turn(thoughts="hm", signature="signed", calls=[Call("ls", {})]),
        Turn(thoughts="hm", signature="signed", text="hello"),
        **more,
    )
    gate = gate_of(vendor, **more)
    assert b"hm" not in passed(gate, with_call, [])
    gate.end()
    request = msgspec.json.encode(msgspec.json.decode(gate.refuse(["denied"]) or b""))
    assert b"hm" in request
    seen = passed(gate, with_text, [])
    assert b"hm" in seen
    assert gate.end() == ()
    assert read_by_client(vendor, _start_of(with_call) + seen)[0] == "hello"


def _start_of(stream: bytes) -> bytes:
    return stream.partition(b"\n\n")[0] + b"\n\n"


def test_a_message_with_thinking_that_was_shown_is_not_continued() -> None:
    [stream] = responses("anthropic", Turn(thoughts="hm", text="I look.", calls=[Call("ls", {})]))
    gate = gate_of("anthropic")
    assert b"hm" in passed(gate, stream, [])
    gate.end()
    assert gate.refuse(["denied"]) is None


@pytest.mark.parametrize(
    ("vendor", "end"), [("openai", b"response.output_item.done"), ("anthropic", b"message_delta")]
)
def test_a_call_that_is_not_complete_is_not_passed_on(vendor: str, end: bytes) -> None:
    [stream] = responses(vendor, Turn(calls=[Call("ls", {})]))
    gate = gate_of(vendor)
    last = b"content_block_stop" if vendor == "anthropic" else end
    passed(gate, stream.rpartition(b"event: " + last)[0], [])
    with pytest.raises(Incomplete, match="not complete"):
        gate.end()


def test_the_items_of_a_continued_response_are_numbered_on() -> None:
    first = recorded_streams("openai")[1]
    [second] = responses("openai", Turn(text="then"))
    gate = gate_of("openai")
    seen = passed(gate, first, [])
    gate.end()
    gate.refuse(["denied", "not made"])
    seen += passed(gate, second, [])
    gate.end()
    events = [msgspec.json.decode(data) for data in SseDecoder().receive(seen)]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    added = [e["output_index"] for e in events if e["type"] == "response.output_item.added"]
    assert added == [0, 1]
    assert [event["type"] for event in events].count("response.created") == 1
    last = events[-1]["response"]["output"]
    assert [item["content"][0]["text"] for item in last] == ["I look.", "then"]


@pytest.mark.parametrize(
    ("vendor", "more", "expected"),
    [
        ("openai", {"tools": [{"type": "web_search"}, {"type": "function"}]}, ["web_search"]),
        ("openai", {"tools": [{"type": "mcp"}, {"type": "custom"}]}, ["mcp"]),
        ("openai-chat", {"web_search_options": {"a": 1}}, ["web_search_options"]),
        ("openai-chat", {"tools": [{"type": "function"}]}, []),
        ("anthropic", {"tools": [{"type": "web_search_20250305"}]}, ["web_search_20250305"]),
        ("anthropic", {"tools": [{"name": "x"}, {"type": "bash_20250124"}]}, []),
        ("anthropic", {"mcp_servers": [{"url": "x"}]}, ["mcp_servers"]),
    ],
)
def test_tools_of_each_vendor_are_found(vendor: str, more: JsonObject, expected: list[str]) -> None:
    assert gate_of(vendor, **more).provider_tools == expected


def test_fields_that_a_vendor_adds_to_a_call_are_sent_back() -> None:
    function: Json = {"name": "ls", "arguments": "{"}
    extra: Json = {"google": {"thought_signature": "signed"}}
    start: Json = {"index": 0, "id": "c", "type": "function", "function": function}
    chunks: list[Json] = [
        {"choices": [{"index": 0, "delta": {"reasoning_content": "h", "role": "assistant"}}]},
        {"choices": [{"index": 0, "delta": {"reasoning_content": "m"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [start]}}]},
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {
                        "tool_calls": [
                            {"index": 0, "extra_content": extra, "function": {"arguments": "}"}}
                        ]
                    },
                }
            ]
        },
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ]
    gate = gate_of("openai-chat")
    passed(gate, sent(*chunks), [])
    assert gate.end() == (WireCall(call_id="c", name="ls", arguments={}),)
    request = msgspec.json.decode(gate.refuse(["denied"]) or b"")
    [_, message, answer] = request["messages"]
    assert message["reasoning_content"] == "hm"
    [call] = message["tool_calls"]
    assert (call["extra_content"], call["function"]["arguments"]) == (extra, "{}")
    assert answer == {"role": "tool", "tool_call_id": "c", "content": "denied"}


@pytest.mark.parametrize("other", [{"id": "d"}, {"function": {"name": "rm"}}])
def test_a_call_that_clients_may_join_differently_is_not_made(other: JsonObject) -> None:
    start: Json = {"index": 0, "id": "c", "function": {"name": "ls", "arguments": "{}"}}
    changes: list[Json] = [start, {"index": 0, **other}]
    chunks: list[Json] = [
        {"choices": [{"index": 0, "delta": {"tool_calls": [each]}}]} for each in changes
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    gate = gate_of("openai-chat")
    passed(gate, sent(*chunks), [])
    [call] = gate.end()
    assert "two names" in call.problem
