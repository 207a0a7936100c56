"""Requests for the Responses API, compared with those of the vendor's SDK."""

# The SDK is generic over what it parses, which the checkers cannot follow.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from base64 import b64encode
from functools import cache
from typing import Any, cast

import pytest
from pydantic import TypeAdapter
from support.openai_oracle import messages_of, parse_stream, sent_by_sdk
from support.openai_streams import called, responded, text_item, thought

from corral._models.openai.spec import PROVIDERS
from corral._models.spec import Encoded
from corral.messages import (
    Document,
    Image,
    Message,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from corral.model_types import Request, ResponseFormat, ToolNamed, ToolSpec

PROVIDER = PROVIDERS[0]
PNG, PDF = b"\x89PNG\r\n", b"%PDF-1.7"
WEATHER = ToolSpec(
    "weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def encoded(*messages: Message | str, streamed: bool = False, **more: Any) -> Encoded:
    more = {"model": "gpt-5.5", **more}
    request = Request(messages=messages_of(*(messages or ("Hi",))), **more)
    return PROVIDER.wire.encode(request, PROVIDER, streamed)


def body(*messages: Message | str, **more: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", encoded(*messages, **more).body)


def items(*messages: Message | str, **more: Any) -> list[Any]:
    return cast("list[Any]", body(*messages, **more)["input"])


def test_a_conversation_with_tools_is_sent_as_the_sdk_sends_it() -> None:
    ours = encoded(
        Message.system("Be brief."),
        Message("developer", (Text("No jokes."),)),
        Message.user("What is this?", Image(PNG, "image/png", "low")),
        Message(
            "assistant",
            (
                Thinking("Two calls.", "gAAA==", "rs_1"),
                Text("I look."),
                ToolCall("call_1", "weather", {"city": "Rome"}, item_id="fc_1"),
                ToolCall("call_2", "weather", raw='{"city'),
            ),
            "openai",
        ),
        Message.tool(ToolResult("call_1", {"sky": "blue"}), ToolResult("call_2", "no JSON", True)),
        streamed=True,
        tools=(WEATHER,),
        tool_choice=ToolNamed("weather"),
        response_format=ResponseFormat("json_schema", CLOSED, "city"),
        max_tokens=500,
        reasoning_effort="low",
        metadata={"run": "7"},
    )
    theirs: dict[str, Any] = {
        "model": "gpt-5.5",
        "store": False,
        "stream": True,
        "instructions": "Be brief.\n\nNo jokes.",
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {
                        "type": "input_image",
                        "image_url": "data:image/png;base64," + b64encode(PNG).decode(),
                        "detail": "low",
                    },
                ],
            },
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "Two calls."}],
                "encrypted_content": "gAAA==",
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look."}],
            },
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": "weather",
                "arguments": '{"city":"Rome"}',
            },
            {
                "type": "function_call",
                "call_id": "call_2",
                "name": "weather",
                "arguments": '{"city',
            },
            {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": '{"sky":"blue"}',
            },
            {
                "type": "function_call_output",
                "call_id": "call_2",
                "output": "error: no JSON",
            },
        ],
        "tools": [
            {
                "type": "function",
                "name": "weather",
                "description": "The weather of a city.",
                "parameters": WEATHER.parameters,
                "strict": False,
            }
        ],
        "tool_choice": {"type": "function", "name": "weather"},
        "text": {
            "format": {"type": "json_schema", "name": "city", "schema": CLOSED, "strict": True}
        },
        "max_output_tokens": 500,
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "metadata": {"run": "7"},
    }
    assert (ours.path, ours.body) == sent_by_sdk("responses", theirs)
    assert ours.warnings == ()


@cache
def item_of_sdk() -> TypeAdapter[Any]:
    from openai.types.responses import ResponseInputItemParam

    return TypeAdapter(ResponseInputItemParam)


@cache
def request_of_sdk() -> TypeAdapter[Any]:
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    return TypeAdapter(ResponseCreateParamsNonStreaming)


TYPED: dict[str, Message] = {
    "text": Message.user("Hi"),
    "image by address": Message.user(Image("https://a.test/b.png")),
    "image": Message.user("Look:", Image(PNG, "image/png", "high")),
    "document": Message.user(Document(PDF, "application/pdf", "a.pdf")),
    "document by address": Message.user(Document("https://a.test/b.pdf")),
    "call": Message.assistant(ToolCall("c", "f", {"a": [1, None, "ü"]})),
    "result": Message.tool(ToolResult("c", [1, 2])),
    "thoughts": Message.assistant(Thinking("", "gAAA==", "rs_1")),
}


@pytest.mark.parametrize("message", TYPED.values(), ids=TYPED.keys())
def test_items_have_exactly_the_vendors_types(message: Message) -> None:
    for item in items(message):
        item_of_sdk().validate_python(item, extra="forbid", strict=True)


def test_options_have_exactly_the_vendors_types() -> None:
    complete = body(
        model="gpt-4.1",
        tools=(WEATHER, ToolSpec("now")),
        tool_choice="required",
        response_format=ResponseFormat("json_schema", CLOSED),
        temperature=0.5,
        top_p=0.9,
        max_tokens=9,
        metadata={"a": "b"},
    )
    request_of_sdk().validate_python(complete, extra="forbid")


def test_instructions_are_moved_out_of_the_history_in_order() -> None:
    complete = body(Message.system("One."), "Hi", Message("developer", (Text("Two."),)))
    assert complete["instructions"] == "One.\n\nTwo."
    assert [item["role"] for item in complete["input"]] == ["user"]
    assert "instructions" not in body("Hi")


def test_nothing_is_stored_at_the_vendor_unless_asked_for() -> None:
    assert body()["store"] is False
    assert body(provider_options={"openai": {"store": True}})["store"] is True


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (ToolNamed("f"), {"type": "function", "name": "f"}),
    ],
)
def test_tool_choice(choice: Any, sent: Any) -> None:
    assert body(tool_choice=choice)["tool_choice"] == sent


def test_encrypted_reasoning_is_sent_back_after_tool_calls() -> None:
    answer = responded(
        thought(("First.",), ("Then.",), sealed="gAAA-sealed"),
        text_item("I look.", phase="commentary"),
        called("weather", '{"city":"Rome"}', id="fc_9", call_id="call_9"),
    )
    message = parse_stream(PROVIDER, answer.stream).message
    assert items("Hi", message, Message.tool(ToolResult("call_9", "sunny")))[1:] == [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "First.\n\nThen."}],
            "encrypted_content": "gAAA-sealed",
        },
        {
            "type": "message",
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "I look."}],
        },
        {
            "type": "function_call",
            "id": "fc_9",
            "call_id": "call_9",
            "name": "weather",
            "arguments": '{"city":"Rome"}',
        },
        {"type": "function_call_output", "call_id": "call_9", "output": "sunny"},
    ]


def test_signatures_of_another_vendor_are_not_sent() -> None:
    content = (
        Thinking("Hm.", "sig", "rs_1"),
        RedactedThinking("xyz"),
        Text("I look.", "commentary"),
        ToolCall("toolu_1", "f", item_id="fc_1"),
    )
    assert items(Message("assistant", content, "anthropic")) == [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
        },
        {"type": "function_call", "call_id": "toolu_1", "name": "f", "arguments": "{}"},
    ]


def test_a_signature_without_an_item_is_not_sent_back() -> None:
    assert items(Message.assistant(Thinking("Hm.", "sig"), "Hi"))[0]["type"] == "message"


def test_an_item_is_sent_with_its_id_only_after_its_reasoning() -> None:
    bare = Message("assistant", (ToolCall("c", "f", item_id="fc_1"),), "openai")
    assert "id" not in items(bare)[0]


def test_texts_of_one_message_are_one_item_and_of_two_phases_two() -> None:
    parts = (Text("A", "commentary"), Text("B", "commentary"), Text("C", "final_answer"))
    found = items(Message("assistant", parts, "openai"))
    assert [(item["phase"], len(item["content"])) for item in found] == [
        ("commentary", 2),
        ("final_answer", 1),
    ]


def test_media_come_after_tool_results() -> None:
    found = items(Message("tool", (ToolResult("c", "see:"), Image("https://a.test/b.png"))))
    assert [item["type"] for item in found] == ["function_call_output", "message"]
    assert found[1]["role"] == "user"


@pytest.mark.parametrize(
    ("content", "error", "output"),
    [
        ("sunny", False, "sunny"),
        ("sunny", True, "error: sunny"),
        ({"a": 1}, False, '{"a":1}'),
        ({"a": 1}, True, 'error: {"a":1}'),
        (None, False, "null"),
        (True, False, "true"),
    ],
)
def test_a_result_is_sent_as_text(content: Any, error: bool, output: str) -> None:
    assert items(Message.tool(ToolResult("c", content, error)))[0]["output"] == output


@pytest.mark.parametrize(
    ("model", "effort", "reasoning", "includes"),
    [
        ("gpt-4.1", None, None, False),
        ("gpt-4o", None, None, False),
        ("gpt-5-chat-latest", None, None, False),
        ("gpt-5.5", None, None, True),
        ("o4-mini", None, None, True),
        ("ft:o4-mini:me", None, None, True),
        ("some-model", "high", {"effort": "high", "summary": "auto"}, True),
        ("gpt-5.5", "none", {"effort": "none"}, True),
        ("gpt-5.5", "xhigh", {"effort": "xhigh", "summary": "auto"}, True),
    ],
)
def test_thinking_is_requested_if_the_model_supports_it(
    model: str, effort: Any, reasoning: Any, includes: bool
) -> None:
    complete = body(model=model, reasoning_effort=effort)
    assert complete.get("reasoning") == reasoning
    assert ("include" in complete) == includes


@pytest.mark.parametrize(
    ("model", "effort", "takes"),
    [
        ("gpt-4.1", None, True),
        ("gpt-5", None, False),
        ("gpt-5-mini", "none", False),
        ("o3", None, False),
        ("gpt-5-chat-latest", None, True),
        ("gpt-5.1", None, True),
        ("gpt-5.1", "none", True),
        ("gpt-5.1", "low", False),
        ("unheard-of", "low", True),
    ],
)
def test_temperature_is_left_out_with_a_warning_if_the_model_rejects_it(
    model: str, effort: Any, takes: bool
) -> None:
    made = encoded(model=model, reasoning_effort=effort, temperature=0.0, top_p=0.5)
    assert ("temperature" in made.body, "top_p" in made.body) == (takes, takes)
    assert len(made.warnings) == (0 if takes else 2)


def test_stop_is_left_out_with_a_warning() -> None:
    made = encoded(stop=("END",))
    assert "stop" not in made.body
    assert "stop" in made.warnings[0]


def test_json_without_a_schema_is_also_requested_in_the_instructions() -> None:
    asked = body("A city?", response_format=ResponseFormat("json"))
    assert asked["text"] == {"format": {"type": "json_object"}}
    assert "JSON" in asked["input"][0]["content"]
    asked = body("A city, as json", response_format=ResponseFormat("json"))
    assert [item["role"] for item in asked["input"]] == ["user"]
    assert "text" not in body(response_format=ResponseFormat())


def test_own_options_win_and_their_headers_are_headers() -> None:
    options = {"reasoning": {"summary": None}, "service_tier": "flex", "headers": {"X-A": "b"}}
    made = encoded(reasoning_effort="low", provider_options={"openai": options, "gemini": {"x": 1}})
    assert made.body["reasoning"] == {"effort": "low", "summary": None}
    assert made.body["service_tier"] == "flex"
    assert made.headers == {"X-A": "b"}
    assert not {"x", "headers"} & made.body.keys()
