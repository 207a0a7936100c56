"""A batch for a person, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from corral.cli.ui.terminal import complain, console
from corral.durable.batch.results import BatchReport, BatchResult
from corral.terminal_text import clean

EVERY = 5.0
"""Seconds between two lines, where nothing moves."""
_FRAMES = 4
"""A second."""
_WIDTH = 24
_LONGEST = 160


class Progress:
    """``with progress:`` spans the batch. Does nothing unless enabled."""

    def __init__(self, *, enabled: bool, live: bool | None = None) -> None:
        self._enabled = enabled
        self._is_live = enabled and (sys.stderr.isatty() if live is None else live)
        self._live: Any = None
        self._last: BatchReport | None = None
        self._said = self._begun = time.monotonic()

    def __enter__(self) -> Progress:
        if self._is_live:
            from rich.live import Live

            self._live = Live(
                _Now(self), console=console(), refresh_per_second=_FRAMES, transient=True
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
            self._say(f"✗ {result.id}: {_short(result.error.message)}")
        now = time.monotonic()
        if self._live is None and now - self._said >= EVERY:
            self._said = now
            self._say(self.line())

    def line(self) -> str:
        """Where it stands: how many, how fast, what it cost, how long it will take."""
        report = self._last
        if report is None:
            return "starting"
        done = report.succeeded + report.failed
        parts = [f"{done:,}/{report.total:,}"]
        if report.failed:
            parts.append(f"{report.failed:,} failed")
        fresh, elapsed = done - report.earlier, time.monotonic() - self._begun
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
        """What it came to."""
        if report.stopped == "budget":
            spent = f"the budget is spent: {report.left:,} tasks were not started"
            self._say(f"corral: {spent}; the same command with a larger one goes on", always=True)
        if not self._enabled:
            return
        parts = [f"{report.succeeded:,} of {report.total:,} done"]
        if report.failed:
            parts.append(f"{report.failed:,} failed")
        if report.earlier:
            parts.append(f"{report.earlier:,} of them earlier")
        parts.append(_span(report.seconds))
        if report.tokens:
            parts.append(f"{report.tokens:,} tokens")
        if report.cost_usd:
            parts.append(f"${report.cost_usd:.4f}")
            if report.unpriced:
                parts.append(f"{report.unpriced:,} of unknown cost")
        self._say(" · ".join([*parts, f"batch {report.name}"]))
        for each in report.failures:
            some = ", ".join(each.tasks) + (", …" if each.count > len(each.tasks) else "")
            self._say(f"  {each.code} × {each.count:,} ({some}): {_short(each.message)}")
        if report.total > 1 and report.slowest and report.slowest[0][1] >= 1:
            slow = ", ".join(f"{name} {_span(took)}" for name, took in report.slowest)
            self._say(f"  slowest: {slow}")
        if report.failed:
            self._say("  --retry-failed does those again that failed")

    def _say(self, line: str, *, always: bool = False) -> None:
        if not self._enabled and not always:
            return
        if self._live is not None:
            self._live.console.print(clean(line), soft_wrap=True)
        else:
            complain(line)


class _Now:
    """The bar as it is at each frame."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich__(self) -> Any:
        from rich.text import Text

        filled = int(self._progress.share * _WIDTH)
        bar = Text(no_wrap=True, overflow="ellipsis")
        bar.append("━" * filled, style="green")
        bar.append("━" * (_WIDTH - filled), style="dim")
        bar.append(f" {self._progress.line()}")
        return bar


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(int(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
