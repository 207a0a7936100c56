"""The tool calls in chat completions (``corral._models.tool_gate``).

A stream is a sequence of changes to one message. A client joins them, so those of another response
can follow. Clients disagree about how the pieces of a call are joined: by their number, by their
id, or to the last one; and some make a call as soon as its arguments are complete JSON. So the
agent gets all calls in one change, with the event that has the reason of the end, made from what
was judged.

The message of the calls is sent back with all its fields, because some vendors add their own to a
call and require them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from corral._models.tool_gate import (
    DONE,
    CallFormat,
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
    wire_call,
)
from corral.values import (
    Json,
    JsonObject,
    as_list,
    as_object,
    as_objects,
    as_text,
    is_list,
    is_object,
)

_VENDOR_FIELDS = ("web_search_options", "plugins")
"""Fields of a request that let the vendor search the web or run other tools."""
_LOCAL_TOOLS = ("function", "custom")
_KEPT = ("id", "object", "created", "model", "system_fingerprint", "usage")
_REPLACED = ("role", "type", "id", "name", "index")
"""Strings of a change that are complete, and not joined to those before."""
_TEXT_PARTS = ("text", "thinking", "reference")
"""Types of parts in which one vendor sends text."""
_AMBIGUOUS = "two calls have one number, or one call has two names"


class ChatCalls(CallFormat):
    sends_done = True

    def __init__(self) -> None:
        self.begin({})
        self._last: JsonObject = {}

    @property
    def has_open_call(self) -> bool:
        return bool(self._tool_calls) and not self._is_finished

    def provider_tools(self, request: JsonObject) -> list[str]:
        found = [as_text(tool.get("type")) for tool in as_objects(request.get("tools"))]
        return [
            *(name for name in found if name not in _LOCAL_TOOLS),
            *(name for name in _VENDOR_FIELDS if request.get(name)),
        ]

    def begin(self, request: JsonObject) -> None:
        self.calls: list[WireCall] = []
        self._message: JsonObject = {}
        self._tool_calls: dict[int, JsonObject] = {}
        self._is_finished = False
        """Whether the reason of the end has come."""
        self._is_ambiguous = False
        """Clients read the calls differently."""
        options = as_object(request.get("stream_options"))
        self._wants_usage = options.get("include_usage") is True

    def read(self, event: JsonObject) -> Reading:
        self._keep(event)
        choice = _only_choice(event)
        if choice is None:
            return "pass", [event]
        check_other_fields(choice, ("delta",), "the choice")
        delta = optional_object(choice, "delta")
        given = self._add(delta)
        self._is_finished |= bool(optional_text(choice, "finish_reason"))
        events: list[JsonObject] = []
        if self._is_finished and self._tool_calls and not self.calls:
            self.calls = self._found()
            message: Json = {"tool_calls": [*self._made_calls(numbered=True)]}
            calls: Json = {"index": 0, "delta": message, "finish_reason": None}
            head = {name: event[name] for name in event if name != "usage"}
            events.append({**head, "choices": [calls]})
        if not given:
            return "neutral", [*events, event]
        rest: Json = {name: delta[name] for name in delta if name != "tool_calls"}
        if rest or self._is_finished or event.get("usage") is not None:
            events.append({**event, "choices": [{**choice, "delta": rest}]})
        return "hold", events

    def read_body(self, body: JsonObject) -> JsonObject:
        self._keep(body)
        choice = _only_choice(body)
        if choice is None:
            return body
        check_other_fields(choice, ("message",), "the choice")
        message = optional_object(choice, "message")
        self._is_finished = False
        given = self._add(message)
        self._is_finished = True
        self.calls = self._found()
        if not given:
            return body
        made: Json = {**message, "tool_calls": [*self._made_calls(numbered=False)]}
        return {**body, "choices": [{**choice, "message": made}]}

    def _keep(self, event: JsonObject) -> None:
        check_other_fields(event, ("choices",), "the response")
        kept = {name: event[name] for name in _KEPT if event.get(name) is not None}
        self._last = {**self._last, **kept}

    def _add(self, change: JsonObject) -> bool:
        """Whether the change has calls."""
        # A change of the message, or the complete message.
        if change.get("function_call") is not None:
            raise Unjudgeable("the message has a call in the form of old versions: 'function_call'")
        check_other_fields(change, ("content", "tool_calls", "function_call"), "the message")
        content = change.get("content")
        if is_list(content):
            for part in optional_objects(change, "content"):
                if part.get("type") not in _TEXT_PARTS:
                    raise Unjudgeable(f"a part is of an unknown kind: {part.get('type')!r}")
        else:
            optional_text(change, "content")
        calls = optional_objects(change, "tool_calls")
        if calls and self._is_finished:
            raise Unjudgeable("a tool call comes after the end of the message")
        for number, call in enumerate(calls):
            index = optional_index(call, "index")
            place = number if index is None else index
            known = self._tool_calls.setdefault(place, {})
            names = [as_object(one.get("function")).get("name") for one in (known, call)]
            for before, now in ((known.get("id"), call.get("id")), names):
                if before and now and before != now:
                    self._is_ambiguous = True
            _check_call(call)
            _add(known, call)
            if known.get("function" if known.get("type") == "custom" else "custom") is not None:
                raise Unjudgeable("a tool call is of two kinds")
        _add(self._message, {name: change[name] for name in change if name != "tool_calls"})
        return bool(calls)

    def _found(self) -> list[WireCall]:
        found: list[WireCall] = []
        for made in self._joined_calls():
            kind = "custom" if made.get("type") == "custom" else "function"
            function = as_object(made.get(kind))
            arguments: JsonObject | None = {"input": as_text(function.get("input"))}
            if kind == "function":
                arguments = parsed_arguments(as_text(function.get("arguments")))
            name = as_text(function.get("name"))
            found.append(wire_call(as_text(made.get("id")), name, arguments))
        if self._is_ambiguous:
            found = [replace(call, problem=_AMBIGUOUS) for call in found]
        return found

    def _joined_calls(self) -> list[JsonObject]:
        return [as_object(_joined(self._tool_calls[place])) for place in sorted(self._tool_calls)]

    def _made_calls(self, *, numbered: bool) -> list[JsonObject]:
        """The calls of the message, as the agent gets them."""
        found: list[JsonObject] = []
        for number, call in enumerate(self._joined_calls()):
            made = {name: value for name, value in call.items() if name != "index"}
            if "function" in made:
                arguments = encode_arguments(self.calls[number].arguments)
                made["function"] = {**as_object(made["function"]), "arguments": arguments}
            found.append({"index": number, **made} if numbered else made)
        return found

    def next_request(self, request: JsonObject, results: Sequence[str]) -> JsonObject | None:
        made: Json = [*self._made_calls(numbered=False)]
        before = as_object(_joined(self._message))
        message: JsonObject = {**before, "role": "assistant", "tool_calls": made}
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


def _only_choice(event: JsonObject) -> JsonObject | None:
    choices = optional_objects(event, "choices")
    if len(choices) > 1 or any(choice.get("index") not in (None, 0) for choice in choices):
        raise Unjudgeable("the response has several choices")
    return choices[0] if choices else None


def _check_call(call: JsonObject) -> None:
    """A call, or a piece of one."""
    kind = optional_text(call, "type") or "function"
    if kind not in _LOCAL_TOOLS:
        raise Unjudgeable(f"a tool call is of an unknown kind: {kind!r}")
    check_other_fields(call, ("type", *_LOCAL_TOOLS), "a tool call")
    optional_text(call, "id")
    for field in _LOCAL_TOOLS:
        for name in ("name", "arguments", "input"):
            optional_text(optional_object(call, field), name)


class _Pieces(list[Any]):
    """A text in pieces: joining them at each change would take quadratic time."""


def _add(message: JsonObject, change: JsonObject) -> None:
    """Strings are joined, objects merged, lists joined; anything else is replaced."""
    for name, value in change.items():
        known = message.get(name)
        if isinstance(value, str) and name not in _REPLACED:
            pieces = known if isinstance(known, _Pieces) else _Pieces()
            pieces.append(value)
            message[name] = pieces
        elif is_object(value):
            inner = known if is_object(known) else {}
            _add(inner, value)
            message[name] = inner
        elif is_list(value):
            if not is_list(known) or isinstance(known, _Pieces):
                message[name] = known = list[Json]()
            known.extend(value)
        elif value is not None or known is None:
            message[name] = value


def _joined(value: Json) -> Json:
    """The same with each text in one piece."""
    if isinstance(value, _Pieces):
        return "".join(value)
    if is_object(value):
        return {name: _joined(inner) for name, inner in value.items()}
    return [_joined(item) for item in value] if is_list(value) else value
