"""The tool calls in responses of OpenAI's Responses API (``corral._models.tool_gate``).

The output is a list of items. Clients read a call from different events: from the item at its end,
from the changes of its arguments, or from the start of the item; and some join changes to whatever
item started last. So the agent gets the events of a call at its end, one call after the other, and
made from the item. All that came before must agree with it. The last event of the response lists
the same items; a call in it that did not come before is refused.

After a refusal the items of the next response follow those that the agent has seen: their numbers
are shifted, and the last event lists all of them.

Encrypted reasoning is valid only before the item that it led to. So it waits for that item, and a
refused call takes its reasoning with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from corral._models.tool_gate import (
    CallFormat,
    Incomplete,
    Reading,
    Unjudgeable,
    WireCall,
    check_other_fields,
    encode_arguments,
    optional_index,
    optional_object,
    optional_objects,
    optional_text,
    parsed_arguments,
    required_object,
    wire_call,
)
from corral.values import Json, JsonObject, as_list, as_objects, as_text

_LOCAL_TOOLS = ("function", "custom", "local_shell", "apply_patch", "namespace", "tool_search")
"""Types of tools that the agent runs. All others are run by the vendor."""
_RESULTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}
"""Type of a call → type of its result, for the calls that can be answered with a text."""
_INPUTS = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}
"""Type of a call → its field with the input, and the events that change it."""
_BUILT_IN = {
    "local_shell_call": "local_shell",
    "apply_patch_call": "apply_patch",
    "tool_search_call": "tool_search",
}
"""Type of a call → type of the tool of the vendor that the request must have."""
_CALLS = (*_INPUTS, *_BUILT_IN)
_CONTENTS = {
    "message": ("output_text", "refusal"),
    "reasoning": ("reasoning_text", "summary_text"),
    "compaction": (),
    "compaction_summary": (),
    "context_compaction": (),
}
"""Type of an item that is not a call → types of its parts."""
_PARTS = ("output_text", "refusal", "reasoning_text", "summary_text")
_VENDOR_ITEMS = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
)
"""Items that ask the agent for nothing: the vendor has run these calls itself."""
_ECHOES = ("tools", "tool_choice", "metadata", "instructions", "prompt")
"""Fields of a response that repeat the request."""
_STARTS = ("response.created", "response.queued", "response.in_progress")
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_TEXTS = (
    "response.output_text.delta",
    "response.output_text.done",
    "response.output_text.annotation.added",
    "response.refusal.delta",
    "response.refusal.done",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
)
_PART_EVENTS = (
    "response.content_part.added",
    "response.content_part.done",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_part.done",
)
_NOTES = ("error", "response.metadata", "codex.rate_limits")
MOST_ITEMS = 1_000
"""In one response. Some of what is done for each looks at all that are open."""
_SEALED = "reasoning.encrypted_content"


class _OpenItem(msgspec.Struct):
    """An item that has started."""

    kind: str
    item: JsonObject
    changes: list[str] = msgspec.field(default_factory=list[str])
    """The input of a call as far as it came, in pieces."""
    result: str | None = None
    """The same as its last change repeats it."""


class ResponsesCalls(CallFormat):
    names_events = True
    sends_done = True

    def __init__(self) -> None:
        self.begin({})
        self._shown: list[JsonObject] = []
        """The items that the agent has seen, of the responses before."""
        self._sequence = 0
        self._is_continued = False
        """Whether the agent has seen the start of the response before."""
        self._response: JsonObject = {}
        self._readers: dict[str, Callable[[JsonObject], Reading]] = {
            **dict.fromkeys(_STARTS, self._begin_response),
            "response.output_item.added": self._begin_item,
            "response.output_item.done": self._end_item,
            **dict.fromkeys(_TEXTS, self._read_text),
            **dict.fromkeys(_PART_EVENTS, self._read_part),
            **dict.fromkeys(_NOTES, lambda event: ("neutral", [event])),
            **dict.fromkeys(_ENDS, self._end_response),
        }
        for _, name in _INPUTS.values():
            self._readers[f"response.{name}.delta"] = self._change_call
            self._readers[f"response.{name}.done"] = self._change_call

    @property
    def has_open_call(self) -> bool:
        return any(item.kind in _CALLS for item in self._open.values())

    def provider_tools(self, request: JsonObject) -> list[str]:
        found = [as_text(tool.get("type")) for tool in as_objects(request.get("tools"))]
        return [name for name in found if name not in _LOCAL_TOOLS]

    def begin(self, request: JsonObject) -> None:
        self.calls: list[WireCall] = []
        self._call_items: list[JsonObject] = []
        self._open: dict[int, _OpenItem] = {}
        self._items: dict[int, JsonObject] = {}
        """The items that are complete, by their number."""
        self._started = 0
        self._held_from: int | None = None
        """The number of the first item that the agent has not seen."""
        self._is_ended = False
        is_stored = request.get("store", True) is not False
        # Whether reasoning can be sent back, and only together with what follows it.
        self._is_sealed = is_stored or _SEALED in as_list(request.get("include"))
        tools = as_objects(request.get("tools"))
        for item in as_objects(request.get("input")):
            tools = [*tools, *as_objects(item.get("tools"))]  # added by a search for tools
        self._tool_types = {as_text(tool.get("type")) for tool in tools}
        self._namespaces = {
            as_text(tool.get("name")) for tool in tools if tool.get("type") == "namespace"
        }

    def read(self, event: JsonObject) -> Reading:
        kind = optional_text(event, "type")
        reader = self._readers.get(kind)
        # An event such as ``response.web_search_call.searching``.
        name = kind.removeprefix("response.").partition(".")[0]
        if reader is None and name.startswith(_VENDOR_ITEMS) and self._has_vendor_tools:
            reader = self._read_part
        if reader is None:
            return "neutral", []
        if self._is_ended:
            raise Unjudgeable(f"{kind} comes after the end of the response")
        check_other_fields(event, ("item", "response", "part", "type"), kind)
        step, events = reader(event)
        return step, [self._numbered(each) for each in events]

    @property
    def _has_vendor_tools(self) -> bool:
        return bool(self._tool_types - {*_LOCAL_TOOLS, ""})

    def _numbered(self, event: JsonObject) -> JsonObject:
        """An event of this response as one of the complete response that the agent sees."""
        index = optional_index(event, "output_index")
        made = dict(event) if index is None else {**event, "output_index": index + len(self._shown)}
        if "sequence_number" in event:
            made["sequence_number"] = self._sequence
            self._sequence += 1
        return made

    def _begin_response(self, event: JsonObject) -> Reading:
        self._response = response = required_object(event.get("response"), "response")
        check_other_fields(response, ("output", *_ECHOES), "the response")
        if optional_objects(response, "output"):
            raise Unjudgeable("the response begins with output")
        return "neutral", [] if self._is_continued else [event]

    def _begin_item(self, event: JsonObject) -> Reading:
        item = required_object(event.get("item"), "item")
        kind, index = self._check_item(item), optional_index(event, "output_index")
        if index not in (None, self._started):
            raise Unjudgeable("the items of the response do not follow each other")
        number = self._count_item()
        self._open[number] = _OpenItem(kind, item)
        if kind in _CALLS:
            self._hold(number)
            return "hold", []
        if kind == "reasoning" and self._is_sealed:
            self._hold(number)
            return "wait", [event]
        if not self._call_items and not self.has_open_call:
            self._held_from = None
        return "pass", [event]

    def _count_item(self) -> int:
        """The number of an item that starts."""
        if self._started == MOST_ITEMS:
            raise Unjudgeable(f"the response has more than {MOST_ITEMS} items")
        self._started += 1
        return self._started - 1

    def _check_item(self, item: JsonObject) -> str:
        """The type of an item."""
        kind = optional_text(item, "type")
        if kind in _VENDOR_ITEMS:
            if not self._has_vendor_tools:
                raise Unjudgeable(
                    f"an item is of a kind that the request did not ask for: {kind!r}"
                )
            return kind
        if kind in _BUILT_IN and _BUILT_IN[kind] not in self._tool_types:
            raise Unjudgeable(f"an item is of a kind that the request did not ask for: {kind!r}")
        if kind not in _CALLS and kind not in _CONTENTS:
            raise Unjudgeable(f"an item is of an unknown kind: {kind!r}")
        check_other_fields(item, ("type", "content", "summary"), f"an item of the type {kind}")
        if kind in _CALLS:
            return kind
        for name in ("content", "summary"):
            for part in optional_objects(item, name):
                _check_part(part, _CONTENTS[kind])
        return kind

    def _hold(self, number: int) -> None:
        if self._held_from is None:
            self._held_from = number

    def _read_text(self, event: JsonObject) -> Reading:
        optional_text(event, "delta")
        optional_text(event, "text")
        return "neutral", [event]

    def _read_part(self, event: JsonObject) -> Reading:
        part = optional_object(event, "part")
        if part:
            _check_part(part, _PARTS)
        return "neutral", [event]

    def _change_call(self, event: JsonObject) -> Reading:
        kind = as_text(event.get("type"))
        index = optional_index(event, "output_index")
        item = self._open.get(self._last_open() if index is None else index)
        if item is None or item.kind not in _INPUTS:
            raise Unjudgeable(f"{kind} is for an item that is not open")
        name, events = _INPUTS[item.kind]
        if not kind.startswith(f"response.{events}."):
            raise Unjudgeable(f"{kind} is for an item of the type {item.kind}")
        if kind.endswith(".delta"):
            item.changes.append(optional_text(event, "delta"))
        else:
            item.result = optional_text(event, name)
        return "neutral", []

    def _last_open(self) -> int:
        return max(self._open, default=-1)

    def _end_item(self, event: JsonObject) -> Reading:
        item = required_object(event.get("item"), "item")
        kind, index = self._check_item(item), optional_index(event, "output_index")
        number = self._last_open() if index is None else index
        started = self._open.pop(number, None)
        if started is None:
            # Some servers send the item only once, at its end.
            if index not in (None, self._started):
                raise Unjudgeable("the items of the response do not follow each other")
            number, started = self._count_item(), _OpenItem(kind, item)
        if (kind, item.get("id")) != (started.kind, started.item.get("id", item.get("id"))):
            raise Unjudgeable("an item ends as another one than it started")
        if kind not in _CALLS:
            self._items[number] = item
            return "neutral", [event]
        self._hold(number)
        self._add_call(item, started)
        self._items[number] = self._call_items[-1]
        return "hold", list(_call_events(self._call_items[-1], event))

    def _add_call(self, item: JsonObject, started: _OpenItem | None = None) -> None:
        kind = as_text(item.get("type"))
        if kind in _INPUTS:
            name = _INPUTS[kind][0]
            text = optional_text(item, name)
            before = optional_text(started.item, "name") if started else ""
            if before not in ("", optional_text(item, "name")):
                raise Unjudgeable("a tool call ends with another name than it started")
            streamed = "".join(started.changes) if started else ""
            result = (started.result if started else "") or text
            if (streamed or text, result) != (text, text):
                raise Unjudgeable("the input of a tool call is not what was streamed")
        call = self._read_call(item)
        self.calls.append(call)
        if kind == "function_call":
            item = {**item, "arguments": encode_arguments(call.arguments)}
        self._call_items.append(item)

    def _read_call(self, item: JsonObject) -> WireCall:
        kind, name = item.get("type"), optional_text(item, "name")
        call_id = optional_text(item, "call_id")
        if kind == "function_call":
            # The tools of a server may be grouped: then the call has the name of the group apart.
            group = optional_text(item, "namespace")
            if group and group not in self._namespaces:
                raise Unjudgeable(f"a tool call is in a namespace that is not known: {group!r}")
            name = f"{group.removesuffix('__')}__{name}" if group else name
            return wire_call(call_id, name, parsed_arguments(optional_text(item, "arguments")))
        if kind == "custom_tool_call":
            return wire_call(call_id, name, {"input": optional_text(item, "input")})
        return wire_call(call_id, name or as_text(kind).removesuffix("_call"), dict(item))

    def _end_response(self, event: JsonObject) -> Reading:
        response = optional_object(event, "response")
        check_other_fields(response, ("output", *_ECHOES), "the response")
        self._response, self._is_ended = response, True
        output = optional_objects(response, "output")
        listed = [self._read_call(item) for item in output if self._check_item(item) in _CALLS]
        if self.has_open_call:
            raise Incomplete("the response ends before one of its tool calls")
        if output and self._items and listed != self.calls:
            raise Unjudgeable("the response ends with other tool calls than it had")
        if listed and not self._items:
            raise Unjudgeable("the response ends with tool calls that did not come before")
        made = [self._items[number] for number in sorted(self._items)] or output
        if made or self._shown:
            listing: list[Json] = [*self._shown, *made]
            event = {**event, "response": {**response, "output": listing}}
        return "hold" if self.calls else "pass", [event]

    def read_body(self, body: JsonObject) -> JsonObject:
        check_other_fields(body, ("output", *_ECHOES), "the response")
        self._response = body
        self._held_from = 0
        for number, item in enumerate(optional_objects(body, "output")):
            self._items[number] = item
            if self._check_item(item) in _CALLS:
                self._add_call(item)
                self._items[number] = self._call_items[-1]
        return {**body, "output": [*self._items.values()]} if self._items else body

    def _seen(self) -> list[JsonObject]:
        """The items of this response that the agent has seen."""
        held = len(self._items) if self._held_from is None else self._held_from
        return [self._items[number] for number in sorted(self._items) if number < held]

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
            for item in map(self._items.__getitem__, sorted(self._items))
            if item.get("type") != "reasoning" or is_stored or item.get("encrypted_content")
        ]
        answers: list[Json] = [
            {
                "type": _RESULTS[as_text(item.get("type"))],
                "call_id": item.get("call_id"),
                "output": text,
            }
            for item, text in zip(self._call_items, results, strict=True)
        ]
        self._shown += self._seen()
        self._is_continued = True
        return {**request, "input": [*before, *made, *answers]}

    def closing_events(self, text: str) -> list[Json]:
        shown = [*self._shown, *self._seen()]
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


def _check_part(part: JsonObject, known: Sequence[str]) -> None:
    kind = optional_text(part, "type")
    if kind not in known:
        raise Unjudgeable(f"a part is of an unknown kind: {kind!r}")
    check_other_fields(part, ("type",), f"a part of the type {kind}")


def _call_events(item: JsonObject, end: JsonObject) -> Iterator[JsonObject]:
    """The events of a call, from its start to ``end``."""
    kind = as_text(item.get("type"))
    numbers: JsonObject = {
        name: end[name] for name in ("output_index", "sequence_number") if name in end
    }
    added: JsonObject = {"type": "response.output_item.added", **numbers, "item": item}
    if kind in _INPUTS:
        name, events = _INPUTS[kind]
        place: JsonObject = {**numbers, "item_id": item.get("id")}
        text = item.get(name)
        yield {**added, "item": {**item, name: "", "status": "in_progress"}}
        yield {"type": f"response.{events}.delta", **place, "delta": text}
        yield {"type": f"response.{events}.done", **place, name: text, "name": item.get("name")}
    else:
        yield added
    yield {**end, "item": item}


def _message(text: str) -> JsonObject:
    part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": "msg_corral",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
