"""The google-genai SDK is the oracle: the same conversation, the same body; the same stream,
the same answer."""

# The SDK is typed in part only (images are Pillow's, which is not installed).
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest

from corral import models
from corral.models import Message, Text, ToolCall, ToolNamed, ToolResult, ToolSpec
from corral.testing import Call, ModelServer, Turn, say
from corral.values import Json

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own source warns when it is first compiled
    from google.genai import Client, types

NAME = "gemini-2.5-flash"
USER = types.Content(role="user", parts=[types.Part(text="hi")])
SIGNED = types.Content(
    role="model",
    parts=[
        types.Part(text="I look."),
        types.Part(
            function_call=types.FunctionCall(name="look", args={"at": "sky"}, id="c1"),
            thought_signature=b"mark",
        ),
    ],
)
RETURNED = types.Content(
    role="user",
    parts=[
        types.Part(
            function_response=types.FunctionResponse(
                name="look", response={"result": "blue"}, id="c1"
            )
        )
    ],
)
OURS = (
    Message.user("hi"),
    Message(
        "assistant",
        (Text("I look."), ToolCall("c1", "look", {"at": "sky"}, "bWFyaw==", None, "c1")),
        "gemini",
    ),
    Message.tool(ToolResult("c1", "blue")),
)
LOOK = types.FunctionDeclaration(
    name="look",
    description="Looks.",
    parameters=types.Schema(
        type=types.Type.OBJECT,
        properties={"at": types.Schema(type=types.Type.STRING, description="where")},
        required=["at"],
    ),
)
LOOK_HERE = ToolSpec(
    "look",
    "Looks.",
    {
        "type": "object",
        "properties": {"at": {"type": "string", "description": "where"}},
        "required": ["at"],
    },
)
CHOSEN = types.ToolConfig(
    function_calling_config=types.FunctionCallingConfig(
        mode=types.FunctionCallingConfigMode.ANY, allowed_function_names=["look"]
    )
)

SAME: list[tuple[list[types.Content], Any, tuple[Message, ...], dict[str, Any]]] = [
    ([USER], None, OURS[:1], {}),
    (
        [USER],
        {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 7, "stop_sequences": ["X"]},
        OURS[:1],
        {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "stop": ("X",)},
    ),
    (
        [USER],
        {"thinking_config": types.ThinkingConfig(thinking_budget=1024, include_thoughts=True)},
        OURS[:1],
        {"reasoning_effort": "low"},
    ),
    (
        [USER, SIGNED, RETURNED],
        {"tools": [types.Tool(function_declarations=[LOOK])], "tool_config": CHOSEN},
        OURS,
        {"tools": (LOOK_HERE,), "tool_choice": ToolNamed("look")},
    ),
]


def camel(key: str) -> str:
    first, *more = key.split("_")
    return first + "".join(word.capitalize() for word in more)


def plain(value: Json) -> Json:
    """The same JSON in one spelling: the API accepts ``thinking_budget`` for
    ``thinkingBudget``, and an empty object means the same as a missing one."""
    if isinstance(value, dict):
        held = {camel(key): plain(each) for key, each in value.items()}
        return {key: each for key, each in held.items() if each != {}}
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("contents", "config", "messages", "fields"), SAME)
def test_the_same_conversation_is_the_same_body(
    contents: list[types.Content],
    config: Any,
    messages: tuple[Message, ...],
    fields: dict[str, Any],
) -> None:
    async def ours(url: str) -> None:
        async with models.Client(
            keys={"gemini": "k"}, base_urls={"gemini": url}, environ={}
        ) as client:
            request = models.Request(model=f"gemini:{NAME}", messages=messages, **fields)
            await client.complete(request)

    with ModelServer([say("a"), say("b")]) as server:
        sdk = Client(
            api_key="k", http_options=types.HttpOptions(base_url=server.url, api_version="v1beta")
        )
        try:
            sdk.models.generate_content(model=NAME, contents=list(contents), config=config)
        finally:
            sdk.close()
        asyncio.run(ours(server.url))
        theirs, own = server.requests
    assert plain(own.body) == plain(theirs.body)
    assert own.path == theirs.path


@pytest.mark.parametrize(
    "turn",
    [
        say("Hel", "lo"),
        Turn(thoughts="hm", text=("a", "b")),
        Turn(text="x", calls=[Call("f", {"a": 1}, "i"), Call("f", {"a": 2}, "j")]),
        Turn(
            text="x",
            finish="MAX_TOKENS",
            usage={"input": 9, "output": 4, "thoughts": 2, "cached": 3},
        ),
        Turn(text="x", usage=False),
    ],
)
def test_the_same_stream_is_the_same_answer(turn: Turn) -> None:
    async def ours(url: str) -> models.Response:
        async with models.Client(
            keys={"gemini": "k"}, base_urls={"gemini": url}, environ={}
        ) as client:
            stream = models.stream(f"gemini:{NAME}", "hi", client=client, max_tool_rounds=0)
            return (await stream.collect()).response

    with ModelServer([turn, turn]) as server:
        sdk = Client(
            api_key="k", http_options=types.HttpOptions(base_url=server.url, api_version="v1beta")
        )
        try:
            chunks = list(sdk.models.generate_content_stream(model=NAME, contents="hi"))
        finally:
            sdk.close()
        own = asyncio.run(ours(server.url))
    parts: list[types.Part] = []
    reasons: list[Any] = []
    for chunk in chunks:
        for candidate in chunk.candidates or []:
            reasons.append(candidate.finish_reason)
            parts += (candidate.content.parts if candidate.content else None) or []
    assert own.text == "".join(p.text for p in parts if p.text and not p.thought)
    assert own.reasoning == "".join(p.text for p in parts if p.text and p.thought)
    calls = [p.function_call for p in parts if p.function_call]
    assert [(c.id, c.name, c.arguments) for c in own.tool_calls] == [
        (c.id, c.name, c.args) for c in calls
    ]
    assert own.finish_reason.raw == reasons[-1].value
    reported = chunks[-1].usage_metadata
    if reported is None:
        assert own.usage == models.Usage()
        return
    counted = (reported.candidates_token_count or 0) + (reported.thoughts_token_count or 0)
    assert (own.usage.input, own.usage.output) == (reported.prompt_token_count, counted)
    assert own.usage.reasoning == reported.thoughts_token_count
    assert own.usage.cache_read == reported.cached_content_token_count
