"""What the real ``qwen --output-format stream-json`` wrote, and what it becomes."""

from __future__ import annotations

import pytest
from agents.played import RECORDINGS, as_lines, done_of, names, play
from goldens import check_golden

from corral import agents
from corral.events import Done, Error, Event, PermissionRequest, Text, Thinking, Unknown

AGENT = agents.find("qwen-cli")
FOLDER = RECORDINGS / "qwen"
NAMES = names(FOLDER)

CODE = {
    "badjson": "process_failed",
    "e400ctx": "context_length",
    "e401": "authentication",
    "e404": "model_not_found",
    "e429": "interrupted",
    "empty": "empty_answer",
    "sigint-group": "killed_by_signal",
    "sigkill-tool": "killed_by_signal",
    "sigterm": "killed_by_signal",
}
"""All others are a success."""

DENIED = {
    "mcp-default": ["mcp__fake__echo"],
    "policy": ["run_shell_command"],
    "read-excl": ["Read"],
    "write-allowed": ["Write"],
    "write-default": ["Write"],
}


def played(name: str, size: int = 1 << 20) -> list[Event]:
    return play(AGENT, FOLDER, name, size)


def done(name: str) -> Done:
    return done_of(played(name))


def test_there_are_recordings() -> None:
    assert len(NAMES) > 20
    assert set(CODE) | set(DENIED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_becomes_these_events(name: str) -> None:
    check_golden(FOLDER / f"{name}.events.ndjson", as_lines(played(name)))


@pytest.mark.parametrize("name", NAMES)
def test_how_it_ended_and_what_was_refused_is_told_rightly(name: str) -> None:
    ended = done(name)
    assert (ended.error.code if ended.error else None) == CODE.get(name)
    assert [refusal.name for refusal in ended.denied] == DENIED.get(name, [])


@pytest.mark.parametrize("name", NAMES)
def test_where_the_chunks_are_cut_changes_nothing(name: str) -> None:
    assert as_lines(played(name, 7)) == as_lines(played(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_known(name: str) -> None:
    assert [event for event in played(name) if isinstance(event, Unknown)] == []


def test_words_in_pieces_are_told_once_though_each_block_comes_again_with_an_id_of_its_own() -> (
    None
):
    events = played("pieces")
    assert [event.delta for event in events if isinstance(event, Thinking)] == ["weighing"]
    assert [event.delta for event in events if isinstance(event, Text)] == ["Hel", "lo.", "done"]
    assert [event for event in events if isinstance(event, Error)] == []


def test_a_failure_of_the_service_is_no_answer() -> None:
    assert [event for event in played("e401") if isinstance(event, Text)] == []


def test_cached_tokens_are_counted_once() -> None:
    usage = done("pieces").usage
    assert (usage.input, usage.output, usage.cache_read) == (18003, 37, 20)


def test_a_question_is_told_with_what_is_wanted() -> None:
    [asked] = [event for event in played("ctl-deny") if isinstance(event, PermissionRequest)]
    assert (asked.kind, asked.title) == ("edit", "write_file /workspace/hello.txt")


def test_another_attempt_is_told_with_its_wait() -> None:
    [warned] = [event for event in played("e429") if isinstance(event, Error)][:1]
    assert warned.message == "attempt 1 of 2 failed: the agent tries again in 60.0 s"
