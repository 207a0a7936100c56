"""The tool calls in chat completions (``corral.models.tool_gate``).

A stream is a sequence of changes to one message. A client joins them, so those of another response
can follow. The message of the calls is sent back with all its fields, because some vendors add
their own to a call and require them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from corral.models.tool_gate import DONE, Step, WireCall, parsed_arguments
from corral.values import (
    Json,
    JsonObject,
    as_list,
    as_object,
    as_objects,
    as_text,
    int_or_none,
)

_VENDOR_FIELDS = ("web_search_options", "plugins")
"""Fields of a request that let the vendor search the web or run other tools."""
_LOCAL_TOOLS = ("function", "custom")
_KEPT = ("id", "object", "created", "model", "system_fingerprint", "usage")
_REPLACED = ("role", "type", "id", "name", "index")
"""Strings of a change that are complete, and not joined to those before."""


class ChatCalls:
    """See ``CallFormat``."""

    def __init__(self) -> None:
        self.calls: list[WireCall] = []
        self.open_calls = 0
        self._message: JsonObject = {}
        self._tool_calls: dict[int, JsonObject] = {}
        self._has_other_choices = False
        self._has_legacy_call = False
        self._last: JsonObject = {}
        self._wants_usage = False
        self._is_ambiguous = False
        """Two calls have one number, or one call has two names: clients read that differently."""

    def provider_tools(self, request: JsonObject) -> list[str]:
        found = [as_text(tool.get("type")) for tool in as_objects(request.get("tools"))]
        return [
            *(name for name in found if name not in _LOCAL_TOOLS),
            *(name for name in _VENDOR_FIELDS if request.get(name)),
        ]

    def begin(self, request: JsonObject) -> None:
        self.calls = []
        self._message = {}
        self._tool_calls = {}
        self._is_ambiguous = False
        options = as_object(request.get("stream_options"))
        self._wants_usage = options.get("include_usage") is True

    def read(self, event: JsonObject) -> Step:
        self._keep(event)
        is_call = False
        for choice in as_objects(event.get("choices")):
            delta = as_object(choice.get("delta"))
            is_call |= bool(delta.get("tool_calls") or delta.get("function_call"))
            self._add(choice, delta)
        if is_call:
            self.calls = self._found()
        return "hold" if is_call else "pass"

    def read_body(self, body: JsonObject) -> None:
        self._keep(body)
        for choice in as_objects(body.get("choices")):
            self._add(choice, as_object(choice.get("message")))
        self.calls = self._found()

    def _keep(self, event: JsonObject) -> None:
        kept = {name: event[name] for name in _KEPT if event.get(name) is not None}
        self._last = {**self._last, **kept}

    def _add(self, choice: JsonObject, change: JsonObject) -> None:
        if choice.get("index"):
            self._has_other_choices = True
        self._has_legacy_call |= bool(change.get("function_call"))
        for number, call in enumerate(as_objects(change.get("tool_calls"))):
            index = int_or_none(call.get("index"))
            place = number if index is None else index
            known = self._tool_calls.get(place, {})
            self._is_ambiguous |= _differs(known, call)
            self._tool_calls[place] = _merged(known, call)
        rest = {name: value for name, value in change.items() if name != "tool_calls"}
        self._message = _merged(self._message, rest)

    def _found(self) -> list[WireCall]:
        found = [_call(self._tool_calls[place]) for place in sorted(self._tool_calls)]
        if self._is_ambiguous:
            found = [replace(call, arguments=None) for call in found]
        if self._has_legacy_call:
            found.append(_call({"function": self._message.get("function_call")}))
        return found

    def continued(self, event: JsonObject) -> JsonObject | None:
        return event

    def next_request(self, request: JsonObject, results: Sequence[str]) -> JsonObject | None:
        if self._has_other_choices or self._has_legacy_call:
            return None
        made: list[Json] = []
        for place in sorted(self._tool_calls):
            call = self._tool_calls[place]
            made.append({name: value for name, value in call.items() if name != "index"})
        message: JsonObject = {**self._message, "role": "assistant", "tool_calls": made}
        message.setdefault("content", None)
        answers: list[Json] = [
            {"role": "tool", "tool_call_id": call.call_id, "content": text}
            for call, text in zip(self.calls, results, strict=True)
        ]
        return {**request, "messages": [*as_list(request.get("messages")), message, *answers]}

    def closing_events(self, text: str) -> list[Json]:
        head = {name: value for name, value in self._last.items() if name != "usage"}
        text_choice: Json = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        stop: Json = {"index": 0, "delta": {}, "finish_reason": "stop"}
        events: list[Json] = [{**head, "choices": [text_choice]}, {**head, "choices": [stop]}]
        if self._wants_usage:
            events.append({**head, "choices": [], "usage": self._last.get("usage")})
        return [*events, DONE]

    def closing_body(self, text: str) -> Json:
        message: Json = {"role": "assistant", "content": text}
        choice: Json = {"index": 0, "message": message, "finish_reason": "stop"}
        return {**self._last, "choices": [choice]}


def _differs(known: JsonObject, change: JsonObject) -> bool:
    """Whether a change gives a call another id or name than it has."""
    pairs = [(known.get("id"), change.get("id"))]
    names = (as_object(known.get("function")), as_object(change.get("function")))
    pairs.append((names[0].get("name"), names[1].get("name")))
    return any(before and now and before != now for before, now in pairs)


def _merged(before: JsonObject, change: JsonObject) -> JsonObject:
    """Strings are joined, objects merged, lists joined; anything else is replaced."""
    merged = dict(before)
    for name, value in change.items():
        known = merged.get(name)
        if isinstance(value, str) and isinstance(known, str) and name not in _REPLACED:
            merged[name] = known + value
        elif isinstance(value, dict) and isinstance(known, dict):
            merged[name] = _merged(known, value)
        elif isinstance(value, list) and isinstance(known, list):
            merged[name] = [*known, *value]
        elif value is not None or known is None:
            merged[name] = value
    return merged


def _call(made: JsonObject) -> WireCall:
    kind = "custom" if made.get("type") == "custom" else "function"
    function = as_object(made.get(kind))
    arguments = parsed_arguments(function.get("arguments", ""))
    if kind == "custom":
        arguments = {"input": function.get("input")}
    return WireCall(
        call_id=as_text(made.get("id")), name=as_text(function.get("name")), arguments=arguments
    )
