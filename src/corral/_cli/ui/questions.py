"""Questions to the person at the terminal: permissions, answered with one key, and questions of the
agent, with numbered choices, text and defaults.

A permission question shows all that would happen: the command, the change of a file as a diff, the
arguments. A diff leaves out only lines that stay as they are. What does not fit on the screen is
shown in pages, and can be allowed only after the last page.

A model, or an MCP server, wrote what is shown. So invisible characters are escaped, and each line
starts with a bar: no text can imitate a line of corral.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from corral._cli.ui import terminal
from corral._cli.ui.spans import Line, StyledText, plain
from corral._core.question_replies import read_text, read_value
from corral._core.terminal_text import one_line, visible
from corral._runs.permission_details import details
from corral.errors import ConfigError
from corral.events import AgentQuestion, Decision, PermissionRequest, QuestionField
from corral.values import Json

if TYPE_CHECKING:
    from corral._core.question_replies import AnswerLike


_ANSWERS: dict[str, Decision] = {
    "y": "allow_once",
    "yes": "allow_once",
    "a": "allow_session",
    "n": "deny",
    "no": "deny",
    "c": "cancel",
    "\x04": "deny",
    "\x1b": "deny",
}
"""Ctrl-D and Esc are no."""
_CONFIRMED: dict[Decision, str] = {
    "allow_once": "yes",
    "allow_session": "yes, for this session",
    "deny": "no",
    "cancel": "stop",
}
BAR = "  | "
SETTLE = 0.3
"""Seconds between the question and the first key that counts: a person may be typing."""
LONGEST_LINE = 64 * 1024
"""Bytes of a line that a person types."""
MIN_PAGE_LINES = 8
"""Lines of a page at least, however small the terminal is."""


class TerminalAsker:
    """An ``ask`` for sessions. ``paused`` hides the live area; ``cwd`` is the session's folder."""

    def __init__(
        self,
        paused: Callable[[], AbstractContextManager[None]],
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self._paused = paused
        self._cwd = os.fspath(cwd or ".")

    async def __call__(self, request: PermissionRequest | AgentQuestion) -> AnswerLike:
        try:
            if isinstance(request, PermissionRequest):
                with self._paused(), _terminal_mode(lines=False, shown=False):
                    return await self._read_decision(request)
            with self._paused():
                return await ask_person(request)
        except asyncio.CancelledError as end:
            if end.args:  # somebody else was first: the message says who
                write(f"{end.args[0]}\n")
            raise

    async def _read_decision(self, request: PermissionRequest) -> Decision:
        columns, rows = terminal.size(sys.stderr)
        pages = Pages(lines_of(request, columns, self._cwd), rows)
        write("\n" + pages.first())  # an answer may have left the cursor within a line
        await asyncio.sleep(SETTLE)
        drop_typed()
        write(pages.prompt())
        async with contextlib.aclosing(_keys()) as keys:
            async for typed in keys:
                answer = _ANSWERS.get(typed)
                if typed == "v" and pages.more:
                    write("v\n" + pages.next() + pages.prompt())
                elif answer in ("deny", "cancel") or (answer is not None and not pages.more):
                    write(f"{_CONFIRMED[answer]}\n")
                    return answer
                else:
                    write("\n" + pages.prompt())
        return "deny"  # the terminal was closed


class Pages:
    """The lines of a question, as many at a time as fit on the screen."""

    def __init__(self, lines: Sequence[Line], rows: int) -> None:
        self._lines = [terminal.styled(line, terminal.raw_stderr()) for line in lines]
        self._size = sum(len(plain(line)) for line in lines)
        self._room = max(MIN_PAGE_LINES, rows - 4)
        self._shown = 0

    @property
    def more(self) -> bool:
        """Whether something has not been shown yet."""
        return self._shown < len(self._lines)

    def first(self) -> str:
        """The complete question if it fits; else its size, its first and its last lines."""
        lines = self._lines
        if len(lines) <= self._room:
            self._shown = len(lines)
            return "".join(f"{line}\n" for line in lines)
        half = (self._room - 2) // 2
        note = f"  ... {len(lines) - 2 * half:,} of {len(lines):,} lines are not shown here"
        head = "".join(f"{line}\n" for line in lines[:half])
        tail = "".join(f"{line}\n" for line in lines[-half:])
        return f"{head}{note} ({self._size:,} characters in all) ...\n{tail}"

    def next(self) -> str:
        begin, self._shown = self._shown, min(self._shown + self._room, len(self._lines))
        page = "".join(f"{line}\n" for line in self._lines[begin : self._shown])
        return f"{page}  lines {begin + 1:,} to {self._shown:,} of {len(self._lines):,}\n"

    def prompt(self) -> str:
        if self.more:
            what = "the next page" if self._shown else "all of it, page by page"
            return f"  view {what} (v), no (n), stop (c)? To allow it, view all pages first: "
        return "  allow once (y), for this session (a), no (n), stop (c)? "


def lines_of(request: PermissionRequest, columns: int, cwd: str = ".") -> list[Line]:
    """The complete question, in lines that are no wider than the terminal. The first line is
    written by corral; every other line starts with a bar."""
    lines: list[Line] = [[StyledText(f"? {request.kind}: permission is needed", "bold")]]
    for detail in details(request.input, request.title, cwd):
        for part in wrap(detail.text, columns - len(BAR) - 1):
            lines.append([StyledText(BAR), StyledText(part, detail.style)])
    return lines


def wrap(line: str, room: int) -> list[str]:
    """The line in parts that the terminal does not wrap by itself: a wrapped part starts at
    the left edge, where only lines of corral may start."""
    room = max(room, 10)
    parts: list[str] = []
    part, width = "", 0
    for char in line:
        wide = 1 if char < "\x7f" or unicodedata.east_asian_width(char) in ("N", "Na", "H") else 2
        if width + wide > room:
            parts.append(part)
            part, width = "", 0
        part, width = part + char, width + wide
    return [*parts, part]


def write(text: str) -> None:
    """Write lines of corral's own, and texts that were cleaned."""
    stream = terminal.raw_stderr()
    stream.write(text)
    stream.flush()


@contextlib.contextmanager
def _terminal_mode(*, lines: bool, shown: bool) -> Generator[None]:
    """The terminal passes on complete lines, or each key at once; it shows what is typed or not."""
    descriptor = sys.stdin.fileno()
    before = None
    with contextlib.suppress(termios.error):  # the terminal was closed
        before = termios.tcgetattr(descriptor)
        if lines:
            mode = [*before]
            mode[3] = (mode[3] | termios.ICANON | termios.ECHO) & ~(0 if shown else termios.ECHO)
            termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)
        else:
            tty.setcbreak(descriptor)
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def drop_typed() -> None:
    """Input that was typed before the question must not answer it."""
    with contextlib.suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


async def typed_bytes() -> AsyncGenerator[bytes]:
    """What is typed, as it arrives, until the end of the input. Without a thread: a thread that
    reads could not be stopped."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    descriptor = sys.stdin.fileno()
    loop.add_reader(descriptor, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            try:
                read = os.read(descriptor, 4_096)
            except OSError:  # the terminal was closed
                read = b""
            if not read:
                return
            yield read
    finally:
        loop.remove_reader(descriptor)


async def _keys() -> AsyncGenerator[str]:
    """The keys that are typed; a text that was pasted counts as one."""
    async with contextlib.aclosing(typed_bytes()) as reads:
        async for read in reads:
            for typed in read.decode("utf-8", "replace").split():
                yield typed.lower()


async def ask_person(question: AgentQuestion) -> dict[str, Json] | None:
    """The answers, by the keys of the fields; None for no answer (Ctrl-D)."""
    columns, _ = terminal.size(sys.stderr)
    who = f"the MCP server {one_line(question.source)}" if question.source else "the agent"
    write(f"\n? {who} asks you (Ctrl-D: no answer)\n")
    if question.title:
        write(_barred(question.title, columns))
    await asyncio.sleep(SETTLE)
    drop_typed()
    answers: dict[str, Json] = {}
    async with contextlib.aclosing(_lines()) as lines:
        if not question.fields:
            return await _confirm(question, lines)
        for field in question.fields:
            write(_describe(field, columns))
            with _terminal_mode(lines=True, shown=not field.secret):
                answered, value = await _value(field, lines)
            if not answered:
                write("(no answer)\n")
                return None
            if value is not None:
                answers[field.key] = value
    return answers


async def _confirm(question: AgentQuestion, lines: AsyncIterator[str]) -> dict[str, Json] | None:
    write("  yes (y), no (n)? ")
    with _terminal_mode(lines=True, shown=True):
        async for line in lines:
            with contextlib.suppress(ConfigError):
                return read_text(question, line)
            return None
    write("(no answer)\n")
    return None


async def _value(field: QuestionField, lines: AsyncIterator[str]) -> tuple[bool, Json]:
    """Whether the field was answered, and its value."""
    write(_prompt(field))
    async for line in lines:
        if field.secret:
            write("\n")
        try:
            return True, read_value(field, line)
        except ConfigError as error:
            write(f"  {one_line(error.message)}\n{_prompt(field)}")
    return False, None


def _describe(field: QuestionField, columns: int) -> str:
    header = f"{field.header}: " if field.header and field.header != field.text else ""
    lines = _barred(f"{header}{field.text}", columns)
    for number, option in enumerate(field.options, 1):
        more = f" - {option.description}" if option.description else ""
        lines += _barred(f"  {number}. {option.label}{more}", columns)
    return lines


def _prompt(field: QuestionField) -> str:
    wanted = {"boolean": "yes or no", "number": "a number", "integer": "a number"}.get(
        field.type, "your answer"
    )
    if field.options:
        wanted = "numbers, with commas" if field.multiple else "a number"
        wanted += " or a text" if field.free_text else ""
    if field.default is not None:
        wanted += f", Enter for {one_line(str(field.default))}"
    elif not field.required:
        wanted += ", Enter to leave it out"
    return f"  {wanted}: "


def _barred(text: str, columns: int) -> str:
    lines = visible(text).expandtabs(4).strip("\n").split("\n")
    parts = (part for line in lines for part in wrap(line, columns - len(BAR) - 1))
    return "".join(f"{BAR}{part}\n" for part in parts)


async def _lines() -> AsyncGenerator[str]:
    """The lines that are typed, until the end of the input."""
    typed = b""
    async with contextlib.aclosing(typed_bytes()) as reads:
        async for read in reads:
            typed = (typed + read)[-LONGEST_LINE:]
            *complete, typed = typed.split(b"\n")
            for line in complete:
                yield line.decode("utf-8", "replace")
