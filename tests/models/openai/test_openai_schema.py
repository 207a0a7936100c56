"""Which schemas follow the rules of OpenAI's strict mode."""

from __future__ import annotations

from typing import Any

import pytest

from corral._models.chat import spec
from corral._models.openai import spec as openai_spec
from corral._models.openai.schema import is_strict
from corral.messages import Message
from corral.model_types import Request, ResponseFormat

OPENAI, CHAT = openai_spec.PROVIDERS[0], spec.PROVIDERS[0]
CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMAS: list[tuple[dict[str, Any], bool]] = [
    (CLOSED, True),
    ({**CLOSED, "properties": {"city": {"type": "string", "format": "date"}}}, True),
    ({**CLOSED, "properties": {"city": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}, True),
    ({**CLOSED, "properties": {"city": {"$ref": "#/$defs/C"}}, "$defs": {"C": CLOSED}}, True),
    ({**CLOSED, "properties": {"city": {"type": "array", "items": CLOSED}}}, True),
    ({k: v for k, v in CLOSED.items() if k != "additionalProperties"}, False),
    ({**CLOSED, "required": []}, False),
    ({**CLOSED, "properties": {"city": {"type": "string", "default": "Rome"}}}, False),
    ({**CLOSED, "properties": {"city": {"type": "string", "format": "uri"}}}, False),
    ({**CLOSED, "properties": {"city": {}}}, False),
    ({**CLOSED, "properties": {"city": {"type": "array"}}}, False),
    ({**CLOSED, "properties": {"city": {"oneOf": [{"type": "string"}]}}}, False),
    ({**CLOSED, "properties": {"city": {"$ref": "#/$defs/C"}}, "$defs": {"C": {}}}, False),
    ({**CLOSED, "properties": {"city": {"type": "array", "items": {}}}}, False),
    ({"anyOf": [CLOSED]}, False),
    ({**CLOSED, "anyOf": [CLOSED]}, False),
    ({"type": "array", "items": CLOSED}, False),
    ({}, False),
]


@pytest.mark.parametrize(("schema", "strict"), SCHEMAS)
def test_a_schema_that_follows_the_rules_is_strict(schema: dict[str, Any], strict: bool) -> None:
    assert is_strict(schema) == strict
    form = ResponseFormat("json_schema", schema)
    request = Request(model="m", messages=(Message.user("Hi"),), response_format=form)
    responses = OPENAI.wire.encode(request, OPENAI, False).body["text"]
    expected: dict[str, Any] = {"name": "result", "schema": schema, "strict": strict}
    assert responses == {"format": {"type": "json_schema", **expected}}
    asked = CHAT.wire.encode(request, CHAT, False).body["response_format"]
    assert asked == {"type": "json_schema", "json_schema": expected}
