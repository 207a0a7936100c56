"""The types of a model call."""

from __future__ import annotations

import pytest

from corral.messages import Message
from corral.model_types import Request, ResponseFormat, ToolSpec

SETTINGS: dict[str, object] = {
    "tools": (ToolSpec("weather"),),
    "tool_choice": "auto",
    "response_format": ResponseFormat(),
    "temperature": 0.0,
    "top_p": 0.0,
    "max_tokens": 1,
    "stop": ("end",),
    "reasoning_effort": "none",
    "metadata": {"user_id": "u"},
    "provider_options": {"gemini": {}},
}
"""A value of every field besides the model and the messages, where possible one that is false."""


def test_a_request_with_nothing_but_messages_has_no_settings() -> None:
    assert not Request(model="gemini:x", messages=(Message.user("hi"),)).has_settings


@pytest.mark.parametrize(
    "name", [name for name in Request.__struct_fields__ if name not in ("model", "messages")]
)
def test_every_other_field_is_a_setting(name: str) -> None:
    fields = {"model": "gemini:x", "messages": (Message.user("hi"),), name: SETTINGS[name]}

    assert Request(**fields).has_settings  # type: ignore[arg-type]
