"""Secrets struck out of what comes in pieces."""

from __future__ import annotations

from collections.abc import Mapping

from corral.io.environment import Eraser


class Striker(Eraser):
    """An eraser that also knows a secret which is cut in two."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        super().__init__(secrets)
        self._values = tuple(secrets.values())

    def pieces(self) -> Pieces:
        """For one text that comes bit by bit."""
        return Pieces(self)

    def begun(self, text: str) -> int:
        """How many characters at the text's end may be the beginning of a secret."""
        longest = max(map(len, self._values), default=1) - 1
        for count in range(min(longest, len(text)), 0, -1):
            if any(value.startswith(text[-count:]) for value in self._values):
                return count
        return 0


class Pieces:
    """What may be told of a text so far; ``rest`` is what was held back at its end."""

    def __init__(self, striker: Striker) -> None:
        self._striker = striker
        self._held = ""

    def add(self, piece: str) -> str:
        text = self._striker.clean_text(self._held + piece)
        told = len(text) - self._striker.begun(text)
        self._held = text[told:]
        return text[:told]

    def rest(self) -> str:
        held, self._held = self._held, ""
        return held
