"""Server-sent events: chunks of bytes in, the data of complete events out.

``SseDecoder`` reads by the standard. Chunks may be cut anywhere. Lines end with LF, CRLF or CR.
Several ``data`` lines of one event are joined by a newline. Comments, ``id``, ``retry`` and events
without data are skipped. The name of an event is dropped: every vendor repeats it inside the data.
An incomplete event at the end of the stream is not returned, as the standard says; ``take_rest``
returns it, for vendors whose streams end without a blank line.

``StrictEvents`` accepts exactly the forms in which model vendors send events. Programs read them in
different ways: one accepts a blank before ``data:``, another a carriage return as a line end, a
third a field without a colon. Where it matters that all of them would read the same, a stream is
read with this class. It accepts

- lines that end with LF or CRLF,
- ``event: NAME`` and ``data: VALUE`` at most once in an event; the blank may be missing,
- ``id``, ``retry`` and comments, which mean nothing for a response and are left out,
- a blank line after each event, and further ones anywhere.

Anything else raises ``UnknownForm``, with what was found.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from corral.errors import StreamBroken

BLANK = b"\n\n"
BLANK_CRLF = b"\r\n\r\n"
MAX_EVENT_SIZE = 64 * 1024 * 1024
"""Bytes of one event; the same limit as for a line of an agent."""


class SseDecoder:
    """The decoder of one stream. Linear in the number of bytes, however they are cut."""

    def __init__(self, limit: int = MAX_EVENT_SIZE) -> None:
        self._limit = limit
        self._buffer: list[bytes] = []
        """Bytes of an incomplete event, with LF line ends."""
        self._size = 0
        self._ended_with_cr = False
        self._started = False

    @property
    def pending(self) -> bool:
        """Whether there are bytes of an incomplete event."""
        return any(piece.strip() for piece in self._buffer)

    def take_rest(self) -> list[bytes]:
        """The data of a last event without a blank line after it. Empties the decoder."""
        block = b"".join(self._buffer)
        self._buffer.clear()
        self._size = 0
        return _events(block.strip(b"\n"))

    def receive(self, chunk: bytes) -> list[bytes]:
        """The data of the events that are complete now. Raises ``StreamBroken`` for an event
        that is too large."""
        if not self._started:
            chunk = self._strip_bom(chunk)
        if b"\r" in chunk:
            # Between the first and the last blank line all events are complete, and often uniform.
            first, last = chunk.find(BLANK_CRLF) + 4, chunk.rfind(BLANK_CRLF) + 4
            short = last - first < self._limit  # a longer one is checked event by event
            uniform = (
                _uniform_events(chunk[first:last], BLANK_CRLF) if first < last and short else None
            )
            if uniform is not None:
                return [*self._receive(chunk[:first]), *uniform, *self._receive(chunk[last:])]
        return self._receive(chunk)

    def _receive(self, chunk: bytes) -> list[bytes]:
        if self._ended_with_cr and chunk:
            self._ended_with_cr = False
            chunk = chunk.removeprefix(b"\n")  # the second half of a CRLF
        if b"\r" in chunk:
            self._ended_with_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = chunk.rfind(b"\n\n") + 2
        if end < 2:
            # The blank line may be split between this chunk and the last one.
            split = self._buffer and self._buffer[-1].endswith(b"\n") and chunk.startswith(b"\n")
            if not split:
                self._buffer_rest(chunk)
                return []
            end = 1
        block = chunk[:end]
        if self._buffer:
            block = b"".join((*self._buffer, block))
            self._buffer.clear()
            self._size = 0
        if len(block) >= self._limit:
            # The result must not depend on the cuts: the last line end would be buffered too.
            for event in block.split(b"\n\n"):
                self._check_size(len(event) + 1)
        self._buffer_rest(chunk[end:])
        found = _uniform_events(block, BLANK)
        return _events(block) if found is None else found

    def _strip_bom(self, chunk: bytes) -> bytes:
        """Remove the byte order mark that a stream may start with, however it is cut."""
        mark = b"\xef\xbb\xbf"
        head = b"".join((*self._buffer, chunk))
        self._buffer.clear()
        self._size = 0
        if len(head) < len(mark) and mark.startswith(head):
            self._buffer.append(head)
            return b""
        self._started = True
        return head.removeprefix(mark)

    def _buffer_rest(self, rest: bytes) -> None:
        if rest:
            self._buffer.append(rest)
            self._size += len(rest)
            self._check_size(self._size)

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise StreamBroken(
                f"an event of the stream exceeds {self._limit:,} bytes",
                hint="Request a shorter answer.",
                retryable=False,
            )


def _uniform_events(block: bytes, blank: bytes) -> list[bytes] | None:
    """The data of events that have the same name and one line of data each; None if any event
    differs. Fast, as it does no work per event: nearly all streams look like this."""
    before = block.rfind(blank, 0, len(block) // 2)
    start = 0 if before < 0 else before + len(blank)
    end = block.find(b"data: ", start) + 6
    head = block[start:end]
    if head != b"data: ":
        name, data, more = head.partition(blank[: len(blank) // 2] + b"data: ")
        if name[:6] != b"event:" or b"\n" in name or not data or more:
            return None
    found = block.split(blank + head)
    if not found[0].startswith(head):
        return None
    found[0] = found[0][len(head) :]
    found[-1] = found[-1][: -len(blank)]
    lines = len(found) * (2 + head.count(b"\n"))
    if block.count(b"\n") != lines or (blank == BLANK_CRLF and block.count(b"\r") != lines):
        return None
    return found if all(found) else None


def _events(block: bytes) -> list[bytes]:
    """The data of the events in a block of complete events."""
    found: list[bytes] = []
    for event in block.split(b"\n\n"):
        if event[:6] == b"data: ":
            data = event[6:]
        else:
            name, _, data = event.partition(b"\ndata: ")
            if name[:6] != b"event:" or b"\n" in name:
                data = b""
        if data and b"\n" not in data:
            found.append(data)
        elif event:
            lines = [_line_data(line) for line in event.split(b"\n")]
            values = [line for line in lines if line is not None]
            if any(values):
                found.append(b"\n".join(values))
    return found


def _line_data(line: bytes) -> bytes | None:
    if line[:5] != b"data:":
        return b"" if line == b"data" else None
    return line[6:] if line[5:6] == b" " else line[5:]


_LINE = re.compile(rb"(?s:(event|data|id|retry):[ ]?(.*))")
_VALUES = {
    b"event": re.compile(rb"[A-Za-z0-9_.-]{1,100}"),
    b"data": re.compile(rb"[^\x00-\x20][^\x00]*"),
    b"id": re.compile(rb"[^\x00]*"),
    b"retry": re.compile(rb"[0-9]{1,20}"),
}
_SHOWN = 60
"""Bytes of a line that an error shows."""


class UnknownForm(Exception):
    """A stream has a form that programs may read differently."""


class SentEvent(NamedTuple):
    name: str
    """Empty if it has none."""
    data: bytes


KEEP_ALIVE = SentEvent("", b"")
"""A comment, or a blank line: the sender is alive."""


class StrictEvents:
    """Reads one stream, in chunks that are cut anywhere."""

    def __init__(self, limit: int = MAX_EVENT_SIZE) -> None:
        self._limit = limit
        self._line = bytearray()
        self._searched = 0
        self._fields: dict[bytes, bytes] = {}
        self._is_empty = True
        """Whether no line of an event or a comment has come."""

    def receive(self, chunk: bytes) -> list[SentEvent]:
        """The events that are complete now. Raises ``UnknownForm``."""
        self._line += chunk
        found: list[SentEvent] = []
        start = 0
        while (end := self._line.find(b"\n", max(start, self._searched))) >= 0:
            found += self._receive_line(bytes(self._line[start:end]).removesuffix(b"\r"))
            start = end + 1
        del self._line[:start]
        self._searched = len(self._line)
        if self._searched > self._limit:
            raise UnknownForm(f"a line of the stream has more than {self._limit:,} bytes")
        return found

    def end(self) -> list[SentEvent]:
        """The last event, if there is no blank line after it. Raises ``UnknownForm``."""
        rest, self._line, self._searched = bytes(self._line), bytearray(), 0
        found = self._receive_line(rest.removesuffix(b"\r")) if rest else []
        return found if self._is_empty else [*found, *self._receive_line(b"")]

    def _receive_line(self, line: bytes) -> list[SentEvent]:
        if line:
            self._is_empty = False
            if line.startswith(b":") and b"\r" not in line:
                return []
            field = _LINE.fullmatch(line)
            name = field[1] if field else b""
            if field is None or b"\r" in line or not _VALUES[name].fullmatch(field[2]):
                raise UnknownForm(f"the stream has an unusual line: {line[:_SHOWN]!r}")
            if name in self._fields:
                raise UnknownForm(f"an event of the stream has several lines with {name.decode()}")
            self._fields[name] = field[2]
            return []
        fields, self._fields, self._is_empty = self._fields, {}, True
        if b"data" in fields:
            return [SentEvent(fields.get(b"event", b"").decode("ascii"), fields[b"data"])]
        if b"event" in fields:
            raise UnknownForm("an event of the stream has a name and no data")
        return [KEEP_ALIVE]
