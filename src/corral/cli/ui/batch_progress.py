"""Progress of a batch on stderr: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from corral.cli.ui.terminal import console, echo_err
from corral.durable.batch.results import BatchReport, BatchResult
from corral.terminal_text import clean

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

EVERY = 5.0
"""Seconds between two lines, without a terminal."""
_FRAMES = 4
"""Per second."""
_WIDTH = 24
_LONGEST = 160


class Progress:
    """``with progress:`` spans the batch. Does nothing unless enabled."""

    def __init__(self, *, enabled: bool, live: bool | None = None) -> None:
        self._enabled = enabled
        self._is_live = enabled and (sys.stderr.isatty() if live is None else live)
        self._live: Live | None = None
        self._last: BatchReport | None = None
        self._last_printed = self._started = time.monotonic()

    def __enter__(self) -> Progress:
        if self._is_live:
            from rich.live import Live

            self._live = Live(
                _LiveView(self), console=console(), refresh_per_second=_FRAMES, transient=True
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

    def show(self, result: BatchResult, report: BatchReport) -> None:
        self._last = report
        if result.error is not None:
            self._print_line(f"✗ {result.id}: {_short(result.error.message)}")
        now = time.monotonic()
        if self._live is None and now - self._last_printed >= EVERY:
            self._last_printed = now
            self._print_line(self.line())

    def line(self) -> str:
        """One line: tasks done, rate, time left, cost."""
        report = self._last
        if report is None:
            return "starting"
        done = report.succeeded + report.failed
        parts = [f"{done:,}/{report.total:,}"]
        if report.failed:
            parts.append(f"{report.failed:,} failed")
        fresh, elapsed = done - report.earlier, time.monotonic() - self._started
        if fresh > 0 and elapsed > 0:
            rate = fresh / elapsed
            parts.append(f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min")
            if report.total > done:
                parts.append(f"{_span((report.total - done) / rate)} left")
        if report.cost_usd:
            parts.append(f"${report.cost_usd:.4f}")
        return " · ".join(parts)

    @property
    def share(self) -> float:
        report = self._last
        return (report.succeeded + report.failed) / report.total if report else 0.0

    def report(self, report: BatchReport) -> None:
        """Print the summary of the batch: totals, the kinds of failures, the slowest tasks."""
        if report.stopped == "budget":
            spent = f"the budget is spent: {report.left:,} tasks were not started"
            hint = "run the same command with a larger budget to continue"
            self._print_line(f"corral: {spent}; {hint}", always=True)
        if not self._enabled:
            return
        self._print_line(_totals(report))
        for each in report.failures:
            some = ", ".join(each.tasks) + (", …" if each.count > len(each.tasks) else "")
            self._print_line(f"  {each.code} × {each.count:,} ({some}): {_short(each.message)}")
        if report.total > 1 and report.slowest and report.slowest[0][1] >= 1:
            slow = ", ".join(f"{name} {_span(seconds)}" for name, seconds in report.slowest)
            self._print_line(f"  slowest: {slow}")
        if report.failed:
            self._print_line("  use --retry-failed to run the failed tasks again")

    def _print_line(self, line: str, *, always: bool = False) -> None:
        if not self._enabled and not always:
            return
        if self._live is not None:
            self._live.console.print(clean(line), soft_wrap=True)
        else:
            echo_err(line)


class _LiveView:
    """Renders the bar at each frame."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich__(self) -> Text:
        from rich.text import Text

        filled = int(self._progress.share * _WIDTH)
        bar = Text(no_wrap=True, overflow="ellipsis")
        bar.append("━" * filled, style="green")
        bar.append("━" * (_WIDTH - filled), style="dim")
        bar.append(f" {self._progress.line()}")
        return bar


def _totals(report: BatchReport) -> str:
    parts = [
        f"{report.succeeded:,} of {report.total:,} done",
        f"{report.failed:,} failed" if report.failed else "",
        f"{report.earlier:,} of them earlier" if report.earlier else "",
        _span(report.seconds),
        f"{report.tokens:,} tokens" if report.tokens else "",
        f"${report.cost_usd:.4f}" if report.cost_usd else "",
        f"{report.unpriced:,} of unknown cost" if report.cost_usd and report.unpriced else "",
        f"batch {report.name}",
    ]
    return " · ".join(filter(None, parts))


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(int(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
