"""Anthropic's responses, read by corral and by the vendor's SDK with the same result."""

# The SDK is generic over what it parses, which the checkers cannot follow.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import errors
from corral._models.anthropic.spec import PROVIDERS, WIRE
from corral._models.spec import FailedResponse
from corral._protocol.response_builder import ResponseBuilder
from corral._protocol.sse import SseDecoder
from corral.errors import CorralError, StreamBroken
from corral.messages import (
    Message,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from corral.model_types import FinishReason, ProviderEvent, Request, Response, TextDelta
from corral.values import Json, Usage

if TYPE_CHECKING:
    import anthropic

pytestmark = pytest.mark.usefixtures("anthropic_sdk")
PROVIDER = PROVIDERS[0]
MODEL = "claude-opus-4-6"
Event = dict[str, Any]

# The example of the API's documentation, byte for byte.
HELLO = b"""\
event: message_start
data: {"type": "message_start", "message": {"id": "msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyY", \
"type": "message", "role": "assistant", "content": [], "model": "claude-opus-4-6", \
"stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 25, "output_tokens": 1}}}

event: content_block_start
data: {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}

event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "!"}}

event: content_block_stop
data: {"type": "content_block_stop", "index": 0}

event: message_delta
data: {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence":null}, \
"usage": {"output_tokens": 15}}

event: message_stop
data: {"type": "message_stop"}

"""


def start(**usage: int) -> Event:
    usage = usage or {"input_tokens": 20, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    facts = {"model": MODEL, "stop_reason": None, "stop_sequence": None, "usage": usage}
    return {"type": "message_start", "message": {**message, **facts}}


def block(index: int, block: Event, *deltas: Event) -> list[Event]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *pieces: str) -> list[Event]:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block(index, {"type": "text", "text": ""}, *deltas)


def thinking(index: int, signature: str, *pieces: str) -> list[Event]:
    deltas: list[Event] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    deltas.append({"type": "signature_delta", "signature": signature})
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas)


def use(index: int, id: str, name: str, *pieces: str) -> list[Event]:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(index, {"type": "tool_use", "id": id, "name": name, "input": {}}, *deltas)


def end(reason: str, more: Event | None = None, **usage: Any) -> list[Event]:
    delta = {"stop_reason": reason, "stop_sequence": None, **(more or {})}
    counts = usage or {"output_tokens": 30}
    return [{"type": "message_delta", "delta": delta, "usage": counts}, {"type": "message_stop"}]


def stream(*events: Event | list[Event]) -> bytes:
    flat = [e for each in events for e in (each if isinstance(each, list) else [each])]
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in flat
    )


RECORDINGS: dict[str, bytes] = {
    "text": HELLO,
    "thinking and its signature": stream(
        start(),
        thinking(0, "EqQBCgIYAhIM1gbcDa9GJwZA2b3h", "Let me solve", " this:\n\n1. 27 * 453"),
        text(1, "27 * 453 = ", "12,231"),
        end("end_turn"),
    ),
    "thoughts that are not shown": stream(
        start(), thinking(0, "EosnCkYICxIMMb3LzNrMu"), text(1, "12,231"), end("end_turn")
    ),
    "parallel calls in pieces": stream(
        start(
            input_tokens=472,
            cache_read_input_tokens=1000,
            cache_creation_input_tokens=30,
            output_tokens=2,
        ),
        text(0, "Okay", ", let me look."),
        use(
            1, "toolu_01T1x1fJ34qAmk2tNTrN7Up6", "get_weather", "", '{"location":', ' "San', ' F"}'
        ),
        use(2, "toolu_02", "get_weather", "", '{"location": "Oslo", "unit": "c"}'),
        use(3, "toolu_03", "now"),
        end(
            "tool_use",
            output_tokens=89,
            output_tokens_details={"thinking_tokens": 7},
        ),
    ),
    "redacted thinking": stream(
        start(),
        thinking(0, "sig", "Hm."),
        block(1, {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4a"}),
        text(2, "Based on that"),
        end("end_turn"),
    ),
    "a refusal": stream(
        start(),
        text(0, "I can"),
        end(
            "refusal",
            {"stop_details": {"type": "refusal", "category": "bio", "explanation": "No."}},
        ),
    ),
    "max_tokens in the middle of a call": stream(
        start(), use(0, "toolu_1", "write", '{"text": "once upon'), end("max_tokens")
    ),
    "two texts": stream(start(), text(0, "one"), text(1, "two"), end("stop_sequence")),
    "a pause": stream(
        start(),
        block(0, {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
        text(1, "It says"),
        end("pause_turn", input_tokens=99, output_tokens=40),
    ),
}


def parsed(recording: bytes, size: int | None = None) -> ResponseBuilder:
    """The recording read in chunks of this size; in one chunk by default."""
    parts, sse, translate = (
        ResponseBuilder("anthropic", MODEL),
        SseDecoder(),
        WIRE.translator(PROVIDER),
    )
    step = size or len(recording) or 1
    for at in range(0, len(recording), step):
        translate(sse.receive(recording[at : at + step]), parts)
    return parts


def streamed(recording: bytes, size: int | None = None) -> Response:
    return parsed(recording, size).response()


def read(body: bytes) -> Response:
    parts = ResponseBuilder("anthropic", MODEL)
    WIRE.read(body, parts, PROVIDER)
    return parts.response()


def by_sdk(recording: bytes) -> anthropic.types.Message:
    """The message that the vendor's SDK makes of the recording."""
    import anthropic

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, content=recording, headers={"content-type": "text/event-stream"}
        )

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    with (
        anthropic.Anthropic(api_key="k", http_client=http, max_retries=0) as client,
        client.messages.stream(model=MODEL, max_tokens=9, messages=[]) as events,
    ):
        return cast("anthropic.types.Message", events.get_final_message())


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_stream_is_read_in_the_same_way_as_by_the_sdk(name: str) -> None:
    ours, theirs = streamed(RECORDINGS[name]), by_sdk(RECORDINGS[name])
    seen: list[tuple[str, ...]] = []
    calls: list[tuple[str, str, object]] = []
    for each in theirs.content:
        if each.type == "text":
            seen.append(("text", each.text))
        elif each.type == "thinking":
            seen.append(("thinking", each.thinking, each.signature))
        elif each.type == "redacted_thinking":
            seen.append(("redacted", each.data))
        elif each.type == "tool_use":
            calls.append((each.id, each.name, each.input))
    parts: list[tuple[str, ...]] = []
    for part in ours.message.content:
        if isinstance(part, Text):
            parts.append(("text", part.text))
        elif isinstance(part, Thinking):
            parts.append(("thinking", part.text, part.signature or ""))
        elif isinstance(part, RedactedThinking):
            parts.append(("redacted", part.data))
    assert parts == seen
    if ours.finish_reason.reason != "length":  # the SDK guesses at half a call
        assert [(call.id, call.name, call.arguments) for call in ours.tool_calls] == calls
    assert (ours.id, ours.model) == (theirs.id, theirs.model)
    assert ours.finish_reason.raw == theirs.stop_reason
    usage, counted = ours.usage, theirs.usage
    cached = (counted.cache_read_input_tokens or 0) + (counted.cache_creation_input_tokens or 0)
    assert usage.input == counted.input_tokens + cached
    assert usage.output == counted.output_tokens
    assert usage.cache_read == counted.cache_read_input_tokens
    assert usage.cache_write == counted.cache_creation_input_tokens


@pytest.mark.parametrize("name", [name for name in RECORDINGS if name[:10] != "max_tokens"])
def test_an_answer_is_the_same_streamed_and_not_streamed(name: str) -> None:
    recording = RECORDINGS[name]
    assert read(by_sdk(recording).to_json().encode()) == streamed(recording)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_stream_cut_at_any_byte_gives_the_same_answer_or_an_error(name: str) -> None:
    recording = RECORDINGS[name]
    complete = streamed(recording)
    for size in (1, 2, 3, 7, 64, 1000):
        assert streamed(recording, size) == complete
    for length in range(len(recording)):
        try:
            assert streamed(recording[:length]) == complete
        except StreamBroken:
            continue


def test_usage_includes_cached_tokens() -> None:
    assert streamed(RECORDINGS["parallel calls in pieces"]).usage == Usage(
        input=1502, output=89, reasoning=7, cache_read=1000, cache_write=30, coverage="complete"
    )
    assert streamed(RECORDINGS["a pause"]).usage.input == 99


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "other"),
        ("something_new", "other"),
    ],
)
def test_the_finish_reason_is_read(raw: str, reason: str) -> None:
    answer = streamed(stream(start(), text(0, "x"), end(raw)))
    assert (answer.finish_reason.reason, answer.finish_reason.raw) == (reason, raw)


def test_the_finish_reason_is_tool_calls_unless_the_calls_are_truncated() -> None:
    calls = use(0, "t", "f", "{}")
    assert streamed(stream(start(), calls, end("tool_use"))).finish_reason.reason == "tool_calls"
    assert streamed(stream(start(), calls, end("max_tokens"))).finish_reason.reason == "length"


def test_a_denial_has_its_reason() -> None:
    assert streamed(RECORDINGS["a refusal"]).warnings == ("No.",)


def test_a_signature_survives_a_round_of_tools() -> None:
    recording = stream(
        start(), thinking(0, "sig==", "Look."), use(1, "t", "f", "{}"), end("tool_use")
    )
    answer = streamed(recording)
    history = (Message.user("Hi"), answer.message, Message.tool(ToolResult("t", "1")))
    made = WIRE.encode(Request(model=MODEL, messages=history), PROVIDER, True)
    messages = cast("list[Any]", made.body["messages"])
    assert messages[1]["content"] == [
        {"type": "thinking", "thinking": "Look.", "signature": "sig=="},
        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    ]


# --- a schema's tool ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "pieces", "parsed"),
    [
        ("corral_result", ['{"a": ', '"x \\" {', '}", "b" : [1]}'], '{"a":"x \\" {}","b":[1]}'),
        ("corral_result", ["{}"], "{}"),
        ("corral_value", ['{"val', 'ue"', ": [1", ', {"a": 2}]', "}"], '[1,{"a":2}]'),
        ("corral_value", ['{"value": {"a": {}}}'], '{"a":{}}'),
        ("corral_value", ['{"value": {"a": {}}', "}"], '{"a":{}}'),
        ("corral_value", ['{"value": "}', '}"', "} \n"], '"}}"'),
        ("corral_value", ['{"value": true}'], "true"),
        ("corral_value", ['{"other": 1}'], '{"other":1}'),
    ],
)  # fmt: skip
def test_the_arguments_of_the_schema_tool_are_the_text(
    tool: str, pieces: list[str], parsed: str
) -> None:
    answer = streamed(stream(start(), use(0, "t", tool, *pieces), end("tool_use")))
    assert answer.text == parsed
    assert not answer.tool_calls
    assert answer.finish_reason == FinishReason("stop", "tool_use")
    one = {"type": "tool_use", "id": "t", "name": tool, "input": json.loads("".join(pieces))}
    usage = {"input_tokens": 20, "output_tokens": 30}
    complete: Event = {"type": "message", "id": "msg_1", "model": MODEL, "content": [one]}
    complete |= {"stop_reason": "tool_use", "usage": usage}
    assert read(json.dumps(complete).encode()) == answer


def test_an_answer_is_streamed_while_the_tool_call_is_read() -> None:
    pieces = ('{"value": [', "1,", " 2]", "}")
    parts = parsed(stream(start(), use(0, "t", "corral_value", *pieces)))
    deltas = [event.text for event in parts.events if isinstance(event, TextDelta)]
    assert deltas == ["[", "1,", "2]"]


def test_other_calls_besides_the_schema_tool_are_tool_calls() -> None:
    answer = streamed(
        stream(start(), use(0, "a", "f", "{}"), use(1, "b", "corral_result", "{}"), end("tool_use"))
    )
    assert [call.name for call in answer.tool_calls] == ["f"]
    assert answer.finish_reason.reason == "tool_calls"


# --- what is new, odd or broken -----------------------------------------------------------


def test_unknown_events_are_passed_on_without_an_error() -> None:
    odd: list[Event] = [
        {"type": "weather_report", "delta": "sunny", "message": 3},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "n": 1}},
    ]
    server = block(
        1,
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "input_json_delta", "partial_json": "{}"},
    )
    found = block(2, {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"a": 1}]})
    parts = parsed(stream(start(), odd, text(0, "x"), server, found, end("end_turn")))
    names = [event.name for event in parts.events if isinstance(event, ProviderEvent)]
    assert names == [
        "weather_report",
        "citations_delta",
        "server_tool_use",
        "input_json_delta",
        "web_search_tool_result",
    ]
    last = [event for event in parts.events if isinstance(event, ProviderEvent)][-1]
    assert cast("Event", last.data)["content"] == [{"a": 1}]
    assert parts.response().message.content == (Text("x"),)


def test_an_input_in_the_block_counts_unless_deltas_follow() -> None:
    given = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    piece = {"type": "input_json_delta", "partial_json": '{"b": 2}'}
    assert streamed(stream(start(), block(0, given), end("tool_use"))).tool_calls == (
        ToolCall("t", "f", {"a": 1}),
    )
    assert streamed(stream(start(), block(0, given, piece), end("tool_use"))).tool_calls == (
        ToolCall("t", "f", {"b": 2}),
    )


def test_an_unclosed_block_is_closed_by_the_next_block_and_by_the_end() -> None:
    events = [*thinking(0, "one", "a")[:-1], *use(1, "t", "f", "{}")[:-1]]
    events += [*thinking(2, "two", "b")[:-1], *end("tool_use")]
    assert streamed(stream(start(), events)).message.content == (
        Thinking("a", "one"),
        ToolCall("t", "f", {}),
        Thinking("b", "two"),
    )


@given(st.binary(max_size=200))
def test_malformed_data_is_a_broken_stream(garbage: bytes) -> None:
    for data in (garbage, b'{"type":' + garbage, b'{"type":"message_start","message":' + garbage):
        with suppress(StreamBroken):
            WIRE.translator(PROVIDER)([data], ResponseBuilder("anthropic", MODEL))
        with pytest.raises(StreamBroken):
            read(data)


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"[]",
        b"null",
        b'{"type":"content_block_delta","index":0}',
        b'{"type":"content_block_delta","delta":{"type":"text_delta","text":null}}',
        b'{"type":"message_start","message":7}',
        b'{"type":"text_delta","a":"\xff"}',
        b'{"type":"content_block_delta","delta":{"type":"text_delta","text":"\xff"}}',
        b"[" * 100_000,
        b'{"type":"ping","new":' + b"[" * 100_000,
    ],
)
def test_data_that_is_not_an_event_of_the_api_is_a_broken_stream(data: bytes) -> None:
    with pytest.raises(StreamBroken, match="Anthropic"):
        WIRE.translator(PROVIDER)([data], ResponseBuilder("anthropic", MODEL))


# --- errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message", "error", "retryable"),
    [
        ("overloaded_error", "Overloaded", errors.ServerFailed, True),
        ("api_error", "Internal server error", errors.ServerFailed, True),
        ("rate_limit_error", "Slow down", errors.RateLimited, True),
        ("authentication_error", "invalid x-api-key", errors.AuthenticationFailed, False),
        ("permission_error", "no", errors.AccessDenied, False),
        ("not_found_error", "model: x", errors.ModelNotFound, False),
        ("invalid_request_error", "max_tokens: required", errors.InvalidRequest, False),
        ("request_too_large", "Request exceeds 32 MB", errors.ContextLengthExceeded, False),
        ("billing_error", "pay", errors.QuotaSpent, False),
        ("timeout_error", "Request timed out", errors.TimedOut, False),
        ("invalid_request_error", "prompt is too long: 9 > 8", errors.ContextLengthExceeded, False),
        ("invalid_request_error", "Your credit balance is too low", errors.QuotaSpent, False),
        ("something_new", "?", errors.ServerFailed, True),
    ],
)
def test_an_error_in_a_stream_and_in_a_body_becomes_its_own_class(
    kind: str, message: str, error: type[CorralError], retryable: bool
) -> None:
    failed = {"type": "error", "error": {"type": kind, "message": message}}
    cut = stream(start(), text(0, "Hel")[:2], failed)
    for answer, data in ((streamed, cut), (read, json.dumps(failed).encode())):
        with pytest.raises(error, match="Anthropic") as raised:
            answer(data)
        assert type(raised.value) is error
        assert raised.value.retryable is retryable
        assert (raised.value.provider, raised.value.provider_code) == ("anthropic", kind)


def failure(
    status: int, kind: str = "", message: str = "", details: Json = None, **headers: str
) -> CorralError:
    error: Event = {"type": kind, "message": message, "details": details}
    body = json.dumps({"type": "error", "error": error}).encode() if kind else b"<h1>Bad</h1>"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return WIRE.failure(
        FailedResponse(provider=PROVIDER, model=MODEL, status=status, body=body, headers=named)
    )


@pytest.mark.parametrize(
    ("status", "kind", "message", "error"),
    [
        (400, "invalid_request_error", "bad", errors.InvalidRequest),
        (400, "invalid_request_error", "prompt is too long: 9", errors.ContextLengthExceeded),
        (400, "invalid_request_error", "Your credit balance is too low", errors.QuotaSpent),
        (400, "invalid_request_error", "You have reached your usage limits", errors.QuotaSpent),
        (401, "authentication_error", "invalid x-api-key", errors.AuthenticationFailed),
        (402, "billing_error", "pay", errors.QuotaSpent),
        (403, "permission_error", "no", errors.AccessDenied),
        (404, "not_found_error", "model: x", errors.ModelNotFound),
        (413, "request_too_large", "big", errors.ContextLengthExceeded),
        (429, "rate_limit_error", "slow", errors.RateLimited),
        (500, "api_error", "oops", errors.ServerFailed),
        (504, "timeout_error", "late", errors.ServerFailed),
        (529, "overloaded_error", "Overloaded", errors.ServerFailed),
        (502, "", "", errors.ServerFailed),
        (418, "something_new", "tea", errors.InvalidRequest),
    ],
)  # fmt: skip
def test_a_status_with_its_body_becomes_the_right_error(
    status: int, kind: str, message: str, error: type[CorralError]
) -> None:
    raised = failure(status, kind, message)
    assert type(raised) is error
    assert raised.http_status == status
    assert message in raised.message
    assert raised.retryable is (error in (errors.ServerFailed, errors.RateLimited))


def test_a_spent_quota_is_not_retried_and_a_rate_limit_is() -> None:
    spent = failure(429, "rate_limit_error", "x", {"error_code": "enforced_spend_limit_reached"})
    assert isinstance(spent, errors.QuotaSpent)
    assert failure(429, "rate_limit_error", "x", retry_after="7").retry_after == 7


def test_rate_limits_are_read_from_headers() -> None:
    assert WIRE.rate_limit_headers["requests_remaining"] == "anthropic-ratelimit-requests-remaining"
    assert WIRE.rate_limit_headers["tokens_reset"] == "anthropic-ratelimit-tokens-reset"
    assert len(WIRE.rate_limit_headers) == 6
