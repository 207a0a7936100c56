"""The tool calls in responses of Anthropic's Messages API (``corral.models.tool_gate``).

A message is a list of blocks. After a refusal the blocks of the next message follow those that the
agent has seen, with their numbers shifted.

Thinking is signed, and the vendor accepts it only as a part of the message that it came in. So it
waits for the block that follows it, and a refused call takes its thinking with it. If thinking was
shown with a text before the call, the message cannot be continued by another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.models.tool_gate import Step, WireCall, parsed_arguments
from corral.values import (
    Json,
    JsonObject,
    as_list,
    as_object,
    as_objects,
    as_text,
    int_or_none,
    is_object,
)

_THINKING = ("thinking", "redacted_thinking")
_LOCAL_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
"""How the types of the vendor's tools begin that the agent runs."""
_JOINED = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""Type of a change → its field, which is joined to the field of the block."""
_SPARE = ("index", "partial_json")


class AnthropicCalls:
    """See ``CallFormat``."""

    def __init__(self) -> None:
        self.calls: list[WireCall] = []
        self.open_calls = 0
        self._blocks: list[JsonObject] = []
        self._held_from: int | None = None
        """The number of the first block that the agent has not seen."""
        self._shown = 0
        """How many blocks the agent has seen, of the messages before."""
        self._has_shown_thinking = False
        self._message: JsonObject = {}
        self._usage: JsonObject = {}

    def provider_tools(self, request: JsonObject) -> list[str]:
        types = [as_text(tool.get("type")) for tool in as_objects(request.get("tools"))]
        found = [t for t in types if t not in ("", "custom") and not t.startswith(_LOCAL_TOOLS)]
        return [*found, *(["mcp_servers"] if request.get("mcp_servers") else [])]

    def begin(self, request: JsonObject) -> None:
        self.calls = []
        self.open_calls = 0
        self._blocks = []
        self._held_from = None

    def read(self, event: JsonObject) -> Step:
        kind = event.get("type")
        if kind == "message_start":
            self._message = as_object(event.get("message"))
            return "pass"
        if kind == "content_block_start":
            return self._begin_block(as_object(event.get("content_block")))
        if kind == "content_block_delta" and self._blocks:
            self._change(self._blocks[-1], as_object(event.get("delta")))
        elif kind == "content_block_stop" and self._blocks:
            self._end_block(self._blocks[-1])
        elif kind == "message_delta":
            self._usage = as_object(event.get("usage"))
            return "neutral" if self.calls else "pass"
        return "neutral"

    def _begin_block(self, block: JsonObject) -> Step:
        kind, started = block.get("type"), dict(block)
        self._blocks.append(started)
        if kind == "tool_use" or kind in _THINKING:
            if self._held_from is None:
                self._held_from = len(self._blocks) - 1
            self.open_calls += kind == "tool_use"
            return "hold" if kind == "tool_use" else "wait"
        self._held_from = None
        return "pass"

    def _change(self, block: JsonObject, delta: JsonObject) -> None:
        kind = as_text(delta.get("type"))
        if kind == "citations_delta":
            block["citations"] = [*as_list(block.get("citations")), delta.get("citation")]
        name = _JOINED.get(kind)
        if name is not None:
            block[name] = as_text(block.get(name)) + as_text(delta.get(name))

    def _end_block(self, block: JsonObject) -> None:
        if block.get("type") != "tool_use":
            return
        if "partial_json" in block:
            arguments = parsed_arguments(block["partial_json"])
        else:
            given = block.get("input")
            arguments = given if is_object(given) else None
        self.open_calls -= 1
        block["input"] = arguments if arguments is not None else {}
        self._add_call(block, arguments)

    def _add_call(self, block: JsonObject, arguments: JsonObject | None) -> None:
        name, call_id = as_text(block.get("name")), as_text(block.get("id"))
        self.calls.append(WireCall(call_id=call_id, name=name, arguments=arguments))

    def read_body(self, body: JsonObject) -> None:
        self._message = body
        self._blocks = as_objects(body.get("content"))
        self._held_from = 0
        for block in self._blocks:
            if block.get("type") == "tool_use":
                given = block.get("input")
                self._add_call(block, given if is_object(given) else None)

    def continued(self, event: JsonObject) -> JsonObject | None:
        if event.get("type") == "message_start":
            return None
        index = int_or_none(event.get("index"))
        return event if index is None else {**event, "index": index + self._shown}

    def next_request(self, request: JsonObject, results: Sequence[str]) -> JsonObject | None:
        seen = self._blocks[: self._held_from]
        self._has_shown_thinking |= any(block.get("type") in _THINKING for block in seen)
        if self._has_shown_thinking:
            return None
        self._shown += len(seen)
        made = [
            {name: value for name, value in block.items() if name not in _SPARE}
            for block in self._blocks
            if block.get("type") != "text" or block.get("text")
        ]
        answers: list[Json] = [
            {"type": "tool_result", "tool_use_id": call.call_id, "content": text, "is_error": True}
            for call, text in zip(self.calls, results, strict=True)
        ]
        messages = [*as_list(request.get("messages"))]
        messages.append({"role": "assistant", "content": [*made]})
        messages.append({"role": "user", "content": answers})
        return {**request, "messages": messages}

    def closing_events(self, text: str) -> list[Json]:
        index = self._shown + len(self._blocks[: self._held_from])
        empty: Json = {"type": "text", "text": ""}
        change: Json = {"type": "text_delta", "text": text}
        end: Json = {"stop_reason": "end_turn", "stop_sequence": None}
        return [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": change},
            {"type": "content_block_stop", "index": index},
            {"type": "message_delta", "delta": end, "usage": self._usage},
            {"type": "message_stop"},
        ]

    def closing_body(self, text: str) -> Json:
        content: Json = [{"type": "text", "text": text}]
        return {**self._message, "content": content, "stop_reason": "end_turn"}
