"""The tool calls in responses of OpenAI's Responses API (``corral.models.tool_gate``).

The output is a list of items. After a refusal the items of the next response follow those that the
agent has seen: their numbers are shifted, and the last event lists all of them.

Encrypted reasoning is valid only before the item that it led to. So it waits for that item, and a
refused call takes its reasoning with it.
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

_LOCAL_TOOLS = ("function", "custom", "local_shell", "apply_patch", "namespace", "tool_search")
"""Types of tools that the agent runs. All others are run by the vendor."""
_RESULTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}
"""Type of a call → type of its result, for the calls that can be answered with a text."""
_NOT_CALLS = frozenset(
    (
        "message",
        "reasoning",
        "compaction",
        "compaction_summary",
        "context_compaction",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
    )
)
"""Items that ask the agent for nothing: the vendor has run these calls itself."""
_STARTS = frozenset(("response.created", "response.queued", "response.in_progress"))
_ENDS = frozenset(("response.completed", "response.incomplete", "response.failed", "error"))
_SEALED = "reasoning.encrypted_content"


class ResponsesCalls:
    """See ``CallFormat``."""

    def __init__(self) -> None:
        self.calls: list[WireCall] = []
        self.open_calls = 0
        self._items: list[JsonObject] = []
        self._shown: list[JsonObject] = []
        """The items that the agent has seen, of the responses before."""
        self._held_from: int | None = None
        """The number of the first item that the agent has not seen."""
        self._is_sealed = False
        """Whether reasoning can be sent back, and only together with what follows it."""
        self._sequence = self._earlier_sequence = 0
        self._response: JsonObject = {}
        self._call_items: list[JsonObject] = []

    def provider_tools(self, request: JsonObject) -> list[str]:
        found = [as_text(tool.get("type")) for tool in as_objects(request.get("tools"))]
        return [name for name in found if name not in _LOCAL_TOOLS]

    def begin(self, request: JsonObject) -> None:
        self.calls = []
        self.open_calls = 0
        self._call_items = []
        self._items = []
        self._held_from = None
        self._earlier_sequence = self._sequence
        is_stored = request.get("store", True) is not False
        self._is_sealed = is_stored or _SEALED in as_list(request.get("include"))

    def read(self, event: JsonObject) -> Step:
        number = int_or_none(event.get("sequence_number"))
        if number is not None:
            self._sequence = max(self._sequence, self._earlier_sequence + number + 1)
        kind, item = event.get("type"), as_object(event.get("item"))
        if is_object(event.get("response")):
            self._response = as_object(event["response"])
        if kind == "response.output_item.added":
            return self._begin_item(as_text(item.get("type")))
        if kind == "response.output_item.done":
            self._add(item)
            self.open_calls -= item.get("type") not in _NOT_CALLS
            return "hold" if self.calls else "neutral"
        if kind in _ENDS:
            self._add_missing(as_objects(as_object(event.get("response")).get("output")))
            return "hold" if self.calls else "pass"
        return "neutral"

    def _begin_item(self, kind: str) -> Step:
        if kind not in _NOT_CALLS:
            self._hold()
            self.open_calls += 1
            return "hold"
        if kind == "reasoning" and self._is_sealed:
            self._hold()
            return "wait"
        self._held_from = None
        return "pass"

    def _hold(self) -> None:
        if self._held_from is None:
            self._held_from = len(self._items)

    def _add(self, item: JsonObject) -> None:
        if item.get("type") not in _NOT_CALLS:
            self._hold()
            self.calls.append(_call(item))
            self._call_items.append(item)
        self._items.append(item)

    def _add_missing(self, output: list[JsonObject]) -> None:
        """Items that only the last event has."""
        for item in output[len(self._items) :]:
            self._add(item)

    def read_body(self, body: JsonObject) -> None:
        self._response = body
        self._held_from = 0
        self._add_missing(as_objects(body.get("output")))

    def continued(self, event: JsonObject) -> JsonObject | None:
        kind, changed = event.get("type"), dict(event)
        if kind in _STARTS:
            return None
        for name, added in (
            ("output_index", len(self._shown)),
            ("sequence_number", self._earlier_sequence),
        ):
            number = int_or_none(event.get(name))
            if number is not None:
                changed[name] = number + added
        if kind in _ENDS and is_object(event.get("response")):
            response = as_object(event["response"])
            output: list[Json] = [*self._shown, *as_list(response.get("output"))]
            changed["response"] = {**response, "output": output}
        return changed

    def next_request(self, request: JsonObject, results: Sequence[str]) -> JsonObject | None:
        if any(item.get("type") not in _RESULTS for item in self._call_items):
            return None
        given = request.get("input")
        before: list[Json] = [*as_list(given)]
        if isinstance(given, str):
            before = [{"type": "message", "role": "user", "content": given}]
        is_stored = request.get("store", True) is not False
        made = [
            item
            for item in self._items
            if item.get("type") != "reasoning" or is_stored or item.get("encrypted_content")
        ]
        answers = [
            _answer(item, text) for item, text in zip(self._call_items, results, strict=True)
        ]
        self._shown += self._items[: self._held_from]
        return {**request, "input": [*before, *made, *answers]}

    def closing_events(self, text: str) -> list[Json]:
        shown = [*self._shown, *self._items[: self._held_from]]
        index, message = len(shown), _message(text)
        started: JsonObject = {**message, "status": "in_progress", "content": []}
        part = as_objects(message["content"])[0]
        place: JsonObject = {"item_id": message["id"], "output_index": index, "content_index": 0}
        ended: JsonObject = {**self._response, "status": "completed", "output": [*shown, message]}
        events: list[JsonObject] = [
            {"type": "response.output_item.added", "output_index": index, "item": started},
            {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
            {"type": "response.output_text.delta", **place, "delta": text},
            {"type": "response.output_text.done", **place, "text": text},
            {"type": "response.content_part.done", **place, "part": part},
            {"type": "response.output_item.done", "output_index": index, "item": message},
            {"type": "response.completed", "response": ended},
        ]
        first = self._sequence
        return [{**event, "sequence_number": first + n} for n, event in enumerate(events)]

    def closing_body(self, text: str) -> Json:
        return {**self._response, "status": "completed", "output": [_message(text)]}


def _call(item: JsonObject) -> WireCall:
    kind, name = item.get("type"), as_text(item.get("name"))
    arguments: JsonObject | None
    if kind == "function_call":
        arguments = parsed_arguments(item.get("arguments"))
        # The tools of a server may be grouped: then the call has the name of the group apart.
        group = as_text(item.get("namespace"))
        name = f"{group.removesuffix('__')}__{name}" if group else name
    elif kind == "custom_tool_call":
        arguments = {"input": item.get("input")}
    else:
        name, arguments = name or as_text(kind).removesuffix("_call"), dict(item)
    return WireCall(call_id=as_text(item.get("call_id")), name=name, arguments=arguments)


def _answer(item: JsonObject, text: str) -> JsonObject:
    kind = _RESULTS[as_text(item.get("type"))]
    return {"type": kind, "call_id": item.get("call_id"), "output": text}


def _message(text: str) -> JsonObject:
    part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": "msg_corral",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
