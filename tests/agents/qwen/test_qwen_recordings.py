"""What the real ``qwen --output-format stream-json`` wrote, and what it becomes."""

from __future__ import annotations

from support.recordings import Recordings

from corral.events import Error, PermissionRequest, Text, Thinking

played = Recordings("qwen-cli")
done, NAMES = played.done, played.names


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
