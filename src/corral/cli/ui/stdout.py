"""What a run writes to stdout: the text of the answer, or its events. Writing does not block the
event loop, however slow the reader is."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable
from types import TracebackType

from corral.events import Event, Text, to_json
from corral.terminal_text import Cleaner, json_line

POLL = 0.25
"""Seconds between two checks whether the run has ended while the reader does not read."""


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


class EventPrinter:
    """The events, one JSON object per line."""

    def text(self, event: Event) -> bytes:
        return to_json(event) + b"\n"

    def end(self) -> bytes:
        return b""


class Stdout:
    """``with out:`` spans the run. ``given_up``: the run has ended, do not wait for the reader."""

    def __init__(self, given_up: Callable[[], bool]) -> None:
        self._given_up = given_up
        self._fd = sys.stdout.fileno()
        kind = os.fstat(self._fd).st_mode
        self._is_terminal = os.isatty(self._fd)
        self._cleaner = Cleaner()
        self._may_block = (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)) and os.name == "posix"

    def __enter__(self) -> Stdout:
        sys.stdout.flush()
        if self._may_block:
            os.set_blocking(self._fd, False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._may_block:
            os.set_blocking(self._fd, True)

    async def write(self, text: str | bytes) -> None:
        """Return when it is written, or when the run has ended and the reader does not read. A
        ``str`` is an answer, ``bytes`` are lines of JSON. On a terminal control characters are
        escaped; in a file or pipe the data is unchanged. Raises ``OSError``."""
        if self._is_terminal and isinstance(text, str):
            text = self._cleaner.add(text)
        elif self._is_terminal and isinstance(text, bytes):
            text = json_line(text.decode("utf-8", "replace"))
        data = memoryview(text.encode("utf-8", "replace") if isinstance(text, str) else text)
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                if self._given_up():
                    return
                await self._wait_writable()

    async def _wait_writable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._fd, ready.set)
        try:
            async with asyncio.timeout(POLL):
                await ready.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_writer(self._fd)
