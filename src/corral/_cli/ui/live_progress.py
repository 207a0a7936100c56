"""What the progress views of runs, pipelines and batches share.

Lines are printed on stderr. At a terminal, a live area is shown below them: the lines at the bottom
that change (status, running nodes, unfinished text). Elsewhere a heartbeat
line is printed if nothing else was printed for a while, so that a log shows that work goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TextIO, TypeAlias

from corral._cli.ui import spans, terminal
from corral._cli.ui.spans import Line, StyledText
from corral._core.durations import seconds
from corral._core.terminal_text import clean

HEARTBEAT = 30.0
"""Seconds without a line after which a heartbeat is printed. ``CORRAL_HEARTBEAT`` replaces it."""
MARKS = {"success": "✓", "error": "✗", "denied": "⊘", "cancelled": "–"}
"""Of the status of a tool call."""
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


class _ProbeLines(logging.Handler):
    """Prints the log messages about probes."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        super().__init__()
        self._print_line = print_line

    def emit(self, record: logging.LogRecord) -> None:
        self._print_line(record.getMessage())


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

    def announce_probes(self) -> None:
        """From now on, print a line when an agent's program is probed: it takes a while."""
        if not self._enabled:
            return
        probes = logging.getLogger("corral.probe")
        probes.addHandler(_ProbeLines(self.print_line))
        if not probes.isEnabledFor(logging.INFO):
            probes.setLevel(logging.INFO)

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
        return [StyledText(text)]
    return [StyledText(text[:lead]), StyledText(text[lead], style), StyledText(text[lead + 1 :])]


FRAMES = 8
"""Per second."""
LOCK_SECONDS = 1.0
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

Render: TypeAlias = Callable[[int, int], Sequence[Line]]
"""Returns the lines to draw for a number of columns and of rows."""


class LiveArea:
    """``with area:`` shows it. ``stream`` is the terminal.

    Theory of operation. At most one live area exists in the process. It draws its lines below
    everything that was printed, and redraws them several times a second in a thread, so that the
    elapsed time is right even while the event loop is busy.

    Everything that corral prints to the terminal goes through ``corral._cli.ui.terminal``, which
    calls ``print_above`` if there is a live area. This erases the lines of the area, writes the
    text, and draws the area again. So there are two guarantees:

    - Only lines that the area drew itself are erased. A printed text is never erased.
    - The area is drawn only if the cursor is at the start of a line. After a text without a newline
      it stays hidden until the newline is written.

    States: *drawn* (its lines are on the screen, the cursor is at the end of the last one),
    *hidden* (nothing of it is on the screen: a text without a newline was written, or there is
    nothing to show) and *paused* (hidden until ``resume``, while a person types an answer).

    A lock protects the state and the order of the writes. A thread that cannot get the lock within
    ``LOCK_SECONDS`` writes without it: a message must not get lost because another thread is
    blocked. If the process is killed, the last lines stay on the screen. No terminal mode is
    changed.
    """

    def __init__(self, stream: TextIO, render: Render, *, color: bool) -> None:
        self._stream = stream
        self._render = render
        self._color = color
        self._lock = threading.RLock()
        self._rows = 0
        """Lines of the area that are on the screen."""
        self._at_line_start = True
        self._pauses = 0
        self._ended = threading.Event()

    def __enter__(self) -> LiveArea:
        terminal.set_live_area(self)
        self.refresh()
        # Without a free thread the area is still drawn with each text that is printed.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._redraw, name="corral-live-area", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._locked():
            self._put(self._erase())
            terminal.set_live_area(None)

    def print_above(self, write: Callable[[], object], *, ends_line: bool) -> None:
        """Call ``write``, which writes to the terminal. ``ends_line``: what it writes ends with a
        newline."""
        with self._locked():
            self._put(self._erase())
            write()
            self._at_line_start = ends_line
            self._put(self._frame())

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Hide the area while a person types at the terminal."""
        with self._locked():
            self._pauses += 1
            if not self._at_line_start:
                self._put("\n")
                self._at_line_start = True
            self._put(self._erase())
        try:
            yield
        finally:
            with self._locked():
                self._pauses -= 1
                self._put(self._frame())

    def refresh(self) -> None:
        """Draw the area as it is now."""
        with self._locked():
            self._put(self._erase() + self._frame())

    def _redraw(self) -> None:
        while not self._ended.wait(1 / FRAMES):
            with self._lock:
                if not self._ended.is_set():
                    self._put(self._erase() + self._frame())

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        got = self._lock.acquire(timeout=LOCK_SECONDS)
        try:
            yield
        finally:
            if got:
                self._lock.release()

    def _frame(self) -> str:
        """The area as text; empty if it is hidden."""
        if self._pauses or self._ended.is_set() or not self._at_line_start:
            return ""
        columns, rows = terminal.size(self._stream)
        # A line as wide as the terminal would leave the cursor in an unclear place.
        lines = [spans.cut(line, columns - 1) for line in self._render(columns, rows)]
        lines = lines[-max(1, rows - 1) :]
        self._rows = len(lines)
        return "\n".join(spans.ansi(line, color=self._color) for line in lines)

    def _erase(self) -> str:
        if not self._rows:
            return ""
        # If the terminal became narrower, it may have wrapped these lines, or cut them. Then a rest
        # of them may stay: to erase more could erase a text.
        rows, self._rows = self._rows, 0
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        return f"\r{up}\x1b[J"

    def _put(self, text: str) -> None:
        if text:
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone
                self._stream.write(text)
                self._stream.flush()
