"""Permission questions to the person at the terminal.

The request was written by a model, perhaps by an attacker. So the question shows all of it: the
title and every argument, with invisible characters escaped. Each line starts with a bar, so that
no text can imitate a line of corral. What does not fit on the screen is shown in pages, and can be
allowed only after the last page.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator

import msgspec

from corral.events import Decision, PermissionRequest
from corral.terminal_text import one_line, visible
from corral.values import Json

_ANSWERS: dict[str, Decision] = {
    "y": "allow_once",
    "yes": "allow_once",
    "a": "allow_session",
    "n": "deny",
    "no": "deny",
    "c": "cancel",
}
BAR = "  | "
MAX_DEPTH = 6
"""Levels of nested arguments that are laid out; below, they are shown as JSON."""
MIN_PAGE_LINES = 8
"""Lines of a page at least, however small the terminal is."""
MAX_ANSWER = 4_096
"""Bytes of an answer."""


def is_interactive() -> bool:
    """Whether a person at a terminal can read and answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class TerminalAsker:
    """An ``ask`` for sessions. ``pause`` stops the status line."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause

    async def __call__(self, request: PermissionRequest) -> Decision:
        self._pause()
        _discard_input()
        columns, rows = shutil.get_terminal_size((80, 24))
        pages = Pages(lines_of(request, columns), rows)
        _write("\n" + pages.first())  # an answer may have left the cursor within a line
        while True:
            _write(pages.prompt())
            typed = (await _read_line()).strip().lower()
            if typed == "v" and pages.more:
                _write(pages.next())
                continue
            answer = _ANSWERS.get(typed)
            if answer is not None and (answer in ("deny", "cancel") or not pages.more):
                return answer


class Pages:
    """The lines of a question, as many at a time as fit on the screen."""

    def __init__(self, lines: list[str], rows: int) -> None:
        self._lines = lines
        self._room = max(MIN_PAGE_LINES, rows - 4)
        self._shown = 0

    @property
    def more(self) -> bool:
        """Whether something has not been shown yet."""
        return self._shown < len(self._lines)

    def first(self) -> str:
        """The complete question if it fits; else its size, its first and its last lines."""
        lines = self._lines
        if len(lines) <= self._room:
            self._shown = len(lines)
            return "".join(f"{line}\n" for line in lines)
        half = (self._room - 2) // 2
        size = sum(map(len, lines))
        note = f"  ... {len(lines) - 2 * half:,} of {len(lines):,} lines are not shown here"
        head = "".join(f"{line}\n" for line in lines[:half])
        tail = "".join(f"{line}\n" for line in lines[-half:])
        return f"{head}{note} ({size:,} characters in all) ...\n{tail}"

    def next(self) -> str:
        begin, self._shown = self._shown, min(self._shown + self._room, len(self._lines))
        page = "".join(f"{line}\n" for line in self._lines[begin : self._shown])
        return f"{page}  lines {begin + 1:,} to {self._shown:,} of {len(self._lines):,}\n"

    def prompt(self) -> str:
        if self.more:
            what = "the next page" if self._shown else "all of it, page by page"
            return f"  view {what} (v), no (n), stop (c)? To allow it, view all pages first: "
        return "  allow once (y), for this session (a), no (n), stop (c)? "


def lines_of(request: PermissionRequest, columns: int) -> list[str]:
    """The complete question, in lines that are no wider than the terminal. The first line is
    written by corral; every other line starts with a bar."""
    lines = [f"? {request.kind}: permission is needed"]
    details = [] if _repeats_argument(request) else [one_line(request.title or "")]
    details += _format_arguments(request.input, 0)
    for line in [line for line in details if line] or ["(no details are known)"]:
        lines += (BAR + part for part in wrap(line, columns - len(BAR) - 1))
    return lines


def _repeats_argument(request: PermissionRequest) -> bool:
    """Whether the title only repeats one of the arguments, which are shown in any case."""
    given = request.input.values() if isinstance(request.input, dict) else ()
    title = " ".join((request.title or "").split())
    return any(
        isinstance(each, str) and len(each) > 3 and title.endswith(" ".join(each.split()))
        for each in given
    )


def _format_arguments(value: Json, depth: int) -> Iterator[str]:
    pad = "  " * depth
    items = (
        value.items()
        if isinstance(value, dict)
        else ((str(number), each) for number, each in enumerate(value, 1))
        if isinstance(value, list)
        else ()
    )
    for name, each in items:
        label = f"{pad}{one_line(name)}:"
        if isinstance(each, str) and "\n" in each:
            yield label
            text = visible(each).expandtabs(4)
            yield from (f"{pad}  {line}" for line in text.split("\n"))
        elif isinstance(each, str):
            yield f"{label} {one_line(each)}"
        elif isinstance(each, dict | list) and each and depth < MAX_DEPTH:
            yield label
            yield from _format_arguments(each, depth + 1)
        else:
            yield f"{label} {one_line(msgspec.json.encode(each).decode())}"
    if isinstance(value, str) and value:
        yield from (pad + line for line in visible(value).expandtabs(4).split("\n"))


def wrap(line: str, room: int) -> list[str]:
    """The line in parts that the terminal does not wrap by itself: a wrapped part starts at
    the left edge, where only lines of corral may start."""
    room = max(room, 10)
    parts: list[str] = []
    part, width = "", 0
    for char in line:
        wide = 1 if char < "\x7f" or unicodedata.east_asian_width(char) in ("N", "Na", "H") else 2
        if width + wide > room:
            parts.append(part)
            part, width = "", 0
        part, width = part + char, width + wide
    return [*parts, part]


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _discard_input() -> None:
    """Input typed before the question was shown must not answer it."""
    with contextlib.suppress(ImportError, OSError):
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


async def _read_line() -> str:
    """A line from the terminal, without a thread: a thread that reads could not be stopped."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    descriptor = sys.stdin.fileno()
    typed = b""
    loop.add_reader(descriptor, ready.set)
    try:
        while b"\n" not in typed:
            await ready.wait()
            ready.clear()
            try:
                read = os.read(descriptor, 4_096)
            except OSError:  # the terminal was closed
                read = b""
            if not read:
                return "n"  # end of input counts as no
            typed = (typed + read)[-MAX_ANSWER:]
    finally:
        loop.remove_reader(descriptor)
    return typed.decode("utf-8", "replace")
