"""The tool calls in responses of Anthropic's Messages API (``corral._models.tool_gate``).

A message is a list of blocks, which come one after the other: each starts, changes and stops before
the next one starts, and their numbers count from 0. Clients disagree about everything else (some
change the last block, others the one with the number of the change), so it is refused. So is a
message that begins with content: some clients make the calls in it.

The agent gets the three events of a tool call at the end of its block. After a refusal the blocks
of the next message follow those that the agent has seen, with their numbers shifted.

Thinking is signed, and the vendor accepts it only as a part of the message that it came in. So it
waits for the block that follows it, and a refused call takes its thinking with it. If thinking was
shown with a text before the call, the message cannot be continued by another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corral._models.tool_gate import (
    CallFormat,
    Reading,
    Unjudgeable,
    WireCall,
    check_other_fields,
    encode_arguments,
    optional_index,
    optional_objects,
    optional_text,
    parsed_arguments,
    required_object,
    wire_call,
)
from corral.values import Json, JsonObject, as_list, as_object, as_objects, as_text, is_object

_THINKING = ("thinking", "redacted_thinking")
_LOCAL_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
"""How the types of the vendor's tools begin that the agent runs."""
_VENDOR_CALLS = ("server_tool_use", "mcp_tool_use")
_CHANGES: dict[str, dict[str, str]] = {
    "text": {"text_delta": "text", "citations_delta": ""},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "redacted_thinking": {},
    "compaction": {"compaction_delta": "content"},
    "tool_use": {"input_json_delta": "partial_json"},
    **{name: {"input_json_delta": "partial_json"} for name in _VENDOR_CALLS},
}
"""Type of a block → type of a change → its field, which is joined to the field of the block."""
_SPARE = ("index", "partial_json")
_CALL_FIELDS = ("type", "id", "name", "input", "caller")


class AnthropicCalls(CallFormat):
    names_events = True

    def __init__(self) -> None:
        self.begin({})
        self._citations: list[Json] = []
        self._pieces: dict[str, list[str]] = {}
        """Field of the last block → its text, in pieces until the block stops."""
        self._shown = 0
        """How many blocks the agent has seen, of the messages before."""
        self._is_continued = False
        """Whether the agent has seen the start of a message before."""
        self._has_shown_thinking = False
        self._message: JsonObject = {}
        self._usage: JsonObject = {}
        self._readers: dict[str, Callable[[JsonObject], Reading]] = {
            "message_start": self._begin_message,
            "content_block_start": self._begin_block,
            "content_block_delta": self._change_block,
            "content_block_stop": self._end_block,
            "message_delta": self._change_message,
            "message_stop": self._end_message,
            "ping": lambda event: ("neutral", [event]),
            "error": lambda event: ("neutral", [event]),
        }

    @property
    def has_open_call(self) -> bool:
        return self._is_open and self._blocks[-1].get("type") == "tool_use"

    def provider_tools(self, request: JsonObject) -> list[str]:
        types = [as_text(tool.get("type")) for tool in as_objects(request.get("tools"))]
        found = [t for t in types if t not in ("", "custom") and not t.startswith(_LOCAL_TOOLS)]
        return [*found, *(["mcp_servers"] if request.get("mcp_servers") else [])]

    def begin(self, request: JsonObject) -> None:
        self.calls: list[WireCall] = []
        self._blocks: list[JsonObject] = []
        self._is_open = False
        """Whether the last block has not stopped."""
        self._state = "before"
        """Of the message: before, inside or after its events."""
        self._held_from: int | None = None
        """The number of the first block that the agent has not seen."""
        self._has_vendor_tools = bool(self.provider_tools(request))

    def read(self, event: JsonObject) -> Reading:
        kind = optional_text(event, "type")
        reader = self._readers.get(kind)
        if reader is None:
            return "neutral", []
        if kind not in ("ping", "error"):
            expected = "before" if kind == "message_start" else "inside"
            if self._state != expected:
                raise Unjudgeable(f"{kind} comes {self._state} the message")
        check_other_fields(event, ("message", "content_block", "delta"), kind)
        return reader(event)

    def _begin_message(self, event: JsonObject) -> Reading:
        message = required_object(event.get("message"), "message")
        check_other_fields(message, ("content",), "the message")
        if optional_objects(message, "content"):
            raise Unjudgeable("the message begins with content")
        self._message, self._state = message, "inside"
        return "pass", [] if self._is_continued else [event]

    def _begin_block(self, event: JsonObject) -> Reading:
        if self._is_open or event.get("index") != len(self._blocks):
            raise Unjudgeable("the blocks of the message do not follow each other")
        block = dict(required_object(event.get("content_block"), "content_block"))
        kind = self._check_block(block)
        self._pieces, self._citations = {}, [*as_list(block.get("citations"))]
        self._blocks.append(block)
        self._is_open = True
        if kind != "tool_use" and kind not in _THINKING:
            self._held_from = self._held_from if self.calls else None
            return "pass", [self._numbered(event)]
        if self._held_from is None:
            self._held_from = len(self._blocks) - 1
        return ("hold", []) if kind == "tool_use" else ("wait", [self._numbered(event)])

    def _check_block(self, block: JsonObject) -> str:
        """The type of a block."""
        kind = optional_text(block, "type")
        is_vendors = (
            kind in _VENDOR_CALLS or kind.endswith("_tool_result") or kind == "container_upload"
        )
        if not is_vendors and kind not in _CHANGES:
            raise Unjudgeable(f"a block is of an unknown kind: {kind!r}")
        if is_vendors and not self._has_vendor_tools:
            raise Unjudgeable(f"a block is of a kind that the request did not ask for: {kind!r}")
        known = (*_CALL_FIELDS, "content") if is_vendors else _CALL_FIELDS
        check_other_fields(block, known, f"a block of the type {kind}")
        optional_text(block, "text")
        return kind

    def _change_block(self, event: JsonObject) -> Reading:
        block = self._open_block(event)
        delta = required_object(event.get("delta"), "delta")
        block_kind, kind = as_text(block.get("type")), optional_text(delta, "type")
        name = _CHANGES.get(block_kind, {}).get(kind)
        if name is None:
            raise Unjudgeable(f"a block of the type {block_kind} has a change: {kind!r}")
        check_other_fields(delta, (), kind)
        if kind == "citations_delta":
            self._citations.append(delta.get("citation"))
            block["citations"] = self._citations
        else:
            self._pieces.setdefault(name, []).append(optional_text(delta, name))
        return "neutral", [] if block_kind == "tool_use" else [self._numbered(event)]

    def _end_block(self, event: JsonObject) -> Reading:
        block = self._open_block(event)
        self._is_open = False
        for name, pieces in self._pieces.items():
            block[name] = as_text(block.get(name)) + "".join(pieces)
        self._pieces = {}
        stop = self._numbered(event)
        if block.get("type") != "tool_use":
            return "neutral", [stop]
        text, given = as_text(block.get("partial_json")), block.get("input")
        if text and given:
            raise Unjudgeable("a tool call has its input twice")
        if not text and given is not None:
            arguments = given if is_object(given) else None
        else:
            arguments = parsed_arguments(text)
        call = self._add_call(block, arguments)
        start: JsonObject = {
            "type": "content_block_start",
            "index": stop["index"],
            "content_block": {**{n: block[n] for n in _CALL_FIELDS if n in block}, "input": {}},
        }
        text = encode_arguments(call.arguments)
        delta: JsonObject = {
            "type": "content_block_delta",
            "index": stop["index"],
            "delta": {"type": "input_json_delta", "partial_json": text},
        }
        return "neutral", [start, delta, stop]

    def _open_block(self, event: JsonObject) -> JsonObject:
        if not self._is_open or event.get("index") != len(self._blocks) - 1:
            raise Unjudgeable("an event is for a block that is not open")
        return self._blocks[-1]

    def _numbered(self, event: JsonObject) -> JsonObject:
        return {**event, "index": (optional_index(event, "index") or 0) + self._shown}

    def _add_call(self, block: JsonObject, arguments: JsonObject | None) -> WireCall:
        call = wire_call(optional_text(block, "id"), optional_text(block, "name"), arguments)
        block["input"] = call.arguments
        self.calls.append(call)
        return call

    def _change_message(self, event: JsonObject) -> Reading:
        if self._is_open:
            raise Unjudgeable("a block of the message does not stop")
        self._usage = as_object(event.get("usage"))
        check_other_fields(required_object(event.get("delta"), "delta"), (), "message_delta")
        return "neutral" if self.calls else "pass", [event]

    def _end_message(self, event: JsonObject) -> Reading:
        if self._is_open:
            raise Unjudgeable("a block of the message does not stop")
        self._state = "after"
        return "neutral", [event]

    def read_body(self, body: JsonObject) -> JsonObject:
        check_other_fields(body, ("content",), "the message")
        self._message = body
        self._blocks = [dict(block) for block in optional_objects(body, "content")]
        self._held_from = 0
        for block in self._blocks:
            if self._check_block(block) == "tool_use":
                given = block.get("input")
                self._add_call(block, given if is_object(given) else None)
        return {**body, "content": [*self._blocks]} if self._blocks else body

    def next_request(self, request: JsonObject, results: Sequence[str]) -> JsonObject | None:
        seen = self._blocks[: self._held_from]
        self._has_shown_thinking |= any(block.get("type") in _THINKING for block in seen)
        if self._has_shown_thinking:
            return None
        self._shown += len(seen)
        self._is_continued = True
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
