"""The state of a run: a word for programs, and a sentence for people."""

from __future__ import annotations

from typing import Literal, NamedTuple

from corral.system import clock

State = Literal[
    "queued",
    "running",
    "waiting_permission",
    "waiting_person",
    "rate_limited",
    "paused",
    "stalled",
    "interrupted",
    "success",
    "failed",
    "cancelled",
    "denied",
    "timeout",
    "max_turns",
    "max_budget",
    "incomplete",
]
STALLED_AFTER = 120.0
"""Seconds without an event after which a running session counts as stalled."""
ACTIVE: frozenset[str] = frozenset(
    ("queued", "running", "waiting_permission", "waiting_person", "rate_limited", "paused")
) | {"stalled"}
"""States of runs that have not ended."""

_ENDS: dict[str, tuple[State, str]] = {
    "success": ("success", "finished"),
    "error": ("failed", "failed"),
    "fail": ("failed", "failed"),
    "interrupted": ("interrupted", "interrupted"),
    "cancelled": ("cancelled", "cancelled"),
    "timeout": ("timeout", "timed out"),
    "denied": ("denied", "ended because a permission was denied"),
    "max_turns": ("max_turns", "ended at its limit of turns"),
    "max_budget": ("max_budget", "ended at its budget"),
    "budget": ("max_budget", "ended at its budget"),
    "incomplete": ("incomplete", "ended without a complete answer"),
    "waiting": ("waiting_person", "waits for a person"),
    "queued": ("queued", "queued"),
    "running": ("running", "running"),
}
"""Status of a session, run or batch -> state, and its text."""


class StateText(NamedTuple):
    state: State
    text: str


class Facts(NamedTuple):
    """What is known of a run."""

    status: str | None
    """How it ended; None: it has not, as far as is known."""
    reason: str = ""
    live: bool = False
    """Whether a process runs it."""
    live_state: str = ""
    """What that process says of itself."""
    until: float | None = None
    """When it goes on, if it waits for a time."""
    permissions: int = 0
    questions: int = 0
    last_event: float | None = None
    is_new: bool = False
    """Whether its log was written in the last seconds: its process may not have reported yet."""


def state_of(facts: Facts, now: float) -> StateText:
    """The state of a run at a time."""
    if facts.live or (facts.is_new and facts.status is None):
        return _live(facts, now)
    if facts.status is None:
        return StateText("interrupted", "interrupted: its process has ended")
    state, text = _ENDS.get(facts.status, ("failed", facts.status))
    if facts.questions and state in ("running", "interrupted", "waiting_person"):
        return StateText("waiting_person", "waits for a person")
    reason = " ".join(facts.reason.split())
    if reason and state != "success":
        text = f"{text}: {reason[:300]}"
    return StateText(state, text)


def _live(facts: Facts, now: float) -> StateText:
    if facts.permissions:
        return StateText("waiting_permission", "waits for a permission")
    if facts.questions or facts.live_state == "waiting_person":
        return StateText("waiting_person", "waits for a person")
    if facts.live_state == "rate_limited":
        return StateText("rate_limited", _limited(facts.until))
    if facts.live_state == "paused":
        return StateText("paused", "paused: the budget is used up")
    if facts.live_state == "queued":
        return StateText("queued", "queued")
    if facts.last_event is not None and now - facts.last_event >= STALLED_AFTER:
        minutes = int((now - facts.last_event) // 60)
        return StateText("stalled", f"no event for {minutes} m")
    return StateText("running", "running")


def _limited(until: float | None) -> str:
    return "rate limited" if until is None else f"rate limited until {clock.time_of_day(until)}"
