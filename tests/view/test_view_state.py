"""The state of a run as text."""

from __future__ import annotations

import pytest

from corral.system.clock import time_of_day
from corral.view.state import Facts, state_of

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("facts", "state", "text"),
    [
        (Facts(None, live=True, last_event=NOW - 5), "running", "running"),
        (Facts(None, live=True, last_event=NOW - 185), "stalled", "no event for 3 m"),
        (Facts(None, live=True, permissions=1), "waiting_permission", "waits for a permission"),
        (Facts(None, live=True, questions=1), "waiting_person", "waits for a person"),
        (
            Facts(None, live=True, live_state="rate_limited", until=NOW + 90),
            "rate_limited",
            f"rate limited until {time_of_day(NOW + 90)}",
        ),
        (Facts(None, live=True, live_state="paused"), "paused", "paused: the budget is used up"),
        (Facts(None), "interrupted", "interrupted: its process has ended"),
        (Facts(None, is_new=True, last_event=NOW), "running", "running"),
        (Facts("success"), "success", "finished"),
        (Facts("error", reason="no\nkey"), "failed", "failed: no key"),
        (Facts("fail", reason="x"), "failed", "failed: x"),
        (Facts("timeout"), "timeout", "timed out"),
        (Facts("denied"), "denied", "ended because a permission was denied"),
        (Facts("max_budget"), "max_budget", "ended at its budget"),
        (Facts("waiting", questions=1), "waiting_person", "waits for a person"),
        (Facts("interrupted", questions=1), "waiting_person", "waits for a person"),
        (Facts("queued"), "queued", "queued"),
        (Facts("new-word"), "failed", "new-word"),
    ],
)
def test_every_state_has_a_word_and_a_sentence(facts: Facts, state: str, text: str) -> None:
    assert state_of(facts, NOW) == (state, text)
