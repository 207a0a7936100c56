"""What running processes say of their runs (``corral.live``), as the view uses it. Blocking."""

from __future__ import annotations

import msgspec

from corral import live
from corral.system import clock
from corral.terminal_text import plain
from corral.view import state
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
    """Ask all processes."""
    found = LiveRuns(runs={}, processes={}, pending=[])
    for process in live.processes():
        for run in process.runs:
            found.runs[run.kind, run.id] = run
            found.processes[run.kind, run.id] = process
    if any(run.pending for run in found.runs.values()):
        kinds: dict[str, Kind] = {run.id: run.kind for run in found.runs.values()}
        found.pending = [_pending(each, kinds.get(each.run, "session")) for each in live.pending()]
    return found


def _pending(request: live.Pending, kind: Kind) -> Pending:
    if request.fields:
        return _agent_question(request, kind)
    return Pending(
        kind=request.kind,
        run_kind=kind,
        run_id=request.run,
        request_id=request.request_id,
        title=plain(request.title, 500),
        text=plain(as_json(request.input), MAX_INPUT),
        since=request.since or None,
        deadline=request.deadline,
    )


def _agent_question(request: live.Pending, kind: Kind) -> Pending:
    """A question with one field has buttons, unless several options may be chosen."""
    only = request.fields[0] if len(request.fields) == 1 else None
    has_buttons = only is not None and not only.multiple
    lines: list[str] = [] if only is not None else [request.title]
    for field in request.fields:
        lines.append(field.text)
        for number, option in enumerate(field.options, 1):
            more = f": {option.description}" if option.description else ""
            lines.append(f"{number}. {option.label}{more}")
    return Pending(
        kind="question",
        run_kind=kind,
        run_id=request.run,
        request_id=request.request_id,
        title=plain(request.title, 500),
        text=plain("\n".join(lines), MAX_INPUT),
        choices=[plain(o.label, 500) for o in only.options] if only and has_buttons else [],
        free_text=only is None or only.free_text or not has_buttons,
        since=request.since or None,
        deadline=request.deadline,
    )


def summary_of(run: live.LiveRun, pending: int) -> Summary:
    """A run that is stored nowhere: a pipeline in memory, a session without a transcript."""
    known = state.Facts(
        status=None,
        live=True,
        live_state=run.state,
        until=run.until,
        permissions=pending if run.state == "waiting_permission" else 0,
    )
    in_words = state.state_of(known, clock.now())
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
