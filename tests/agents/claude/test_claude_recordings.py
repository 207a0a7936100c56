"""Recordings of the real Claude Code, as events.

``tests/recordings/claude/NAME.ndjson`` with ``.stderr`` and ``.exit.json`` are the
program's; ``NAME.events.ndjson`` is what they become. Lines that were said to it begin
with ``{">>"`` and are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.goldens import check_golden
from support.stream_checks import check_stream

from corral._agents import registry
from corral._agents.spec import TurnEnding, stream_transport
from corral._protocol.ndjson import NdjsonStream
from corral._sessions.event_normalizer import EventNormalizer
from corral.errors import CorralError
from corral.events import (
    Done,
    Error,
    Event,
    FileChange,
    Init,
    Text,
    Thinking,
    ToolResult,
    Unknown,
    to_json,
)
from corral.options import RunOptions
from corral.result import result_from_events

FOLDER = Path(__file__).parents[2] / "recordings" / "claude"
NAMES = sorted(path.name.removesuffix(".exit.json") for path in FOLDER.glob("*.exit.json"))
AGENT = registry.find("claude")

CODE = {
    "connrefused": "network",
    "e400": "invalid_request",
    "e400ctx": "context_length",
    "e401-long": "authentication",
    "e404": "model_not_found",
    "e429": "rate_limit",
    "e500": "server",
    "e529": "server",
    "empty": "empty_answer",
    "maxtok": "stream_broken",
    "nokey": "authentication",
    "refuse": "content_refused",
    "sigkill-tool": "killed_by_signal",
    "sigterm": "killed_by_signal",
    "sigterm-tool": "killed_by_signal",
}
"""All other recordings are successes."""

DENIED = {
    "allow-Edit": ["Write"],
    "allow-Edit-scoped-outside": ["Write"],
    "allow-Write-scoped-outside": ["Write"],
    "fetch-default": ["WebFetch"],
    "mcp-default": ["mcp__fake__echo"],
    "mcp-promptool-deny": ["Write"],
    "prompts-none": ["Write"],
    "py-acceptEdits": ["Bash"],
    "py-auto": ["Bash"],
    "read-denied": ["Read"],
    "read-outside": ["Read"],
    "settings-perm": ["Write"],
    "shell-denied": ["Bash"],
    "shell-deny-over-allow": ["Bash"],
    "shell-plan": ["Bash"],
    "todo-notasks": ["TodoWrite"],
    "todo-sonnet45": ["TodoWrite"],
    "todo-tools": ["TodoWrite"],
    "write-default": ["Write"],
    "write-disallowed": ["Write"],
    "write-dontAsk": ["Write"],
    "write-plan": ["Write"],
}


def play(name: str, size: int = 1 << 20) -> list[Event]:
    """The recording as the events of a run, its output read ``size`` bytes at a time."""
    ended = json.loads((FOLDER / f"{name}.exit.json").read_bytes())["exit"]
    lines = (FOLDER / f"{name}.ndjson").read_bytes().splitlines(keepends=True)
    output = b"".join(line for line in lines if not line.startswith(b'{">>"'))
    stderr_file = FOLDER / f"{name}.stderr"
    stderr = stderr_file.read_text("utf-8") if stderr_file.exists() else ""
    transport = stream_transport(AGENT)
    stream = NdjsonStream(transport.frames, transport.translator())
    init = Init(run_id="r", agent=AGENT.name, cwd="/workspace", agent_version="2.1.325")
    guard = EventNormalizer(init, started=0.0)
    events: list[Event] = []
    for start in range(0, len(output), size):
        events += guard.take(stream.receive(output[start : start + size]), 0.0)
    events += guard.take(stream.end(), 0.0)
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


def frames(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{name}.ndjson").read_bytes().splitlines()]


def test_recordings_exist() -> None:
    assert len(NAMES) > 60
    assert set(CODE) | set(DENIED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_becomes_these_events(name: str) -> None:
    lines = "".join(to_json(event).decode() + "\n" for event in play(name))
    check_golden(FOLDER / f"{name}.events.ndjson", lines)


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("name", ["partial", "e429"])
def test_boundaries_of_the_output_do_not_matter(name: str, size: int) -> None:
    assert play(name, size) == play(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_end_and_the_denied_calls_are_reported_correctly(name: str) -> None:
    done = done_of(name)
    assert (done.error.code if done.error else None) == CODE.get(name)
    assert [refusal.name for refusal in done.denied] == DENIED.get(name, [])


@pytest.mark.parametrize("name", NAMES)
def test_no_line_of_the_real_cli_is_unknown_or_malformed(name: str) -> None:
    for event in play(name):
        assert not isinstance(event, Unknown)
        assert not (isinstance(event, Error) and event.code == "malformed_line")


@pytest.mark.parametrize("name", sorted(CODE))
def test_a_failure_is_raised_as_its_own_class_with_something_to_do(name: str) -> None:
    with pytest.raises(CorralError) as raised:
        result_from_events(play(name)).raise_for_status()
    assert raised.value.code == CODE[name]
    assert raised.value.hint or name in ("e400", "sigterm", "sigterm-tool")


def test_text_that_came_in_deltas_is_not_repeated() -> None:
    events = play("partial")
    assert [e.delta for e in events if isinstance(e, Text)] == ["The answer i", "s 4."]
    thought = [e.delta for e in events if isinstance(e, Thinking)]
    assert thought == ["Let me think", " about it. T", "wo plus two."]


def test_an_api_error_that_comes_as_an_answer_is_an_error() -> None:
    assert not [e for e in play("e429") if isinstance(e, Text)]
    assert frames("e429")[-1]["subtype"] == "success"


def test_retries_are_reported_as_warnings() -> None:
    reported = [e for e in play("e429") if isinstance(e, Error) and e.code == "retrying"]
    assert reported
    assert all(e.recoverable and e.level == "warning" and "429" in e.message for e in reported)


def test_usage_counts_the_cache_as_input() -> None:
    usage = done_of("plain").usage
    assert (usage.input, usage.output) == (1234 + 200 + 100, 56)
    assert (usage.cache_read, usage.cache_write, usage.coverage) == (200, 100, "complete")


def test_a_resumed_run_reports_only_its_own_cost() -> None:
    assert frames("resume-fork")[-1]["total_cost_usd"] == pytest.approx(3 * 0.006596)
    assert done_of("resume-fork").cost.usd == pytest.approx(0.006596)
    assert done_of("resume-fork").usage == done_of("resume1").usage


def test_the_reported_model_is_the_one_that_answered() -> None:
    assert done_of("plain").model == "claude-opus-5-5"


def test_file_changes_of_edits_and_of_commands_are_reported() -> None:
    (edit,) = [e for e in play("readedit") if isinstance(e, FileChange)]
    assert (edit.kind, edit.lines_added, edit.lines_removed) == ("modified", 1, 1)
    (made,) = [e for e in play("shell-auto") if isinstance(e, FileChange)]
    assert (made.path, made.kind) == ("/workspace/by-shell.txt", "created")


def test_structured_output_is_the_final_text_and_missing_output_is_an_error() -> None:
    assert json.loads(result_from_events(play("json")).final_text) == {"name": "fake", "count": 3}
    warned = [e.code for e in play("badjson") if isinstance(e, Error)]
    assert warned == ["schema_not_met"]


def test_tools_cut_off_by_a_signal_are_closed_as_cancelled() -> None:
    results = [e for e in play("sigterm-tool") if isinstance(e, ToolResult)]
    assert [(r.name, r.status) for r in results] == [("Bash", "cancelled")]


def test_an_mcp_server_that_did_not_start_gives_a_warning() -> None:
    warned = [e for e in play("mcp-dead") if isinstance(e, Error)]
    assert [e.code for e in warned] == ["mcp_failed"]
