"""Responses of OpenAI's Responses API, read by corral and by the vendor's SDK."""

# The SDK is generic over what it parses, which the checkers cannot follow.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from support.openai_oracle import ParsedStream, outcomes_of_cuts, parse_stream, read, sdk_replaying
from support.openai_streams import Answer, called, responded, response, sse, text_item, thought

from corral import errors
from corral._models.openai.spec import PROVIDERS
from corral._protocol.sse import SseDecoder
from corral.errors import CorralError, StreamBroken
from corral.messages import Text, Thinking, ToolCall
from corral.model_types import (
    FinishReason,
    ProviderEvent,
    Response,
    Start,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
)
from corral.values import Usage

if TYPE_CHECKING:
    from openai.types.responses import Response as SdkResponse

PROVIDER = PROVIDERS[0]
LONDON, ROME = '{"city":"London"}', '{"city":"Rome","days":3}'

ANSWERS = {
    "text": responded(text_item("Hi", " there", "! 你好 🎉")),
    "thoughts": responded(
        thought(("**Looking", " it up**", " first"), ("**Then**",)),
        text_item("42", phase="final_answer"),
    ),
    "silent thoughts": responded(thought(sealed="gAAA=="), text_item("42")),
    "parallel calls": responded(
        thought(("Both.",)),
        text_item("I look.", phase="commentary"),
        called("weather", '{"city":', '"London"}', id="fc_1", call_id="call_1"),
        called("weather", '{"city":"Rome"', ',"days":', "3}", id="fc_2", call_id="call_2"),
    ),
    "a call without arguments": responded(called("now", "{}")),
    "two messages": responded(text_item("One.", id="msg_1"), text_item("Two.", id="msg_2")),
    "refusal": responded(text_item("I can't", " help.", refused=True)),
    "cut short": responded(
        text_item("Once upon"), end="incomplete", incomplete_details={"reason": "max_output_tokens"}
    ),
    "filtered": responded(
        text_item("Once"), end="incomplete", incomplete_details={"reason": "content_filter"}
    ),
    "empty": responded(),
}


def every(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(name, ANSWERS.values(), ids=ANSWERS.keys())


@cache
def events_of_sdk() -> TypeAdapter[Any]:
    from openai.types.responses import ResponseStreamEvent

    return TypeAdapter(ResponseStreamEvent)


@every("answer")
def test_the_recorded_responses_have_the_vendors_types(answer: Answer) -> None:
    from openai.types.responses import Response as SdkResponse

    for data in SseDecoder().receive(answer.stream):
        events_of_sdk().validate_json(data)
    TypeAdapter(SdkResponse).validate_json(answer.complete)


def by_sdk(stream: bytes) -> SdkResponse:
    """The response that the SDK makes of the events of a stream."""
    with sdk_replaying(stream) as client, client.responses.stream(model="m", input="hi") as events:
        return cast("SdkResponse", events.get_final_response())


def of_sdk(complete: SdkResponse) -> tuple[Any, ...]:
    calls = [item for item in complete.output if item.type == "function_call"]
    refusals = [
        part.refusal
        for item in complete.output
        if item.type == "message"
        for part in item.content
        if part.type == "refusal"
    ]
    thoughts = [item for item in complete.output if item.type == "reasoning"]
    usage = complete.usage
    assert usage is not None
    return (
        complete.id,
        complete.model,
        complete.output_text + "".join(refusals),
        [(call.call_id, call.id, call.name, json.loads(call.arguments)) for call in calls],
        ["\n\n".join(part.text for part in item.summary) for item in thoughts],
        [(item.id, item.encrypted_content) for item in thoughts],
        (
            usage.input_tokens,
            usage.output_tokens,
            usage.output_tokens_details.reasoning_tokens,
            usage.input_tokens_details.cached_tokens,
        ),
    )


def of_corral(complete: Response) -> tuple[Any, ...]:
    thoughts = [part for part in complete.message.content if isinstance(part, Thinking)]
    usage = complete.usage
    return (
        complete.id,
        complete.model,
        complete.text,
        [(call.id, call.item_id, call.name, call.arguments) for call in complete.tool_calls],
        [part.text for part in thoughts],
        [(part.item_id, part.signature) for part in thoughts],
        (usage.input, usage.output, usage.reasoning, usage.cache_read),
    )


@every("answer")
def test_a_stream_gives_the_same_result_as_the_sdk(answer: Answer) -> None:
    from openai.types.responses import Response as SdkResponse

    if b"response.incomplete" in answer.stream:
        theirs = SdkResponse.model_validate_json(
            answer.complete
        )  # its helper waits for a completion
    else:
        theirs = by_sdk(answer.stream)
    assert of_corral(parse_stream(PROVIDER, answer.stream)) == of_sdk(theirs)


@every("answer")
def test_streamed_and_complete_responses_are_equal(answer: Answer) -> None:
    assert parse_stream(PROVIDER, answer.stream) == read(PROVIDER, answer.complete)


@every("answer")
def test_a_stream_cut_at_any_byte_gives_the_same_answer_or_an_error(answer: Answer) -> None:
    *cut, complete = outcomes_of_cuts(PROVIDER, answer.stream)
    assert cut == [None] * len(cut)
    assert complete == parse_stream(PROVIDER, answer.stream)


@given(st.data())
def test_chunks_may_be_cut_anywhere(data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from([*ANSWERS.values()]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer.stream)), max_size=8)))
    chunks = [answer.stream[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    assert ParsedStream(PROVIDER, chunks).response == parse_stream(PROVIDER, answer.stream)


def finish_of(name: str) -> FinishReason:
    return parse_stream(PROVIDER, ANSWERS[name].stream).finish_reason


@pytest.mark.parametrize(
    ("name", "reason", "raw"),
    [
        ("text", "stop", "completed"),
        ("parallel calls", "tool_calls", "completed"),
        ("refusal", "content_filter", "refusal"),
        ("cut short", "length", "max_output_tokens"),
        ("filtered", "content_filter", "content_filter"),
    ],
)
def test_the_finish_reason_of_a_response(name: str, reason: Any, raw: str) -> None:
    assert finish_of(name) == FinishReason(reason, raw)


def test_a_refusal_that_comes_only_in_deltas_is_recognized() -> None:
    piece = {"type": "response.refusal.delta", "output_index": 0, "delta": "No."}
    end = {"type": "response.completed", "response": response("completed", [])}
    complete = parse_stream(PROVIDER, sse(piece, end))
    assert (complete.text, complete.finish_reason.reason) == ("No.", "content_filter")


def test_a_truncated_call_is_not_run() -> None:
    answer = responded(
        called("weather", '{"ci'),
        end="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    )
    complete = parse_stream(PROVIDER, answer.stream)
    assert complete.finish_reason.reason == "length"
    assert complete.tool_calls[0].raw == '{"ci'


def test_text_and_thinking_are_streamed() -> None:
    answer = ParsedStream(PROVIDER, [ANSWERS["thoughts"].stream])
    kinds = [e for e in answer.events if isinstance(e, Start | TextDelta | ThinkingDelta)]
    assert kinds == [
        Start("resp_67c9fdcecf488190bdd9a0409de3a1ec", "gpt-5.5-2026-04-01", "openai"),
        ThinkingDelta("**Looking", 0),
        ThinkingDelta(" it up**", 0),
        ThinkingDelta(" first", 0),
        ThinkingDelta("\n\n", 0),
        ThinkingDelta("**Then**", 0),
        TextDelta("42", 1),
    ]
    assert answer.response.message.content == (
        Thinking("**Looking it up** first\n\n**Then**", "gAAA==", "rs_1"),
        Text("42", "final_answer"),
    )


def test_deltas_of_parallel_calls_are_kept_apart() -> None:
    answer = ParsedStream(PROVIDER, [ANSWERS["parallel calls"].stream])
    pieces = [(e.part, e.arguments) for e in answer.events if isinstance(e, ToolCallDelta)]
    assert pieces == [
        (2, '{"city":'),
        (3, '{"city":"Rome"'),
        (2, '"London"}'),
        (3, ',"days":'),
        (3, "3}"),
    ]
    ends = [e.call for e in answer.events if isinstance(e, ToolCallEnd)]
    assert ends == [
        ToolCall("call_1", "weather", {"city": "London"}, item_id="fc_1"),
        ToolCall("call_2", "weather", {"city": "Rome", "days": 3}, item_id="fc_2"),
    ]


def test_usage_counts_cached_and_reasoning_tokens_once() -> None:
    assert parse_stream(PROVIDER, ANSWERS["text"].stream).usage == Usage(
        input=81, output=1035, reasoning=832, cache_read=64, cache_write=0, coverage="complete"
    )


def test_a_stream_with_only_complete_items_is_read() -> None:
    complete = ANSWERS["parallel calls"]
    kept = (b"response.output_item.done", b"response.completed", b"response.created")
    events = [
        d for d in SseDecoder().receive(complete.stream) if any(kind in d[:50] for kind in kept)
    ]
    few = b"".join(b"data: " + data + b"\n\n" for data in events)
    assert parse_stream(PROVIDER, few) == parse_stream(PROVIDER, complete.stream)
    assert parse_stream(PROVIDER, b"data: " + events[-1] + b"\n\n") == parse_stream(
        PROVIDER, complete.stream
    )


def test_a_call_without_a_start_has_the_arguments_of_its_end() -> None:
    complete = ANSWERS["parallel calls"]
    events = [
        data
        for data in SseDecoder().receive(complete.stream)
        if b"response.output_item.added" not in data
    ]
    assert any(b"function_call_arguments.delta" in data for data in events)
    few = b"".join(b"data: " + data + b"\n\n" for data in events)
    assert parse_stream(PROVIDER, few).message == parse_stream(PROVIDER, complete.stream).message


def test_a_stream_without_item_numbers_is_read() -> None:
    for name in ("text", "parallel calls", "thoughts"):
        events = [json.loads(data) for data in SseDecoder().receive(ANSWERS[name].stream)]
        bare = [{k: v for k, v in event.items() if k != "output_index"} for event in events]
        assert (
            parse_stream(PROVIDER, sse(*bare)).message
            == parse_stream(PROVIDER, ANSWERS[name].stream).message
        )


def test_events_that_have_no_unified_form_are_passed_on() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "content": 7}
    odd: list[dict[str, Any]] = [
        {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_1"},
        {"type": "response.output_item.done", "output_index": 0, "item": search},
        {"type": "response.shell_call_output_content.delta", "delta": {"stdout": "x"}},
        {"type": "response.of_the_future", "delta": [1], "output_index": "first"},
        {"type": "keepalive", "sequence_number": 3},
    ]
    rest = responded(text_item("Done.")).stream.replace(b'"output_index":0', b'"output_index":1')
    first = b'"output":[' + msgspec.json.encode(search)
    rest = rest.replace(b'"output":[{', first + b",{")
    answer = ParsedStream(PROVIDER, [sse(*odd) + rest])
    assert answer.response.text == "Done."
    names = [event.name for event in answer.events if isinstance(event, ProviderEvent)]
    assert names == [
        "response.web_search_call.searching",
        "web_search_call",
        "response.shell_call_output_content.delta",
        "response.of_the_future",
    ]


@pytest.mark.parametrize(
    ("event", "error", "code"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "Slow down. Try again in 2s",
          "param": None, "sequence_number": 3}, errors.RateLimited, "rate_limit_exceeded"),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "too long",
          "code": "context_length_exceeded"}}, errors.ContextLengthExceeded,
         "context_length_exceeded"),
        ({"error": {"type": "server_error", "message": "Oops"}}, errors.ServerFailed,
         "server_error"),
        ({"type": "error", "code": "insufficient_quota", "message": "You exceeded it"},
         errors.QuotaSpent, "insufficient_quota"),
        ({"type": "error", "code": "invalid_prompt", "message": "flagged"},
         errors.ContentRefused, "invalid_prompt"),
        ({"type": "error", "code": None, "message": None}, errors.ServerFailed, None),
    ],
)  # fmt: skip
def test_an_error_inside_the_stream_is_that_error(
    event: dict[str, Any], error: type[CorralError], code: str | None
) -> None:
    import openai

    started = sse({"type": "response.output_text.delta", "output_index": 0, "delta": "Hi"})
    with pytest.raises(error) as caught:
        parse_stream(PROVIDER, started + sse(event))
    assert type(caught.value) is error
    assert caught.value.provider == "openai"
    if code:
        assert caught.value.provider_code == code
    if event.get("error"):
        with sdk_replaying(started + sse(event)) as client, pytest.raises(openai.APIError):
            list(client.responses.create(model="m", input="hi", stream=True))


def test_the_delay_in_an_error_message_is_read() -> None:
    for words, delay in (("1.5s", 1.5), ("20ms", 0.02), ("1m2s", 62.0), ("a while", None)):
        stream = sse(
            {"type": "error", "code": "rate_limit_exceeded", "message": f"try again in {words}"}
        )
        with pytest.raises(errors.RateLimited) as caught:
            parse_stream(PROVIDER, stream)
        assert caught.value.retry_after == delay


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("server_error", errors.ServerFailed),
        ("rate_limit_exceeded", errors.RateLimited),
        ("invalid_prompt", errors.ContentRefused),
        ("bio_policy", errors.ContentRefused),
        ("invalid_image_url", errors.InvalidRequest),
        ("image_too_large", errors.InvalidRequest),
        ("vector_store_timeout", errors.ServerFailed),
    ],
)
def test_a_failed_response_becomes_its_error(code: str, error: type[CorralError]) -> None:
    answer = responded(text_item("Hi"), end="failed", error={"code": code, "message": "It failed."})
    for report, data in ((parse_stream, answer.stream), (read, answer.complete)):
        with pytest.raises(error, match="It failed") as caught:
            report(PROVIDER, data)
        assert type(caught.value) is error


@pytest.mark.parametrize(
    "data",
    [
        "",
        "nonsense",
        "[]",
        "7",
        "null",
        '"x"',
        '{"type":',
        "[" * 100_000,
        '{"type":"response.completed","response":7}',
        '{"type":"response.output_text.delta","delta":7}',
        '{"type":"response.output_text.delta","delta":"\\ud800"}',
    ],
)
def test_malformed_data_is_a_broken_stream(data: str) -> None:
    with pytest.raises(StreamBroken):
        parse_stream(PROVIDER, sse(data))
    with pytest.raises(StreamBroken):
        PROVIDER.wire.read(data.encode(), ParsedStream(PROVIDER, []).parts, PROVIDER)
        raise StreamBroken("JSON, but no answer")  # the builder raises this


def test_a_known_event_must_have_its_known_fields() -> None:
    odd = sse({"type": "response.output_text.delta", "delta": 7})
    with pytest.raises(StreamBroken):
        parse_stream(PROVIDER, odd + ANSWERS["text"].stream)


def test_odd_but_harmless_events_do_not_fail() -> None:
    odd = sse({}, {"type": ""}, {"type": "response.output_item.done"}, {"type": "response.created"},
              {"type": "response.output_item.added", "item": 7},
              {"type": "response.output_item.done", "item": {"type": "message", "content": None}},
              "[DONE]")  # fmt: skip
    assert (
        parse_stream(PROVIDER, odd + ANSWERS["text"].stream + sse("[DONE]")).text
        == "Hi there! 你好 🎉"
    )


@given(
    st.binary(max_size=200) | st.text(max_size=100).map(lambda t: b"data: " + t.encode() + b"\n\n")
)
def test_no_bytes_raise_anything_but_our_errors(garbage: bytes) -> None:
    for report in (parse_stream, read):
        with pytest.raises(CorralError):
            report(PROVIDER, garbage)


def test_a_response_in_progress_is_not_an_answer() -> None:
    with pytest.raises(StreamBroken):
        read(PROVIDER, json.dumps(response("queued", [])).encode())
