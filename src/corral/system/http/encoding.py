"""Bodies that come compressed although nobody asked for it: unpacked, a bounded piece a time."""

from __future__ import annotations

import zlib
from typing import Any

PIECE = 256 * 1024
"""Bytes at most of one piece: little can unpack to much."""


class Unpacking:
    """``give`` what came, ``take`` until it is empty. Raises ``zlib.error``."""

    __slots__ = ("_coding", "_left", "_unpacker")

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._left = b""
        self._unpacker: Any = None

    def give(self, data: bytes) -> None:
        self._left += data

    def take(self) -> bytes:
        while True:
            if self._unpacker is None:
                if len(self._left) < 2:
                    return b""
                self._unpacker = zlib.decompressobj(self._window())
            out: bytes = self._unpacker.decompress(self._left, PIECE)
            if self._unpacker.eof:
                # Another may follow, one behind the other.
                self._left, self._unpacker = self._unpacker.unused_data, None
            else:
                self._left = self._unpacker.unconsumed_tail
            if out or not self._left:
                return out

    @property
    def is_whole(self) -> bool:
        return self._unpacker is None and not self._left

    def _window(self) -> int:
        if self._coding != "deflate":
            return zlib.MAX_WBITS | 16
        first, second = self._left[:2]
        # Some servers leave out the two bytes that should begin it.
        framed = first & 15 == 8 and (first * 256 + second) % 31 == 0
        return zlib.MAX_WBITS if framed else -zlib.MAX_WBITS


def unpacking(encoding: str) -> Unpacking | None:
    """None where the body comes as it is. Raises ``ValueError`` for what is not known here."""
    coding = encoding.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding in ("gzip", "x-gzip", "deflate"):
        return Unpacking(coding)
    raise ValueError(coding)
