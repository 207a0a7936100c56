"""Recordings of real programs with one process per prompt: the same checks for each."""

from __future__ import annotations

import pytest
from support.goldens import check_golden
from support.recordings import Recordings, as_lines

from corral.events import Unknown

LEAST = {"copilot-cli": 26, "opencode-cli": 21, "qwen-cli": 21, "pi-cli": 8}

CODE = {
    "copilot-cli": {
        "e401": "authentication",
        "e404": "model_not_found",
        "e429": "rate_limit",
        "e500": "server",
        "empty": "empty_answer",
        "sigint": "killed_by_signal",
        "sigint-group": "killed_by_signal",
        "sigterm": "killed_by_signal",
        "sigterm-group": "interrupted",
        "sigterm-group-tool": "killed_by_signal",
        "sigterm-tool": "killed_by_signal",
    },
    "opencode-cli": {
        "SIGHUP-group-tool": "killed_by_signal",
        "SIGTERM-group-tool": "killed_by_signal",
        "badmodel": "server",
        "cut": "killed_by_signal",
        "e400": "invalid_request",
        "e401": "authentication",
        "e404": "model_not_found",
        "e429-long": "rate_limit",
        "outside": "stream_broken",
        "read-outside": "stream_broken",
        "sigterm": "killed_by_signal",
        "sigterm-tool": "killed_by_signal",
        "sseerr": "killed_by_signal",
        "write-ask": "stream_broken",
    },
    "qwen-cli": {
        "badjson": "process_failed",
        "e400ctx": "context_length",
        "e401": "authentication",
        "e404": "model_not_found",
        "e429": "interrupted",
        "empty": "empty_answer",
        "sigint-group": "killed_by_signal",
        "sigkill-tool": "killed_by_signal",
        "sigterm": "killed_by_signal",
    },
    "pi-cli": {
        "e401": "authentication",
        "e404": "model_not_found",
        "e500": "server",
        "empty": "empty_answer",
        "lost": "resume_lost",
        "sigterm": "process_failed",
    },
}
"""All other recordings are successes."""

DENIED = {
    "copilot-cli": {
        "mcp-default": ["fake-echo"],
        "outside-root": ["create"],
        "read-deny": ["view"],
        "read-outside": ["view"],
        "shell-default": ["bash"],
        "shell-excluded": ["Bash"],
        "write-deny": ["create"],
    },
    "opencode-cli": {
        "fetch-deny": ["WebFetch"],
        "mcp-deny": ["mcp__fake__echo"],
        "outside": ["write"],
        "outside-deny": ["write"],
        "read-deny": ["Read"],
        "read-outside": ["read"],
        "shell-deny": ["Bash"],
        "write-ask": ["write"],
        "write-deny": ["Write"],
    },
    "qwen-cli": {
        "mcp-default": ["mcp__fake__echo"],
        "policy": ["run_shell_command"],
        "read-excl": ["Read"],
        "write-allowed": ["Write"],
        "write-default": ["Write"],
    },
    "pi-cli": {"refused": ["bash", "write", "read"]},
}

RECORDED = {name: Recordings(name) for name in LEAST}
EVERY = [(name, cassette) for name, recorded in RECORDED.items() for cassette in recorded.names]


@pytest.mark.parametrize("agent", LEAST)
def test_recordings_exist(agent: str) -> None:
    assert len(RECORDED[agent].names) >= LEAST[agent]
    assert set(CODE[agent]) | set(DENIED[agent]) <= set(RECORDED[agent].names)


@pytest.mark.parametrize(("agent", "name"), EVERY)
def test_a_recording_becomes_these_events(agent: str, name: str) -> None:
    played = RECORDED[agent]
    check_golden(played.folder / f"{name}.events.ndjson", as_lines(played(name)))


@pytest.mark.parametrize(("agent", "name"), EVERY)
def test_the_end_and_the_denied_calls_are_reported_correctly(agent: str, name: str) -> None:
    ended = RECORDED[agent].done(name)
    assert (ended.error.code if ended.error else None) == CODE[agent].get(name)
    assert [refusal.name for refusal in ended.denied] == DENIED[agent].get(name, [])


@pytest.mark.parametrize(("agent", "name"), EVERY)
def test_chunk_boundaries_do_not_matter(agent: str, name: str) -> None:
    assert as_lines(RECORDED[agent](name, 7)) == as_lines(RECORDED[agent](name))


@pytest.mark.parametrize(("agent", "name"), EVERY)
def test_every_line_is_known(agent: str, name: str) -> None:
    assert [event for event in RECORDED[agent](name) if isinstance(event, Unknown)] == []
