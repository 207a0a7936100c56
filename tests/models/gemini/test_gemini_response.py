"""Gemini's responses in corral's types."""

from __future__ import annotations

import pytest

from corral import errors, models
from corral.models import FinishReason, Text, Thinking, ToolCall, Usage
from corral.testing import Call, ModelServer, Turn

MODEL = "gemini:gemini-2.5-flash"


async def both(turn: Turn) -> models.Response:
    """The response, which is the same streamed and not streamed."""
    async with (
        ModelServer([turn, turn]) as server,
        models.Client(keys={"gemini": "k"}, base_urls={"gemini": server.url}, environ={}) as client,
    ):
        complete = await models.generate(MODEL, "hi", client=client, max_tool_rounds=0)
        streamed = await models.stream(MODEL, "hi", client=client, max_tool_rounds=0).collect()
    assert complete.response.message == streamed.response.message
    assert complete.finish_reason == streamed.finish_reason
    assert complete.usage == streamed.usage
    return streamed.response


async def test_thinking_text_and_calls_are_separate_parts() -> None:
    calls = [Call("f", {"a": 1}, "i"), Call("f", {"a": 2}, "j")]
    response = await both(Turn(thoughts=("h", "m"), text=("a", "b"), calls=calls, signature="s"))
    assert response.message.content == (
        Thinking("hm"),
        Text("ab"),
        ToolCall("i", "f", {"a": 1}, "cw==", None, "i"),
        ToolCall("j", "f", {"a": 2}, None, None, "j"),
    )
    assert response.finish_reason == FinishReason("tool_calls", "STOP")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("IMAGE_PROHIBITED_CONTENT", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("TOO_MANY_TOOL_CALLS", "error"),
        ("SOMETHING_NEW", "other"),
    ],
)
async def test_the_finish_reason_has_the_vendors_own_name(raw: str, reason: str) -> None:
    finish = (await both(Turn(text="x", finish=raw))).finish_reason
    assert (finish.reason, finish.raw) == (reason, raw)


@pytest.mark.parametrize(
    ("raw", "reason"), [("MAX_TOKENS", "length"), ("SAFETY", "content_filter")]
)
async def test_truncated_or_filtered_wins_over_tool_calls(raw: str, reason: str) -> None:
    response = await both(Turn(calls=[Call("f", {}, "i")], finish=raw))
    assert response.finish_reason.reason == reason
    assert len(response.tool_calls) == 1


async def test_a_refused_prompt_has_its_reason() -> None:
    with pytest.raises(errors.ContentRefused, match="too rude") as caught:
        await both(Turn(block_reason="SAFETY", message="too rude"))
    assert caught.value.provider_code == "SAFETY"


async def test_missing_counts_are_unknown_and_not_zero() -> None:
    reported = {"input": 10, "output": 4, "thoughts": 3, "cached": 2, "tool": 5}
    assert (await both(Turn(text="x", usage=reported))).usage == Usage(
        input=15, output=7, reasoning=3, cache_read=2, coverage="complete"
    )
    few = (await both(Turn(text="x", usage={"input": 1}))).usage
    assert (few.input, few.output, few.reasoning, few.cache_read) == (1, None, None, None)
    assert (await both(Turn(text="x", usage=False))).usage == Usage()


async def test_calls_without_ids_get_ids_that_are_not_their_names() -> None:
    ids = [call.id for call in (await both(Turn(calls=[Call("f"), Call("f")]))).tool_calls]
    assert len({*ids, "f"}) == 3
