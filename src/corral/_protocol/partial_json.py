"""Decodes incomplete JSON: the longest value that the text so far makes."""

from __future__ import annotations

import enum
import json
import re
from typing import Final

import msgspec

from corral.values import Json


class NoValue(enum.Enum):
    """The type of ``NO_VALUE``: an enum, so that type checkers know what is left without it."""

    NO_VALUE = enum.auto()


NO_VALUE: Final = NoValue.NO_VALUE
"""No value yet. ``None`` would be the value ``null``."""

_HALF_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\"\Z")
"""The first surrogate of a surrogate pair at the end of a string."""


class PartialJson:
    """Feed it the pieces of a JSON text; ``value`` is what can be decoded so far.

    An incomplete string counts up to where it ends. A number or a literal counts once something
    follows it, and a key once it has a value. Text before the first bracket is skipped.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0
        self._stack: list[str] = []
        """The closing brackets of those that are open."""
        self._safe: tuple[int, str] | None = None
        """The end of the part that is valid JSON, and the quote that must be added to it."""
        self._in_string = False
        self._is_key = False
        self._escaped = False
        self._unicode = 0
        """Digits of a ``\\u`` escape that are still missing."""

    def feed(self, piece: str) -> None:
        if not self._stack:
            # The piece from its first bracket on; empty if there is none, or the value is
            # complete.
            starts = [at for at in (piece.find("{"), piece.find("[")) if at >= 0]
            piece = piece[min(starts) :] if starts and self._safe is None else ""
        begin = self._length
        self._pieces.append(piece)
        self._length += len(piece)
        for offset, char in enumerate(piece):
            end = begin + offset + 1
            if self._in_string:
                self._feed_string(char, end)
            elif char == '"':
                self._in_string = True
                if not self._is_key:
                    self._mark(end, '"')
            elif char in "{[":
                self._stack.append("}" if char == "{" else "]")
                self._is_key = char == "{"
                self._mark(end)
            elif char in "}]":
                if self._stack:
                    self._stack.pop()
                self._is_key = False
                self._mark(end)
                if not self._stack:
                    return
            elif char == ":":
                self._is_key = False
            elif char == ",":
                self._mark(end - 1)
                self._is_key = self._stack[-1] == "}"

    def _feed_string(self, char: str, end: int) -> None:
        if self._unicode:
            self._unicode -= 1
        elif self._escaped:
            self._escaped = False
            if char == "u":
                self._unicode = 4
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            if not self._is_key:
                self._mark(end)
            return
        if not self._is_key and not self._escaped and not self._unicode:
            self._mark(end, '"')

    def _mark(self, end: int, closer: str = "") -> None:
        # The brackets are those of the stack: whatever changes the stack calls this again.
        self._safe = (end, closer)

    def value(self) -> Json | NoValue:
        """The value so far; ``NO_VALUE`` if there is none."""
        if self._safe is None:
            return NO_VALUE
        end, closer = self._safe
        complete = "".join(self._pieces)
        self._pieces = [complete]
        text, closers = complete[:end] + closer, "".join(reversed(self._stack))
        try:
            value: Json = msgspec.json.decode(text + closers)
            return value
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            pass
        half = _HALF_SURROGATE.search(text, max(0, len(text) - 4096)) if text[-1:] == '"' else None
        if half is not None:
            text = text[: half.start(1)] + text[half.end(1) :]
        try:
            # Models write unescaped line breaks into strings.
            value = json.loads(text + closers, strict=False)
            return value
        except (ValueError, RecursionError):
            return NO_VALUE
