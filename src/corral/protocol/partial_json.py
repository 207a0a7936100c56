"""JSON that is still being written: the longest value that its beginning makes."""

from __future__ import annotations

import json
import re
from typing import cast

import msgspec

from corral.events import Json

NOTHING = object()
"""No value yet; ``None`` is one."""

_HALF = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\"\Z")
"""The first of two escapes that make one character, at the end of a string."""


class Partial:
    """Feed it the pieces of a JSON text; ``value`` is what can be read so far.

    A string that is under way counts as far as it goes; a number or a word only once
    something follows it, and a key only with its value. Text before the first bracket
    (a fence, a sentence) is passed over.
    """

    __slots__ = (
        "_escaped",
        "_in_string",
        "_is_key",
        "_length",
        "_pieces",
        "_safe",
        "_stack",
        "_unicode",
    )

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0
        self._stack: list[str] = []
        """What closes the brackets that are open."""
        self._safe: tuple[int, str] | None = None
        """Up to where, and with which end, the text is JSON."""
        self._in_string = False
        self._is_key = False
        self._escaped = False
        self._unicode = 0
        """Digits of an escape that are still to come."""

    def feed(self, piece: str) -> None:
        if not self._stack and self._safe is None:
            starts = [at for at in (piece.find("{"), piece.find("[")) if at >= 0]
            if not starts:
                return
            piece = piece[min(starts) :]
        elif not self._stack:
            return  # the value is complete
        begin = self._length
        self._pieces.append(piece)
        self._length += len(piece)
        for offset, sign in enumerate(piece):
            end = begin + offset + 1
            if self._in_string:
                self._string(sign, end)
            elif sign == '"':
                self._in_string = True
                if not self._is_key:
                    self._mark(end, '"')
            elif sign in "{[":
                self._stack.append("}" if sign == "{" else "]")
                self._is_key = sign == "{"
                self._mark(end)
            elif sign in "}]":
                if self._stack:
                    self._stack.pop()
                self._is_key = False
                self._mark(end)
                if not self._stack:
                    return
            elif sign == ":":
                self._is_key = False
            elif sign == ",":
                self._mark(end - 1)
                self._is_key = self._stack[-1] == "}"

    def _string(self, sign: str, end: int) -> None:
        if self._unicode:
            self._unicode -= 1
        elif self._escaped:
            self._escaped = False
            if sign == "u":
                self._unicode = 4
        elif sign == "\\":
            self._escaped = True
        elif sign == '"':
            self._in_string = False
            if not self._is_key:
                self._mark(end)
            return
        if not self._is_key and not self._escaped and not self._unicode:
            self._mark(end, '"')

    def _mark(self, end: int, closer: str = "") -> None:
        # The brackets are those of the stack: whatever changes it marks anew.
        self._safe = (end, closer)

    def value(self) -> Json | object:
        """What the text makes so far; ``NOTHING`` where that is no JSON."""
        if self._safe is None:
            return NOTHING
        end, closer = self._safe
        text = "".join(self._pieces)
        self._pieces = [text]
        return _read(text[:end] + closer, "".join(reversed(self._stack)))


def _read(text: str, closers: str) -> Json | object:
    try:
        return cast("Json", msgspec.json.decode(text + closers))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    if text.endswith('"') and (half := _HALF.search(text, max(0, len(text) - 4096))):
        text = text[: half.start(1)] + text[half.end(1) :]
    try:
        # Models write real line breaks into strings.
        return cast("Json", json.loads(text + closers, strict=False))
    except (ValueError, RecursionError):
        return NOTHING
