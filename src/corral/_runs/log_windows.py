"""Windows of an event log, by bytes: a log of any size can be read in pieces of the same cost.

A log is cut into pages of ``PAGE`` bytes. A line belongs to the page in which its first byte is, so
pages need no index, and page N of a growing log stays the same once it is full. A line longer than
a page makes the pages inside it empty. A last line without its newline is being written, or was cut
off when its writer was killed: it is not read.

All functions block. Nothing here decodes an event.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import NamedTuple

from corral._system import fs
from corral._system.fs import open_regular

PAGE = 32 * 1024
"""Bytes of a page."""
MAX_LINE = 4 * 1024 * 1024
"""Bytes of a line that is read. Of a longer one only the beginning is."""
HEAD = 2048
"""Bytes that are kept of a longer line."""
SCAN = 1024 * 1024
"""Bytes that are searched at once for the beginnings of turns."""
INIT, DONE = b'\n{"type":"init"', b'\n{"type":"done"'
"""How the first and the last event of a turn begin: a raw newline is never inside an event."""
CALL = b'\n{"type":"model_call"'
MAX_CALLS = 10_000
"""Model calls of the last turn whose places are remembered."""


class Line(NamedTuple):
    """One line, without its newline."""

    offset: int
    data: bytes
    is_cut: bool = False
    """Whether the line is too long, and ``data`` is only its beginning."""

    @property
    def end(self) -> int:
        """The byte after its newline. Not known of a line that is cut."""
        return self.offset + len(self.data) + 1


class LogFile:
    """An open log. What is appended after it was opened is not seen."""

    def __init__(self, path: Path) -> None:
        self._file = open_regular(path)
        about = fs.status(self._file.fileno())
        self.size: int = about.st_size
        self.identity: tuple[int, int] = (about.st_dev, about.st_ino)
        self.modified: float = about.st_mtime

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def pages(self) -> int:
        return -(-self.size // PAGE)

    def read(self, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start``."""
        self._file.seek(start)
        return self._file.read(max(0, min(length, self.size - start)))

    def page(self, number: int) -> list[Line]:
        """The complete lines that begin on a page."""
        return self.lines(number * PAGE, (number + 1) * PAGE)

    def lines(self, start: int, end: int) -> list[Line]:
        """The complete lines that begin in a range of bytes."""
        first = max(start, 0)
        if start > 0:
            at = self.read(start - 1, min(end, self.size) - start + 1).find(b"\n")
            if at < 0:
                return []  # no line begins before ``end``
            first = start + at
        found: list[Line] = []
        offset = first
        *complete, rest = self.read(first, end - first).split(b"\n")
        for data in complete:
            found.append(Line(offset, data))
            offset += len(data) + 1
        if rest and (last := self._complete(offset, rest)) is not None:
            found.append(last)
        return [line for line in found if line.data]

    def line_at(self, offset: int) -> Line | None:
        """The line that begins at this byte; None if none does, or it is not complete."""
        if not 0 <= offset < self.size or (offset and self.read(offset - 1, 1) != b"\n"):
            return None
        data, newline, _ = self.read(offset, PAGE).partition(b"\n")
        return Line(offset, data) if newline else self._complete(offset, data)

    def last_line(self) -> Line | None:
        """The last complete line that begins in the last few pages."""
        for pages in (1, 4, 64):
            found = self.lines(max(0, self.size - pages * PAGE), self.size)
            if found:
                return found[-1]
        return None

    def _complete(self, offset: int, data: bytes) -> Line | None:
        pieces = [data]
        length = len(data)
        while length <= MAX_LINE:
            more = self.read(offset + length, 4 * PAGE)
            if not more:
                return None
            piece, newline, _ = more.partition(b"\n")
            pieces.append(piece)
            length += len(piece)
            if newline:
                return Line(offset, b"".join(pieces))
        return Line(offset, data[:HEAD], is_cut=True)


class Tail(NamedTuple):
    lines: list[Line]
    end: int
    """Where the next read starts."""


def read_tail(path: Path, after: int, limit: int = 16 * PAGE) -> Tail:
    """The complete lines from a byte on, at most about ``limit`` bytes of them. Raises ``OSError``
    if the log is gone, and ``ValueError`` if it is shorter than ``after``."""
    with LogFile(path) as log:
        if log.size < after:
            raise ValueError("the log was replaced by a shorter one")
        found = log.lines(after, min(log.size, after + limit))
        if not found:
            return Tail([], after)
        last = found[-1]
        if not last.is_cut:
            return Tail(found, last.end)
        position = last.offset
        while data := log.read(position, SCAN):
            at = data.find(b"\n")
            if at >= 0:
                return Tail(found, position + at + 1)
            position += len(data)
        return Tail(found, log.size)


class TurnMarks(NamedTuple):
    """Where the turns of a log begin and end."""

    starts: list[int]
    """Offsets of the first events."""
    ends: list[int]
    """Offsets of the last events."""
    calls: list[int]
    """Offsets of the model calls of the last turn."""
    is_complete: bool


class TurnIndex:
    """Finds the turns of a log, a bounded number of bytes at a time. What was searched once is not
    searched again while the log only grows."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._identity: tuple[int, int] | None = None
        self._searched = 0
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._calls: list[int] = []

    def advance(self, log: LogFile, budget: int) -> TurnMarks:
        """Search at most ``budget`` further bytes."""
        with self._lock:
            if log.identity != self._identity or log.size < self._searched:
                self._identity, self._searched = log.identity, 0
                self._starts, self._ends, self._calls = [], [], []
            while self._searched < log.size and budget > 0:
                self._search(log)
                budget -= SCAN
            is_complete = self._searched >= log.size
            return TurnMarks([*self._starts], [*self._ends], [*self._calls], is_complete)

    def _search(self, log: LogFile) -> None:
        # The overlap finds a mark on the border. At the start, a newline is added before the log.
        start = max(0, self._searched - len(CALL))
        data = log.read(start, SCAN + self._searched - start)
        if not start:
            data, start = b"\n" + data, -1
        marks = (INIT, self._starts), (DONE, self._ends), (CALL, self._calls)
        for mark, found in marks:
            at = data.find(mark)
            while at >= 0:
                if not found or start + at + 1 > found[-1]:
                    found.append(start + at + 1)
                at = data.find(mark, at + 1)
        last = self._starts[-1] if self._starts else 0
        self._calls = [each for each in self._calls if each > last][:MAX_CALLS]
        self._searched = min(log.size, start + len(data))
