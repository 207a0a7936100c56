"""Recordings of the real ``qwen --output-format stream-json``, as events."""

from __future__ import annotations

from support.recordings import Recordings

from corral.events import Error, PermissionRequest, Text, Thinking

played = Recordings("qwen-cli")
done, NAMES = played.done, played.names


def test_text_deltas_are_reported_once_although_each_block_is_repeated_with_its_own_id() -> None:
    events = played("pieces")
    assert [event.delta for event in events if isinstance(event, Thinking)] == ["weighing"]
    assert [event.delta for event in events if isinstance(event, Text)] == ["Hel", "lo.", "done"]
    assert [event for event in events if isinstance(event, Error)] == []


def test_a_failure_of_the_service_is_not_an_answer() -> None:
    assert [event for event in played("e401") if isinstance(event, Text)] == []


def test_cached_tokens_are_counted_once() -> None:
    usage = done("pieces").usage
    assert (usage.input, usage.output, usage.cache_read) == (18003, 37, 20)


def test_a_permission_request_shows_what_is_requested() -> None:
    [asked] = [event for event in played("ctl-deny") if isinstance(event, PermissionRequest)]
    assert (asked.kind, asked.title) == ("edit", "write_file /workspace/hello.txt")


def test_a_retry_is_reported_with_its_delay() -> None:
    [warned] = [event for event in played("e429") if isinstance(event, Error)][:1]
    assert warned.message == "attempt 1 of 2 failed: the agent tries again in 60.0 s"
