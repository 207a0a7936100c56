"""Recordings of real programs with one process per prompt: the same checks for each.

``tests/recordings/NAME/`` has what each wrote, and in ``*.events.ndjson`` what it becomes.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import pytest
from support.goldens import check_golden
from support.recordings import Recordings

from corral._agents.copilot.stream import read_report
from corral._protocol.ndjson import TurnEnd
from corral.errors import CorralError
from corral.events import (
    Done,
    Error,
    Event,
    Plan,
    PlanEntry,
    Text,
    ToolResult,
    ToolUse,
    Unknown,
    to_json,
)
from corral.result import result_from_events

LEAST = {
    "claude-cli": 69,
    "codex-cli": 44,
    "copilot-cli": 31,
    "gemini-cli": 80,
    "opencode-cli": 28,
    "pi-cli": 8,
    "qwen-cli": 26,
}

ERRORS = {
    "claude-cli": {
        "authentication": "e401-long nokey",
        "content_refused": "refuse",
        "context_length": "e400ctx",
        "empty_answer": "empty",
        "invalid_request": "e400",
        "killed_by_signal": "sigkill-tool sigterm sigterm-tool",
        "model_not_found": "e404",
        "network": "connrefused",
        "rate_limit": "e429",
        "server": "e500 e529",
        "stream_broken": "maxtok",
    },
    "codex-cli": {
        "access_denied": "e403",
        "authentication": "e401 nokey",
        "context_length": "e400-ctx-1",
        "input_rejected": "stdin-12mb",
        "invalid_request": "e400",
        "killed_by_signal": "SIGTERM-group-tool connrefused hang",
        "model_not_found": "e404",
        "process_failed": "sigint-tool",
        "quota_spent": "e402 sse-quota",
        "rate_limit": "e429 sse-rl",
        "server": "e500",
        "stream_broken": "sseerr",
    },
    "copilot-cli": {
        "authentication": "e401",
        "empty_answer": "empty",
        "interrupted": "sigterm-group",  # it exits with 0
        "killed_by_signal": "sigint sigint-group sigterm sigterm-group-tool sigterm-tool",
        "model_not_found": "e404",
        "rate_limit": "e429",
        "server": "e500",
    },
    "gemini-cli": {
        "access_denied": "err403",
        "authentication": "err400key err401 err401_auto_model prec_vertex_project_no_adc "
        "tool_then_401",
        "content_refused": "safety",
        "empty_answer": "empty empty_max1 thought_only",
        "input_rejected": "slash_quit",
        "killed_by_signal": "sigkill_shell_running",
        "network": "conn_refused_max1 cut cut_then_ok hang_long",
        "rate_limit": "err429_max1 err429_retryinfo_max2",
        "server": "err503_max1",
        "stream_broken": "dash_prompt malformed_fc malformed_html malformed_json no_finish "
        "plain_textout sigterm_norelaunch sigterm_shell_running",
        "turn_limit": "loop_detect max_turns_2 ws_settings_override",
    },
    "opencode-cli": {
        "authentication": "e401",
        "invalid_request": "e400",
        "killed_by_signal": "SIGHUP-group-tool SIGTERM-group-tool cut sigterm sigterm-tool sseerr",
        "model_not_found": "e404",
        "rate_limit": "e429-long",
        "server": "badmodel",
        "stream_broken": "outside read-outside write-ask",
    },
    "pi-cli": {
        "authentication": "e401",
        "empty_answer": "empty",
        "model_not_found": "e404",
        "process_failed": "sigterm",
        "resume_lost": "lost",
        "server": "e500",
    },
    "qwen-cli": {
        "authentication": "e401",
        "context_length": "e400ctx",
        "empty_answer": "empty",
        "interrupted": "e429",
        "killed_by_signal": "sigint-group sigkill-tool sigterm",
        "model_not_found": "e404",
        "process_failed": "badjson",
    },
}
"""The error codes of recordings; all others are successes."""

STATUS = {"stream_broken": "incomplete", "turn_limit": "max_turns", "interrupted": "interrupted"}
"""The status of these errors; of all others it is ``error``."""

WITHOUT_ADVICE = {"invalid_request", "killed_by_signal", "process_failed", "interrupted"}
"""The errors that may have no hint, beside that of a prompt that Gemini takes as its command."""

DENIED = {
    "claude-cli": {
        "Bash": "py-acceptEdits py-auto shell-denied shell-deny-over-allow shell-plan",
        "Read": "read-denied read-outside",
        "TodoWrite": "todo-notasks todo-sonnet45 todo-tools",
        "WebFetch": "fetch-default",
        "Write": "allow-Edit allow-Edit-scoped-outside allow-Write-scoped-outside "
        "mcp-promptool-deny prompts-none settings-perm write-default write-disallowed "
        "write-dontAsk write-plan",
        "mcp__fake__echo": "mcp-default",
    },
    "codex-cli": {
        "apply_patch": "cm-write-ro write-ro",
        "exec_command": "escalate",  # cm-noshell and shell-ro too, but it does not report them
        "mcp__fake__echo": "mcp-default mcp-disabled",
    },
    "copilot-cli": {
        "Bash": "shell-excluded",
        "bash": "shell-default",
        "create": "outside-root write-deny",
        "fake-echo": "mcp-default",
        "view": "read-deny read-outside",
    },
    "gemini-cli": {
        "mcp_probe_add": "mcp_settings_bad",
        "read_file": "read_outside",
        "run_shell_command": "policy_prefix_chain policy_redirect shell_auto_edit",
        "write_file": "policy_ask_yolo policy_deny_low_priority_yolo policy_deny_yolo "
        "policy_denyargs_yolo write_outside write_plan_mode yolo_untrusted_restricted",
    },
    "opencode-cli": {
        "Bash": "shell-deny",
        "Read": "read-deny",
        "WebFetch": "fetch-deny",
        "Write": "write-deny",
        "mcp__fake__echo": "mcp-deny",
        "read": "read-outside",
        "write": "outside outside-deny write-ask",
    },
    "pi-cli": {"bash write read": "refused"},
    "qwen-cli": {
        "Read": "read-excl",
        "Write": "write-allowed write-default",
        "mcp__fake__echo": "mcp-default",
        "run_shell_command": "policy",
    },
}
"""The tools whose calls were denied, and the recordings."""

RECORDED = {name: Recordings(name) for name in LEAST}
EVERY = [(name, cassette) for name, recorded in RECORDED.items() for cassette in recorded.names]
every_recording = pytest.mark.parametrize(("agent", "name"), EVERY)


@cache
def played(agent: str, name: str) -> list[Event]:
    return RECORDED[agent](name)


def done(agent: str, name: str) -> Done:
    event = played(agent, name)[-1]
    assert isinstance(event, Done)
    return event


def by_recording(table: dict[str, str]) -> dict[str, str]:
    return {name: key for key, names in table.items() for name in names.split()}


@pytest.mark.parametrize("agent", LEAST)
def test_recordings_exist(agent: str) -> None:
    assert len(RECORDED[agent].names) >= LEAST[agent]
    assert {*by_recording(ERRORS[agent])} <= {*RECORDED[agent].names}
    assert {*by_recording(DENIED[agent])} <= {*RECORDED[agent].names}


@every_recording
def test_a_recording_becomes_these_events(agent: str, name: str) -> None:
    lines = "".join(to_json(event).decode() + "\n" for event in played(agent, name))
    check_golden(RECORDED[agent].folder / f"{name}.events.ndjson", lines)
    for event in played(agent, name):
        assert not isinstance(event, Unknown)
        assert not (isinstance(event, Error) and event.code == "malformed_line")
        assert event.type != "log" or agent != "opencode-cli"  # writes nothing but JSON


@every_recording
def test_the_end_and_the_denied_calls_are_reported_correctly(agent: str, name: str) -> None:
    end = done(agent, name)
    code = by_recording(ERRORS[agent]).get(name)
    assert (end.error.code if end.error else None) == code
    assert end.status == (STATUS.get(code, "error") if code else "success")
    denied = by_recording(DENIED[agent]).get(name, "").split()
    assert [refusal.name for refusal in end.denied] == denied
    if code is None:
        return
    with pytest.raises(CorralError) as raised:
        result_from_events(played(agent, name)).raise_for_status()
    assert raised.value.code == code
    assert raised.value.hint or code in WITHOUT_ADVICE or name == "slash_quit"
    assert "[API Error" not in str(raised.value) or agent != "gemini-cli"


@every_recording
def test_chunk_boundaries_do_not_matter(agent: str, name: str) -> None:
    assert RECORDED[agent](name, 7) == played(agent, name)


@pytest.mark.parametrize("size", [1, 64])
@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ("claude-cli", "partial"),
        ("claude-cli", "e429"),
        ("codex-cli", "parallel"),
        ("codex-cli", "e401"),
        ("copilot-cli", "parallel"),
        ("gemini-cli", "unicode"),
        ("gemini-cli", "slash_memory_show"),
        ("opencode-cli", "mcp-default"),
        ("pi-cli", "work"),
        ("qwen-cli", "pieces"),
    ],
)
def test_the_size_of_a_chunk_does_not_matter(agent: str, name: str, size: int) -> None:
    assert RECORDED[agent](name, size) == played(agent, name)


# The cache counts as input, and thinking as output; each number of the service is in it once.
USAGE: dict[str, Any] = {"reasoning": 0, "cache_write": 0, "coverage": "complete"}
CLAUDE = {**USAGE, "input": 1234 + 200 + 100, "output": 56, "cache_read": 200, "cache_write": 100}
OPENCODE = {**USAGE, "input": 1234, "output": 56, "reasoning": 7, "cache_read": 200}
TWO_STEPS = {name: 2 * n if isinstance(n, int) else n for name, n in OPENCODE.items()}


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        # Text that came in pieces is not repeated, though the complete text is written as well.
        ("claude-cli partial text delta", ["The answer i", "s 4."]),
        ("claude-cli partial thinking delta", ["Let me think", " about it. T", "wo plus two."]),
        (
            "copilot-cli plain text delta",
            ["Hello from t", "he fake mode", "l. The answe", "r is 42."],
        ),
        ("qwen-cli pieces text delta", ["Hel", "lo.", "done"]),
        ("qwen-cli pieces thinking delta", ["weighing"]),
        ("qwen-cli pieces error code", []),
        ("opencode-cli think-flag thinking delta", ["Let me think about it. Two plus two."]),
        ("codex-cli parallel text message_id", ["item_0", "item_3"]),
        # An error of the service that comes as an answer is no text.
        ("claude-cli e429 text delta", []),
        ("qwen-cli e401 text delta", []),
        # Retries are warnings, and come once.
        (
            "claude-cli e429 error code level recoverable",
            [["retrying", "warning", True]] * 2 + [["rate_limit", None, None]],
        ),
        (
            "claude-cli e429 error message",
            [
                "attempt 1 of 2 failed (429 rate_limit): the agent tries again in 0.5 s",
                "attempt 2 of 2 failed (429 rate_limit): the agent tries again in 1.0 s",
                "API Error: Request rejected (429) · This request would exceed your rate limit",
            ],
        ),
        (
            "codex-cli e401 error code recoverable",
            [["retrying", True]] * 2 + [["agent_warning", True], ["authentication", None]],
        ),
        (
            "copilot-cli e429 error code level recoverable",
            [["retrying", "warning", True]] * 5 + [["rate_limit", None, None]],
        ),
        ("gemini-cli err429_then_ok error code level", [["retrying", "warning"]]),
        (
            "gemini-cli err429_then_ok error recoverable message",
            [[True, "Attempt 1 failed with status 429. Retrying with backoff..."]],
        ),
        (
            "qwen-cli e429 error message",
            ["attempt 1 of 2 failed: the agent tries again in 60.0 s", "the turn was stopped"],
        ),
        ("gemini-cli err429_retryinfo_max2 done error.facts", [{"retry_after": 2.0}]),
        # Usage, cost and model.
        ("claude-cli plain done usage", [CLAUDE]),
        # Of a resumed run, only its own (the program reports the sum of all three).
        ("claude-cli resume-fork done usage", [CLAUDE]),
        ("claude-cli resume-fork done cost.usd", [pytest.approx(0.006596)]),
        (
            "gemini-cli plain_text done usage",
            [
                {
                    "input": 111,
                    "output": 27,
                    "reasoning": 5,
                    "cache_read": 11,
                    "coverage": "complete",
                }
            ],
        ),
        ("gemini-cli no_usage done usage", [{}]),  # never sent: unknown, not zero
        ("opencode-cli plain done usage", [OPENCODE]),
        ("opencode-cli plain done cost", [{"usd": 0.001166, "source": "reported"}]),
        ("opencode-cli write-default done usage", [TWO_STEPS]),
        ("opencode-cli write-default done cost.usd", [pytest.approx(2 * 0.001166)]),
        (
            "qwen-cli pieces done usage",
            [{"input": 18003, "output": 37, "cache_read": 20, "coverage": "complete"}],
        ),
        ("claude-cli plain done model", ["claude-opus-5-5"]),
        ("copilot-cli readedit init model", ["fake-model"]),
        ("copilot-cli readedit done model", ["fake-model"]),
        ("gemini-cli model_auto done model", ["gemini-3.8-flash"]),  # not the router's
        ("gemini-cli model_flash-lite done model", ["gemini-3.5-flash-lite"]),
        # The session is known from the first line.
        ("opencode-cli plain init session_id", ["ses_e23751db5ffe7AfCoE0YiS4eO4"]),
        # Files that edits and commands changed.
        ("claude-cli readedit file_change kind lines_added lines_removed", [["modified", 1, 1]]),
        ("claude-cli shell-auto file_change path kind", [["/workspace/by-shell.txt", "created"]]),
        ("codex-cli edit file_change kind", ["modified"]),
        ("codex-cli write-ww file_change kind", ["created"]),
        ("copilot-cli readedit file_change path kind", [["/workspace/existing.txt", "modified"]]),
        # Calls: cut off by a signal; in parallel; a failed command is not a failed tool.
        ("claude-cli sigterm-tool tool_result name status", [["Bash", "cancelled"]]),
        (
            "gemini-cli sigterm_shell_running tool_result name status",
            [["run_shell_command", "cancelled"]],
        ),
        ("gemini-cli parallel tool_result name", ["read_file", "list_directory", "write_file"]),
        ("copilot-cli shellfail tool_output delta", ["oops\n"]),
        ("copilot-cli shellfail tool_result status", ["success"]),
        ("opencode-cli shellfail tool_result status output", [["success", "oops\n"]]),
        (
            "qwen-cli ctl-deny permission_request kind title",
            [["edit", "write_file /workspace/hello.txt"]],
        ),
        # Warnings.
        ("claude-cli badjson error code", ["schema_not_met"]),
        ("claude-cli mcp-dead error code", ["mcp_failed"]),
        ("gemini-cli no_finish error code", ["text_repeated", "agent_error", "stream_broken"]),
    ],
)
def test_what_a_recording_shows(shown: str, wanted: list[Any]) -> None:
    """``shown``: the agent, the recording, the type of events, and which of their fields."""
    agent, name, kind, *names = shown.split()

    def value(event: Any, path: str) -> Any:
        for part in path.split("."):
            event = event.get(part)
        return event

    events: list[Any] = [msgspec.to_builtins(event) for event in played(agent, name)]
    rows = [[value(event, path) for path in names] for event in events if event["type"] == kind]
    assert [row[0] if len(names) == 1 else row for row in rows] == wanted


def test_the_reason_of_a_denial_does_not_repeat_the_rules() -> None:
    (refusal,) = done("opencode-cli", "outside-deny").denied
    assert "external_directory" not in (refusal.reason or "")


def test_structured_output_is_the_final_text() -> None:
    text = result_from_events(played("claude-cli", "json")).final_text
    assert json.loads(text) == {"name": "fake", "count": 3}


@pytest.mark.parametrize("name", RECORDED["gemini-cli"].names)
def test_the_answer_of_gemini_has_neither_the_prompt_nor_a_repetition(name: str) -> None:
    events, response = played("gemini-cli", name), ""
    for line in RECORDED["gemini-cli"].lines(name):
        frame: dict[str, str] = json.loads(line) if line.startswith(b"{") else {}
        if frame.get("role") == "assistant":
            response += frame["content"]
    assert "".join(event.delta for event in events if isinstance(event, Text)) == response
    repeated = [e for e in events if isinstance(e, Error) and e.code == "text_repeated"]
    assert bool(repeated) == (name == "no_finish")


def test_a_line_that_is_not_json_becomes_a_log_event_in_order() -> None:
    types = [event.type for event in played("gemini-cli", "slash_memory_show")]
    assert types[:3] == ["init", "log", "text"]


# Lines that no recording has.


@pytest.mark.parametrize(
    ("agent", "frame"),
    [
        ("codex-cli", {"type": "session.moon", "phase": 1}),
        ("codex-cli", {"type": "item.completed", "item": {"id": "i", "type": "hologram"}}),
        ("copilot-cli", {"type": "session.novelty", "data": {"x": 1}}),
        ("opencode-cli", {"type": "novelty", "sessionID": "ses_1"}),
    ],
)
def test_a_line_of_an_unknown_kind_is_passed_on_unchanged(agent: str, frame: Any) -> None:
    assert RECORDED[agent].read(frame) == [Unknown(frame.get("item", frame))]


def test_codex_reports_a_call_only_at_its_end_and_its_message_only_when_it_is_complete() -> None:
    item = {"id": "i", "type": "command_execution", "command": "x", "status": "failed"}
    use, result = RECORDED["codex-cli"].read({"type": "item.completed", "item": item})
    assert isinstance(use, ToolUse)
    assert isinstance(result, ToolResult)
    assert (use.call_id, use.kind, result.status) == ("i", "execute", "error")
    started = {"type": "item.started", "item": {"id": "m", "type": "agent_message"}}
    assert RECORDED["codex-cli"].read(started) == []


def test_a_todo_list_is_a_plan() -> None:
    todo = {"id": "t", "type": "todo_list", "items": [{"text": "a", "completed": True}]}
    codex = RECORDED["codex-cli"].read({"type": "item.updated", "item": todo})
    assert codex == [Plan((PlanEntry("a", "completed"),))]
    todos = [{"content": "first", "status": "pending", "priority": "high"}, "odd", {"id": 1}]
    state = {"status": "completed", "input": {"todos": todos}, "output": "[]"}
    part = {"tool": "todowrite", "callID": "c", "state": state}
    items = RECORDED["opencode-cli"].read({"type": "tool_use", "sessionID": "s", "part": part})
    (plan,) = [item for item in items if isinstance(item, Plan)]
    assert plan.entries == (PlanEntry("first", "pending", "high"),)


def test_text_of_a_sub_agent_of_copilot_is_not_part_of_the_answer() -> None:
    data = {"messageId": "m", "deltaContent": "aside", "parentToolCallId": "c"}
    frame = {"type": "assistant.message_delta", "data": data, "agentId": "a"}
    (item,) = RECORDED["copilot-cli"].read(frame)
    assert isinstance(item, Text)
    assert item.parent == "c"
    assert result_from_events([item]).text == ""
    complete = {"messageId": "m", "content": "whole", "model": "x"}
    answer = RECORDED["copilot-cli"].read({"type": "assistant.message", "data": complete})
    assert answer == ["whole"]


def test_tokens_are_the_sum_of_the_models_in_the_report_of_copilot() -> None:
    one = {
        "inputTokens": 120,
        "outputTokens": 10,
        "cacheReadTokens": 20,
        "cacheWriteTokens": 0,
        "reasoningTokens": 3,
    }
    report = {"modelMetrics": {"a": {"usage": one}, "b": {"usage": one}}, "new": {}}
    usage = read_report(msgspec.json.encode(report), TurnEnd(ok=True)).usage
    both = {**USAGE, "input": 240, "output": 20, "reasoning": 6, "cache_read": 40}
    assert msgspec.to_builtins(usage) == both
    assert read_report(b"torn {", TurnEnd(ok=True)) == TurnEnd(ok=True)
