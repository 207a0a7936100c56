"""The tool calls in Gemini's responses (``corral._models.tool_gate``).

A stream is a sequence of chunks with parts of one message. A client joins the parts, so the chunks
of another response can follow. Parts are sent back as they came, with their signatures. Text of
thoughts is only for people and is left out.

Clients read the first candidate, some a later one too: a response with several is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral._models.tool_gate import (
    CallFormat,
    Reading,
    Unjudgeable,
    WireCall,
    check_other_fields,
    optional_object,
    optional_objects,
    optional_text,
    wire_call,
)
from corral.values import Json, JsonObject, as_list, as_objects, is_list, is_object

_FUNCTIONS = ("functionDeclarations", "function_declarations")
_KEPT = ("modelVersion", "responseId", "usageMetadata")
_VENDOR_PARTS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Parts about tools that the vendor runs."""
_PARTS = ("text", "functionCall", "inlineData", "fileData", *_VENDOR_PARTS)
_BESIDE = ("thought", "thoughtSignature", "partMetadata", "videoMetadata", "mediaResolution")
"""Fields that a part may have beside the one that says what it is."""


class GeminiCalls(CallFormat):
    may_be_list = True

    def __init__(self) -> None:
        self.begin({})
        self._last: JsonObject = {}

    def provider_tools(self, request: JsonObject) -> list[str]:
        tools = as_objects(request.get("tools"))
        return [name for tool in tools for name in tool if name not in _FUNCTIONS]

    def begin(self, request: JsonObject) -> None:
        self.calls: list[WireCall] = []
        self._parts: list[JsonObject] = []
        self._has_vendor_tools = bool(self.provider_tools(request))

    def read(self, event: JsonObject) -> Reading:
        before = len(self.calls)
        chunk = self.read_body(event)
        return ("hold" if len(self.calls) > before else "pass"), [chunk]

    def read_body(self, body: JsonObject) -> JsonObject:
        check_other_fields(body, ("candidates",), "the response")
        self._last |= {name: body[name] for name in _KEPT if name in body}
        candidates = optional_objects(body, "candidates")
        if len(candidates) > 1:
            raise Unjudgeable("the response has several candidates")
        read: list[Json] = []
        for candidate in candidates:
            check_other_fields(candidate, ("content", "index"), "the candidate")
            if candidate.get("index") not in (None, 0):
                raise Unjudgeable("the response has a second candidate")
            content = optional_object(candidate, "content")
            check_other_fields(content, ("parts",), "the content")
            parts = [self._read_part(part) for part in optional_objects(content, "parts")]
            self._parts += parts
            read.append(_with(candidate, "content", _with(content, "parts", [*parts])))
        return _with(body, "candidates", read)

    def _read_part(self, given: JsonObject) -> JsonObject:
        part: JsonObject = {name: value for name, value in given.items() if value is not None}
        check_other_fields(part, (*_PARTS, *_BESIDE), "a part")
        for name, value in part.items():
            is_structure = is_object(value) or is_list(value)
            if name not in (*_PARTS, *_BESIDE) and is_structure:
                raise Unjudgeable(f"a part is of an unknown kind: {name!r}")
        kinds = [name for name in _PARTS if name in part]
        if len(kinds) > 1:
            raise Unjudgeable(f"a part is of several kinds: {', '.join(kinds)}")
        if any(name in _VENDOR_PARTS for name in kinds) and not self._has_vendor_tools:
            raise Unjudgeable(f"a part is of a kind that the request did not ask for: {kinds[0]!r}")
        optional_text(part, "text")
        if "functionCall" in part:
            part["functionCall"] = self._read_call(optional_object(part, "functionCall"))
        return part

    def _read_call(self, given: JsonObject) -> JsonObject:
        made: JsonObject = {name: value for name, value in given.items() if value is not None}
        unknown = made.keys() - {"id", "name", "args"}
        if made.get("willContinue") is False:
            unknown.discard("willContinue")
        if unknown:
            raise Unjudgeable(f"a functionCall has an unknown field: {min(unknown)!r}")
        args = made.get("args", {})
        call = wire_call(
            optional_text(made, "id"),
            optional_text(made, "name"),
            args if is_object(args) else None,
        )
        self.calls.append(call)
        named: JsonObject = {"id": call.call_id} if call.call_id else {}
        return {**named, "name": call.name, "args": call.arguments}

    def next_request(self, request: JsonObject, results: Sequence[str]) -> JsonObject | None:
        made: list[Json] = []
        for part in self._parts:
            is_plain = part.keys() <= {"text", "thought"}
            if not is_plain or (part.get("thought") is not True and part.get("text")):
                made.append(part)
        answers: list[Json] = []
        for call, text in zip(self.calls, results, strict=True):
            named: JsonObject = {"id": call.call_id} if call.call_id else {}
            answer: JsonObject = {**named, "name": call.name, "response": {"error": text}}
            answers.append({"functionResponse": answer})
        contents = [*as_list(request.get("contents"))]
        contents.append({"role": "model", "parts": made})
        contents.append({"role": "user", "parts": answers})
        return {**request, "contents": contents}

    def closing_events(self, text: str) -> list[Json]:
        return [self.closing_body(text)]

    def closing_body(self, text: str) -> Json:
        content: Json = {"role": "model", "parts": [{"text": text}]}
        candidate: Json = {"content": content, "finishReason": "STOP", "index": 0}
        return {"candidates": [candidate], **self._last}


def _with(holder: JsonObject, name: str, value: Json) -> JsonObject:
    """A copy with another value of a field that it has."""
    return {**holder, name: value} if holder.get(name) is not None else holder
