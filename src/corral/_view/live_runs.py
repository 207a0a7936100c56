"""What running processes say of their runs (``corral.live``), and the state of a run: a word for
programs, and a sentence for people."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from corral import live
from corral._core.terminal_text import plain
from corral._runs.permission_details import details
from corral._system import clock
from corral._view.items import MAX_INPUT, as_json
from corral._view.records import Kind, Pending, PendingLine, Summary

MAX_LINES, MAX_LINE = 500, 2_000
"""Lines of what a permitted call would do, and characters of one."""


class LiveRuns(msgspec.Struct, kw_only=True):
    """The runs of all processes at one moment."""

    runs: dict[tuple[Kind, str], live.LiveRun] = {}
    processes: dict[tuple[Kind, str], live.LiveProcess] = {}
    pending: list[Pending] = []

    def pending_of(self, kind: Kind, id: str) -> list[Pending]:
        return [each for each in self.pending if (each.run_kind, each.run_id) == (kind, id)]

    def pending_within(self, run: str) -> list[Pending]:
        """What the sessions that work for a pipeline wait for."""
        parts = {id for (_, id), each in self.runs.items() if each.part_of.partition("/")[0] == run}
        return [each for each in self.pending if each.run_id in parts]

    @property
    def pipelines(self) -> set[str]:
        return {id for kind, id in self.runs if kind == "pipeline"}

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
        runs = {run.id: run for run in found.runs.values()}
        found.pending = [pending_from(request, runs.get(request.run)) for request in live.pending()]
    return found


def pending_from(request: live.Pending, run: live.LiveRun | None) -> Pending:
    """What a process asks, as the page shows it; ``run`` asks it."""
    pending = Pending(
        kind=request.kind,
        run_kind="session" if run is None else run.kind,
        run_id=request.run,
        request_id=request.request_id,
        title=plain(request.title, 500),
        text=plain(as_json(request.input), MAX_INPUT),
        since=request.since or None,
        deadline=request.deadline,
    )
    if request.kind == "permission":
        shown = details(request.input, request.title, "." if run is None else run.cwd)
        pending.lines = [
            PendingLine(text=plain(line.text, MAX_LINE), style=line.style)
            for line in shown[:MAX_LINES]
        ]
        if len(shown) > MAX_LINES:
            pending.lines.append(PendingLine(text=f"… {len(shown) - MAX_LINES:,} more lines"))
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
    shown_state = state_of(known, clock.now())
    return Summary(
        kind=run.kind,
        id=run.id,
        db=run.db,
        title=plain(run.title, 200),
        agent=run.agent,
        model=run.model,
        cwd=run.cwd,
        label=run.label,
        state=shown_state.state,
        state_text=shown_state.text,
        created=run.since,
        updated=run.since,
        live=True,
        pending=pending,
    )


def with_parts(summary: Summary, live: LiveRuns) -> Summary:
    """The same pipeline, with what its sessions wait for."""
    asked = len(live.pending_within(summary.id)) if summary.kind == "pipeline" else 0
    if not asked:
        return summary
    state, text = WAITS_FOR_PERMISSION
    return replace(summary, pending=summary.pending + asked, state=state, state_text=text)


STALLED_AFTER = 120.0
"""Seconds without an event after which a running session counts as stalled."""
ACTIVE = {
    *("queued", "running", "waiting_permission", "waiting_person", "rate_limited", "paused"),
    "stalled",
}
"""States of runs that have not ended."""

_ENDS = {
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
    state: str
    text: str


WAITS_FOR_PERMISSION = StateText("waiting_permission", "waits for a permission")


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
        return WAITS_FOR_PERMISSION
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
