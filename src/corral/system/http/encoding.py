"""Decompress response bodies that a server compressed without being asked. Output is bounded."""

from __future__ import annotations

import zlib
from typing import Protocol

PIECE = 256 * 1024
"""Largest chunk of output in bytes: a few bytes can decompress to very many."""


class _ZlibObject(Protocol):
    """What ``zlib.decompressobj`` returns: its class has no public name."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Decompressor:
    """Call ``feed`` with what arrived, then ``read`` until it returns nothing. Raises
    ``zlib.error``."""

    __slots__ = ("_coding", "_decompress", "_left")

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._left = b""
        self._decompress: _ZlibObject | None = None

    def feed(self, data: bytes) -> None:
        self._left += data

    def read(self) -> bytes:
        while True:
            if self._decompress is None:
                if len(self._left) < 2:
                    return b""
                self._decompress = zlib.decompressobj(self._window())
            out = self._decompress.decompress(self._left, PIECE)
            if self._decompress.eof:
                # Another compressed stream may follow.
                self._left, self._decompress = self._decompress.unused_data, None
            else:
                self._left = self._decompress.unconsumed_tail
            if out or not self._left:
                return out

    @property
    def is_complete(self) -> bool:
        return self._decompress is None and not self._left

    def _window(self) -> int:
        if self._coding != "deflate":
            return zlib.MAX_WBITS | 16
        first, second = self._left[:2]
        # Some servers omit the two bytes of the header.
        framed = first & 15 == 8 and (first * 256 + second) % 31 == 0
        return zlib.MAX_WBITS if framed else -zlib.MAX_WBITS


def decompressor_for(encoding: str) -> Decompressor | None:
    """Return a decompressor for a ``Content-Encoding``, or None if the body is not compressed.
    Raises ``ValueError`` for an unknown encoding."""
    coding = encoding.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding in ("gzip", "x-gzip", "deflate"):
        return Decompressor(coding)
    raise ValueError(coding)
