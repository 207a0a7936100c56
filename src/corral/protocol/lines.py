"""Chunks of bytes → blocks of whole lines: linear, bounded, cut anywhere.

Only ``\\n`` splits (U+2028 and friends are ordinary text inside JSON). A block
holds as many whole lines as the chunk completed, so that a decoder can take
them in one call. By hand: asyncio's readline stops at 64 KiB and rescans.
"""

from __future__ import annotations

from typing import NamedTuple

LIMIT = 64 * 1024 * 1024
"""The longest line that passes: screenshots in base64 reach tens of megabytes."""
SAMPLE = 200
HEAD = 8192
"""Bytes kept of a line that is dropped: secrets are redacted in them before they are cut."""


class Oversized(NamedTuple):
    """A line longer than the limit: dropped, except for its size and its beginning."""

    size: int
    sample: bytes


class Lines:
    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._size = 0
        self._head = b""
        """Set while an oversized line is being skipped."""

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """What the chunk completed, in order: blocks of lines, each line with its newline."""
        last = chunk.rfind(b"\n") + 1
        if not last:
            self._hold(chunk)
            return []
        done: list[bytes | Oversized] = []
        if self._pending or self._head:
            first = chunk.find(b"\n") + 1
            self._hold(chunk[:first])
            done.append(self._release())
            if first < last:
                self._whole(chunk[first:last], done)
        else:
            self._whole(chunk if last == len(chunk) else chunk[:last], done)
        if last < len(chunk):
            self._hold(chunk[last:])
        return done

    def end(self) -> list[bytes | Oversized]:
        """What is left when the stream is over: a last line without its newline."""
        return [self._release()] if self._size else []

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size - piece.endswith(b"\n") <= self._limit:
            self._pending.append(piece)
        elif len(self._head) < HEAD:
            self._head = b"".join([self._head, *self._pending, piece])[:HEAD]
            self._pending.clear()

    def _release(self) -> bytes | Oversized:
        if self._head:
            line: bytes | Oversized = Oversized(self._size, self._head.removesuffix(b"\n"))
        else:
            line = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        self._head = b""
        return line

    def _whole(self, block: bytes, done: list[bytes | Oversized]) -> None:
        if len(block) <= self._limit:
            done.append(block)
            return
        for line in block.split(b"\n")[:-1]:
            long = len(line) > self._limit
            done.append(Oversized(len(line) + 1, line[:HEAD]) if long else line + b"\n")
