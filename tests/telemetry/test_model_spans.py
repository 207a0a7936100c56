"""The option ``otel`` of ``corral.models``: spans of calls, tools and failures."""

from __future__ import annotations

import json

import pytest
from support.otlp_receiver import OtlpReceiver, attributes

from corral import models
from corral.errors import CorralError
from corral.testing import Call, ModelServer, Turn

MODEL = "gemini:gemini-2.5-flash"


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def test_calls_tools_and_failures_are_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    script = [
        Turn(calls=[Call("add", {"a": 1, "b": 2})], usage={"input": 10, "output": 2}),
        Turn(text="It is 3.", usage={"input": 20, "output": 4}),
        Turn(text="Hello.", usage={"input": 5, "output": 1}),
        Turn(status=400, message="bad request"),
    ]
    with OtlpReceiver() as receiver, ModelServer(script) as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        await models.generate(MODEL, "What is 1 + 2?", tools=[add], otel=receiver.url)
        await models.stream(MODEL, "Hi", otel=receiver.url).collect()
        with pytest.raises(CorralError):
            await models.generate(MODEL, "Hi", otel=receiver.url)
    assert receiver.tree() == {
        "": ["chat gemini-2.5-flash", "chat gemini-2.5-flash", "invoke_agent corral.models"],
        "invoke_agent corral.models": [
            "chat gemini-2.5-flash", "chat gemini-2.5-flash", "execute_tool add",
        ],
    }  # fmt: skip
    chats = [attributes(span) for span in receiver.spans if span.name.startswith("chat")]
    assert [chat.get("gen_ai.usage.input_tokens") for chat in chats] == [10, 20, 5, None]
    assert all("corral.cost.usd" in chat for chat in chats[:3])
    assert chats[1]["gen_ai.provider.name"] == "gcp.gemini"
    last_input = json.loads(str(chats[1]["gen_ai.input.messages"]))
    assert [each["role"] for each in last_input] == ["user", "assistant", "tool"]
    (answer,) = json.loads(str(chats[1]["gen_ai.output.messages"]))
    assert (answer["parts"][0]["content"], answer["finish_reason"]) == ("It is 3.", "stop")
    assert "error.type" in chats[3]
