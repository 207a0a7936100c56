"""Splits chunks of bytes into blocks of complete lines, in linear time and bounded memory.

Chunks may be cut anywhere. Only ``\\n`` ends a line (U+2028 and similar characters are ordinary
text in JSON). A block holds all lines that a chunk completed, so that a decoder can read them in
one call. asyncio's ``readline`` is not used: it stops at 64 KiB and scans the buffer repeatedly.
"""

from __future__ import annotations

import msgspec

MAX_LINE_SIZE = 64 * 1024 * 1024
"""Bytes of the longest accepted line: screenshots in base64 reach tens of megabytes."""
SAMPLE_SIZE = 200
HEAD_SIZE = 8192
"""Bytes kept of a dropped line: secrets are redacted in them before they are cut further."""


class Oversized(msgspec.Struct, frozen=True, gc=False):
    """A line longer than the limit: dropped, except for its size and its beginning."""

    size: int
    sample: bytes


class Lines:
    """The splitter of one stream."""

    __slots__ = ("_head", "_limit", "_pending", "_size")

    def __init__(self, limit: int = MAX_LINE_SIZE) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._size = 0
        self._head = b""
        """The beginning of the oversized line that is being skipped."""

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """What the chunk completed, in order: blocks of lines, each with its newline."""
        last = chunk.rfind(b"\n") + 1
        if not last:
            self._buffer_piece(chunk)
            return []
        done: list[bytes | Oversized] = []
        if self._pending or self._head:
            first = chunk.find(b"\n") + 1
            self._buffer_piece(chunk[:first])
            done.append(self._flush())
            if first < last:
                self._add_block(chunk[first:last], done)
        else:
            self._add_block(chunk if last == len(chunk) else chunk[:last], done)
        if last < len(chunk):
            self._buffer_piece(chunk[last:])
        return done

    def end(self) -> list[bytes | Oversized]:
        """At the end of the stream: a last line without a newline."""
        return [self._flush()] if self._size else []

    def _buffer_piece(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size - piece.endswith(b"\n") <= self._limit:
            self._pending.append(piece)
        elif len(self._head) < HEAD_SIZE:
            self._head = b"".join([self._head, *self._pending, piece])[:HEAD_SIZE]
            self._pending.clear()

    def _flush(self) -> bytes | Oversized:
        if self._head:
            line: bytes | Oversized = Oversized(self._size, self._head.removesuffix(b"\n"))
        else:
            line = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        self._head = b""
        return line

    def _add_block(self, block: bytes, done: list[bytes | Oversized]) -> None:
        if len(block) <= self._limit:
            done.append(block)
            return
        for line in block.split(b"\n")[:-1]:
            long = len(line) > self._limit
            done.append(Oversized(len(line) + 1, line[:HEAD_SIZE]) if long else line + b"\n")


def is_one_per_line(block: bytes, count: int) -> bool:
    """Whether these ``count`` JSON objects, which ``decode_lines`` found in a block of lines, have
    one line each. The decoder splits at any whitespace, and at none: ``{} {}`` and ``{}{}`` are two
    objects for it, and an object over two lines is one."""
    if count == 1:
        return block.find(b"\n") == len(block) - 1
    newlines = len(block) - len(block.replace(b"\n", b""))  # twice as fast as count()
    if newlines != count:
        return False
    # "}\n{" is inside no JSON: these newlines are between two objects. Most lines start with the
    # same key, and a longer text is found faster.
    between = b"}\n{"
    return block.count(between + block[1:9]) == count - 1 or block.count(between) == count - 1
