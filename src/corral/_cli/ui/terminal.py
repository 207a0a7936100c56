"""All output of the command line goes through this module.

Answers, names, titles and errors come from models, agents and repositories. ``echo`` cleans
every text; ``answer`` and ``echo_json`` do not change it if stdout is a file or a pipe,
because there it is data. ``clean_stderr`` replaces ``sys.stderr`` with a cleaning writer, for
what other code prints: log messages, warnings, tracebacks. Control sequences are written only for
the live area and for styles, around texts that were cleaned before.

If there is a live area at the bottom of the terminal (``corral._cli.ui.live_progress``),
everything is printed above it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

from corral._core.terminal_text import Cleaner, clean, json_line

if TYPE_CHECKING:
    from corral._cli.ui.spans import Line


class PrintsAbove(Protocol):
    """The live area, as this module uses it."""

    def print_above(self, write: Callable[[], object], *, ends_line: bool) -> None: ...


_live_area: PrintsAbove | None = None


def set_live_area(area: PrintsAbove | None) -> None:
    """From now on everything is printed above this area."""
    global _live_area  # noqa: PLW0603
    _live_area = area


OUTPUT = "the output cannot be written"
"""In the place of a file's name in an error of stdout or stderr."""


def print_above(write: Callable[[], object], *, ends_line: bool, is_terminal: bool) -> None:
    """Call ``write``, which writes to stdout or stderr. ``ends_line``: what it writes ends with a
    newline. ``is_terminal``: it writes to a terminal."""
    area = _live_area
    try:
        if area is not None and is_terminal:
            area.print_above(write, ends_line=ends_line)
        else:
            write()
    except OSError as error:
        error.filename = OUTPUT
        raise


def _put(stream: TextIO, text: str) -> None:
    def write() -> None:
        stream.write(text)
        stream.flush()

    if text:
        print_above(write, ends_line=text.endswith("\n"), is_terminal=stream.isatty())


def size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of the terminal. ``COLUMNS`` and ``LINES`` come first."""
    texts = (os.environ.get(name, "") for name in ("COLUMNS", "LINES"))
    columns, rows = (int(text) if text.isdecimal() else 0 for text in texts)
    if not columns or not rows:
        found = (80, 24)
        with contextlib.suppress(OSError, ValueError):
            given = os.get_terminal_size(stream.fileno())
            found = (given.columns, given.lines)
        columns, rows = columns or found[0] or 80, rows or found[1] or 24
    return columns, rows


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text for a person, cleaned."""
    _put(raw_stderr() if err else sys.stdout, clean(text) + ("\n" if nl else ""))


def echo_err(text: str) -> None:
    """Print a line on stderr. A stderr that cannot be written does not stop a run."""
    with contextlib.suppress(OSError):
        echo(text, err=True)


def echo_styled(line: Line, *, err: bool = True) -> None:
    """Print a line with styles, if stderr (or stdout) is a terminal that shows them. The text is
    cleaned already. A stream that cannot be written does not stop a run."""
    stream = raw_stderr() if err else sys.stdout
    with contextlib.suppress(OSError):
        _put(stream, styled(line, stream) + "\n")


def styled(line: Line, stream: TextIO) -> str:
    """The line with its styles, if the stream is a terminal that shows them."""
    from corral._cli.ui import spans

    return spans.ansi(line, color=has_color()) if is_live(stream) else spans.plain(line)


def is_live(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can erase lines."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def live_stream() -> TextIO:
    """The terminal for the live area: stderr, or stdout if stderr is not a terminal."""
    return raw_stderr() if is_live(raw_stderr()) else sys.stdout


def has_color() -> bool:
    """Whether colors are wanted: see https://no-color.org."""
    return not os.environ.get("NO_COLOR")


def answer(text: str) -> None:
    """Print an answer, or a file: cleaned at a terminal, else unchanged."""
    _put(sys.stdout, clean(text) if sys.stdout.isatty() else text)


def data(piece: bytes) -> None:
    """Print a part of a file, unchanged. Only if stdout is not a terminal."""

    def write() -> None:
        sys.stdout.flush()
        left = memoryview(piece)
        while left:  # with PYTHONUNBUFFERED, one call may write a part of it, as on a full disk
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.buffer.flush()

    print_above(write, ends_line=False, is_terminal=False)


def answer_markdown(text: str) -> None:
    """Print an answer that is complete: rendered at a terminal, else unchanged."""
    if not is_live(sys.stdout):
        answer(text)
        return
    from corral._cli.ui.markdown import MarkdownStream

    markdown, columns = MarkdownStream(), size(sys.stdout)[0]
    lines = [*markdown.add(clean(text), columns), *markdown.end(columns)]
    _put(sys.stdout, "".join(styled(line, sys.stdout) + "\n" for line in lines))


_json_stdout: TextIO | None = None
"""Stdout itself, within ``json_only``."""


@contextlib.contextmanager
def json_only() -> Generator[None]:
    """Within the block only lines of JSON go to stdout (``echo_json``, ``raw_stdout``). What a
    program of the user prints goes to stderr."""
    global _json_stdout
    _json_stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        _json_stdout, sys.stdout = None, _json_stdout


def echo_json(line: str | bytes) -> None:
    """Print a line of JSON. At a terminal, control characters are escaped."""
    text = line if isinstance(line, str) else line.decode("utf-8", "replace")
    stream = raw_stdout()
    is_terminal = stream.isatty()
    if is_terminal:
        text = json_line(text)

    def write() -> None:
        stream.flush()
        stream.buffer.write(text.encode("utf-8", "replace") + b"\n")
        stream.buffer.flush()

    print_above(write, ends_line=True, is_terminal=is_terminal)


class CleanStream:
    """A text stream whose writes are cleaned. All other attributes are those of the stream."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream
        self._cleaner = Cleaner()

    def write(self, text: str) -> int:
        """Returns the length of what was given, as the stream would. Raises ``OSError``."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        _put(self.raw, self._cleaner.add(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stdout() -> TextIO:
    """Stdout itself, also within ``json_only``."""
    return _json_stdout or sys.stdout


def raw_stderr() -> TextIO:
    """Stderr itself, for the control sequences of status lines."""
    stream: object = sys.stderr
    return stream.raw if isinstance(stream, CleanStream) else sys.stderr


def clean_stderr() -> None:
    """From now on whatever is written to ``sys.stderr`` is cleaned."""
    stream: object = sys.stderr
    if not isinstance(stream, CleanStream):
        sys.stderr = cast("TextIO", CleanStream(sys.stderr))


def print_traceback(error: BaseException, write: Callable[[str], object] | None = None) -> None:
    """Print a traceback, cleaned: the message may come from a model or a repository."""
    import traceback

    text = "".join(traceback.format_exception(error))
    (write or sys.stderr.write)(clean(text))
