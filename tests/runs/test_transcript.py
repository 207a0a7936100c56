"""Stored sessions, turn by turn."""

from __future__ import annotations

from corral._runs.transcript import summary, turns
from corral.events import (
    Done,
    Error,
    Event,
    Init,
    PermissionDecision,
    Text,
    ToolResult,
    ToolUse,
    Vendor,
)
from corral.values import Cost, FileChanged, Usage

EVENTS: list[Event] = [
    Init(model="gemini-3-pro", ts=1_000.0),
    Vendor("prompt", "Fix the test"),
    Text(delta="I will "),
    Text(delta="look."),
    ToolUse(call_id="1", name="shell", title="pytest -x"),
    PermissionDecision(request_id="q", decision="allow_once", by="person", call_id="1"),
    ToolResult(call_id="1", status="error", error="exit code 1", output="```\nboom\n```"),
    Text(delta="a sub-agent's words", parent="1"),
    Text(delta="Done."),
    Done(
        status="success",
        usage=Usage(input=1200, output=30),
        cost=Cost(usd=0.5, source="reported"),
        duration_ms=2500,
        files=(FileChanged(path="a.py", kind="modified"),),
    ),
    Init(model=None, ts=2_000.0),
    Vendor("prompt", "Again"),
    Error(code="x", message="quota spent"),
]


def test_a_turn_has_its_prompt_answer_calls_files_and_figures() -> None:
    first, _ = turns(EVENTS)
    assert first.prompt == "Fix the test"
    assert first.text == "I will look.\n\nDone."
    assert first.model == "gemini-3-pro"
    (call,) = first.calls
    assert (call.title, call.status, call.error) == ("pytest -x", "error", "exit code 1")
    assert call.decision == "allow_once by person"
    assert [file.path for file in first.files] == ["a.py"]
    assert summary(first) == (
        "success · gemini-3-pro · 2.5 s · 1,200 tokens in, 30 out · $0.5000 (reported)"
    )


def test_a_turn_that_did_not_end_is_unfinished() -> None:
    last = turns(EVENTS)[-1]
    assert (last.status, last.error) == ("unfinished", "quota spent")
