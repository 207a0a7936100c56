"""Messages as plain dicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from corral.errors import ConfigError
from corral.messages import (
    Audio,
    Document,
    Image,
    Message,
    Text,
    ToolCall,
    ToolResult,
    message_from_dict,
)

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}

READ: list[tuple[dict[str, Any], Message]] = [
    ({"role": "user", "content": "hi"}, Message.user("hi")),
    ({"role": "system", "content": "brief"}, Message.system("brief")),
    ({"role": "developer", "content": "brief"}, Message("developer", (Text("brief"),))),
    ({"role": "assistant", "content": "yes", "refusal": None}, Message.assistant("yes")),
    (
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        Message.assistant(ToolCall("c1", "add", {"a": 1})),
    ),
    (
        {"role": "tool", "tool_call_id": "c1", "content": "2", "name": "add"},
        Message.tool(ToolResult("c1", "2", name="add")),
    ),
    (
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is it?"},
                {"type": "image_url", "image_url": {"url": "https://e.org/a.png", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "AAE=", "format": "mp3"}},
                {
                    "type": "file",
                    "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"},
                },
                "and this?",
            ],
        },
        Message.user(
            "what is it?",
            Image("https://e.org/a.png", detail="low"),
            Audio(b"\0\1", "audio/mp3"),
            Document("data:application/pdf;base64,AA==", name="a.pdf"),
            "and this?",
        ),
    ),
]


@pytest.mark.parametrize(("given", "message"), READ)
def test_a_dict_of_the_chat_completions_api_is_a_message(
    given: Mapping[str, object], message: Message
) -> None:
    assert message_from_dict(given) == message


@pytest.mark.parametrize("message", [message for _, message in READ[:-1]])
def test_a_stored_message_is_read_back(message: Message) -> None:
    stored = json.loads(msgspec.json.encode(message))
    assert message_from_dict(stored) == message


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "has no role"),
    ({"content": "hi"}, "has no role"),
    ({"role": "model", "content": "hi"}, "must be one of system, user, assistant"),
    ({"role": "user"}, "has no content"),
    ({"role": "user", "contnet": "hi"}, "Did you mean 'content'"),
    ({"role": "user", "content": 3}, "must consist of text and parts"),
    ({"role": "user", "content": [{"type": "video"}]}, "a part of a message is invalid"),
    ({"role": "user", "content": [{"type": "image_url"}]}, "image_url has no url"),
    (
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "a", "detail": "x"}}],
        },
        "detail must be low, high or auto",
    ),
    (
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "?"}}]},
        "is not base64",
    ),
    ({"role": "user", "content": "hi", "name": "Ann"}, "tool_call_id is missing"),
    ({"role": "assistant", "tool_calls": [{}]}, "needs an id and a function"),
    ({"role": "assistant", "tool_calls": "add"}, "must be a list"),
    (
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{"}}],
        },
        "the arguments of the call f are not JSON",
    ),
]


@pytest.mark.parametrize(("given", "says"), REFUSED)
def test_an_invalid_dict_is_an_error_that_says_what_is_wrong(
    given: Mapping[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        message_from_dict(given)
