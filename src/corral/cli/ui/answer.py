"""An answer on its way to the terminal."""

from __future__ import annotations

import sys

from corral.events import Event, Text


class AnswerPrinter:
    """The answer's text as it comes, messages parted by a blank line."""

    def __init__(self) -> None:
        self._open = False
        self._owed = ""
        """What must be written before the next message."""
        self._ends_line = True

    def text(self, event: Event) -> str:
        """What to write for the event."""
        if event.parent is not None:
            return ""  # a sub-agent's words are not the answer
        if isinstance(event, Text) and event.delta:
            owed = "" if self._open else self._owed
            self._open = True
            self._ends_line = event.delta.endswith("\n")
            return owed + event.delta
        if self._open and getattr(event, "call_id", None) is not None:
            self._open = False
            self._owed = "\n" if self._ends_line else "\n\n"
            if sys.stdout.isatty():  # progress follows on the same screen
                self._owed = "\n"
                return self.end()
        return ""

    def end(self) -> str:
        ended, self._ends_line = self._ends_line, True
        return "" if ended else "\n"
