"""The tool calls in Gemini's responses (``corral.models.tool_gate``).

A stream is a sequence of chunks with parts of one message. A client joins the parts, so the chunks
of another response can follow. Parts are sent back as they came, with their signatures. Text of
thoughts is only for people and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.models.tool_gate import Step, WireCall
from corral.values import Json, JsonObject, as_list, as_object, as_objects, as_text, is_object

_FUNCTIONS = ("functionDeclarations", "function_declarations")
_KEPT = ("modelVersion", "responseId", "usageMetadata")


class GeminiCalls:
    """See ``CallFormat``."""

    def __init__(self) -> None:
        self.calls: list[WireCall] = []
        self.open_calls = 0
        self._parts: list[JsonObject] = []
        self._has_other_candidates = False
        self._last: JsonObject = {}

    def provider_tools(self, request: JsonObject) -> list[str]:
        tools = as_objects(request.get("tools"))
        return [name for tool in tools for name in tool if name not in _FUNCTIONS]

    def begin(self, request: JsonObject) -> None:
        self.calls = []
        self._parts = []

    def read(self, event: JsonObject) -> Step:
        before = len(self.calls)
        self.read_body(event)
        return "hold" if len(self.calls) > before else "pass"

    def read_body(self, body: JsonObject) -> None:
        self._last |= {name: body[name] for name in _KEPT if name in body}
        for number, candidate in enumerate(as_objects(body.get("candidates"))):
            self._has_other_candidates |= number > 0 or bool(candidate.get("index"))
            for part in as_objects(as_object(candidate.get("content")).get("parts")):
                self._parts.append(part)
                if "functionCall" in part:
                    self.calls.append(_call(as_object(part["functionCall"])))

    def continued(self, event: JsonObject) -> JsonObject | None:
        return event

    def next_request(self, request: JsonObject, results: Sequence[str]) -> JsonObject | None:
        if self._has_other_candidates:
            return None
        made = [part for part in self._parts if _is_sent_back(part)]
        answers = [_answer(call, text) for call, text in zip(self.calls, results, strict=True)]
        contents = [*as_list(request.get("contents"))]
        contents.append({"role": "model", "parts": [*made]})
        contents.append({"role": "user", "parts": [*answers]})
        return {**request, "contents": contents}

    def closing_events(self, text: str) -> list[Json]:
        return [self.closing_body(text)]

    def closing_body(self, text: str) -> Json:
        content: Json = {"role": "model", "parts": [{"text": text}]}
        candidate: Json = {"content": content, "finishReason": "STOP", "index": 0}
        return {"candidates": [candidate], **self._last}


def _call(made: JsonObject) -> WireCall:
    given = made.get("args", {})
    return WireCall(
        call_id=as_text(made.get("id")),
        name=as_text(made.get("name")),
        arguments=given if is_object(given) else None,
    )


def _is_sent_back(part: JsonObject) -> bool:
    is_plain = part.keys() <= {"text", "thought"}
    return not (is_plain and (part.get("thought") is True or not part.get("text")))


def _answer(call: WireCall, text: str) -> JsonObject:
    named: JsonObject = {"id": call.call_id} if call.call_id else {}
    return {"functionResponse": {**named, "name": call.name, "response": {"error": text}}}
