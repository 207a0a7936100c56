"""Requests for Gemini, as the server received them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral import models
from corral.errors import ConfigError
from corral.models import Message, Request, Text, Thinking, ToolCall, ToolNamed, ToolResult
from corral.testing import Call, ModelServer, Turn, say

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8
PNG_TEXT = "iVBORw0KGgoAAAAAAAAAAA=="


async def sent(*messages: Message, model: str = "gemini-2.5-flash", **fields: Any) -> Any:
    """The body that arrived, and the warnings of the answer under ``warnings``."""
    async with (
        ModelServer([say("ok")]) as server,
        models.Client(keys={"gemini": "k"}, base_urls={"gemini": server.url}, environ={}) as client,
    ):
        request = Request(model=f"gemini:{model}", messages=messages, **fields)
        response = await client.complete(request)
        return {**server.requests[0].body, "warnings": response.warnings}


USER = Message.user("hi")


async def test_text_of_the_user_and_of_the_model() -> None:
    body = await sent(USER, Message.assistant("hello"), Message.user("bye"))
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"text": "hello"}]},
        {"role": "user", "parts": [{"text": "bye"}]},
    ]


async def test_instructions_are_not_part_of_the_history() -> None:
    body = await sent(Message.system("one"), USER, Message("developer", (Text("two"),)))
    assert body["systemInstruction"] == {"parts": [{"text": "one"}, {"text": "two"}]}
    assert [entry["role"] for entry in body["contents"]] == ["user"]


async def test_consecutive_messages_of_one_role_are_one_entry() -> None:
    body = await sent(USER, Message.user("there"), Message.assistant("a"), Message.assistant("b"))
    assert [(e["role"], len(e["parts"])) for e in body["contents"]] == [("user", 2), ("model", 2)]


BLUE = ToolResult("c1", "blue")
CALLED = Message("assistant", (ToolCall("c1", "look", {"at": "sky"}),), "gemini")


@pytest.mark.parametrize(
    ("result", "response"),
    [
        (ToolResult("c1", "blue"), {"result": "blue"}),
        (ToolResult("c1", ["a", 1]), {"result": ["a", 1]}),
        (ToolResult("c1", {"colour": "blue"}), {"colour": "blue"}),
        (ToolResult("c1", "no eyes", is_error=True), {"error": "no eyes"}),
    ],
)
async def test_a_result_is_sent_with_the_name_of_its_call(
    result: ToolResult, response: dict[str, Any]
) -> None:
    body = await sent(USER, CALLED, Message.tool(result))
    assert body["contents"][1] == {
        "role": "model",
        "parts": [{"functionCall": {"name": "look", "args": {"at": "sky"}}}],
    }
    assert body["contents"][2] == {
        "role": "user",
        "parts": [{"functionResponse": {"name": "look", "response": response}}],
    }


async def test_a_call_id_of_two_turns_means_the_call_before_the_result() -> None:
    second = Message("assistant", (ToolCall("c1", "hear", {}, item_id="i2"),), "gemini")
    foreign = Message("assistant", (ToolCall("c1", "smell", {}, item_id="i3"),), "openai")
    messages = [m for call in (CALLED, second, foreign) for m in (call, Message.tool(BLUE))]
    body = await sent(USER, *messages)
    results = [body["contents"][at]["parts"][0]["functionResponse"] for at in (2, 4, 6)]
    assert [(result["name"], result.get("id")) for result in results] == [
        ("look", None),
        ("hear", "i2"),
        ("smell", None),
    ]


async def test_empty_texts_are_not_sent() -> None:
    empty = Text("")
    body = await sent(
        Message.system(""),
        Message("user", (Text("hi"), empty)),
        Message("assistant", (empty,)),
        Message("assistant", (Text("", "sig"), empty), "gemini"),
        Message("user", (empty, Text("bye"))),
        Message("assistant", (Text("", "sig"),), "openai"),
        Message("user", (Text("now"),)),
    )
    assert "systemInstruction" not in body
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"text": "", "thoughtSignature": "sig"}]},
        {"role": "user", "parts": [{"text": "bye"}, {"text": "now"}]},
    ]


@pytest.mark.parametrize("parts", [1, 2])
async def test_alternatives_of_a_tools_parameters_arrive(parts: int) -> None:
    kinds: list[Any] = [
        {"type": "object", "properties": {name: {"type": "string"}}} for name in "ab"
    ]
    schema: dict[str, Any] = {"anyOf": kinds} if parts == 1 else {"allOf": kinds}
    body = await sent(USER, tools=(models.ToolSpec("look", "", schema),))
    (tool,) = body["tools"][0]["functionDeclarations"]
    text = {"type": "STRING"}
    assert tool["parameters"] == {"type": "OBJECT", "properties": {"a": text, "b": text}}
    assert len(body["warnings"]) == (parts == 1)


async def test_a_tool_whose_parameters_are_no_object_is_refused_before_the_call() -> None:
    with pytest.raises(ConfigError, match="the tool 'look': its parameters are no object"):
        await sent(USER, tools=(models.ToolSpec("look", "", {"type": "string"}),))


SIGNED = (
    Thinking("hm", "t-sig"),
    Text("a", "x-sig"),
    ToolCall("c1", "f", {}, "c-sig", None, "item-1"),
)
RESULT = Message.tool(ToolResult("c1", "done"))


async def test_own_signatures_and_ids_are_sent_back_on_their_parts() -> None:
    body = await sent(USER, Message("assistant", SIGNED, "gemini"), RESULT, model="gemini-3-pro")
    assert body["contents"][1]["parts"] == [
        {"text": "hm", "thought": True, "thoughtSignature": "t-sig"},
        {"text": "a", "thoughtSignature": "x-sig"},
        {
            "functionCall": {"name": "f", "args": {}, "id": "item-1"},
            "thoughtSignature": "c-sig",
        },
    ]
    assert body["contents"][2]["parts"][0]["functionResponse"]["id"] == "item-1"


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "gemini-3-pro"])
async def test_signatures_of_another_vendor_are_left_out(model: str) -> None:
    body = await sent(USER, Message("assistant", SIGNED, "anthropic"), RESULT, model=model)
    output = str(body["contents"])
    for mark in ("t-sig", "x-sig", "c-sig", "item-1", "hm"):
        assert mark not in output


@pytest.mark.parametrize("provider", ["anthropic", "gemini", None])
async def test_the_first_unsigned_call_gets_a_placeholder_signature(
    provider: str | None,
) -> None:
    calls = (ToolCall("c1", "f"), ToolCall("c2", "f"))
    answer = Message("assistant", calls, provider)
    results = Message.tool(ToolResult("c1", "a"), ToolResult("c2", "b"))
    body = await sent(USER, answer, results, model="gemini-3-pro")
    marks = [part.get("thoughtSignature") for part in body["contents"][1]["parts"]]
    assert marks == ["skip_thought_signature_validator", None]
    older = await sent(USER, answer, results, model="gemini-2.5-pro")
    assert "thoughtSignature" not in str(older)


async def test_a_signature_survives_a_round_of_tools_on_its_part() -> None:
    def look(at: str) -> str:
        return f"{at} is blue"

    calls = [Call("look", {"at": "sky"}, "id-1"), Call("look", {"at": "sea"}, "id-2")]
    script = [Turn(thoughts="hm", calls=calls, signature="mark"), say("done")]
    async with (
        ModelServer(script) as server,
        models.Client(keys={"gemini": "k"}, base_urls={"gemini": server.url}, environ={}) as client,
    ):
        answer = await models.generate("gemini:gemini-3-pro", "go", tools=[look], client=client)
        body: Any = server.requests[1].body
    assert answer.text == "done"
    first, second = body["contents"][1]["parts"]
    assert first == {
        "functionCall": {"name": "look", "args": {"at": "sky"}, "id": "id-1"},
        "thoughtSignature": "bWFyaw==",
    }
    assert second == {"functionCall": {"name": "look", "args": {"at": "sea"}, "id": "id-2"}}
    returned = [part["functionResponse"] for part in body["contents"][2]["parts"]]
    assert [(r["id"], r["response"]) for r in returned] == [
        ("id-1", {"result": "sky is blue"}),
        ("id-2", {"result": "sea is blue"}),
    ]


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        (ToolNamed("f"), {"mode": "ANY", "allowedFunctionNames": ["f"]}),
    ],
)
async def test_the_choice_of_tools(choice: Any, config: dict[str, Any]) -> None:
    body = await sent(USER, tools=(models.ToolSpec("f", "does"),), tool_choice=choice)
    assert body["toolConfig"] == {"functionCallingConfig": config}
    assert body["tools"] == [{"functionDeclarations": [{"name": "f", "description": "does"}]}]


async def test_settings_have_their_fields() -> None:
    body = await sent(USER, temperature=0.0, top_p=0.5, max_tokens=9, stop=("END",))
    assert body["generationConfig"] == {
        "temperature": 0.0,
        "topP": 0.5,
        "maxOutputTokens": 9,
        "stopSequences": ["END"],
    }
    assert "generationConfig" not in await sent(USER)


@pytest.mark.parametrize(
    ("model", "effort", "config"),
    [
        ("gemini-3-pro", "high", {"thinkingLevel": "high", "includeThoughts": True}),
        ("gemini-3-flash", "none", {"thinkingLevel": "minimal"}),
        ("gemini-2.5-flash", "low", {"thinkingBudget": 1024, "includeThoughts": True}),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-pro", "none", {"thinkingBudget": 128}),
    ],
)
async def test_effort_is_a_level_or_a_budget(model: str, effort: str, config: Any) -> None:
    body = await sent(USER, model=model, reasoning_effort=effort)
    assert body["generationConfig"] == {"thinkingConfig": config}
    assert body["warnings"] == ()


async def test_a_model_without_thinking_gets_no_effort() -> None:
    body = await sent(USER, model="gemini-2.0-flash", reasoning_effort="high")
    assert "generationConfig" not in body
    assert "does not support it" in body["warnings"][0]


async def test_options_of_the_vendor_are_merged_unchanged() -> None:
    options: dict[str, Any] = {
        "gemini": {"generationConfig": {"seed": 7}, "safetySettings": []},
        "openai": {"x": 1},
    }
    body = await sent(USER, temperature=1.0, provider_options=options)
    assert body["generationConfig"] == {"temperature": 1.0, "seed": 7}
    assert body["safetySettings"] == []
    assert "x" not in body


async def test_media_are_sent_inline_or_as_a_url(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(PNG)
    body = await sent(
        Message.user(
            models.Image(str(picture)),
            models.Image(PNG),
            models.Audio(b"ID3x"),
            models.Document("data:application/pdf;base64,JVBERi0="),
            models.Image("https://example.org/b.jpg"),
        )
    )
    assert body["contents"][0]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": PNG_TEXT}},
        {"inlineData": {"mimeType": "image/png", "data": PNG_TEXT}},
        {"inlineData": {"mimeType": "audio/mpeg", "data": "SUQzeA=="}},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0="}},
        {"fileData": {"fileUri": "https://example.org/b.jpg", "mimeType": "image/jpeg"}},
    ]
