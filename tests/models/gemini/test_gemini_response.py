"""Gemini's responses in corral's types."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral import errors, models
from corral._models.gemini.spec import PROVIDERS, WIRE
from corral._protocol.response_builder import ResponseBuilder
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


def from_chunks(*calls: dict[str, Any] | None) -> models.Response:
    """The response of a stream with these function calls; None ends it."""
    parts = ResponseBuilder("gemini", "gemini-3-pro")
    translate = WIRE.translator(PROVIDERS[0])
    for call in calls:
        content: dict[str, Any] = {"parts": [] if call is None else [{"functionCall": call}]}
        candidate = {"content": content, "finishReason": None if call is not None else "STOP"}
        translate([json.dumps({"candidates": [candidate]}).encode()], parts)
    return parts.response()


def piece(path: str, **value: Any) -> dict[str, Any]:
    return {"partialArgs": [{"jsonPath": path, **value}], "willContinue": True}


def test_arguments_that_arrive_in_pieces_are_joined() -> None:
    response = from_chunks(
        {"name": "look", "id": "i", "willContinue": True},
        piece("$.at", stringValue="San ", willContinue=True),
        piece("$.at", stringValue="Jose"),
        piece("$.box.size[0].x", numberValue=2),
        piece("$.box.size[0].y", numberValue=0.5),
        piece("$.box.size[1].x", numberValue=3),
        piece("$['a b'][\"c\"]", boolValue=False),
        piece("$.none", nullValue="NULL_VALUE"),
        {},
        {"name": "look", "willContinue": True, **piece("$.at", stringValue="x")},
        {"name": "plain", "args": {"a": 1}},
        {"name": "last", **piece("$.at", stringValue="y")},
        None,
    )
    assert [(call.name, call.arguments) for call in response.tool_calls] == [
        (
            "look",
            {
                "at": "San Jose",
                "box": {"size": [{"x": 2, "y": 0.5}, {"x": 3}]},
                "a b": {"c": False},
                "none": None,
            },
        ),
        ("look", {"at": "x"}),
        ("plain", {"a": 1}),
        ("last", {"at": "y"}),
    ]
    assert (response.tool_calls[0].id, response.finish_reason.reason) == ("i", "tool_calls")


@pytest.mark.parametrize("path", ["", "$", "$.", "at", "$[3]", "$.a[999999999]"])
def test_pieces_with_an_odd_path_do_no_harm(path: str) -> None:
    odd = piece(path, stringValue="x")
    response = from_chunks(odd, {"name": "look", **odd}, odd, {}, None)
    assert [call.name for call in response.tool_calls] == ["look"]


def test_an_argument_that_is_nested_too_deep_is_an_error() -> None:
    with pytest.raises(errors.StreamBroken, match="nested"):
        from_chunks({"name": "look", **piece("$" + ".a" * 2000, stringValue="x")})
