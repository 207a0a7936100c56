"""Print one turn of an agent: the answer or the events on stdout, progress on stderr. Writing does
not block the event loop, however slow the reader is.

At a terminal the answer is Markdown, rendered line by line; the line that is not finished yet is
part of the live area. A file or a pipe gets the text unchanged."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from corral._cli.ui import terminal
from corral._cli.ui.progress import TurnProgress
from corral._cli.ui.signals import signals
from corral._cli.ui.spans import Line
from corral._core.terminal_text import Cleaner, json_line
from corral._system.terminal import is_interactive
from corral.errors import classes_by_code
from corral.events import Done, Event, Text, Thinking, to_json

if TYPE_CHECKING:
    import os

    from corral._cli.ui.questions import TerminalAsker
    from corral.events import Done
    from corral.result import Result


class ShownTurn(Protocol):
    """A turn that is printed: of an agent, of a named session, or of a transcript."""

    @property
    def failed(self) -> bool: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def cancel(self) -> None: ...

    def __aiter__(self) -> AsyncIterator[Event]: ...


def terminal_asker(
    progress: TurnProgress, cwd: str | os.PathLike[str] | None
) -> TerminalAsker | None:
    """Asks the person at the terminal; None if there is none."""
    if not is_interactive():
        return None
    from corral._cli.ui.questions import TerminalAsker

    return TerminalAsker(progress.paused, cwd)


async def print_turn(turn: ShownTurn, printer: Printer, progress: TurnProgress) -> Done | None:
    """Print the events of a turn to its end; return the last. Ctrl-C ends the turn."""
    last: Done | None = None
    progress.tail = printer.tail
    with signals(turn.cancel), progress, Stdout(lambda: turn.failed) as out:
        async for event in turn:
            if text := printer.text(event):
                progress.before_output()
                await out.write(text)
            progress.show(event, turn.notes)
            if isinstance(event, Done):
                last = event
        await out.write(printer.end())
    return last


def report_end(done: Done | None, progress: TurnProgress) -> int:
    """Print how a turn ended; returns the exit code. ``done``: its last event."""
    if done is None:
        return 1
    progress.summary(done)
    return exit_code(done)


POLL = 0.25
"""Seconds between two checks whether the run has ended while the reader does not read."""


class Printer:
    """Turns events into what is written to stdout."""

    def text(self, event: Event) -> str | bytes:
        """What to write for this event, often empty."""
        raise NotImplementedError

    def tail(self, columns: int) -> Sequence[Line]:
        """What is not finished yet, for the live area."""
        return ()

    def end(self) -> str:
        return ""


class _MessagePrinter(Printer):
    """Prints the messages of the answer, which are those of ``Result.text``."""

    def __init__(self) -> None:
        self._is_open = False
        """Whether a message is open."""
        self._message_id: str | None = None

    def end_message(self) -> str:
        """End the open message, if any; returns what to write."""
        raise NotImplementedError

    def _end_another(self, piece: Text) -> str:
        """What to write before a piece of another message than the open one. A piece without an id
        continues the message before it."""
        id = piece.message_id
        is_another = self._is_open and id is not None and id != self._message_id
        ended = self.end_message() if is_another else ""
        if not self._is_open:
            self._message_id = id
        return ended


def answer_printer(*, quiet: bool) -> Printer:
    """The printer of an answer, for what stdout is. ``quiet``: only its last message."""
    printer: AnswerPrinter | RenderedAnswer = AnswerPrinter()
    if terminal.is_live(sys.stdout):
        printer = RenderedAnswer(separated=not quiet and sys.stderr.isatty())
    return LastMessage(printer) if quiet else printer


class AnswerPrinter(_MessagePrinter):
    """The answer's text as it comes, a blank line between messages."""

    def __init__(self) -> None:
        super().__init__()
        self._cleaner = Cleaner() if sys.stdout.isatty() else None
        self._separator = ""
        """Written before the next message."""
        self._ends_line = True

    def text(self, event: Event) -> str:
        if event.parent is not None:
            return ""  # the text of a sub-agent is not the answer
        if isinstance(event, Text) and event.delta:
            ended = self._end_another(event)
            delta = self._cleaner.add(event.delta) if self._cleaner else event.delta
            separator = "" if self._is_open else self._separator
            self._is_open = True
            self._ends_line = event.delta.endswith("\n")
            return ended + separator + delta
        return self.end_message() if _ends_message(event) else ""

    def end_message(self) -> str:
        if not self._is_open:
            return ""
        self._is_open = False
        self._separator = "\n"
        return self.end()  # a line of progress may follow on the same screen

    def end(self) -> str:
        ended, self._ends_line = self._ends_line, True
        return "" if ended else "\n"


class RenderedAnswer(_MessagePrinter):
    """The answer as rendered Markdown, complete lines only. ``separated``: a blank line before and
    after each message."""

    def __init__(self, *, separated: bool) -> None:
        from corral._cli.ui.markdown import MarkdownStream  # not needed for a pipe

        super().__init__()
        self._separated = separated
        self._cleaner = Cleaner()
        self._markdown = MarkdownStream()
        self._is_first = True
        self._last_is_blank = False

    def text(self, event: Event) -> str:
        if event.parent is not None:
            return ""  # the text of a sub-agent is not the answer
        if isinstance(event, Text) and event.delta:
            ended = self._end_another(event)
            begins, self._is_open = not self._is_open, True
            is_separated = begins and (self._separated or not self._is_first)
            self._is_first = False
            lines = self._markdown.add(self._cleaner.add(event.delta), _columns())
            return ended + ("\n" if is_separated else "") + self._lines(lines)
        return self.end_message() if _ends_message(event) else ""

    def end_message(self) -> str:
        return self.end()

    def tail(self, columns: int) -> Sequence[Line]:
        return self._markdown.tail(columns)

    def end(self) -> str:
        if not self._is_open:
            return ""
        self._is_open = False
        text = self._lines(self._markdown.end(_columns()))
        return text + ("\n" if self._separated and not self._last_is_blank else "")

    def _lines(self, lines: Sequence[Line]) -> str:
        texts = [terminal.styled(line, sys.stdout) for line in lines]
        if texts:
            self._last_is_blank = not texts[-1]
        return "".join(f"{text}\n" for text in texts)


def _ends_message(event: Event) -> bool:
    """Whether text after this event is another message: after a tool call or a thought, or of
    another turn."""
    return getattr(event, "call_id", None) is not None or isinstance(event, Done | Thinking)


def _columns() -> int:
    return terminal.size(sys.stdout)[0]


class LastMessage(_MessagePrinter):
    """The last message, which is ``Result.final_text``, at the end of the turn. Those before it
    say what the agent is about to do."""

    def __init__(self, printer: AnswerPrinter | RenderedAnswer) -> None:
        super().__init__()
        self._printer = printer
        self._pieces: list[Text] = []

    def text(self, event: Event) -> str:
        if event.parent is not None:
            return ""
        if isinstance(event, Text) and event.delta:
            self._end_another(event)
            if not self._is_open:
                self._pieces.clear()
            self._is_open = True
            self._pieces.append(event)
        elif _ends_message(event):
            self.end_message()
        return ""

    def end_message(self) -> str:
        self._is_open = False
        return ""

    def end(self) -> str:
        pieces, self._pieces = self._pieces, []
        return "".join(map(self._printer.text, pieces)) + self._printer.end()


class EventPrinter(Printer):
    """The events, one JSON object per line."""

    def text(self, event: Event) -> bytes:
        return to_json(event) + b"\n"


class Stdout:
    """``with out:`` spans the run. ``given_up``: the run has ended, do not wait for the reader."""

    def __init__(self, given_up: Callable[[], bool]) -> None:
        self._given_up = given_up
        self._stream = terminal.raw_stdout()
        self._fd = self._stream.fileno()
        kind = os.fstat(self._fd).st_mode
        self._is_terminal = os.isatty(self._fd)
        self._may_block = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)

    def __enter__(self) -> Stdout:
        self._stream.flush()
        if self._may_block:
            os.set_blocking(self._fd, False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._may_block:
            os.set_blocking(self._fd, True)

    async def write(self, text: str | bytes) -> None:
        """Return when it is written, or when the run has ended and the reader does not read. A
        ``str`` is the text of a printer, ``bytes`` are lines of JSON: at a terminal their control
        characters are escaped. Raises ``OSError``."""
        if self._is_terminal and isinstance(text, bytes):
            text = json_line(text.decode("utf-8", "replace"))
        data = memoryview(text.encode("utf-8", "replace") if isinstance(text, str) else text)
        while data:
            try:
                data = self._write_some(data)
            except BlockingIOError:
                if self._given_up():
                    return
                await self._wait_writable()

    def _write_some(self, data: memoryview) -> memoryview:
        written = 0

        def write() -> None:
            nonlocal written
            written = os.write(self._fd, data)
            while self._is_terminal and written < len(data):
                written += os.write(self._fd, data[written:])

        ends_line = data[-1] == ord("\n")
        terminal.print_above(write, ends_line=ends_line, is_terminal=self._is_terminal)
        return data[written:]

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


def exit_code(end: Result | Done) -> int:
    """The exit code for the end of a run."""
    if end.status == "success":
        return 0
    if end.status == "denied":
        return 5
    kind = classes_by_code().get(end.error.code) if end.error else None
    return kind.cli_exit if kind else 1
