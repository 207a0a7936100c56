"""What is sent to Anthropic, checked against the bodies that the vendor's own SDK sends."""

# The SDK is generic over what it parses, which the checkers cannot follow.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import warnings
from base64 import b64encode
from typing import Any, cast

import httpx2
import pytest

from corral import errors
from corral._models.anthropic.spec import PROVIDERS, WIRE
from corral._models.spec import Encoded
from corral.messages import (
    Audio,
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
from corral.values import Json

pytestmark = pytest.mark.usefixtures("anthropic_sdk")
PROVIDER = PROVIDERS[0]
MODEL = "claude-sonnet-4-5"
OLD, ADAPTIVE, NEW, NEWEST = (
    "claude-3-5-haiku-20241022",
    "claude-opus-4-6",
    "claude-opus-5",
    "claude-opus-5-5",
)
UNCACHED: dict[str, dict[str, Json]] = {"anthropic": {"cache": False}}
WEATHER = ToolSpec(
    "get_weather",
    "The weather of a place.",
    {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
)


def ask(*messages: Message | str, model: str = MODEL, **more: Any) -> Request:
    more.setdefault("provider_options", UNCACHED)
    wanted = tuple(m if isinstance(m, Message) else Message.user(m) for m in messages)
    return Request(model=model, messages=wanted or (Message.user("Hi"),), **more)


def encoded(*messages: Message | str, streamed: bool = False, **more: Any) -> Encoded:
    return WIRE.encode(ask(*messages, **more), PROVIDER, streamed)


def body(*messages: Message | str, **more: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", encoded(*messages, **more).body)


# --- what the SDK sends -------------------------------------------------------------------


def sent_by_sdk(**arguments: Any) -> dict[str, Any]:
    """The body that the vendor's SDK sends for these arguments."""
    import anthropic

    seen: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.read())
        empty = {"type": "message", "role": "assistant", "content": []}
        return httpx2.Response(200, json=empty)

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    with (
        warnings.catch_warnings(),
        anthropic.Anthropic(api_key="k", http_client=http, max_retries=0) as client,
    ):
        warnings.simplefilter("ignore", DeprecationWarning)  # of models that are to go
        client.messages.create(**arguments)
    return cast("dict[str, Any]", json.loads(seen[0]))


def test_a_conversation_with_tools_is_sent_as_the_sdk_sends_it() -> None:
    ours = body(
        Message.system("Be brief."),
        "What is the weather in Paris and Rome?",
        Message.assistant(
            Thinking("Two calls.", "sig=="),
            "I look it up.",
            ToolCall("toolu_1", "get_weather", {"location": "Paris"}),
            ToolCall("toolu_2", "get_weather", {"location": "Rome"}),
        ),
        Message.tool(ToolResult("toolu_1", "sunny"), ToolResult("toolu_2", "no such place", True)),
        tools=(WEATHER,),
        tool_choice="auto",
        stop=("END",),
        max_tokens=20_000,
        reasoning_effort="medium",
        metadata={"user_id": "u1"},
    )
    assert ours == sent_by_sdk(
        model=MODEL,
        max_tokens=20_000,
        system=[{"type": "text", "text": "Be brief."}],
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "What is the weather in Paris and Rome?"}],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Two calls.", "signature": "sig=="},
                    {"type": "text", "text": "I look it up."},
                    {
                        "type": "tool_use",
                        "id": "toolu_1",
                        "name": "get_weather",
                        "input": {"location": "Paris"},
                    },
                    {
                        "type": "tool_use",
                        "id": "toolu_2",
                        "name": "get_weather",
                        "input": {"location": "Rome"},
                    },
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "content": "no such place",
                        "is_error": True,
                    },
                ],
            },
        ],
        tools=[
            {
                "name": "get_weather",
                "description": "The weather of a place.",
                "input_schema": WEATHER.parameters,
            }
        ],
        tool_choice={"type": "auto"},
        stop_sequences=["END"],
        thinking={"type": "enabled", "budget_tokens": 8192},
        metadata={"user_id": "u1"},
    )


def test_media_are_sent_as_the_sdk_sends_them() -> None:
    ours = body(
        Message.user(
            Image(b"\x89PNG", "image/png"),
            Image("https://example.org/a.png"),
            Document(b"%PDF", "application/pdf", "report"),
            Document("https://example.org/a.pdf"),
            Document(b"a,b", "text/csv"),
        )
    )
    png, pdf = b64encode(b"\x89PNG").decode(), b64encode(b"%PDF").decode()
    linked = {"type": "url", "url": "https://example.org/a.pdf"}
    assert ours == sent_by_sdk(
        model=MODEL,
        max_tokens=8192,
        messages=[
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": png},
                    },
                    {
                        "type": "image",
                        "source": {"type": "url", "url": "https://example.org/a.png"},
                    },
                    {
                        "type": "document",
                        "source": {"type": "base64", "media_type": "application/pdf", "data": pdf},
                        "title": "report",
                    },
                    {"type": "document", "source": linked},
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": "a,b"},
                    },
                ],
            }
        ],
    )


def test_an_effort_is_sent_to_an_adaptive_model_as_the_sdk_sends_it() -> None:
    assert body(model=NEW, reasoning_effort="high", streamed=True) == sent_by_sdk(
        model=NEW,
        max_tokens=32_000,
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        thinking={"type": "adaptive", "display": "summarized"},
        output_config={"effort": "high"},
        stream=True,
    )


# --- the history --------------------------------------------------------------------------


def test_system_and_developer_messages_are_not_in_the_history() -> None:
    made = body(Message.system("One."), "Hi", Message("developer", (Text("Two."), Text(" "))))
    assert [block["text"] for block in made["system"]] == ["One.", "Two."]
    assert [message["role"] for message in made["messages"]] == ["user"]


def test_consecutive_roles_are_one_message_with_the_results_first() -> None:
    made = body(
        "Go",
        Message.assistant(ToolCall("a", "f")),
        Message.assistant("and"),
        "Wait, also this",
        Message.tool(ToolResult("a", {"n": 1})),
    )
    assert [message["role"] for message in made["messages"]] == ["user", "assistant", "user"]
    last = made["messages"][-1]["content"]
    assert [block["type"] for block in last] == ["tool_result", "text"]
    assert last[0]["content"] == '{"n":1}'


def test_blank_texts_are_left_out_and_a_last_answer_ends_without_blanks() -> None:
    made = body("Hi", Message.user(" \n"), Message.assistant("", "The answer is ( \n"))
    assert made["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "The answer is ("}]},
    ]


@pytest.mark.parametrize("provider", [None, "anthropic", "gemini"])
def test_only_its_own_signed_thinking_is_sent_back(provider: str | None) -> None:
    response = Message(
        "assistant",
        (Thinking("a", "sig"), Thinking("b"), RedactedThinking("xx"), Text("c")),
        provider,
    )
    kinds = [block["type"] for block in body("Hi", response, "Go on")["messages"][1]["content"]]
    own = ["thinking", "redacted_thinking"] if provider != "gemini" else []
    assert kinds == [*own, "text"]


def test_ids_of_other_vendors_are_converted_in_calls_and_results() -> None:
    made = body(
        "Hi", Message.assistant(ToolCall("f.x:0", "f")), Message.tool(ToolResult("f.x:0", "1"))
    )
    assert made["messages"][1]["content"][0]["id"] == "f_x_0"
    assert made["messages"][2]["content"][0]["tool_use_id"] == "f_x_0"


def test_a_call_that_was_not_json_has_an_empty_input() -> None:
    made = body("Hi", Message.assistant(ToolCall("a", "f", raw="{oops")), "Go on")
    assert made["messages"][1]["content"][0]["input"] == {}


def test_a_data_url_is_split_into_type_and_data() -> None:
    made = body(Message.user(Image("data:image/gif;base64,AAAA")))
    assert made["messages"][0]["content"][0]["source"] == {
        "type": "base64",
        "media_type": "image/gif",
        "data": "AAAA",
    }


@pytest.mark.parametrize(
    "part",
    [
        Audio(b"RIFF", "audio/wav"),
        Image("gs://bucket/a.png"),
        Image("data:image/svg+xml,<svg/>"),
        Document(b"PK", "application/zip"),
    ],
)
def test_unsupported_media_are_the_callers_error(part: Image | Audio | Document) -> None:
    with pytest.raises(errors.MediaInvalid) as raised:
        encoded(Message.user(part))
    assert raised.value.hint


# --- settings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "effort", "thinking", "output"),
    [
        (OLD, "high", None, None),
        (OLD, "none", None, None),
        ("claude-3-7-sonnet-20250219", "low", {"type": "enabled", "budget_tokens": 2048}, None),
        ("claude-opus-4-20250514", "minimal", {"type": "enabled", "budget_tokens": 1024}, None),
        (MODEL, "xhigh", {"type": "enabled", "budget_tokens": 23808}, None),
        (MODEL, "none", {"type": "disabled"}, None),
        ("kimi-k2", "low", {"type": "enabled", "budget_tokens": 2048}, None),
        (ADAPTIVE, "minimal", {"type": "adaptive"}, "low"),
        (ADAPTIVE, "xhigh", {"type": "adaptive"}, "max"),
        ("claude-opus-4-10", "xhigh", {"type": "adaptive", "display": "summarized"}, "xhigh"),
        (NEW, "none", {"type": "disabled"}, None),
        (NEWEST, "none", None, "low"),
        ("claude-sonnet-5-5", "none", {"type": "between_tools"}, None),
        ("claude-mythos-preview", "none", None, "low"),
        ("claude-fable-5", "xhigh", {"type": "adaptive", "display": "summarized"}, "xhigh"),
    ],
)
def test_the_effort_has_the_format_of_the_model(
    model: str, effort: str, thinking: Json, output: str | None
) -> None:
    made = body(model=model, reasoning_effort=effort)
    assert made.get("thinking") == thinking
    assert made.get("output_config") == (None if output is None else {"effort": output})


def test_an_effort_that_is_left_out_or_changed_is_a_warning() -> None:
    assert encoded(model=OLD, reasoning_effort="high").warnings
    assert encoded(model=NEWEST, reasoning_effort="none").warnings
    assert not encoded(model=MODEL, reasoning_effort="high").warnings


@pytest.mark.parametrize(
    ("model", "given", "effort", "wanted"),
    [
        (MODEL, None, None, 8192),
        ("claude-3-opus-20240229", None, None, 4096),
        (NEW, None, "high", 32_000),
        (MODEL, None, "xhigh", 32_000),
        (MODEL, 100, None, 100),
        (MODEL, 100, "minimal", 1124),
        (MODEL, 5000, "minimal", 5000),
    ],
)
def test_the_output_limit_is_always_sent_and_above_the_thinking_budget(
    model: str, given: int | None, effort: str | None, wanted: int
) -> None:
    made = encoded(model=model, max_tokens=given, reasoning_effort=effort)
    assert made.body["max_tokens"] == wanted
    assert bool(made.warnings) == (given is not None and wanted != given)


@pytest.mark.parametrize(
    ("model", "effort", "kept"),
    [
        (OLD, None, {"temperature": 0.5, "top_p": 0.9}),
        (MODEL, None, {"temperature": 0.5}),
        (MODEL, "low", {}),
        ("claude-opus-4-8", None, {}),
        (NEW, None, {}),
    ],
)
def test_sampling_is_left_out_if_it_would_be_rejected(
    model: str, effort: str | None, kept: dict[str, float]
) -> None:
    made = encoded(model=model, temperature=0.5, top_p=0.9, reasoning_effort=effort)
    wanted = {name: made.body[name] for name in ("temperature", "top_p") if name in made.body}
    assert wanted == kept
    assert len(made.warnings) == 2 - len(kept)


def test_metadata_other_than_the_user_is_a_warning() -> None:
    made = encoded(metadata={"user_id": "u", "team": "x"})
    assert made.body["metadata"] == {"user_id": "u"}
    assert "team" in made.warnings[0]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        (ToolNamed("get_weather"), {"type": "tool", "name": "get_weather"}),
        (None, None),
    ],
)
def test_the_choice_of_a_tool(choice: Any, wanted: Json) -> None:
    assert body(tools=(WEATHER,), tool_choice=choice).get("tool_choice") == wanted
    assert "tool_choice" not in body(tool_choice=choice)


def test_a_tool_is_forced_only_on_a_model_that_does_not_think() -> None:
    def wanted(model: str, effort: str | None) -> tuple[Json, Json, int]:
        made = encoded(
            model=model, tools=(WEATHER,), tool_choice="required", reasoning_effort=effort
        )
        warned = len(made.warnings)
        return made.body["tool_choice"], made.body.get("thinking"), warned

    assert wanted(MODEL, None) == ({"type": "any"}, None, 0)
    assert wanted(MODEL, "none") == ({"type": "any"}, {"type": "disabled"}, 0)
    choice, thinking, warned = wanted(MODEL, "low")
    assert (choice, warned) == ({"type": "auto"}, 1)
    assert thinking == {"type": "enabled", "budget_tokens": 2048}
    assert wanted(NEW, None) == ({"type": "any"}, {"type": "disabled"}, 1)
    assert wanted(NEWEST, None) == ({"type": "auto"}, None, 1)
    quiet = wanted("claude-sonnet-5-5", "none")
    assert quiet == ({"type": "auto"}, {"type": "between_tools"}, 1)


def test_the_most_stable_blocks_are_cached_by_default() -> None:
    marked: dict[str, Any] = {"type": "ephemeral"}
    request = (Message.system("a", "b"), "Hi", Message.assistant("yes"), Message.user("x", "y"))
    made = body(*request, tools=(WEATHER, WEATHER), provider_options={})
    assert [block.get("cache_control") for block in made["system"]] == [None, marked]
    assert [tool.get("cache_control") for tool in made["tools"]] == [None, marked]
    assert [b.get("cache_control") for b in made["messages"][-1]["content"]] == [None, marked]
    assert json.dumps(made).count("cache_control") == 3
    plain = body(*request, tools=(WEATHER, WEATHER))
    assert "cache" not in json.dumps(plain)


@pytest.mark.parametrize("name", ["cache", "auto_cache"])
def test_caching_is_switched_off_by_either_name(name: str) -> None:
    made = encoded(provider_options={"anthropic": {name: False}}, tools=(WEATHER,))
    assert "cache" not in json.dumps(made.body)


def test_options_of_the_vendor_are_merged_and_betas_are_a_header() -> None:
    made = encoded(
        provider_options={
            "anthropic": {
                "betas": ["a-1", "b-2"],
                "headers": {"x-extra": "1"},
                "service_tier": "auto",
                "metadata": {"user_id": "u"},
            }
        },
    )
    assert made.headers == {"anthropic-beta": "a-1,b-2", "x-extra": "1"}
    assert made.body["service_tier"] == "auto"
    assert made.body["metadata"] == {"user_id": "u"}
    assert not {"betas", "headers", "cache"} & made.body.keys()
    with pytest.raises(errors.ConfigError):
        encoded(provider_options={"anthropic": {"betas": "a-1"}})


# --- a schema -----------------------------------------------------------------------------

PERSON: dict[str, Json] = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
NAMES: dict[str, Json] = {
    "type": "array",
    "items": {"$ref": "#/$defs/Name"},
    "$defs": {"Name": {"type": "string"}},
}


def shaped(schema: dict[str, Json]) -> ResponseFormat:
    return ResponseFormat("json_schema", schema, "person")


def test_a_schema_is_a_tool_that_the_model_must_call() -> None:
    made = body(response_format=shaped(PERSON))
    (tool,) = made["tools"]
    assert tool["input_schema"] == PERSON
    assert "person" in tool["description"]
    assert made["tool_choice"] == {"type": "tool", "name": tool["name"]}
    both = body(response_format=shaped(PERSON), tools=(WEATHER,))
    assert both["tool_choice"] == {"type": "any"}
    assert len(both["tools"]) == 2


def test_a_schema_that_is_not_an_object_is_wrapped_with_its_definitions_at_the_root() -> None:
    (tool,) = body(response_format=shaped(NAMES))["tools"]
    assert tool["input_schema"] == {
        "type": "object",
        "properties": {"value": {"type": "array", "items": {"$ref": "#/$defs/Name"}}},
        "required": ["value"],
        "$defs": {"Name": {"type": "string"}},
    }


@pytest.mark.parametrize(("model", "effort"), [(MODEL, "low"), (NEW, None), (NEWEST, None)])
def test_a_thinking_model_gets_an_instruction_to_call_the_tool(
    model: str, effort: str | None
) -> None:
    made = encoded(model=model, reasoning_effort=effort, response_format=shaped(PERSON))
    assert made.body["tool_choice"] == {"type": "auto"}
    assert "corral_result" in json.dumps(made.body["system"])
    assert not made.warnings


def test_json_without_a_schema_is_requested_in_the_instructions() -> None:
    made = body(Message.system("Be brief."), response_format=ResponseFormat("json"))
    assert [block["text"] for block in made["system"]] == ["Be brief.", "Answer with JSON only."]
    assert "tools" not in made
