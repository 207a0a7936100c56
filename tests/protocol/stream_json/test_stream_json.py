"""The two-way JSON stream in conversations: lines in, events and replies out."""

from __future__ import annotations

import json
from typing import Any

from corral._protocol.ndjson import NdjsonStream, RawEvent, TurnEnd
from corral._protocol.stream_json.client import StreamJsonClient, encode_prompt
from corral._protocol.stream_json.frames import Frames, StreamQuirks
from corral._sessions.event_normalizer import EventNormalizer
from corral.events import (
    Done,
    Error,
    Init,
    PermissionDecision,
    PermissionRequest,
    Text,
    ToolResult,
    Unknown,
    UsageReport,
    Vendor,
)
from corral.messages import Image

QUIRKS = StreamQuirks(tools={"Bash": "execute", "Write": "edit"}, denied_texts=("is hidden",))
TASK = {"task_type": "local_agent"}
SPENT = {"m": {"inputTokens": 10, "outputTokens": 2, "costUSD": 0.5}}


def hear(control: StreamJsonClient, *lines: dict[str, Any]) -> list[RawEvent]:
    stream = NdjsonStream(Frames, control.translate)
    return stream.receive(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def result(**more: Any) -> dict[str, Any]:
    usage = {"model_usage_since_last_result": SPENT}
    return {"type": "result", "subtype": "success", "result": "ok", **usage, **more}


def returned(call: str, content: str, **more: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call, "content": content, "is_error": True}
    return {"type": "user", "message": {"role": "user", "content": [block]}, **more}


def tasks(*running: dict[str, str]) -> dict[str, Any]:
    return {"type": "system", "subtype": "background_tasks_changed", "tasks": running}


def asks(id: str, tool: str, **given: Any) -> dict[str, Any]:
    request = {"subtype": "can_use_tool", "tool_name": tool, "tool_use_id": "t1", "input": given}
    return {"type": "control_request", "request_id": id, "request": request}


def test_a_result_is_early_while_sub_agents_run_and_usage_includes_them() -> None:
    items = hear(StreamJsonClient(QUIRKS), tasks(TASK), result(), tasks(), result())
    early, last = items
    assert isinstance(early, UsageReport)
    assert isinstance(last, TurnEnd)
    assert (last.usage.input, last.usage.output, last.cost.usd) == (20, 4, 1.0)
    assert {name: usage.input for name, usage in last.usage_by_model.items()} == {"m": 20}
    (only,) = hear(StreamJsonClient(QUIRKS), tasks({"task_type": "local_bash"}), result())
    assert isinstance(only, TurnEnd)


def test_a_success_with_an_error_is_an_error() -> None:
    (finish,) = hear(StreamJsonClient(QUIRKS), result(is_error=True, result="API Error: 500"))
    assert isinstance(finish, TurnEnd)
    assert (finish.ok, finish.message) == (False, "API Error: 500")


def test_a_permission_request_is_answered_with_the_input_of_the_call() -> None:
    control = StreamJsonClient(QUIRKS)
    (request,) = hear(control, asks("q1", "Bash", command="ls"))
    assert isinstance(request, PermissionRequest)
    assert (request.kind, request.title) == ("execute", "Bash ls")
    ask = control.open_requests["q1"]
    assert (ask.command, ask.own) == ("ls", False)
    reply = json.loads(control.answer(ask, allow=True, message=""))
    assert reply["response"]["request_id"] == "q1"
    assert reply["response"]["response"] == {"behavior": "allow", "updatedInput": {"command": "ls"}}
    assert control.open_requests == {}


def test_a_denied_call_is_denied_and_a_failed_call_is_not() -> None:
    control = StreamJsonClient(QUIRKS)
    hear(control, asks("q1", "Write", file_path="a"))
    reply = json.loads(control.answer(control.open_requests["q1"], allow=False, message="no"))
    assert reply["response"]["response"]["behavior"] == "deny"
    items = hear(
        control, returned("t1", "no"), returned("t2", "broke"), returned("t3", "is hidden")
    )
    assert [item.status for item in items if isinstance(item, ToolResult)] == [
        "denied",
        "error",
        "denied",
    ]


def test_a_call_stopped_by_an_interrupt_is_cancelled_and_not_denied() -> None:
    control = StreamJsonClient(QUIRKS)
    assert json.loads(control.interrupt())["request"] == {"subtype": "interrupt"}
    meta = [{"id": "t1", "non_execution_kind": "user-rejected"}]
    (item,) = hear(control, returned("t1", "rejected", tool_result_meta=meta))
    assert isinstance(item, ToolResult)
    assert item.status == "cancelled"


def test_a_withdrawn_permission_request_is_reported_and_dropped() -> None:
    control = StreamJsonClient(QUIRKS)
    back = {"type": "control_cancel_request", "request_id": "q1"}
    items = hear(control, asks("q1", "Bash", command="ls"), back, back)
    assert isinstance(items[-1], PermissionDecision)
    assert (items[-1].decision, items[-1].by, len(items)) == ("cancel", "agent", 2)
    assert control.open_requests == {}


def test_a_control_request_that_is_not_offered_gets_an_error_reply() -> None:
    control = StreamJsonClient(QUIRKS)
    hook = {"type": "control_request", "request_id": "h", "request": {"subtype": "hook_callback"}}
    assert hear(control, hook) == []
    (reply,) = control.replies
    assert json.loads(reply)["response"]["subtype"] == "error"


def test_an_unknown_line_is_reported_unchanged() -> None:
    (item,) = hear(StreamJsonClient(QUIRKS), {"type": "rate_limit_event", "x": 1})
    assert isinstance(item, Unknown)
    assert item.frame == {"type": "rate_limit_event", "x": 1}


def test_tool_progress_is_not_reported() -> None:
    line = {"type": "tool_progress", "tool_name": "Bash", "elapsed_time_seconds": 30}
    assert hear(StreamJsonClient(QUIRKS), line) == []


def test_there_is_one_warning_for_an_answer_that_broke_off() -> None:
    def piece(text: str) -> dict[str, Any]:
        delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
        return {"type": "stream_event", "event": delta}

    def start(id: str) -> dict[str, Any]:
        return {"type": "stream_event", "event": {"type": "message_start", "message": {"id": id}}}

    complete = {"id": "b", "content": [{"type": "text", "text": "Hello"}]}
    assistant = {"type": "assistant", "message": complete}
    control = StreamJsonClient(QUIRKS)
    items = hear(
        control, start("a"), piece("Hel"), start("b"), piece("Hello"), assistant, start("c")
    )
    assert [item.delta for item in items if isinstance(item, Text)] == ["Hel", "Hello"]
    assert [item.code for item in items if isinstance(item, Error)] == ["text_repeated"]


def test_a_second_init_is_the_same_session() -> None:
    reported = {"type": "system", "subtype": "init", "session_id": "s", "model": "m"}
    stream = NdjsonStream(Frames, StreamJsonClient(QUIRKS).translate)
    guard = EventNormalizer(Init(run_id="r", agent="a"), started=0.0)
    lines = [reported, reported, result()]
    items = stream.receive(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    events = [*guard.take(items, 0.0), *guard.close(0.0, None)]
    assert [type(event) for event in events if not isinstance(event, Vendor)] == [Init, Done]
    assert {event.session_id for event in events} == {"s"}


def test_text_in_the_name_of_the_user_is_not_part_of_the_answer() -> None:
    words = [{"type": "text", "text": "Your previous response had no visible output."}]
    line = {"type": "user", "message": {"role": "user", "content": words}, "isSynthetic": True}
    assert hear(StreamJsonClient(QUIRKS), line) == []


def test_the_first_lines_are_the_handshake_and_the_prompt_with_its_images() -> None:
    hello, prompt = encode_prompt(
        "look", [Image(b"\0\0\0", "image/png")], QUIRKS.media
    ).splitlines()
    assert json.loads(hello)["request"]["subtype"] == "initialize"
    content = json.loads(prompt)["message"]["content"]
    assert content[0] == {"type": "text", "text": "look"}
    assert content[1]["source"] == {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    assert json.loads(encode_prompt("only").splitlines()[1])["message"]["content"] == "only"
