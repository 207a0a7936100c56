"""Recordings of the real Gemini CLI, as events.

``tests/recordings/gemini/NAME.ndjson`` with ``.stderr`` and ``.exit.json`` are the
program's; ``NAME.events.ndjson`` is what they become.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.goldens import check_golden
from support.stream_checks import check_stream

from corral._agents import registry
from corral._agents.spec import TurnEnding, stream_transport
from corral._protocol.ndjson import NdjsonStream, RawEvent
from corral._sessions.event_normalizer import EventNormalizer
from corral.errors import CorralError
from corral.events import Done, Error, Event, Init, Log, Text, ToolResult, Unknown, to_json
from corral.options import RunOptions
from corral.result import result_from_events

FOLDER = Path(__file__).parents[2] / "recordings" / "gemini"
NAMES = sorted(path.name.removesuffix(".exit.json") for path in FOLDER.glob("*.exit.json"))

STATUS = {
    "conn_refused_max1": "error",
    "cut": "error",
    "cut_then_ok": "error",
    "dash_prompt": "incomplete",
    "empty": "error",
    "empty_max1": "error",
    "err400key": "error",
    "err401": "error",
    "err401_auto_model": "error",
    "err403": "error",
    "err429_max1": "error",
    "err429_retryinfo_max2": "error",
    "err503_max1": "error",
    "hang_long": "error",
    "loop_detect": "max_turns",
    "malformed_fc": "incomplete",
    "malformed_html": "incomplete",
    "malformed_json": "incomplete",
    "max_turns_2": "max_turns",
    "no_finish": "incomplete",
    "plain_textout": "incomplete",
    "prec_vertex_project_no_adc": "error",
    "safety": "error",
    "sigkill_shell_running": "error",
    "sigterm_norelaunch": "incomplete",
    "sigterm_shell_running": "incomplete",
    "slash_quit": "error",
    "thought_only": "error",
    "tool_then_401": "error",
    "ws_settings_override": "max_turns",
}
"""All other recordings are successes."""

CODE = {
    "conn_refused_max1": "network",
    "cut": "network",
    "empty": "empty_answer",
    "err400key": "authentication",
    "err401": "authentication",
    "err401_auto_model": "authentication",
    "err403": "access_denied",
    "err429_max1": "rate_limit",
    "err429_retryinfo_max2": "rate_limit",
    "err503_max1": "server",
    "hang_long": "network",
    "loop_detect": "turn_limit",
    "malformed_fc": "stream_broken",
    "malformed_html": "stream_broken",
    "malformed_json": "stream_broken",
    "max_turns_2": "turn_limit",
    "no_finish": "stream_broken",
    "prec_vertex_project_no_adc": "authentication",
    "safety": "content_refused",
    "sigkill_shell_running": "killed_by_signal",
    "sigterm_norelaunch": "stream_broken",
    "slash_quit": "input_rejected",
    "thought_only": "empty_answer",
    "tool_then_401": "authentication",
}

DENIED = {
    "policy_ask_yolo": ["write_file"],
    "policy_deny_yolo": ["write_file"],
    "policy_deny_low_priority_yolo": ["write_file"],
    "policy_denyargs_yolo": ["write_file"],
    "policy_prefix_chain": ["run_shell_command"],
    "policy_redirect": ["run_shell_command"],
    "shell_auto_edit": ["run_shell_command"],
    "write_plan_mode": ["write_file"],
    "yolo_untrusted_restricted": ["write_file"],
    "read_outside": ["read_file"],
    "write_outside": ["write_file"],
    "mcp_settings_bad": ["mcp_probe_add"],
}


def play(name: str, size: int = 1 << 20) -> list[Event]:
    """The recording as the events of a run, its output read ``size`` bytes at a time."""
    agent = registry.find("gemini-cli")
    ended = json.loads((FOLDER / f"{name}.exit.json").read_bytes())["exit"]
    output = (FOLDER / f"{name}.ndjson").read_bytes()
    stderr_file = FOLDER / f"{name}.stderr"
    stderr = stderr_file.read_text("utf-8") if stderr_file.exists() else ""
    transport = stream_transport(agent)
    stream = NdjsonStream(transport.frames, transport.translator())
    init = Init(run_id="r", agent=agent.name, cwd="/workspace", agent_version="0.61.0")
    guard = EventNormalizer(init, started=0.0)
    events: list[Event] = []
    for start in range(0, len(output), size):
        events += guard.take(stream.receive(output[start : start + size]), 0.0)
    events += guard.take([*stream.end(), *received(stderr)], 0.0)
    ending = TurnEnding(
        code=ended if ended >= 0 else None,
        signal=-ended if ended < 0 else None,
        stderr=stderr,
        finish=guard.finish,
        answered=guard.answered,
        run=RunOptions(agent=agent.name, model="gemini-2.5-flash"),
    )
    return check_stream([*events, *guard.close(0.0, agent.explain(ending))])


def received(stderr: str) -> list[RawEvent]:
    read = registry.find("gemini-cli").read_stderr
    assert read is not None
    return [item for line in stderr.splitlines() if (item := read(line)) is not None]


def done_of(name: str) -> Done:
    done = play(name)[-1]
    assert isinstance(done, Done)
    return done


def test_recordings_exist() -> None:
    assert len(NAMES) > 70
    assert set(STATUS) | set(CODE) | set(DENIED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_becomes_these_events(name: str) -> None:
    lines = "".join(to_json(event).decode() + "\n" for event in play(name))
    check_golden(FOLDER / f"{name}.events.ndjson", lines)


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("name", ["unicode", "parallel", "slash_memory_show", "err400key"])
def test_boundaries_of_the_output_do_not_matter(name: str, size: int) -> None:
    assert play(name, size) == play(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_end_is_reported_correctly(name: str) -> None:
    done = done_of(name)
    assert done.status == STATUS.get(name, "success")
    if name in CODE:
        assert done.error is not None
        assert done.error.code == CODE[name]


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_denied_calls_are_listed(name: str) -> None:
    assert [refusal.name for refusal in done_of(name).denied] == DENIED.get(name, [])


@pytest.mark.parametrize("name", NAMES)
def test_no_line_of_the_real_cli_is_unknown_or_malformed(name: str) -> None:
    for event in play(name):
        assert not isinstance(event, Unknown)
        assert not (isinstance(event, Error) and event.code == "malformed_line")


@pytest.mark.parametrize("name", NAMES)
def test_the_prompt_is_never_answer_text(name: str) -> None:
    frames = (FOLDER / f"{name}.ndjson").read_text("utf-8").split("\n")
    response = ""
    for line in frames:
        frame: dict[str, str] = json.loads(line) if line.startswith("{") else {}
        if frame.get("role") == "assistant":
            response += frame["content"]
    answered = "".join(event.delta for event in play(name) if isinstance(event, Text))
    assert answered == response


def test_a_line_that_is_not_json_becomes_a_log_event_in_order() -> None:
    kinds = [type(event) for event in play("slash_memory_show")]
    assert kinds[:3] == [Init, Log, Text]


def test_usage_counts_thinking_as_output_and_the_cache_as_input() -> None:
    usage = done_of("plain_text").usage
    assert msgspec.to_builtins(usage) == {
        "input": 111,
        "output": 27,
        "reasoning": 5,
        "cache_read": 11,
        "coverage": "complete",
    }


def test_counters_that_were_never_sent_are_unknown_and_not_zero() -> None:
    assert done_of("no_usage").usage.total is None


def test_the_reported_model_is_the_one_that_answered_not_the_router() -> None:
    assert done_of("model_auto").model not in (None, "auto", "gemini-3.5-flash-lite")
    assert done_of("model_flash-lite").model == "gemini-3.5-flash-lite"


def test_a_repeated_answer_gives_one_warning() -> None:
    warned = [e for e in play("no_finish") if isinstance(e, Error) and e.code == "text_repeated"]
    assert len(warned) == 1
    for name in set(NAMES) - {"no_finish"}:
        assert not [e for e in play(name) if isinstance(e, Error) and e.code == "text_repeated"]


def test_retries_that_are_only_on_stderr_are_reported() -> None:
    reported = [e for e in play("err429_then_ok") if isinstance(e, Error)]
    assert [(e.code, e.recoverable, e.level) for e in reported] == [("retrying", True, "warning")]
    assert reported[0].message == "Attempt 1 failed with status 429. Retrying with backoff..."


def test_the_delay_that_the_api_requests_is_in_seconds() -> None:
    error = done_of("err429_retryinfo_max2").error
    assert error is not None
    assert error.facts["retry_after"] == 2.0


def test_tools_cut_off_by_a_signal_are_closed_as_cancelled() -> None:
    results = [e for e in play("sigterm_shell_running") if isinstance(e, ToolResult)]
    assert [(r.name, r.status) for r in results] == [("run_shell_command", "cancelled")]


def test_parallel_calls_keep_their_results_apart() -> None:
    results = [e for e in play("parallel") if isinstance(e, ToolResult)]
    assert [r.name for r in results] == ["read_file", "list_directory", "write_file"]


@pytest.mark.parametrize("name", sorted(set(CODE)))
def test_a_failure_is_raised_as_its_own_class_with_something_to_do(name: str) -> None:
    with pytest.raises(CorralError) as raised:
        result_from_events(play(name)).raise_for_status()
    assert raised.value.code == CODE[name]
    assert "[API Error" not in str(raised.value)
    if name != "slash_quit":
        assert raised.value.hint
