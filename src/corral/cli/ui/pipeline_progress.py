"""Progress of a pipeline run on stderr: one line per step; at a terminal also the nodes that are
running now."""

from __future__ import annotations

import time
from collections.abc import Sequence

from corral import events as agent_events
from corral.cli.ui.live_progress import COLORS, LiveProgress
from corral.cli.ui.progress import describe_call
from corral.cli.ui.spans import Line, Span, shorten
from corral.core.terminal_text import clean
from corral.pipelines import events as run_events
from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph

MARKS = {"success": "✓", "partial_success": "◐", "skipped": "–", "fail": "✗", "cancelled": "–"}
_SILENT = {
    node_kinds.FAN_IN.name,
    *(name for name, kind in node_kinds.KINDS.items() if not kind.works),
}
"""Kinds that take no time of their own: a line for each would not help."""
_ACTIVE = "●?↻"
"""Marks of nodes that are not finished."""
LONGEST = 160


class Step:
    """The displayed state of one node."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.mark = "○"
        self.visits = 0
        self.started = 0.0
        self.duration = 0.0
        self.activity = ""


class Progress(LiveProgress):
    """``with progress:`` spans the run. ``asks``: a person at this terminal is asked, so the text
    of a question is printed with the question itself."""

    def __init__(
        self, graph: Graph, *, enabled: bool, asks: bool = False, live: bool | None = None
    ) -> None:
        super().__init__(enabled=enabled, live=live)
        self.asks = asks
        self._steps = {node.id: Step(node.kind) for node in graph.nodes.values()}
        self.done = 0

    def show(self, event: run_events.RunEvent) -> None:
        """Update the node of this event, and print the line that it is worth, if any."""
        step = self._steps.get(event.node or "")
        match event:
            case run_events.StepCompleted():
                self._show_end(event.node, step, event.status, event.notes)
            case run_events.StepFailed():
                self._show_end(event.node, step, "fail", event.reason)
            case _:
                if step is not None:
                    _update(step, event)
                line = self._line(event, step)
                if line is not None:
                    self.print_line(line)

    def _line(self, event: run_events.RunEvent, step: Step | None) -> str | None:
        match event:
            case run_events.StepStarted() if event.kind not in _SILENT and not self._is_live:
                return f"● {event.node}{_nth(step)}"
            case run_events.PipelineCompleted() if event.reason:
                return f"! the run ended before the exit node: {_short(event.reason)}"
            case run_events.StepRetrying():
                why = f": {_short(event.reason)}" if event.reason else ""
                delay = f"retrying in {event.delay:.1f} s"
                return f"↻ {event.node}: attempt {event.attempt} failed{why}; {delay}"
            case run_events.InterviewStarted() if not self.asks:
                return f"? {event.node}: {_short(event.question)}{_deadline(event)}"
            case run_events.InterviewCompleted():
                by = f" (by {event.by})" if event.by else ""
                return f"  {event.node}: {_short(event.answer)}{by}"
            case run_events.InterviewTimeout():
                return f"  {event.node}: no answer before the timeout"
            case agent_events.Error() if event.recoverable:
                return f"! {event.node}: {_short(event.message)}"
            case _:
                return None

    def _show_end(self, node: str | None, step: Step | None, status: str, note: str) -> None:
        mark = MARKS.get(status, "✓")
        took = ""
        if step is not None:
            step.mark, step.activity = mark, ""
            if step.started:  # else it started before this view was opened
                step.duration = time.monotonic() - step.started
                took = f" {step.duration:.1f} s"
            if step.kind in _SILENT and status == "success":
                return
        self.done += 1
        self.print_line(f"{mark} {node}{took}{': ' + _short(note, 300) if note else ''}")

    def running_nodes(self) -> str:
        """The names of the running nodes, comma-separated."""
        return ", ".join(name for name, step in self._steps.items() if step.mark in "●↻")

    def status(self, columns: int, rows: int) -> Sequence[Line]:
        """The nodes that are not finished, and how many are."""
        active = [(name, step) for name, step in self._steps.items() if step.mark in _ACTIVE]
        room = max(1, rows // 2 - 1)
        lines = [_status_line(name, step) for name, step in active[:room]]
        more = f"{len(active) - room} more running · " if len(active) > room else ""
        lines.append([Span(f"  {more}{self.done} done · {self.elapsed} s", "dim")])
        return lines

    def heartbeat(self) -> str:
        running = self.running_nodes() or "waiting"
        return f"… {shorten(clean(running), LONGEST)} · {self.done} done · {self.elapsed} s"


def _status_line(name: str, step: Step) -> Line:
    text = f" {name}{_nth(step)}  {int(time.monotonic() - step.started)} s  {step.activity}"
    return [Span(step.mark, COLORS[step.mark]), Span(clean(text).rstrip())]


def _update(step: Step, event: run_events.RunEvent) -> None:
    match event:
        case run_events.StepStarted():
            step.mark, step.visits, step.started = "●", step.visits + 1, time.monotonic()
            step.activity = ""
        case run_events.StepRetrying():
            step.mark, step.activity = "↻", f"retrying in {event.delay:.1f} s"
        case run_events.InterviewStarted():
            step.mark, step.activity = "?", "waiting for a person"
        case agent_events.ToolUse():
            step.activity = shorten(describe_call(event), 60)
        case agent_events.Error() if event.recoverable and event.retryable:
            step.activity = f"waiting: {_short(event.message)}"
        case agent_events.Text():
            step.activity = "answering"
        case agent_events.Thinking():
            step.activity = "thinking"
        case _:
            pass


def _nth(step: Step | None) -> str:
    return f" ({step.visits})" if step is not None and step.visits > 1 else ""


def _short(text: str, limit: int = LONGEST) -> str:
    return shorten(text, limit)


def _deadline(event: run_events.InterviewStarted) -> str:
    if event.timeout is None or not event.ts:
        return ""
    from corral.pipelines.execution.interviewers import local_time

    return f" (answer by {local_time(event.ts + event.timeout)}; {_short(event.at_deadline)})"
