"""The text of the answer, as it is printed."""

from __future__ import annotations

import sys

from corral.events import Event, Text


class AnswerPrinter:
    """The answer's text as it comes, a blank line between messages."""

    def __init__(self) -> None:
        self._open = False
        self._separator = ""
        """Written before the next message."""
        self._ends_line = True

    def text(self, event: Event) -> str:
        """The text to write for this event, often empty."""
        if event.parent is not None:
            return ""  # the text of a sub-agent is not the answer
        if isinstance(event, Text) and event.delta:
            separator = "" if self._open else self._separator
            self._open = True
            self._ends_line = event.delta.endswith("\n")
            return separator + event.delta
        if self._open and getattr(event, "call_id", None) is not None:
            self._open = False
            self._separator = "\n" if self._ends_line else "\n\n"
            if sys.stdout.isatty():  # progress follows on the same screen
                self._separator = "\n"
                return self.end()
        return ""

    def end(self) -> str:
        ended, self._ends_line = self._ends_line, True
        return "" if ended else "\n"
