"""The state of a run as text."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral import live
from corral._system.clock import time_of_day
from corral._view.live_runs import KnownState, LiveRuns, pending_from, state_of, with_parts
from corral._view.records import Summary
from corral.values import Json

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("facts", "state", "text"),
    [
        (KnownState(None, live=True, last_event=NOW - 5), "running", "running"),
        (KnownState(None, live=True, last_event=NOW - 185), "stalled", "no event for 3 m"),
        (
            KnownState(None, live=True, permissions=1),
            "waiting_permission",
            "waits for a permission",
        ),
        (KnownState(None, live=True, questions=1), "waiting_person", "waits for a person"),
        (
            KnownState(None, live=True, live_state="rate_limited", until=NOW + 90),
            "rate_limited",
            f"rate limited until {time_of_day(NOW + 90)}",
        ),
        (
            KnownState(None, live=True, live_state="paused"),
            "paused",
            "paused: the budget is used up",
        ),
        (KnownState(None), "interrupted", "interrupted: its process has ended"),
        (KnownState(None, is_new=True, last_event=NOW), "running", "running"),
        (KnownState("success"), "success", "finished"),
        (KnownState("error", reason="no\nkey"), "failed", "failed: no key"),
        (KnownState("fail", reason="x"), "failed", "failed: x"),
        (KnownState("timeout"), "timeout", "timed out"),
        (KnownState("denied"), "denied", "ended because a permission was denied"),
        (KnownState("max_budget"), "max_budget", "ended at its budget"),
        (KnownState("waiting", questions=1), "waiting_person", "waits for a person"),
        (KnownState("interrupted", questions=1), "waiting_person", "waits for a person"),
        (KnownState("queued"), "queued", "queued"),
        (KnownState("new-word"), "failed", "new-word"),
    ],
)
def test_every_state_has_a_word_and_a_sentence(facts: KnownState, state: str, text: str) -> None:
    assert state_of(facts, NOW) == (state, text)


def test_a_permission_is_shown_with_the_change_as_a_diff_and_belongs_to_its_pipeline() -> None:
    edit: Json = {"file_path": "a.py", "old_string": "a\nb", "new_string": "a\nB"}
    session = live.LiveRun(kind="session", id="s1", part_of="build-1/child.1")
    asked = pending_from(
        live.Pending(request_id="1", title="Edit a.py", tool_kind="edit", input=edit, run="s1"),
        session,
    )
    lines = [(line.text, line.style) for line in asked.lines]
    assert lines == [("a.py", "bold"), (" a", ""), ("-b", "red"), ("+B", "green")]
    found = LiveRuns(runs={("session", "s1"): session}, pending=[asked])
    assert found.pending_within("build-1") == [asked]
    row = Summary(
        kind="pipeline",
        id="build-1",
        state="running",
        state_text="running",
        created=0,
        updated=0,
        pending=1,
    )
    assert (with_parts(row, found).state, with_parts(row, found).pending) == (
        "waiting_permission",
        2,
    )
    assert with_parts(replace(row, id="build-2"), found).pending == 1
