"""Secrets redacted from text that arrives in pieces, however it is cut.

Only a suffix that could be the beginning of a secret is held back, until the next piece
decides, or the text ends. The cost of a piece depends on its own length and on the secrets,
not on how much came before.
"""

from __future__ import annotations

import re

from corral.system.environment import SecretRedactor


class Pieces:
    """One text. ``add`` returns what can be shown by now; ``rest`` what was held back."""

    def __init__(self, eraser: SecretRedactor) -> None:
        self._eraser = eraser
        self._values = [value for value in eraser.values if value]
        first = "".join(sorted({re.escape(value[0]) for value in self._values}))
        self._could_begin = re.compile(f"[{first}]").search if first else None
        self._held = ""

    @property
    def held(self) -> str:
        return self._held

    def add(self, piece: str) -> str:
        if self._could_begin is None or not (self._held or self._could_begin(piece)):
            return piece
        text = self._held + piece
        cut = self._open_from(text)
        self._held = text[cut:]
        return self._clean(text[:cut])

    def rest(self) -> str:
        held, self._held = self._held, ""
        return self._clean(held)

    def _clean(self, text: str) -> str:
        return self._eraser.clean_text(text) if any(v in text for v in self._values) else text

    def _open_from(self, text: str) -> int:
        """Where the part begins that the next piece may make a secret of."""
        cut = min((_begun(text, value) for value in self._values), default=len(text))
        moved = True
        while moved and cut < len(text):  # no complete secret may be cut in two
            moved = False
            for value in self._values:
                at = text.find(value, max(0, cut - len(value) + 1), cut + len(value))
                if 0 <= at < cut:
                    cut, moved = at, True
        return cut


def _begun(text: str, value: str) -> int:
    """Where the longest suffix of the text begins that is a beginning of the value."""
    at = text.find(value[0], max(0, len(text) - len(value) + 1))
    while at >= 0:
        if value.startswith(text[at:]):
            return at
        at = text.find(value[0], at + 1)
    return len(text)
