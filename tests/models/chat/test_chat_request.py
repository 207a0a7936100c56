"""Requests for chat completions, with the variants of the vendors."""

# The SDK is generic over what it parses, which the checkers cannot follow.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from base64 import b64encode
from typing import Any, cast

import pytest
from pydantic import TypeAdapter
from support.openai_oracle import messages_of, parse_stream, sent_by_sdk
from support.openai_streams import chunk, piece_of, sse

from corral._models import registry
from corral._models.spec import Encoded, Provider, Traits
from corral.messages import Image, Message, RedactedThinking, Text, Thinking, ToolCall, ToolResult
from corral.model_types import Request, ResponseFormat, ToolNamed, ToolSpec

PNG = b"\x89PNG\r\n"
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


def encoded(
    *messages: Message | str, to: str | Provider = "chat", streamed: bool = False, **more: Any
) -> Encoded:
    provider = registry.find_provider(to) if isinstance(to, str) else to
    more = {"model": "some-model", **more}
    request = Request(messages=messages_of(*(messages or ("Hi",))), **more)
    return provider.wire.encode(request, provider, streamed)


def body(*messages: Message | str, **more: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", encoded(*messages, **more).body)


def entries(*messages: Message | str, **more: Any) -> list[Any]:
    return cast("list[Any]", body(*messages, **more)["messages"])


CONVERSATION = (
    Message.system("Be brief."),
    Message("developer", (Text("No jokes."),)),
    Message.user("What is this?", Image(PNG, "image/png", "low")),
    Message.assistant(
        Thinking("Two calls.", "sig"),
        "I look.",
        ToolCall("call_1", "weather", {"city": "Rome"}),
        ToolCall("call_2", "weather", raw='{"city'),
    ),
    Message.tool(ToolResult("call_1", {"sky": "blue"}), ToolResult("call_2", "no JSON", True)),
    Message.user("And?"),
)
OPTIONS: dict[str, Any] = {
    "model": "gpt-4.1",
    "tools": (WEATHER,),
    "tool_choice": ToolNamed("weather"),
    "response_format": ResponseFormat("json_schema", CLOSED, "city"),
    "max_tokens": 500,
    "stop": ("END",),
    "temperature": 0.5,
    "top_p": 0.9,
    "metadata": {"run": "7"},
}


def test_a_conversation_with_tools_is_sent_as_the_sdk_sends_it() -> None:
    ours = encoded(*CONVERSATION, to="openai-chat", streamed=True, **OPTIONS)
    url = "data:image/png;base64," + b64encode(PNG).decode()
    called = [("call_1", '{"city":"Rome"}'), ("call_2", '{"city')]
    theirs: dict[str, Any] = {
        "model": "gpt-4.1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "developer", "content": "Be brief.\n\nNo jokes."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
                ],
            },
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {"id": id, "type": "function", "function": {"name": "weather", "arguments": a}}
                    for id, a in called
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": '{"sky":"blue"}'},
            {"role": "tool", "tool_call_id": "call_2", "content": "error: no JSON"},
            {"role": "user", "content": "And?"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "The weather of a city.",
                    "parameters": WEATHER.parameters,
                },
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": CLOSED, "strict": True},
        },
        "max_completion_tokens": 500,
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "metadata": {"run": "7"},
    }
    assert (ours.path, ours.body) == sent_by_sdk("chat", theirs)
    assert ours.warnings == ()


def test_requests_have_exactly_the_vendors_types() -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

    adapter: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsStreaming)
    more = {**OPTIONS, "reasoning_effort": "low", "response_format": ResponseFormat("json")}
    for options in (OPTIONS, more):
        complete = body(*CONVERSATION, to="openai-chat", streamed=True, **options)
        made = adapter.validate_python(complete, extra="forbid")
        assert len(list(made["messages"])) == 6  # checked one by one, as they are taken
        assert len(list(made["tools"])) == 1


def test_a_call_without_text_and_one_of_another_vendor() -> None:
    content = (Thinking("Hm.", "s"), RedactedThinking("x"), ToolCall("toolu_1", "f", {"a": 1}))
    assert entries(Message("assistant", content, "anthropic")) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a":1}'},
                }
            ],
        }
    ]


def test_thinking_alone_is_not_a_message() -> None:
    assert entries("Hi", Message.assistant(Thinking("Hm."))) == [{"role": "user", "content": "Hi"}]


def test_tool_results_follow_the_calls_and_other_parts_come_after() -> None:
    mixed = Message("user", (Text("See:"), ToolResult("c1", "a"), ToolResult("c2", "b")))
    assert [entry["role"] for entry in entries(mixed)] == ["tool", "tool", "user"]


def test_usage_is_requested_only_in_a_stream() -> None:
    assert not {"stream", "stream_options"} & body().keys()
    assert body(streamed=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body(streamed=True, to="mistral")


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (ToolNamed("f"), {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tool_choice(choice: Any, sent: Any) -> None:
    assert body(tool_choice=choice)["tool_choice"] == sent


@pytest.mark.parametrize(
    ("to", "role", "limit"),
    [
        ("chat", "system", "max_tokens"),
        ("openai-chat", "developer", "max_completion_tokens"),
        ("groq", "system", "max_completion_tokens"),
        ("deepseek", "system", "max_tokens"),
        ("ollama", "system", "max_tokens"),
    ],
)
def test_instructions_and_the_limit_have_the_fields_of_the_vendor(
    to: str, role: str, limit: str
) -> None:
    complete = body(Message.system("Hm."), "Hi", to=to, max_tokens=9)
    assert complete["messages"][0] == {"role": role, "content": "Hm."}
    assert complete[limit] == 9


@pytest.mark.parametrize(
    ("to", "effort", "sent"),
    [
        ("chat", "low", {"reasoning_effort": "low"}),
        ("openrouter", "high", {"reasoning": {"effort": "high"}}),
        ("deepseek", "high", {"reasoning_effort": "high"}),
        ("deepseek", "none", {"thinking": {"type": "disabled"}}),
    ],
)
def test_the_effort_has_the_field_of_the_vendor(to: str, effort: Any, sent: dict[str, Any]) -> None:
    plain = body(to=to)
    assert body(to=to, reasoning_effort=effort) == {**plain, **sent}


def test_what_a_vendor_does_not_support_is_left_out_with_a_warning() -> None:
    base = registry.find_provider("chat")
    provider = Provider(
        name="x", title="X", wire=base.wire, base_url="", traits=Traits(reasoning_field=None)
    )
    made = encoded(to=provider, reasoning_effort="low", metadata={"a": "b"})
    assert made.body.keys() == {"model", "messages"}
    assert {warning.split()[0] for warning in made.warnings} == {"metadata", "reasoning_effort"}


def test_temperature_is_left_out_only_for_openai_model_names() -> None:
    made = encoded(to="openai-chat", model="o3", temperature=0.0)
    assert "temperature" not in made.body
    assert made.warnings
    assert body(to="openrouter", model="openai/o3", temperature=0.0)["temperature"] == 0.0


def test_without_schema_support_the_schema_is_in_the_instructions() -> None:
    form = ResponseFormat("json_schema", CLOSED)
    made = encoded("Hi", Message.system("Be brief."), to="deepseek", response_format=form)
    assert made.body["response_format"] == {"type": "json_object"}
    response = cast("Any", made.body["messages"])[0]["content"]
    assert response.startswith("Be brief.\n\n")
    assert '"additionalProperties":false' in response
    assert "schema" in made.warnings[0]


def test_json_without_a_schema_is_requested_in_the_format_of_the_server() -> None:
    form = ResponseFormat("json")
    asked = body("A city?", response_format=form)
    assert asked["response_format"] == {"type": "json_object"}
    assert "JSON" in asked["messages"][0]["content"]
    assert [e["role"] for e in entries("A city, as json", response_format=form)] == ["user"]
    asked = body(Message.system("Use JSON."), "A city?", response_format=form)
    assert asked["messages"][0]["content"] == "Use JSON."
    local = body("json", to="lmstudio", response_format=form)["response_format"]
    assert local["json_schema"]["schema"] == {"type": "object"}


def test_reasoning_is_sent_back_with_its_calls_if_the_vendor_requires_it() -> None:
    stream = sse(
        chunk({"reasoning_content": "I need the weather."}),
        chunk(piece_of(0, "{}", id="call_1", name="weather")),
        chunk(finish="tool_calls"),
    )
    deepseek = registry.find_provider("deepseek")
    message = parse_stream(deepseek, stream).message
    assert entries(message, to="deepseek")[0]["reasoning_content"] == "I need the weather."
    assert "reasoning_content" not in entries(message, to="chat")[0]
    foreign = Message("assistant", message.content, "gemini")
    assert entries(foreign, to="deepseek")[0]["reasoning_content"] == ""
    response = Message("assistant", (Thinking("Hm."), Text("Hi")), "deepseek")
    assert entries(response, to="deepseek") == [{"role": "assistant", "content": "Hi"}]


def test_ids_are_shortened_in_the_same_way_for_a_call_and_its_result() -> None:
    call = Message.assistant(ToolCall("call_PTLP8xhu3uwZk4l3", "f"), ToolCall("abcDEF123", "f"))
    result = Message.tool(ToolResult("call_PTLP8xhu3uwZk4l3", "a"), ToolResult("abcDEF123", "b"))
    asked, *answers = entries(call, result, to="mistral")
    ids = [made["id"] for made in asked["tool_calls"]]
    assert ids == [answer["tool_call_id"] for answer in answers]
    assert ids[1] == "abcDEF123"
    assert len(ids[0]) == 9
    assert ids[0].isalnum()


def test_own_options_win_and_their_headers_are_headers() -> None:
    options = {"seed": 7, "stream_options": {"include_obfuscation": False}, "headers": {"X": "y"}}
    made = encoded(streamed=True, provider_options={"chat": options})
    assert made.body["seed"] == 7
    assert made.body["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    assert made.headers == {"X": "y"}


@pytest.mark.parametrize(
    ("name", "url", "key"),
    [
        ("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("openai-chat", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        ("deepseek", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
        ("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
        ("xai", "https://api.x.ai/v1", "XAI_API_KEY"),
        ("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
        ("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
        ("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    ],
)
def test_a_vendor_is_found_by_its_name(name: str, url: str, key: str) -> None:
    provider = registry.find_provider(name)
    assert (provider.base_url, provider.key_env) == (url, (key,))
    assert not provider.key_optional


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("chat", ""),
        ("ollama", "http://localhost:11434/v1"),
        ("lmstudio", "http://localhost:1234/v1"),
        ("vllm", "http://localhost:8000/v1"),
    ],
)
def test_a_local_server_needs_no_key(name: str, url: str) -> None:
    provider = registry.find_provider(name)
    assert (provider.base_url, provider.key_optional) == (url, True)
    assert provider.base_url_env == (f"{name.upper()}_BASE_URL",)
