"""Programs at a pseudo-terminal: the bytes that they write, and the screen that a person sees.

``Screen`` starts a program. ``Screen.text`` are all bytes as text. ``Screen.lines`` is the screen
as a terminal shows it, computed by pyte. ``masked`` replaces what differs between two runs, so that
a screen can be compared with a golden file.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import pyte

CORRAL = str(Path(sys.executable).with_name("corral"))
LIMIT = 90.0
"""Seconds to wait for something that must happen."""

_MASKS = (
    (re.compile(r"\b\d+(\.\d+)? s\b"), "N s"),
    (re.compile(r"\b\d+(\.\d+)?/(s|min)\b"), "N/s"),
    (re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{4,6}\b"), "ID"),
    (re.compile(r"[\d,]+ tokens in, [\d,]+ out"), "N tokens in, N out"),
    (re.compile(r"\$\d+\.\d+"), "$N"),
    (re.compile(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]"), "⠋"),
)


class Screen:
    """A program at a pseudo-terminal. ``size`` is rows and columns."""

    def __init__(
        self, argv: Sequence[str], cwd: Path, env: dict[str, str], size: tuple[int, int]
    ) -> None:
        self.primary, secondary = pty.openpty()
        self._pyte = pyte.Screen(size[1], size[0])
        self._stream = pyte.ByteStream(self._pyte)
        _set_size(secondary, size)
        self.process = subprocess.Popen(
            argv,
            cwd=cwd,
            # pytest-xdist sets these two, which come before the size of the terminal.
            env={name: env[name] for name in env if name not in ("COLUMNS", "LINES")},
            stdin=secondary,
            stdout=secondary,
            stderr=secondary,
            start_new_session=True,
        )
        os.close(secondary)
        self.text = ""

    @property
    def lines(self) -> list[str]:
        """The lines of the screen, without empty ones at the end."""
        lines = [line.rstrip() for line in self._pyte.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def spans(self, row: int) -> Iterator[tuple[str, str, bool]]:
        """Text, color and boldness of the parts of a line, without blanks at the end."""
        cells = [self._pyte.buffer[row][column] for column in range(self._pyte.columns)]
        while cells and cells[-1].data == " ":
            cells.pop()
        for (color, bold), part in groupby(cells, lambda cell: (cell.fg, cell.bold)):
            yield "".join(cell.data for cell in part), color, bold

    @property
    def shown(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    def read(self, seconds: float = LIMIT) -> bool:
        """Read what the program has written; wait for it. False if the program has ended."""
        if not select.select([self.primary], [], [], seconds)[0]:
            raise AssertionError(self.text)
        try:
            data = os.read(self.primary, 65_536)
        except OSError:  # the program has ended
            return False
        self.text += data.decode("utf-8", "surrogateescape")
        self._stream.feed(data)
        return bool(data)

    def until(self, text: str) -> None:
        """Wait for a text among the bytes."""
        self.until_true(lambda: text in self.text)

    def until_shown(self, text: str) -> None:
        """Wait for a text on the screen."""
        self.until_true(lambda: text in self.shown)

    def until_true(self, condition: Callable[[], bool]) -> None:
        begin = time.monotonic()
        while not condition():
            assert self.read(), self.text
            assert time.monotonic() - begin < LIMIT, self.text[-3000:]

    def resize(self, size: tuple[int, int]) -> None:
        """As if the person made the window larger or smaller."""
        _set_size(self.primary, size)
        self._pyte.resize(*size)

    def type(self, text: str) -> None:
        os.write(self.primary, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Read to the end; return the exit code."""
        while self.read():
            pass
        return self.process.wait(LIMIT)


def _set_size(descriptor: int, size: tuple[int, int]) -> None:
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


@contextlib.contextmanager
def screen(
    *words: str,
    cwd: Path,
    env: dict[str, str],
    size: tuple[int, int] = (40, 100),
    term: str = "dumb",
) -> Generator[Screen]:
    """``corral`` with these arguments."""
    shown = Screen([CORRAL, *words], cwd, {**os.environ, **env, "TERM": term}, size)
    try:
        yield shown
    finally:
        if shown.process.poll() is None:
            shown.process.kill()
            shown.process.wait()
        os.close(shown.primary)


def masked(text: str) -> str:
    """The text without durations, rates, ids, tokens, costs and the frame of the spinner. Tokens
    depend on the length of the names of folders."""
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return text
