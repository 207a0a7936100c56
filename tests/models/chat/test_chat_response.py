"""Responses of chat completions, read by corral and by the vendor's SDK."""

# The SDK is generic over what it parses, which the checkers cannot follow.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.openai_oracle import ParsedStream, outcomes_of_cuts, parse_stream, read, sdk_replaying
from support.openai_streams import CHAT_USAGE, Answer, chunk, completion, piece_of, sse

from corral import errors
from corral._models.chat.spec import PROVIDERS
from corral._protocol.sse import SseDecoder
from corral.errors import CorralError, StreamBroken
from corral.messages import Text, Thinking, ToolCall
from corral.model_types import FinishReason, ProviderEvent, Response, ToolCallDelta, ToolCallEnd
from corral.values import Usage

PROVIDER = PROVIDERS[0]
USED = chunk(choices=[], usage=CHAT_USAGE)
ROLE = chunk({"role": "assistant", "content": "", "refusal": None})
ROME = {"id": "call_2", "type": "function", "function": {"name": "f", "arguments": '{"n":2}'}}
LONDON = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"n":1}'}}


def streamed(*deltas: dict[str, Any], finish: str = "stop") -> bytes:
    chunks = [ROLE, *map(chunk, deltas), chunk(finish=finish), USED]
    return sse(*chunks, "[DONE]")


ANSWERS = {
    "text": Answer(
        streamed({"content": "Hi"}, {"content": " there! 你好 🎉"}),
        completion({"content": "Hi there! 你好 🎉"}),
    ),
    "parallel calls": Answer(
        streamed(
            {"content": "I look."},
            piece_of(0, id="call_1", name="f"),
            piece_of(1, id="call_2", name="f"),
            piece_of(0, '{"n"'),
            piece_of(1, '{"n":2'),
            piece_of(0, ":1}"),
            piece_of(1, "}"),
            finish="tool_calls",
        ),
        completion({"content": "I look.", "tool_calls": [LONDON, ROME]}, "tool_calls"),
    ),
    "refusal": Answer(
        streamed({"refusal": "I can't"}, {"refusal": " help."}),
        completion({"refusal": "I can't help."}),
    ),
    "cut short": Answer(
        streamed({"content": "Once upon"}, finish="length"),
        completion({"content": "Once upon"}, "length"),
    ),
    "filtered": Answer(
        streamed({"content": "Once"}, finish="content_filter"),
        completion({"content": "Once"}, "content_filter"),
    ),
    "empty": Answer(streamed(), completion({"content": ""})),
}


def every(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(name, ANSWERS.values(), ids=ANSWERS.keys())


@every("answer")
def test_the_recorded_responses_have_the_vendors_types(answer: Answer) -> None:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    for data in SseDecoder().receive(answer.stream)[:-1]:
        ChatCompletionChunk.model_validate_json(data)
    ChatCompletion.model_validate_json(answer.complete)


def by_sdk(stream: bytes) -> tuple[Any, ...]:
    """The message that the SDK makes of the chunks of a stream."""
    import openai

    with (
        sdk_replaying(stream) as client,
        client.chat.completions.stream(model="m", messages=[]) as events,
    ):
        complete: Any
        try:
            complete = events.get_final_completion()
        except (openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError):
            complete = events.current_completion_snapshot
    message, usage = complete.choices[0].message, complete.usage
    calls: list[Any] = message.tool_calls or []
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.prompt_tokens_details is not None
    return (
        complete.id,
        complete.model,
        (message.content or "") + (message.refusal or ""),
        [(call.id, call.function.name, json.loads(call.function.arguments)) for call in calls],
        (usage.prompt_tokens, usage.completion_tokens),
        usage.completion_tokens_details.reasoning_tokens,
        usage.prompt_tokens_details.cached_tokens,
    )


@every("answer")
def test_a_stream_gives_the_same_result_as_the_sdk(answer: Answer) -> None:
    ours = parse_stream(PROVIDER, answer.stream)
    assert (
        ours.id,
        ours.model,
        ours.text,
        [(call.id, call.name, call.arguments) for call in ours.tool_calls],
        (ours.usage.input, ours.usage.output),
        ours.usage.reasoning,
        ours.usage.cache_read,
    ) == by_sdk(answer.stream)


@every("answer")
def test_streamed_and_complete_responses_are_equal(answer: Answer) -> None:
    assert parse_stream(PROVIDER, answer.stream) == read(PROVIDER, answer.complete)


@every("answer")
def test_a_stream_cut_at_any_byte_gives_the_same_answer_or_an_error(answer: Answer) -> None:
    """After the finish reason an answer is complete; only the usage may be missing."""
    *cut, unused, used, complete = outcomes_of_cuts(PROVIDER, answer.stream)
    assert cut == [None] * len(cut)
    assert unused is not None
    assert complete is not None
    assert used == complete
    assert (unused.message, unused.finish_reason) == (complete.message, complete.finish_reason)
    assert unused.usage == Usage()


@given(st.data())
def test_chunks_may_be_cut_anywhere(data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from([*ANSWERS.values()]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer.stream)), max_size=8)))
    chunks = [answer.stream[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    assert ParsedStream(PROVIDER, chunks).response == parse_stream(PROVIDER, answer.stream)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("model_length", "length"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("content_filter", "content_filter"),
        ("error", "error"),
        ("insufficient_system_resource", "error"),
        ("of the future", "other"),
    ],
)
def test_the_finish_reason_of_a_response(raw: str, reason: Any) -> None:
    assert parse_stream(PROVIDER, streamed(finish=raw)).finish_reason == FinishReason(reason, raw)


def test_a_refusal_is_in_the_text_and_in_the_finish_reason() -> None:
    complete = parse_stream(PROVIDER, ANSWERS["refusal"].stream)
    assert complete.text == "I can't help."
    assert complete.finish_reason == FinishReason("content_filter", "refusal")


def test_usage_counts_cached_and_reasoning_tokens_once() -> None:
    assert parse_stream(PROVIDER, ANSWERS["text"].stream).usage == Usage(
        input=81, output=1035, reasoning=832, cache_read=64, coverage="complete"
    )


def test_deltas_of_interleaved_calls_are_kept_apart() -> None:
    answer = ParsedStream(PROVIDER, [ANSWERS["parallel calls"].stream])
    pieces = [(e.part, e.arguments) for e in answer.events if isinstance(e, ToolCallDelta)]
    assert pieces == [(1, '{"n"'), (2, '{"n":2'), (1, ":1}"), (2, "}")]
    ends = [e.call for e in answer.events if isinstance(e, ToolCallEnd)]
    assert ends == [ToolCall("call_1", "f", {"n": 1}), ToolCall("call_2", "f", {"n": 2})]


CALLS = {
    "complete, in one delta": [{"tool_calls": [{**LONDON, "index": 0}, {**ROME, "index": 1}]}],
    "complete, in two": [{"tool_calls": [c | {"index": n}]} for n, c in enumerate((LONDON, ROME))],
    "without indices": [{"tool_calls": [LONDON]}, {"tool_calls": [ROME]}],
    "all of index 0": [{"tool_calls": [{**c, "index": 0}]} for c in (LONDON, ROME)],
    "pieces without indices": [
        piece_of(None, '{"n"', id="call_1", name="f"),
        piece_of(None, ":1}"),
        piece_of(None, '{"n":', id="call_2", name="f"),
        piece_of(None, "2}"),
    ],
    "the id in every piece": [
        piece_of(0, '{"n":', id="call_1", name="f"),
        piece_of(0, "1}", id="call_1"),
        piece_of(1, '{"n":', id="call_2", name="f"),
        piece_of(1, "2}", id="call_2", name="f"),
    ],
    "another id in every piece": [
        piece_of(0, '{"n":', id="call_1", name="f"),
        piece_of(0, "1}", id="call_x"),
        piece_of(1, '{"n":2}', id="call_2", name="f"),
    ],
    "the name in every piece": [
        piece_of(0, '{"n":', id="call_1", name="f"),
        piece_of(0, "1}", name="f"),
        piece_of(1, '{"n":2}', id="call_2", name="f"),
    ],
    "empty ids after the first": [
        piece_of(0, '{"n":', id="call_1", name="f"),
        piece_of(0, "1}", id="", name=""),
        piece_of(1, '{"n":2}', id="call_2", name="f"),
    ],
    "arguments as an object": [
        {"tool_calls": [{"id": f"call_{n}", "function": {"name": "f", "arguments": {"n": n}}}]}
        for n in (1, 2)
    ],
}  # fmt: skip


@pytest.mark.parametrize("deltas", CALLS.values(), ids=CALLS.keys())
def test_tool_calls_of_different_servers_are_read(deltas: list[dict[str, Any]]) -> None:
    complete = parse_stream(PROVIDER, streamed(*deltas))
    assert complete.tool_calls == (
        ToolCall("call_1", "f", {"n": 1}),
        ToolCall("call_2", "f", {"n": 2}),
    )
    assert complete.finish_reason == FinishReason("tool_calls", "stop")


def test_a_call_without_an_id_gets_a_new_id() -> None:
    stream = streamed({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]})
    (call,) = ParsedStream(PROVIDER, [stream], used=["call_1"]).response.tool_calls
    assert call.id not in ("", "f", "call_1")


def test_the_old_function_call_field_is_read() -> None:
    pieces = {"name": "f", "arguments": ""}, {"arguments": '{"n":'}, {"arguments": "1}"}
    deltas = [{"function_call": piece} for piece in pieces]
    complete = parse_stream(PROVIDER, streamed(*deltas, finish="function_call"))
    assert [(call.name, call.arguments) for call in complete.tool_calls] == [("f", {"n": 1})]


def test_a_delta_of_a_call_that_was_not_started_is_only_an_event() -> None:
    answer = ParsedStream(PROVIDER, [streamed(piece_of(3, "{}"), {"content": "Hi"})])
    assert answer.response.message.content == (Text("Hi"),)
    assert any(isinstance(event, ProviderEvent) for event in answer.events)


@pytest.mark.parametrize(
    "deltas",
    [
        [{"reasoning_content": "Hm", "content": None}, {"reasoning_content": "."}],
        [{"reasoning": "Hm", "content": ""}, {"reasoning": "."}],
        [{"reasoning": "Hm", "reasoning_content": "Hm"}, {"reasoning_content": "."}],
        [{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]}],
        [{"content": [{"type": "thinking", "thinking": "Hm."}]}],
    ],
)
def test_reasoning_is_read_from_any_of_its_fields(deltas: list[dict[str, Any]]) -> None:
    answer = [*deltas, {"content": [{"type": "text", "text": "Yes"}]}]
    assert parse_stream(PROVIDER, streamed(*answer)).message.content == (
        Thinking("Hm."),
        Text("Yes"),
    )


def ended(*chunks: dict[str, Any] | str) -> Response:
    return parse_stream(PROVIDER, sse(chunk({"content": "Hi"}), *chunks))


def test_an_answer_is_complete_after_a_finish_reason_or_done() -> None:
    assert ended(chunk(finish="stop")).finish_reason == FinishReason("stop", "stop")
    assert ended("[DONE]").finish_reason == FinishReason("other")
    assert ended(chunk(finish="length"), "[DONE]").finish_reason == FinishReason("length", "length")
    with pytest.raises(StreamBroken):
        ended(chunk({"content": "!"}, ""))
    with pytest.raises(StreamBroken):
        parse_stream(PROVIDER, sse("[DONE]"))


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(finish="stop", usage=CHAT_USAGE)],
        [chunk(finish="stop"), USED],
        [chunk(usage={"prompt_tokens": 81}), chunk(finish="stop", usage=CHAT_USAGE)],
        [chunk(finish="stop", x_groq={"id": "req_1", "usage": CHAT_USAGE})],
        [chunk(finish="stop"), {"usage": CHAT_USAGE}],
    ],
)
def test_usage_is_read_from_any_of_its_fields(chunks: list[dict[str, Any]]) -> None:
    usage = ended(*chunks, "[DONE]").usage
    assert (usage.input, usage.output, usage.reasoning) == (81, 1035, 832)


@pytest.mark.parametrize(
    ("told_usage", "usage"),
    [
        ({}, Usage(coverage="partial")),
        ({"prompt_tokens": 5}, Usage(5, coverage="partial")),
        ({"prompt_tokens": 5, "completion_tokens": 7}, Usage(5, 7, coverage="complete")),
        (
            {"prompt_tokens": 5, "completion_tokens": 7, "prompt_cache_hit_tokens": 3},
            Usage(5, 7, cache_read=3, coverage="complete"),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 22,
             "completion_tokens_details": {"reasoning_tokens": 10}},
            Usage(5, 17, 10, coverage="complete"),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 17, "total_tokens": 22,
             "completion_tokens_details": {"reasoning_tokens": 10}, "prompt_tokens_details": None},
            Usage(5, 17, 10, coverage="complete"),
        ),
    ],
)  # fmt: skip
def test_usage_of_different_servers_is_read(told_usage: dict[str, Any], usage: Usage) -> None:
    assert ended(chunk(finish="stop", usage=told_usage)).usage == usage


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"error": {"message": "Slow down", "type": "rate_limit_error"}}, errors.RateLimited),
        ({"error": {"message": "Spent", "code": "insufficient_quota"}}, errors.QuotaSpent),
        ({"error": {"message": "Provider returned error", "code": 502}}, errors.ServerFailed),
        ({"error": {"message": "Slow down", "code": 429}}, errors.RateLimited),
        ({"error": {"message": "Too long", "code": "context_length_exceeded"}},
         errors.ContextLengthExceeded),
        ({"error": {"message": "No", "code": "content_filter"}}, errors.ContentRefused),
        ({"error": "something broke"}, errors.ServerFailed),
        ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400},
         errors.InvalidRequest),
        (chunk(x_groq={"error": "over capacity"}), errors.ServerFailed),
        (chunk({"content": ""}, "error", error={"code": "server_error", "message": "Lost"}),
         errors.ServerFailed),
    ],
)  # fmt: skip
def test_an_error_inside_the_stream_is_that_error(
    event: dict[str, Any], error: type[CorralError]
) -> None:
    import openai

    with pytest.raises(error) as caught:
        ended(event, "[DONE]")
    assert type(caught.value) is error
    assert caught.value.provider == "chat"
    if event.get("error"):
        with sdk_replaying(sse(event)) as client, pytest.raises(openai.APIError):
            list(client.chat.completions.create(model="m", messages=[], stream=True))


def test_other_choices_and_unusual_chunks_are_ignored() -> None:
    other = chunk()
    other["choices"] = [{"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}]
    odd: tuple[dict[str, Any], ...]
    odd = ({"choices": [], "prompt_filter_results": []}, {"choices": None}, {}, {"object": "ping"},
           {"choices": [{"index": None, "delta": None}]}, {"usage": 7}, other)  # fmt: skip
    complete = ended(*odd, chunk(finish="stop"), " [DONE] ")
    assert (complete.text, complete.finish_reason.reason) == ("Hi", "stop")


@pytest.mark.parametrize(
    "data",
    ["", "nonsense", "[]", "7", "null", '{"choices":7}', '{"choices":[{"delta":{"content":7}}]}',
     '{"choices":', "[" * 100_000],
)  # fmt: skip
def test_malformed_data_is_a_broken_stream(data: str) -> None:
    if data:
        with pytest.raises(StreamBroken):
            parse_stream(PROVIDER, sse(data) + ANSWERS["text"].stream)
    for report, form in ((parse_stream, sse(data)), (read, data.encode())):
        with pytest.raises(StreamBroken):
            report(PROVIDER, form)


@given(
    st.binary(max_size=200)
    | st.text(max_size=100).map(lambda text: b"data: " + text.encode() + b"\n\n")
)
def test_no_bytes_raise_anything_but_our_errors(garbage: bytes) -> None:
    for report in (parse_stream, read):
        with pytest.raises(CorralError):
            report(PROVIDER, garbage)
