"""Redact secrets in a text that arrives in pieces.

A secret may be split between two pieces. So a suffix that could be the start of a secret is held
back until the next piece, or the end of the text. The cost of a piece depends on its length and on
the secrets, not on the length of the text before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from corral.system.environment import SecretRedactor


class StreamRedactor:
    """Redacts one text. ``add`` returns what can be shown now, ``finish`` the rest."""

    __slots__ = ("_find_first_char", "_redactor", "_values", "pending")

    def __init__(self, redactor: SecretRedactor) -> None:
        self._redactor = redactor
        self._values = redactor.values
        self._find_first_char = _find_first_char(redactor.values)
        self.pending = ""
        """What is held back."""

    def add(self, piece: str) -> str:
        if self._find_first_char is None or not (self.pending or self._find_first_char(piece)):
            return piece
        text = self.pending + piece
        cut = self._undecided_from(text)
        self.pending = text[cut:]
        return self._clean(text[:cut])

    def add_all(self, pieces: list[str]) -> list[str]:
        """Like ``add`` for each piece, in one step if no secret is in them; without empty texts.
        Searching all pieces at once is far cheaper than one by one."""
        shown = [self.pending, *pieces] if self.pending else pieces
        text = "".join(shown)
        for value in self._values:
            if value in text:
                return [part for part in map(self.add, pieces) if part]
        cut = self._undecided_from(text)
        self.pending = text[cut:]
        if cut == len(text) and all(shown):
            return shown
        # The pieces without the last ``length`` characters, and without empty ones.
        length = len(text) - cut
        left = [piece for piece in shown if piece]
        while length:
            last = left.pop()
            if len(last) > length:
                left.append(last[:-length])
            length -= min(length, len(last))
        return left

    def finish(self) -> str:
        pending, self.pending = self.pending, ""
        return self._clean(pending)

    def _clean(self, text: str) -> str:
        return self._redactor.clean_text(text) if any(v in text for v in self._values) else text

    def _undecided_from(self, text: str) -> int:
        """Where the part starts that may become a secret with the next piece."""
        cut = len(text)
        for value in self._values:
            at = _partial_match_at(text, value)
            cut = min(cut, at)
        moved = True
        while moved and cut < len(text):  # a complete secret must not be split
            moved = False
            for value in self._values:
                at = text.find(value, max(0, cut - len(value) + 1), cut + len(value))
                if 0 <= at < cut:
                    cut, moved = at, True
        return cut


@lru_cache(maxsize=16)
def _find_first_char(values: tuple[str, ...]) -> Callable[[str], re.Match[str] | None] | None:
    """A search for the first character of any of these values. Each message of a
    stream has its own redactor."""
    first = "".join(sorted({re.escape(value[0]) for value in values}))
    return re.compile(f"[{first}]").search if first else None


def _partial_match_at(text: str, value: str) -> int:
    """Where the longest suffix of the text starts that is a prefix of the value."""
    at = text.find(value[0], max(0, len(text) - len(value) + 1))
    while at >= 0:
        if value.startswith(text[at:]):
            return at
        at = text.find(value[0], at + 1)
    return len(text)
