"""A run of a pipeline for a person, on stderr: a line a step; on a terminal the graph, live."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from types import TracebackType
from typing import Any

from corral import events as agents_own
from corral.cli.ui.terminal import complain, console
from corral.pipelines import events as told
from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph
from corral.terminal_text import clean

MARKS = {"success": "✓", "partial_success": "◐", "skipped": "–", "fail": "✗", "cancelled": "–"}
_SILENT = {
    node_kinds.FAN_IN.name,
    *(name for name, kind in node_kinds.KINDS.items() if not kind.works),
}
"""Kinds that take no time of their own: a line for each would not help."""
_COLOURS = {"✓": "green", "◐": "yellow", "✗": "red", "●": "cyan", "?": "magenta", "↻": "yellow"}
_FRAMES = 4
"""A second."""


class Step:
    """What is known of one node."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.mark = "○"
        self.visits = 0
        self.begun = 0.0
        self.took = 0.0
        self.doing = ""


class Progress:
    """``with progress:`` spans the run. Does nothing unless enabled."""

    def __init__(self, graph: Graph, *, enabled: bool, live: bool | None = None) -> None:
        self._enabled = enabled
        self._is_live = enabled and (sys.stderr.isatty() if live is None else live)
        self._steps = {node.id: Step(node.kind) for node in graph.nodes.values()}
        self._live: Any = None
        self._begun = time.monotonic()
        self.done = 0

    def __enter__(self) -> Progress:
        if self._is_live:
            from rich.live import Live

            self._live = Live(
                _Now(self),
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
    def paused(self) -> Any:
        """Nothing moves on the screen meanwhile: somebody is asked there."""
        if self._live is None:
            yield
            return
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    def show(self, event: told.RunEvent) -> None:
        """What of it a person should see."""
        step = self._steps.get(event.node or "")
        match event:
            case told.StepStarted():
                if step is not None:
                    step.mark, step.visits, step.begun = "●", step.visits + 1, time.monotonic()
                    step.doing = ""
                if event.kind not in _SILENT and self._live is None:
                    self.say(f"● {event.node}{_nth(step)}")
            case told.StepCompleted():
                self._ended(event.node, step, event.status, event.notes)
            case told.StepFailed():
                self._ended(event.node, step, "fail", event.reason)
            case told.PipelineCompleted() if event.reason:
                self.say(f"! it ended before the exit: {_short(event.reason)}")
            case told.StepRetrying():
                if step is not None:
                    step.mark, step.doing = "↻", f"again in {event.delay:.1f} s"
                why = f": {_short(event.reason)}" if event.reason else ""
                again = f"attempt {event.attempt} failed{why}; again in {event.delay:.1f} s"
                self.say(f"↻ {event.node}: {again}")
            case told.InterviewStarted():
                if step is not None:
                    step.mark, step.doing = "?", "waits for a person"
                self.say(f"? {event.node}: {_short(event.question)}")
            case told.InterviewCompleted():
                by = f" (by {event.by})" if event.by else ""
                self.say(f"  {event.node}: {_short(event.answer)}{by}")
            case told.InterviewTimeout():
                self.say(f"  {event.node}: nobody answered in time")
            case agents_own.ToolUse():
                title = _short(event.title or event.name, 60)
                if step is not None:
                    step.doing = title
            case agents_own.Text() | agents_own.Thinking():
                if step is not None:
                    writes = isinstance(event, agents_own.Text)
                    step.doing = "answering" if writes else "thinking"
            case agents_own.Error() if event.recoverable:
                self.say(f"! {event.node}: {_short(event.message)}")
            case _:
                pass

    def _ended(self, node: str | None, step: Step | None, status: str, said: str) -> None:
        mark = MARKS.get(status, "✓")
        took = ""
        if step is not None:
            step.mark, step.doing = mark, ""
            if step.begun:  # else it began before we looked
                step.took = time.monotonic() - step.begun
                took = f" {step.took:.1f} s"
            if step.kind in _SILENT and status == "success":
                return
        self.done += 1
        self.say(f"{mark} {node}{took}{': ' + _short(said, 300) if said else ''}")

    def at_work(self) -> str:
        """The nodes that are."""
        return ", ".join(name for name, step in self._steps.items() if step.mark in "●↻")

    def say(self, line: str) -> None:
        """A line above what moves."""
        if not self._enabled:
            return
        if self._live is not None:
            self._live.console.print(clean(line), soft_wrap=True)
        else:
            complain(line)

    def rows(self) -> list[tuple[str, str]]:
        """Mark and text of the nodes: all where there is room, else those at work and next."""
        shown = [(name, step) for name, step in self._steps.items() if step.kind not in _SILENT]
        room = max(3, shutil.get_terminal_size((80, 24)).lines // 2)
        if len(shown) > room:
            shown = [(n, s) for n, s in shown if s.mark in "●?↻"][:room] or shown[:room]
        now = time.monotonic()
        rows: list[tuple[str, str]] = []
        for name, step in shown:
            text = f"{name}{_nth(step)}"
            if step.mark in "●?↻":
                text += f"  {int(now - step.begun)} s"
            elif step.took:
                text += f"  {step.took:.1f} s"
            rows.append((step.mark, clean(f"{text}  {step.doing}").rstrip()))
        rows.append((" ", f"{self.done} done · {int(now - self._begun)} s"))
        return rows


class _Now:
    """The graph as it is at each frame."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich__(self) -> Any:
        from rich.text import Text

        whole = Text(no_wrap=True, overflow="ellipsis")
        for number, (mark, text) in enumerate(self._progress.rows()):
            whole.append("\n" if number else "")
            whole.append(mark, style=_COLOURS.get(mark, "dim"))
            whole.append(f" {text}", style="" if mark in "●?↻" else "dim")
        return whole


def _nth(step: Step | None) -> str:
    return f" ({step.visits})" if step is not None and step.visits > 1 else ""


def _short(text: str, limit: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
