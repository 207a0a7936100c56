"""What the progress views of runs, pipelines and batches share.

Lines are printed on stderr. At a terminal, a live area is shown below them. Elsewhere a heartbeat
line is printed if nothing else was printed for a while, so that a log shows that work goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Generator, Sequence

from corral.cli.ui import terminal
from corral.cli.ui.live_area import SPINNER, LiveArea
from corral.cli.ui.spans import Line, Span
from corral.core.durations import seconds
from corral.core.terminal_text import clean

HEARTBEAT = 30.0
"""Seconds without a line after which a heartbeat is printed. ``CORRAL_HEARTBEAT`` replaces it."""
COLORS = {
    "✓": "green",
    "◐": "yellow",
    "✗": "red",
    "●": "cyan",
    "?": "magenta",
    "↻": "yellow",
    "!": "yellow",
    "⊘": "yellow",
    "–": "dim",
}
"""Of the mark at the start of a line."""


class LiveProgress:
    """``with progress:`` spans the work. Prints nothing unless enabled."""

    def __init__(self, *, enabled: bool, live: bool | None = None) -> None:
        self._enabled = enabled
        self._is_live = enabled and (terminal.is_live(sys.stderr) if live is None else live)
        self._area: LiveArea | None = None
        self._started = self._last_printed = time.monotonic()
        self._ended = threading.Event()
        self._pauses = 0
        self._beats = True

    def status(self, columns: int, rows: int) -> Sequence[Line]:
        """The lines of the live area."""
        raise NotImplementedError

    def heartbeat(self) -> str:
        """One line that says what goes on."""
        raise NotImplementedError

    def __enter__(self) -> LiveProgress:
        self._ended.clear()
        if self._shows_area:
            self._area = LiveArea(
                terminal.live_stream(), self.status, color=terminal.has_color()
            ).__enter__()
        elif self._enabled and self._beats and (every := heartbeat_seconds()):
            # Without a free thread there is no heartbeat.
            with contextlib.suppress(RuntimeError):
                threading.Thread(
                    target=self._beat, args=(every,), name="corral-heartbeat", daemon=True
                ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        area, self._area = self._area, None
        if area is not None:
            area.__exit__()

    @property
    def _shows_area(self) -> bool:
        return self._is_live

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Hide the live area, and print no heartbeat, while a person types at the terminal."""
        self._pauses += 1
        try:
            with self._area.paused() if self._area is not None else contextlib.nullcontext():
                yield
        finally:
            self._pauses -= 1
            self._last_printed = time.monotonic()

    def print_line(self, line: str) -> None:
        """Print a line, above the live area if there is one."""
        if self._enabled:
            self.print_always(line)

    def print_always(self, line: str) -> None:
        """Print a line even if progress is not enabled."""
        self._last_printed = time.monotonic()
        terminal.echo_styled(colored(line))

    @property
    def elapsed(self) -> int:
        """Seconds since the start."""
        return int(time.monotonic() - self._started)

    def _beat(self, every: float) -> None:
        while not self._ended.wait(max(every / 4, self._last_printed + every - time.monotonic())):
            is_due = time.monotonic() - self._last_printed >= every and not self._pauses
            if is_due and not self._ended.is_set():
                self.print_line(self.heartbeat())


def heartbeat_seconds() -> float:
    """Seconds between heartbeats; 0 for none."""
    try:
        return seconds(os.environ.get("CORRAL_HEARTBEAT") or HEARTBEAT)
    except ValueError:
        return HEARTBEAT


def spinner() -> str:
    """The current frame of the spinner."""
    return SPINNER[int(time.monotonic() * 8) % len(SPINNER)]


def colored(line: str) -> Line:
    """The line with the color of its mark."""
    text = clean(line)
    lead = len(text) - len(text.lstrip(" "))
    style = COLORS.get(text[lead : lead + 1], "")
    if not style or text[lead + 1 : lead + 2] != " ":
        return [Span(text)]
    return [Span(text[:lead]), Span(text[lead], style), Span(text[lead + 1 :])]
