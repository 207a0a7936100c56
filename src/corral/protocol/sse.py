"""Server-sent events: chunks of bytes in, the data of whole events out.

Chunks may be cut anywhere. Lines end with LF, CRLF or CR; several ``data`` lines
of one event are joined by a newline; comments, ``id`` and ``retry`` are skipped;
an event without data is none. The name of an event is not kept: every vendor
repeats it inside the data. An event that the stream ends in the middle of is
not given out, as the standard has it; ``rest`` has it for a vendor whose streams end so.
"""

from __future__ import annotations

from corral.errors import StreamBroken

BLANK = b"\n\n"
BLANK_CRLF = b"\r\n\r\n"
LARGEST = 64 * 1024 * 1024
"""Bytes of one event: the same limit as for a line of an agent."""


class Sse:
    """One stream's decoder. Linear in the number of bytes, however they are cut."""

    __slots__ = ("_carriage", "_held", "_limit", "_size", "_started")

    def __init__(self, limit: int = LARGEST) -> None:
        self._limit = limit
        self._held: list[bytes] = []
        """Of an event that is not complete, with LF for every end of a line."""
        self._size = 0
        self._carriage = False
        self._started = False

    @property
    def pending(self) -> bool:
        """Whether bytes of an incomplete event are held."""
        return any(piece.strip() for piece in self._held)

    def rest(self) -> list[bytes]:
        """The data of a last event that no blank line ended; the decoder is empty then."""
        block = b"".join(self._held)
        self._held.clear()
        self._size = 0
        return _events(block.strip(b"\n"))

    def receive(self, chunk: bytes) -> list[bytes]:
        """The data of each event that is complete now. Raises ``StreamBroken`` for one that
        is too large."""
        if not self._started:
            chunk = self._beginning(chunk)
        if b"\r" in chunk:
            # Between the first and the last blank line all is whole, and often all alike.
            first, last = chunk.find(BLANK_CRLF) + 4, chunk.rfind(BLANK_CRLF) + 4
            short = last - first < self._limit  # what is longer is measured event by event
            alike = _alike(chunk[first:last], BLANK_CRLF) if first < last and short else None
            if alike is not None:
                return [*self._receive(chunk[:first]), *alike, *self._receive(chunk[last:])]
        return self._receive(chunk)

    def _receive(self, chunk: bytes) -> list[bytes]:
        if self._carriage and chunk:
            self._carriage = False
            chunk = chunk.removeprefix(b"\n")  # the second half of a CRLF that was cut in two
        if b"\r" in chunk:
            self._carriage = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = chunk.rfind(b"\n\n") + 2
        if end < 2:
            # The blank line may be split between this chunk and the last one.
            split = self._held and self._held[-1].endswith(b"\n") and chunk.startswith(b"\n")
            if not split:
                self._hold(chunk)
                return []
            end = 1
        block = chunk[:end]
        if self._held:
            block = b"".join((*self._held, block))
            self._held.clear()
            self._size = 0
        if len(block) >= self._limit:
            # However it was cut: byte by byte the end of the last line would be held too.
            for event in block.split(b"\n\n"):
                self._bounded(len(event) + 1)
        self._hold(chunk[end:])
        found = _alike(block, BLANK)
        return _events(block) if found is None else found

    def _beginning(self, chunk: bytes) -> bytes:
        """Without the mark of UTF-8 that a stream may open with, cut in pieces or not."""
        mark = b"\xef\xbb\xbf"
        head = b"".join((*self._held, chunk))
        self._held.clear()
        self._size = 0
        if len(head) < len(mark) and mark.startswith(head):
            self._held.append(head)
            return b""
        self._started = True
        return head.removeprefix(mark)

    def _hold(self, rest: bytes) -> None:
        if rest:
            self._held.append(rest)
            self._size += len(rest)
            self._bounded(self._size)

    def _bounded(self, size: int) -> None:
        if size > self._limit:
            raise StreamBroken(
                f"an event of the stream is over {self._limit:,} bytes",
                hint="Ask for less in one answer.",
                retryable=False,
            )


def _alike(block: bytes, blank: bytes) -> list[bytes] | None:
    """The data of whole events of one name with one line of data each; None where any is of
    another kind. There is no work for each: nearly all of a stream looks like this."""
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
    """The data of the events of a block of whole ones."""
    found: list[bytes] = []
    for event in block.split(b"\n\n"):
        if event[:6] == b"data: ":
            data = event[6:]
        else:
            data = event.partition(b"\ndata: ")[2]
            if event[:6] != b"event:":
                data = b""
        if data and b"\n" not in data:
            found.append(data)
        elif event:
            lines = [_data_of(line) for line in event.split(b"\n")]
            kept = [line for line in lines if line is not None]
            if any(kept):
                found.append(b"\n".join(kept))
    return found


def _data_of(line: bytes) -> bytes | None:
    if line[:5] != b"data:":
        return b"" if line == b"data" else None
    return line[6:] if line[5:6] == b" " else line[5:]
