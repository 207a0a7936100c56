"""Tool calls in responses of Gemini: one form is read, and everything else is refused."""

from __future__ import annotations

import pytest
from support.judged_streams import judged, judged_body

from corral._models.tool_gate import Unjudgeable, wire_call
from corral.values import Json, JsonObject

CALL: JsonObject = {"name": "ls", "args": {"path": "a"}}


def chunk(*parts: Json, **more: Json) -> JsonObject:
    content: Json = {"role": "model", "parts": [*parts]}
    return {"candidates": [{"content": content, **more}]}


def test_a_call_is_passed_on_with_its_signature() -> None:
    part: Json = {"functionCall": {"id": "1", **CALL}, "thoughtSignature": "s"}
    events, calls = judged("gemini", chunk(part, index=0, finishReason="STOP"))
    assert calls == [wire_call("1", "ls", {"path": "a"})]
    assert events == [chunk(part, index=0, finishReason="STOP")]


def test_a_call_without_arguments_has_none() -> None:
    events, calls = judged("gemini", chunk({"functionCall": {"name": "ls", "args": None}}))
    assert calls == [wire_call("", "ls", {})]
    assert events == [chunk({"functionCall": {"name": "ls", "args": {}}})]


def test_unknown_metadata_passes() -> None:
    metadata: Json = {"groundingChunks": [{"web": {"uri": "x"}}]}
    part: Json = {"text": "hi", "thought": True, "newScalar": 1}
    event = {**chunk(part, groundingMetadata=metadata), "newMetadata": {"a": [1]}}
    assert judged("gemini", event) == ([event], [])
    assert judged("gemini", {"usageMetadata": {}}, chunk()) == (
        [{"usageMetadata": {}}, chunk()],
        [],
    )


REFUSED: list[tuple[JsonObject, str]] = [
    ({"candidates": {"0": {"content": {"parts": [{"functionCall": CALL}]}}}}, "not a list"),
    ({"candidates": [{}, {}]}, "several candidates"),
    (chunk({"functionCall": CALL}, index=1), "second candidate"),
    ({"candidates": ["x"]}, "not an object"),
    ({"candidates": [{"content": [{"functionCall": CALL}]}]}, "content is not an object"),
    ({"candidates": [{"content": {"parts": {"functionCall": CALL}}}]}, "parts is not a list"),
    ({"candidates": [{"functionCall": CALL}]}, "functionCall"),
    ({"functionCalls": [CALL]}, "functionCalls"),
    ({"response": {"candidates": [{"functionCall": CALL}]}}, "response"),
    (chunk({"function_call": CALL}), "function_call"),
    (chunk({"functioncall": CALL}), "functioncall"),
    (chunk({"parts": [{"functionCall": CALL}]}), "parts"),
    (chunk({"parts": [{"text": "x"}]}), "unknown kind: 'parts'"),
    (chunk({"newKind": {"a": 1}}), "unknown kind: 'newKind'"),
    (chunk({"functionResponse": {"name": "ls"}}), "unknown kind: 'functionResponse'"),
    (chunk({"text": "x", "functionCall": CALL}), "several kinds"),
    (chunk({"text": {"a": 1}}), "text is not a string"),
    (chunk({"functionCall": [CALL]}), "functionCall is not an object"),
    (chunk({"functionCall": {**CALL, "name": ["ls"]}}), "name is not a string"),
    (chunk({"functionCall": {**CALL, "partialArgs": []}}), "partialArgs"),
    (chunk({"functionCall": {"name": "ls", "willContinue": True}}), "willContinue"),
    (chunk({"functionCall": {**CALL, "arguments": {}}}), "arguments"),
    (chunk({"executableCode": {"code": "x"}}), "did not ask for: 'executableCode'"),
    (chunk({"toolCall": {"toolType": "x"}}), "did not ask for: 'toolCall'"),
]


@pytest.mark.parametrize(("event", "error"), REFUSED)
def test_every_other_form_is_refused(event: JsonObject, error: str) -> None:
    with pytest.raises(Unjudgeable, match=error):
        judged("gemini", event)
    with pytest.raises(Unjudgeable, match=error):
        judged_body("gemini", event)
    with pytest.raises(Unjudgeable, match=error):
        judged_body("gemini", [chunk({"text": "x"}), event])


def test_parts_of_the_vendors_tools_pass_if_the_request_asks_for_them() -> None:
    event = chunk({"executableCode": {"code": "x", "language": "PYTHON"}})
    assert judged("gemini", event, tools=[{"codeExecution": {}}]) == ([event], [])
    with pytest.raises(Unjudgeable):
        judged("gemini", event, tools=[{"functionDeclarations": []}])


def test_arguments_that_are_not_an_object_are_a_problem_of_the_call() -> None:
    [call] = judged("gemini", chunk({"functionCall": {"name": "ls", "args": "{}"}}))[1]
    assert "not a JSON object" in call.problem
