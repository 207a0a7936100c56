"""Questions of an agent to the person at the terminal: numbered choices, text, defaults.

A model, or an MCP server, wrote the question. So invisible characters are escaped, and each line
starts with a bar: no text can imitate a line of corral.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Generator

from corral.cli.ui import terminal
from corral.cli.ui.questions import BAR, SETTLE, drop_typed, typed_bytes, wrap, write
from corral.errors import ConfigError
from corral.events import AgentQuestion, QuestionField
from corral.question_replies import read_text, read_value
from corral.terminal_text import one_line, visible
from corral.values import Json

LONGEST_LINE = 64 * 1024
"""Bytes of a line that a person types."""


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
            with _echo(shown=not field.secret):
                answered, value = await _value(field, lines)
            if not answered:
                write("(no answer)\n")
                return None
            if value is not None:
                answers[field.key] = value
    return answers


async def _confirm(question: AgentQuestion, lines: AsyncIterator[str]) -> dict[str, Json] | None:
    write("  yes (y), no (n)? ")
    with _echo(shown=True):
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


@contextlib.contextmanager
def _echo(*, shown: bool) -> Generator[None]:
    """The terminal passes complete lines on, and shows what is typed unless it is secret."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    descriptor = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:  # the terminal was closed
        yield
        return
    wanted = [*before]
    flags = termios.ICANON | termios.ECHO
    wanted[3] = (wanted[3] | flags) if shown else ((wanted[3] | flags) & ~termios.ECHO)
    termios.tcsetattr(descriptor, termios.TCSADRAIN, wanted)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def _lines() -> AsyncGenerator[str]:
    """The lines that are typed, until the end of the input."""
    typed = b""
    async with contextlib.aclosing(typed_bytes()) as reads:
        async for read in reads:
            typed = (typed + read)[-LONGEST_LINE:]
            *complete, typed = typed.split(b"\n")
            for line in complete:
                yield line.decode("utf-8", "replace")
