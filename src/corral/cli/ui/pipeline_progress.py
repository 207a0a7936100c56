"""Progress of a pipeline run on stderr: one line per step; on a terminal also a live view."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING

from corral import events as agent_events
from corral.cli.ui.terminal import console, echo_err
from corral.pipelines import events as run_events
from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph
from corral.terminal_text import clean

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

MARKS = {"success": "✓", "partial_success": "◐", "skipped": "–", "fail": "✗", "cancelled": "–"}
_SILENT = {
    node_kinds.FAN_IN.name,
    *(name for name, kind in node_kinds.KINDS.items() if not kind.works),
}
"""Kinds that take no time of their own: a line for each would not help."""
_COLORS = {"✓": "green", "◐": "yellow", "✗": "red", "●": "cyan", "?": "magenta", "↻": "yellow"}
_FRAMES = 4
"""Per second."""


class Step:
    """The displayed state of one node."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.mark = "○"
        self.visits = 0
        self.started = 0.0
        self.duration = 0.0
        self.activity = ""


class Progress:
    """``with progress:`` spans the run. Does nothing unless enabled."""

    def __init__(self, graph: Graph, *, enabled: bool, live: bool | None = None) -> None:
        self._enabled = enabled
        self._is_live = enabled and (sys.stderr.isatty() if live is None else live)
        self._steps = {node.id: Step(node.kind) for node in graph.nodes.values()}
        self._live: Live | None = None
        self._started = time.monotonic()
        self.done = 0

    def __enter__(self) -> Progress:
        if self._is_live:
            from rich.live import Live

            self._live = Live(
                _LiveView(self),
                console=console(),
                refresh_per_second=_FRAMES,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Stop the live view while a person is asked on the same terminal."""
        if self._live is None:
            yield
            return
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

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
            case run_events.StepStarted() if event.kind not in _SILENT and self._live is None:
                return f"● {event.node}{_nth(step)}"
            case run_events.PipelineCompleted() if event.reason:
                return f"! the run ended before the exit node: {_short(event.reason)}"
            case run_events.StepRetrying():
                why = f": {_short(event.reason)}" if event.reason else ""
                delay = f"retrying in {event.delay:.1f} s"
                return f"↻ {event.node}: attempt {event.attempt} failed{why}; {delay}"
            case run_events.InterviewStarted():
                return f"? {event.node}: {_short(event.question)}"
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

    def print_line(self, line: str) -> None:
        """Print one line, above the live view where there is one."""
        if not self._enabled:
            return
        if self._live is not None:
            self._live.console.print(clean(line), soft_wrap=True)
        else:
            echo_err(line)

    def rows(self) -> list[tuple[str, str]]:
        """Mark and text of each node: all if the screen has room, else the active ones."""
        shown = [(name, step) for name, step in self._steps.items() if step.kind not in _SILENT]
        room = max(3, shutil.get_terminal_size((80, 24)).lines // 2)
        if len(shown) > room:
            shown = [(n, s) for n, s in shown if s.mark in "●?↻"][:room] or shown[:room]
        now = time.monotonic()
        rows: list[tuple[str, str]] = []
        for name, step in shown:
            text = f"{name}{_nth(step)}"
            if step.mark in "●?↻":
                text += f"  {int(now - step.started)} s"
            elif step.duration:
                text += f"  {step.duration:.1f} s"
            rows.append((step.mark, clean(f"{text}  {step.activity}").rstrip()))
        rows.append((" ", f"{self.done} done · {int(now - self._started)} s"))
        return rows


class _LiveView:
    """Renders the nodes at each frame."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich__(self) -> Text:
        from rich.text import Text

        view = Text(no_wrap=True, overflow="ellipsis")
        for number, (mark, text) in enumerate(self._progress.rows()):
            view.append("\n" if number else "")
            view.append(mark, style=_COLORS.get(mark, "dim"))
            view.append(f" {text}", style="" if mark in "●?↻" else "dim")
        return view


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
            step.activity = _short(event.title or event.name, 60)
        case agent_events.Text():
            step.activity = "answering"
        case agent_events.Thinking():
            step.activity = "thinking"
        case _:
            pass


def _nth(step: Step | None) -> str:
    return f" ({step.visits})" if step is not None and step.visits > 1 else ""


def _short(text: str, limit: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
