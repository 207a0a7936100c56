"""What running processes say of their runs (``corral.live``), and the state of a run: a word for
programs, and a sentence for people."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from corral import live
from corral.core.terminal_text import plain
from corral.system import clock
from corral.view.items import MAX_INPUT, as_json
from corral.view.records import Kind, Pending, Summary


class LiveRuns(msgspec.Struct, kw_only=True):
    """The runs of all processes at one moment."""

    runs: dict[tuple[Kind, str], live.LiveRun] = {}
    processes: dict[tuple[Kind, str], live.LiveProcess] = {}
    pending: list[Pending] = []

    def pending_of(self, kind: Kind, id: str) -> list[Pending]:
        return [each for each in self.pending if (each.run_kind, each.run_id) == (kind, id)]

    @property
    def databases(self) -> set[str]:
        """The databases of running pipelines and batches."""
        return {run.db for run in self.runs.values() if run.db}


def read() -> LiveRuns:
    """Ask all processes. Blocking."""
    found = LiveRuns(runs={}, processes={}, pending=[])
    for process in live.processes():
        for run in process.runs:
            found.runs[run.kind, run.id] = run
            found.processes[run.kind, run.id] = process
    if any(run.pending for run in found.runs.values()):
        kinds: dict[str, Kind] = {run.id: run.kind for run in found.runs.values()}
        found.pending = [
            _pending(request, kinds.get(request.run, "session")) for request in live.pending()
        ]
    return found


def _pending(request: live.Pending, kind: Kind) -> Pending:
    pending = Pending(
        kind=request.kind,
        run_kind=kind,
        run_id=request.run,
        request_id=request.request_id,
        title=plain(request.title, 500),
        text=plain(as_json(request.input), MAX_INPUT),
        since=request.since or None,
        deadline=request.deadline,
    )
    if not request.fields:
        return pending
    # The question of an agent. One with a single field has buttons, unless several options may be
    # chosen.
    only = request.fields[0] if len(request.fields) == 1 else None
    has_buttons = only is not None and not only.multiple
    lines: list[str] = [] if only is not None else [request.title]
    for field in request.fields:
        lines.append(field.text)
        for number, option in enumerate(field.options, 1):
            more = f": {option.description}" if option.description else ""
            lines.append(f"{number}. {option.label}{more}")
    pending.kind, pending.text = "question", plain("\n".join(lines), MAX_INPUT)
    if only is not None and has_buttons:
        pending.choices = [plain(option.label, 500) for option in only.options]
    pending.free_text = only is None or only.free_text or not has_buttons
    return pending


def summary_of(run: live.LiveRun, pending: int) -> Summary:
    """A run that is stored nowhere: a pipeline in memory, a session without a transcript."""
    known = KnownState(
        status=None,
        live=True,
        live_state=run.state,
        until=run.until,
        permissions=pending if run.state == "waiting_permission" else 0,
    )
    in_words = state_of(known, clock.now())
    return Summary(
        kind=run.kind,
        id=run.id,
        db=run.db,
        title=plain(run.title, 200),
        agent=run.agent,
        model=run.model,
        cwd=run.cwd,
        label=run.label,
        state=in_words.state,
        state_text=in_words.text,
        created=run.since,
        updated=run.since,
        live=True,
        pending=pending,
    )


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


class KnownState(NamedTuple):
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


def state_of(known: KnownState, now: float) -> StateText:
    """The state of a run at a time."""
    if known.live or (known.is_new and known.status is None):
        return _live_state(known, now)
    if known.status is None:
        return StateText("interrupted", "interrupted: its process has ended")
    state, text = _ENDS.get(known.status, ("failed", known.status))
    if known.questions and state in ("running", "interrupted", "waiting_person"):
        return StateText("waiting_person", "waits for a person")
    reason = " ".join(known.reason.split())
    if reason and state != "success":
        text = f"{text}: {reason[:300]}"
    return StateText(state, text)


def _live_state(known: KnownState, now: float) -> StateText:
    if known.permissions:
        return StateText("waiting_permission", "waits for a permission")
    if known.questions or known.live_state == "waiting_person":
        return StateText("waiting_person", "waits for a person")
    if known.live_state == "rate_limited":
        until = "" if known.until is None else f" until {clock.time_of_day(known.until)}"
        return StateText("rate_limited", f"rate limited{until}")
    if known.live_state == "paused":
        return StateText("paused", "paused: the budget is used up")
    if known.live_state == "queued":
        return StateText("queued", "queued")
    if known.last_event is not None and now - known.last_event >= STALLED_AFTER:
        minutes = int((now - known.last_event) // 60)
        return StateText("stalled", f"no event for {minutes} m")
    return StateText("running", "running")
