"""The text of an answer of several messages. Loads nothing."""

from __future__ import annotations


class MessageText:
    """Decides where line ends are needed: each message starts on a new line."""

    def __init__(self) -> None:
        self._open = False
        self._separator = ""
        """Written before the next message."""
        self._ends_line = True

    def before(self, delta: str) -> str:
        """What is written before a piece of text."""
        separator = "" if self._open else self._separator
        self._open = True
        self._ends_line = delta.endswith("\n")
        return separator

    def end_message(self) -> str:
        """What is written when a tool call follows a message; a line of progress may follow on the
        same screen."""
        if not self._open:
            return ""
        self._open = False
        self._separator = "\n"
        return self.end()

    def end(self) -> str:
        """What is written after the last piece of text."""
        ended, self._ends_line = self._ends_line, True
        return "" if ended else "\n"
