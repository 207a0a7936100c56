"""Progress of a batch on stderr: a bar at a terminal, else a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from corral._cli.ui.live_progress import LiveProgress
from corral._cli.ui.spans import Line, StyledText, shorten
from corral._core.spending import dollars
from corral._engine.batch.results import BatchReport, BatchResult

EVERY = 5.0
"""Seconds between two lines, without a terminal."""
_WIDTH = 24
"""Columns of the bar."""
_NARROW = 60
"""Columns of a terminal that has no room for the bar."""
_LONGEST = 160


class BatchProgress(LiveProgress):
    """``with progress:`` spans the batch."""

    def __init__(self, *, enabled: bool, live: bool | None = None) -> None:
        super().__init__(enabled=enabled, live=live)
        self._last: BatchReport | None = None

    def show(self, result: BatchResult, report: BatchReport) -> None:
        self._last = report
        if result.error is not None:
            self.print_line(f"✗ {result.id}: {shorten(result.error.message, _LONGEST)}")
        if not self._is_live and time.monotonic() - self._last_printed >= EVERY:
            self.print_line(self.line())

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
            parts.append(dollars(report.cost_usd))
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
            self.print_always(f"corral: {spent}; {hint}")
        if not self._enabled:
            return
        parts = [
            f"{report.succeeded:,} of {report.total:,} done",
            f"{report.failed:,} failed" if report.failed else "",
            f"{report.earlier:,} of them earlier" if report.earlier else "",
            f"{report.verified:,} verified" if report.verified or report.gaps else "",
            f"{report.gaps:,} with gaps" if report.gaps else "",
            _span(report.seconds),
            f"{report.tokens:,} tokens" if report.tokens else "",
            dollars(report.cost_usd) if report.cost_usd else "",
            f"{report.unpriced:,} of unknown cost" if report.cost_usd and report.unpriced else "",
            f"batch {report.name}",
        ]
        self.print_line(" · ".join(filter(None, parts)))
        for each in report.failures:
            some = ", ".join(each.tasks) + (", …" if each.count > len(each.tasks) else "")
            self.print_line(
                f"  {each.code} × {each.count:,} ({some}): {shorten(each.message, _LONGEST)}"
            )
        if report.total > 1 and report.slowest and report.slowest[0][1] >= 1:
            slow = ", ".join(f"{name} {_span(seconds)}" for name, seconds in report.slowest)
            self.print_line(f"  slowest: {slow}")
        if report.failed:
            self.print_line("  use --retry-failed to run the failed tasks again")

    def status(self, columns: int, rows: int) -> Sequence[Line]:
        if columns < _NARROW:
            return [[StyledText(self.line())]]
        filled = int(self.share * _WIDTH)
        bar = (StyledText("━" * filled, "green"), StyledText("━" * (_WIDTH - filled), "dim"))
        return [[*bar, StyledText(f" {self.line()}")]]

    def heartbeat(self) -> str:
        return f"… {self.line()} · {self.elapsed} s"


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(int(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
