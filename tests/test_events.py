"""The JSON form of the events: stable, complete, and readable by later versions."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral.events import (
    AgentQuestion,
    Done,
    Error,
    Event,
    FileChange,
    Init,
    Log,
    ModelCall,
    PermissionDecision,
    PermissionRequest,
    Plan,
    PlanEntry,
    QuestionAnswer,
    QuestionField,
    QuestionOption,
    Text,
    Thinking,
    ToolOutput,
    ToolResult,
    ToolUse,
    Unknown,
    UsageReport,
    Vendor,
    from_json,
    to_json,
)
from corral.values import AskedQuestion, Cost, DeniedCall, FileChanged, Usage

_HEAD: dict[str, Any] = {"seq": 7, "ts": 1.5, "run_id": "r", "session_id": "s", "agent": "a"}
_HEAD_JSON = '"seq":7,"ts":1.5,"run_id":"r","session_id":"s","agent":"a"'

GOLDEN: list[tuple[Event, str]] = [
    (
        Init(model="m", cwd="/w", tools=("t",), agent_version="1", capabilities=("c",), **_HEAD),
        '{"type":"init","model":"m","cwd":"/w","tools":["t"],"agent_version":"1",'
        '"capabilities":["c"],"version":1,%s}',
    ),
    (Text("hi", message_id="1", **_HEAD), '{"type":"text","delta":"hi","message_id":"1",%s}'),
    (Thinking("hm", **_HEAD), '{"type":"thinking","delta":"hm",%s}'),
    (
        ToolUse("c", "n", kind="edit", title="t", input={"a": [1, None]}, paths=("p",), **_HEAD),
        '{"type":"tool_use","call_id":"c","name":"n","kind":"edit","title":"t",'
        '"input":{"a":[1,null]},"paths":["p"],%s}',
    ),
    (ToolOutput("c", "o", **_HEAD), '{"type":"tool_output","call_id":"c","delta":"o",%s}'),
    (
        ToolResult("c", "denied", name="n", output="o", error="e", duration_ms=3, **_HEAD),
        '{"type":"tool_result","call_id":"c","status":"denied","name":"n","output":"o",'
        '"error":"e","duration_ms":3,%s}',
    ),
    (
        FileChange("/w/a", "created", call_id="c", lines_added=2, lines_removed=0, **_HEAD),
        '{"type":"file_change","path":"/w/a","kind":"created","call_id":"c",'
        '"lines_added":2,"lines_removed":0,%s}',
    ),
    (
        PermissionRequest("q", call_id="c", kind="execute", title="t", input="i", **_HEAD),
        '{"type":"permission_request","request_id":"q","call_id":"c","kind":"execute",'
        '"title":"t","input":"i",%s}',
    ),
    (
        PermissionDecision("q", "deny", "policy", call_id="c", rule="shell=deny", **_HEAD),
        '{"type":"permission_decision","request_id":"q","decision":"deny","by":"policy",'
        '"call_id":"c","rule":"shell=deny",%s}',
    ),
    (
        AgentQuestion(
            "q",
            title="t",
            fields=(
                QuestionField(
                    "k",
                    "x",
                    header="h",
                    options=(QuestionOption("l", "d"),),
                    multiple=True,
                    free_text=True,
                    type="integer",
                    required=False,
                    default=1,
                    secret=True,
                ),
            ),
            call_id="c",
            source="s",
            **_HEAD,
        ),
        '{"type":"question","request_id":"q","title":"t","fields":[{"key":"k","text":"x",'
        '"header":"h","options":[{"label":"l","description":"d"}],"multiple":true,'
        '"free_text":true,"type":"integer","required":false,"default":1,"secret":true}],'
        '"call_id":"c","source":"s",%s}',
    ),
    (
        QuestionAnswer("q", "answered", {"k": ["l"]}, call_id="c", reason="asked", **_HEAD),
        '{"type":"question_answer","request_id":"q","outcome":"answered",'
        '"answers":{"k":["l"]},"call_id":"c","reason":"asked",%s}',
    ),
    (
        Plan((PlanEntry("do", status="pending", priority="high"),), **_HEAD),
        '{"type":"plan","entries":[{"content":"do","status":"pending","priority":"high"}],%s}',
    ),
    (
        UsageReport(Usage(1, 2, 3, 4, 5, "complete"), 9, Cost(0.5, "reported"), **_HEAD),
        '{"type":"usage","usage":{"input":1,"output":2,"reasoning":3,"cache_read":4,'
        '"cache_write":5,"coverage":"complete"},"context_size":9,'
        '"cost":{"usd":0.5,"source":"reported"},%s}',
    ),
    (
        ModelCall("m", Usage(1, 2), Cost(0.5, "metered"), True, True, 200, 3, 4, "e", **_HEAD),
        '{"type":"model_call","model":"m","usage":{"input":1,"output":2},'
        '"cost":{"usd":0.5,"source":"metered"},"side":true,"partial":true,"status":200,'
        '"first_byte_ms":3,"duration_ms":4,"error":"e",%s}',
    ),
    (Log("l", level="warning", **_HEAD), '{"type":"log","text":"l","level":"warning",%s}'),
    (
        Error("c", "m", True, True, "warning", "h", "stream", {"exit_code": 1}, **_HEAD),
        '{"type":"error","code":"c","message":"m","recoverable":true,"retryable":true,'
        '"level":"warning","hint":"h","phase":"stream","facts":{"exit_code":1},%s}',
    ),
    (Vendor("n", {"x": 1.5}, **_HEAD), '{"type":"vendor","name":"n","data":{"x":1.5},%s}'),
    (Unknown(["f"], **_HEAD), '{"type":"unknown","frame":["f"],%s}'),
    (
        Done(
            status="error",
            stop_reason="s",
            model="m",
            usage=Usage(input=1),
            cost=Cost(1.0, "computed"),
            files=(FileChanged("/w/a", "deleted", by_tool=True),),
            files_complete=False,
            denied=(DeniedCall("n", title="t", reason="r", call_id="c", rule="u"),),
            questions=(AskedQuestion("x", "answered", "a", "asked", "c"),),
            resume_token="t",
            duration_ms=8,
            error=Error("c", "m"),
            **_HEAD,
        ),
        '{"type":"done","status":"error","stop_reason":"s","model":"m","usage":{"input":1},'
        '"cost":{"usd":1.0,"source":"computed"},'
        '"files":[{"path":"/w/a","kind":"deleted","by_tool":true}],"files_complete":false,'
        '"denied":[{"name":"n","title":"t","reason":"r","call_id":"c","rule":"u"}],'
        '"questions":[{"text":"x","outcome":"answered","answer":"a","reason":"asked",'
        '"call_id":"c"}],'
        '"resume_token":"t","duration_ms":8,"error":{"type":"error","code":"c","message":"m"},%s}',
    ),
]


def test_every_event_type_has_an_example_of_its_json() -> None:
    assert {type(event) for event, _ in GOLDEN} == set(get_args(Event))


@pytest.mark.parametrize(("event", "form"), GOLDEN, ids=lambda it: type(it).__name__)
def test_the_json_form_does_not_change(event: Event, form: str) -> None:
    line = form.replace("%s", _HEAD_JSON)
    assert to_json(event).decode() == line
    assert from_json(line) == event


@pytest.mark.parametrize("event", [event for event, _ in GOLDEN], ids=lambda it: type(it).__name__)
def test_an_event_cannot_be_changed(event: Event) -> None:
    with pytest.raises(AttributeError):
        event.seq = 8  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_missing_field_has_its_default() -> None:
    assert from_json('{"type":"done","status":"success"}') == Done(status="success")
    assert to_json(Text("")) == b'{"type":"text","delta":""}'


def test_an_unknown_field_is_ignored() -> None:
    assert from_json('{"type":"text","delta":"a","invented_later":[1]}') == Text("a")


@pytest.mark.parametrize(
    "line",
    ['{"type":"nothing_known"}', '{"delta":"a"}', '{"type":"done","status":"fine"}', "[]", "{"],
)
def test_a_line_that_is_not_an_event_is_rejected(line: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        from_json(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@no_deadline
@given(data=JSON, text=st.text(), seq=st.integers(0, 2**53))
def test_any_json_and_any_text_survive_encoding_and_decoding(
    data: Any, text: str, seq: int
) -> None:
    for event in (Unknown(data, seq=seq), ToolUse("c", text, input=data), Text(text, seq=seq)):
        line = to_json(event)
        assert b"\n" not in line
        assert from_json(line) == event
        assert json.loads(line)["type"] == type(event).__struct_config__.tag


def test_text_is_written_as_utf_8_and_line_separators_stay_inside_the_line() -> None:
    assert to_json(Text("ü\u2028\n")) == '{"type":"text","delta":"ü\u2028\\n"}'.encode()
