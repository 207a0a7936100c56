"""Which requests are model calls, and what their responses use."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.model_calls import EXPECTED, FORMATS, recorded_streams

from corral._metering.calls import (
    LARGEST_USAGE_EVENT,
    CallMeter,
    FreeRequest,
    ModelRequest,
    UnknownRequest,
    UsageEventFilter,
    input_bound,
    read_request,
)
from corral._models.registry import find_provider
from corral._protocol.sse import SseDecoder
from corral.values import Json

VENDORS = sorted(FORMATS)


def model_request(vendor: str, **more: object) -> ModelRequest:
    made = FORMATS[vendor]
    body = json.dumps({**made.body, **more}).encode()
    found = read_request([find_provider(vendor)], "POST", made.endpoint, body)
    assert isinstance(found, ModelRequest), found
    return found


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_model_call_is_recognized_with_its_model(vendor: str) -> None:
    found = model_request(vendor, tools=[{"name": "a"}, {"name": "b"}])
    assert found.model in ("gemini-2.5-flash", "claude-sonnet-4-5", "gpt-5")
    assert found.model_id == f"{vendor}:{found.model}"
    assert found.tools == 2


@pytest.mark.parametrize(
    ("vendor", "path", "model"),
    [
        ("anthropic", "/messages", "m"),
        ("openai", "/responses", "m"),
        ("openai-chat", "/v2beta1/chat/completions", "m"),
        ("gemini", "/models/a/b:generateContent", "a/b"),
        ("gemini", "/v1beta/models/a:countTokens:generateContent", "a:countTokens"),
        ("gemini", "/v1beta/tunedModels/a:streamGenerateContent", "a"),
    ],
)
def test_the_version_of_an_api_is_not_a_part_of_its_paths(
    vendor: str, path: str, model: str
) -> None:
    found = read_request([find_provider(vendor)], "POST", path, b'{"model":"m"}')
    assert isinstance(found, ModelRequest)
    assert found.model == model


def test_functions_in_one_group_are_counted() -> None:
    group = [{"functionDeclarations": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}]
    assert model_request("gemini", tools=group).tools == 3


@pytest.mark.parametrize(
    ("vendor", "method", "path"),
    [
        ("gemini", "POST", "/v1beta/models/gemini-2.5-flash:countTokens"),
        ("anthropic", "POST", "/v1/messages/count_tokens"),
        ("openai", "GET", "/v1/models"),
        ("gemini", "GET", "/v1beta/models/gemini-2.5-flash"),
        ("openai-chat", "GET", "/models/llama3:8b"),
    ],
)
def test_requests_that_cost_nothing_are_recognized(vendor: str, method: str, path: str) -> None:
    assert isinstance(read_request([find_provider(vendor)], method, path, b"{}"), FreeRequest)


@pytest.mark.parametrize(
    ("vendor", "method", "path", "body"),
    [
        ("gemini", "POST", "/v1beta/files", b"{}"),
        ("gemini", "POST", "/v1/messages", b"{}"),
        ("anthropic", "POST", "/v1/messages/batches", b"{}"),
        ("openai", "DELETE", "/v1/responses/1", b""),
        ("openai", "GET", "/v1/responses", b""),
        ("openai", "POST", "/v1/responses", b"not JSON"),
        ("openai", "POST", "/v1/responses", b"[]"),
        ("openai", "POST", "/v1/responses", b'{"model":"a","model":"b"}'),
        ("openai", "POST", "/v1/responses", b'{"model":"a","\\u006dodel":"b"}'),
        ("openai", "POST", "/v1/responses", b'{"model":"a","tools":[{"x":{"n":1,"n":2}}]}'),
        ("openai", "POST", "/v1/x/responses", b"{}"),
        ("openai", "POST", "/V1/responses", b"{}"),
        ("openai", "POST", "/v1/Responses", b"{}"),
        ("openai-chat", "POST", "/v1/v1/chat/completions", b"{}"),
        ("anthropic", "POST", "/v1/messages/count_tokens/messages", b"{}"),
        ("anthropic", "GET", "/v1/messages/count_tokens", b""),
        ("anthropic", "GET", "/v1/a/models", b""),
        ("gemini", "GET", "/v1beta/models/a:generateContent", b""),
        ("gemini", "GET", "/v1beta/models/a:generateContent/b", b""),
        ("gemini", "POST", "/v1beta/models/a:generateContent:countTokens", b"{}"),
        ("gemini", "POST", "/v1beta/models/a:generateContent/b:countTokens", b"{}"),
        ("gemini", "POST", "/v1beta/models/:generateContent", b"{}"),
        ("gemini", "POST", "/v1beta/files/a:generateContent", b"{}"),
    ],
)
def test_everything_else_is_unknown(vendor: str, method: str, path: str, body: bytes) -> None:
    assert isinstance(read_request([find_provider(vendor)], method, path, body), UnknownRequest)


def check_cut_stream(vendor: str, number: int, cuts: list[int]) -> None:
    """The usage of a stream is the same however its bytes are cut."""
    stream = recorded_streams(vendor)[number]
    meter = CallMeter(model_request(vendor))
    meter.start(200, "text/event-stream")
    edges = [0, *sorted(place % len(stream) for place in cuts), len(stream)]
    for start, end in pairwise(edges):
        meter.receive(stream[start:end])
    meter.end(complete=True)
    assert replace(meter.usage, cache_write=None) == replace(EXPECTED, coverage="complete")
    assert not meter.is_partial
    assert meter.streamed_bytes > 0


cut_streams = given(
    number=st.integers(0, 1), cuts=st.lists(st.integers(0, 100_000), min_size=1, max_size=12)
)


@pytest.mark.parametrize("vendor", VENDORS)
@settings(max_examples=40)
@cut_streams
def test_the_usage_of_a_stream_is_the_same_wherever_it_is_cut(
    vendor: str, number: int, cuts: list[int]
) -> None:
    check_cut_stream(vendor, number, cuts)


@pytest.mark.deep
@pytest.mark.parametrize("vendor", VENDORS)
@settings(max_examples=1000)
@cut_streams
def test_the_usage_of_1000_cut_streams_is_the_same(
    vendor: str, number: int, cuts: list[int]
) -> None:
    check_cut_stream(vendor, number, cuts)


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_stream_that_ends_early_is_partial(vendor: str) -> None:
    stream = recorded_streams(vendor)[0]
    for end in range(0, len(stream) - 200, 37):
        meter = CallMeter(model_request(vendor))
        meter.start(200, "text/event-stream")
        meter.receive(stream[:end])
        meter.end(complete=False)
        assert meter.is_partial
        assert meter.usage.coverage != "complete"


def test_an_aborted_stream_keeps_the_usage_that_it_reported() -> None:
    stream = recorded_streams("anthropic")[0]
    meter = CallMeter(model_request("anthropic"))
    meter.start(200, "text/event-stream")
    meter.receive(stream[: stream.index(b"content_block_start")])
    meter.end(complete=False)
    assert (meter.usage.input, meter.usage.coverage) == (120, "partial")


def test_an_error_costs_nothing() -> None:
    meter = CallMeter(model_request("gemini"))
    meter.start(429, "application/json")
    meter.receive(b'{"usageMetadata": {"promptTokenCount": 5}}')
    meter.end(complete=True)
    assert meter.usage.total is None
    assert not meter.is_partial


@pytest.mark.parametrize("has_all", [True, False])
def test_output_that_was_not_streamed_counts_by_its_length_if_its_usage_is_not_known(
    has_all: bool,
) -> None:
    part = {"content": {"parts": [{"text": "word " * 200}]}, "finishReason": "STOP"}
    body = json.dumps({"candidates": [part]}).encode()
    meter = CallMeter(model_request("gemini"))
    meter.start(200, "application/json")
    meter.receive(body if has_all else body[:-50])
    assert meter.output == 0
    meter.end(complete=has_all)
    assert meter.is_partial
    assert 200 <= meter.output <= len(body)


def test_malformed_responses_are_partial() -> None:
    for media_type in ("text/event-stream", "application/json", "text/html"):
        meter = CallMeter(model_request("gemini"))
        meter.start(200, media_type)
        meter.receive(b"data: {not json\n\n\xff\xfe")
        meter.end(complete=True)
        assert meter.is_partial


def test_a_chat_completion_is_made_to_report_its_usage() -> None:
    asked = model_request("openai-chat")
    assert asked.added_usage is None
    body = json.dumps({"model": "m", "stream": True, "messages": []}).encode()
    vendor = find_provider("openai-chat")
    silent = read_request([vendor], "POST", "/v1/chat/completions", body)
    assert isinstance(silent, ModelRequest)
    assert silent.added_usage is not None
    sent = json.loads(silent.added_usage)
    assert sent == {**json.loads(body), "stream_options": {"include_usage": True}}
    other = model_request("openai-chat", stream_options={"include_obfuscation": False})
    assert other.added_usage is not None
    assert json.loads(other.added_usage)["stream_options"] == {
        "include_obfuscation": False,
        "include_usage": True,
    }
    assert model_request("openai-chat", stream=False).added_usage is None


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 100_000), min_size=1, max_size=12))
def test_only_the_additional_event_is_taken_out_of_a_chat_completion(cuts: list[int]) -> None:
    stream = recorded_streams("openai-chat")[0]
    provider = find_provider("openai-chat")
    sieve = UsageEventFilter(provider)
    edges = [0, *sorted(place % len(stream) for place in cuts), len(stream)]
    pieces = [sieve.receive(stream[a:b]) for a, b in pairwise(edges)]
    passed = b"".join(pieces) + sieve.take_rest()
    events = SseDecoder().receive(stream)
    left = SseDecoder().receive(passed)
    usage = [event for event in events if b'"choices":[]' in event.replace(b" ", b"")]
    assert len(usage) == 1
    assert left == [event for event in events if event not in usage]


def test_a_very_long_event_is_passed_on_before_its_end() -> None:
    sieve = UsageEventFilter(find_provider("openai-chat"))
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\r\n\r\n'
    assert sieve.receive(usage) == b""
    size = 4 * 1024 * 1024
    beginning = sieve.receive(b'data: {"choices":["')
    pieces = [beginning, *(sieve.receive(b"x" * 512) for _ in range(size // 512))]
    assert sum(map(len, pieces)) > size - LARGEST_USAGE_EVENT
    end = sieve.receive(b'"]}\n') + sieve.receive(b"\n" + usage + b"data: [DONE]\n\n")
    assert end.endswith(b'"]}\n\ndata: [DONE]\n\n')
    many = b'data: {"choices":[{}]}\n\n' * 10_000
    assert sieve.receive(many) == many


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n", b"\n\r\n"])
def test_events_with_any_line_ends_are_taken_out_wherever_they_are_cut(blank: bytes) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}' + blank
    other = b'data: {"choices":[{"index":0}]}' + blank
    stream = other + usage + other
    for step in range(1, 9):
        sieve = UsageEventFilter(find_provider("openai-chat"))
        pieces = [sieve.receive(stream[at : at + step]) for at in range(0, len(stream), step)]
        assert b"".join(pieces) + sieve.take_rest() == other + other


def test_the_bound_of_the_input_counts_media_less_than_text() -> None:
    text: Json = {"text": "word " * 1000}
    data = "A" * 100_000
    image: Json = {"inlineData": {"mimeType": "image/png", "data": data}}
    assert input_bound({"parts": [text]}, 5000) == 2501
    assert input_bound({"parts": [text, image]}, 105_000) == 4501
    media: list[Json] = [
        {"source": {"type": "base64", "media_type": "application/pdf", "data": data}},
        {"image_url": {"url": f"data:image/png;base64,{data}"}},
        {"image_url": f"data:image/png;base64,{data}"},
        {"input_audio": {"data": data, "format": "wav"}},
    ]
    for each in media:
        assert input_bound({"parts": [each]}, 105_000) < 5000


def test_text_that_looks_like_media_is_text() -> None:
    for text in ("A" * 100_000, f"data:image/png;base64,{'A' * 100_000}"):
        parts: list[Json] = [
            {"text": text},
            {"text": text, "mimeType": "image/png"},
            {"type": "input_text", "text": text},
            {"inlineData": {"mimeType": "text/plain", "data": text}},
        ]
        for part in parts:
            assert input_bound({"parts": [part]}, len(text)) > 50_000
