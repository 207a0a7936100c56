"""Recordings of the real Codex, as events.

``tests/recordings/codex/NAME.ndjson`` with ``.stderr`` and ``.exit.json`` are the
program's; ``NAME.events.ndjson`` is what they become.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.goldens import check_golden
from support.stream_checks import check_stream

from corral._agents import registry
from corral._agents.spec import TurnEnding, stream_transport
from corral._protocol.ndjson import NdjsonStream
from corral._sessions.event_normalizer import EventNormalizer
from corral.events import (
    Done,
    Error,
    Event,
    FileChange,
    Init,
    Text,
    ToolResult,
    ToolUse,
    Unknown,
    to_json,
)
from corral.options import RunOptions

AGENT = registry.find("codex-cli")
FOLDER = Path(__file__).parents[2] / "recordings" / "codex"
NAMES = sorted(path.name.removesuffix(".exit.json") for path in FOLDER.glob("*.exit.json"))

CODE = {
    "SIGTERM-group-tool": "killed_by_signal",
    "connrefused": "killed_by_signal",
    "e400": "invalid_request",
    "e400-ctx-1": "context_length",
    "e401": "authentication",
    "e402": "quota_spent",
    "e403": "access_denied",
    "e404": "model_not_found",
    "e429": "rate_limit",
    "e500": "server",
    "hang": "killed_by_signal",
    "nokey": "authentication",
    "sigint-tool": "process_failed",
    "sse-quota": "quota_spent",
    "sse-rl": "rate_limit",
    "sseerr": "stream_broken",
    "stdin-12mb": "input_rejected",
}
"""All other recordings are successes."""

DENIED = {
    "cm-noshell": [],
    "cm-write-ro": ["apply_patch"],
    "escalate": ["exec_command"],
    "mcp-default": ["mcp__fake__echo"],
    "mcp-disabled": ["mcp__fake__echo"],
    "shell-ro": [],
    "write-ro": ["apply_patch"],
}
"""Recordings with denied calls; an empty list if Codex did not report them."""


def play(name: str, size: int = 1 << 20) -> list[Event]:
    """The recording as the events of a run, its output read ``size`` bytes at a time."""
    ended = json.loads((FOLDER / f"{name}.exit.json").read_bytes())["exit"]
    ended = -9 if ended == "TIMEOUT" else ended  # the recorder's own, which then killed it
    output = (FOLDER / f"{name}.ndjson").read_bytes()
    stderr = (FOLDER / f"{name}.stderr").read_text("utf-8")
    assert AGENT.read_stderr is not None
    transport = stream_transport(AGENT)
    stream = NdjsonStream(transport.frames, transport.translator())
    init = Init(run_id="r", agent=AGENT.name, cwd="/workspace", agent_version="0.166.0")
    guard = EventNormalizer(init, started=0.0)
    events: list[Event] = []
    for start in range(0, len(output), size):
        events += guard.take(stream.receive(output[start : start + size]), 0.0)
    received = [
        item for line in stderr.splitlines() if (item := AGENT.read_stderr(line)) is not None
    ]
    events += guard.take([*stream.end(), *received], 0.0)
    ending = TurnEnding(
        code=ended if ended >= 0 else None,
        signal=-ended if ended < 0 else None,
        stderr=stderr,
        finish=guard.finish,
        answered=guard.answered,
        run=RunOptions(agent=AGENT.name),
    )
    return check_stream([*events, *guard.close(0.0, AGENT.explain(ending))])


def done_of(name: str) -> Done:
    done = play(name)[-1]
    assert isinstance(done, Done)
    return done


def test_recordings_exist() -> None:
    assert len(NAMES) > 40
    assert set(CODE) | set(DENIED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_becomes_these_events(name: str) -> None:
    lines = "".join(to_json(event).decode() + "\n" for event in play(name))
    check_golden(FOLDER / f"{name}.events.ndjson", lines)


@pytest.mark.parametrize("name", NAMES)
def test_the_end_and_the_denied_calls_are_reported(name: str) -> None:
    done = done_of(name)
    assert (done.error.code if done.error else None) == CODE.get(name)
    if name in CODE and name not in ("SIGTERM-group-tool", "connrefused", "hang", "sigint-tool"):
        assert done.error is not None
        assert done.error.hint or done.error.code == "invalid_request"
    assert [refusal.name for refusal in done.denied] == DENIED.get(name, [])


@pytest.mark.parametrize("name", NAMES)
def test_no_line_of_the_real_codex_is_unknown(name: str) -> None:
    assert not [event for event in play(name) if isinstance(event, Unknown)]


@pytest.mark.parametrize("size", [1, 64])
@pytest.mark.parametrize("name", ["parallel", "mcp-default", "e401"])
def test_boundaries_of_the_output_do_not_matter(name: str, size: int) -> None:
    assert play(name, size) == play(name)


def test_an_error_line_does_not_end_the_turn_and_the_last_message_comes_once() -> None:
    reported = [event for event in play("e401") if isinstance(event, Error)]
    assert [(e.code, e.recoverable) for e in reported] == [
        ("retrying", True),
        ("retrying", True),
        ("agent_warning", True),
        ("authentication", False),
    ]


def test_a_file_change_has_the_kind_that_codex_reports() -> None:
    kinds = {
        n: [e.kind for e in play(n) if isinstance(e, FileChange)] for n in ("edit", "write-ww")
    }
    assert kinds == {"edit": ["modified"], "write-ww": ["created"]}


def test_a_call_that_is_reported_only_at_its_end_is_still_a_call() -> None:
    transport = stream_transport(AGENT)
    stream = NdjsonStream(transport.frames, transport.translator())
    line = {"id": "i", "type": "command_execution", "command": "x", "status": "failed"}
    frame = {"type": "item.completed", "item": line}
    use, result = stream.receive(json.dumps(frame).encode() + b"\n")
    assert isinstance(use, ToolUse)
    assert isinstance(result, ToolResult)
    assert (use.call_id, use.kind, result.status) == ("i", "execute", "error")


def test_unknown_frames_are_passed_on_unchanged() -> None:
    transport = stream_transport(AGENT)
    stream = NdjsonStream(transport.frames, transport.translator())
    odd = [
        {"type": "item.completed", "item": {"id": "i", "type": "hologram", "depth": 3}},
        {"type": "session.moon", "phase": 1},
        {"type": "item.started", "item": {"id": "m", "type": "agent_message"}},
    ]
    items = stream.receive(b"".join(json.dumps(frame).encode() + b"\n" for frame in odd))
    assert [type(item) for item in items] == [Unknown, Unknown]


def test_a_plan_update_becomes_a_plan_event() -> None:
    transport = stream_transport(AGENT)
    stream = NdjsonStream(transport.frames, transport.translator())
    todo = {"id": "t", "type": "todo_list", "items": [{"text": "a", "completed": True}]}
    (reported,) = stream.receive(
        json.dumps({"type": "item.updated", "item": todo}).encode() + b"\n"
    )
    assert to_json(reported) == (  # type: ignore[arg-type]
        b'{"type":"plan","entries":[{"content":"a","status":"completed"}]}'
    )


def test_responses_are_separate_messages() -> None:
    reported = [e.message_id for e in play("parallel") if isinstance(e, Text)]
    assert reported == ["item_0", "item_3"]
