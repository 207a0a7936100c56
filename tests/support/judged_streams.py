"""Streams of a vendor, as the judge of tool calls reads them."""

from __future__ import annotations

import msgspec
from support.model_calls import FORMATS

from corral._models.registry import find_provider
from corral._models.spec import EVENT_STREAM
from corral._models.tool_gate import JSON, ToolGate, WireCall, call_format
from corral.values import Json, JsonObject


def gate_of(vendor: str, **more: Json) -> ToolGate:
    """The gate of a request, with further fields of its body."""
    wire = find_provider(vendor).wire
    calls = call_format(wire)
    assert calls is not None
    return ToolGate(calls, {**FORMATS[vendor].body, **more}, wire)


def sent(*events: object) -> bytes:
    """A stream of events without names."""
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events)


def judged(vendor: str, *events: object, **more: Json) -> tuple[list[JsonObject], list[WireCall]]:
    """The events that the agent gets if all calls are allowed, and the calls."""
    gate = gate_of(vendor, **more)
    gate.start(EVENT_STREAM)
    seen = gate.receive(sent(*events))
    calls = list(gate.end())
    lines = (seen + gate.release()).splitlines()
    return [msgspec.json.decode(line[6:]) for line in lines if line.startswith(b"data: ")], calls


def judged_body(vendor: str, body: object, **more: Json) -> tuple[JsonObject, list[WireCall]]:
    """The same for a response that is not streamed."""
    gate = gate_of(vendor, **more)
    gate.start(JSON)
    gate.receive(msgspec.json.encode(body))
    calls = list(gate.end())
    return msgspec.json.decode(gate.release()), calls
