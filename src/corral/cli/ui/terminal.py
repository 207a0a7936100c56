"""All output of the command line goes through this module.

Answers, names, titles and errors come from models, agents and repositories. ``echo`` cleans
every text; ``answer`` and ``echo_json`` do not change it if stdout is a file or a pipe,
because there it is data. ``clean_stderr`` replaces ``sys.stderr`` with a cleaning writer, for
what other code prints: log messages, warnings, tracebacks. Only ``console`` writes control
sequences: those of the status lines, around texts that were cleaned before.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, cast

from corral.terminal_text import Cleaner, clean, json_line

if TYPE_CHECKING:
    from rich.console import Console


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text for a person, cleaned."""
    stream = sys.stderr if err else sys.stdout
    stream.write(clean(text) + ("\n" if nl else ""))
    stream.flush()


def echo_err(text: str) -> None:
    """Print a line on stderr. A stderr that cannot be written does not stop a run."""
    with contextlib.suppress(OSError):
        echo(text, err=True)


def answer(text: str) -> None:
    """Print an answer, or a file: cleaned at a terminal, else unchanged."""
    sys.stdout.write(clean(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def echo_json(line: str | bytes) -> None:
    """Print a line of JSON. At a terminal, control characters are escaped."""
    text = line if isinstance(line, str) else line.decode("utf-8", "replace")
    if sys.stdout.isatty():
        text = json_line(text)
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()


def console() -> Console:
    """A rich console on stderr. What is printed there must be cleaned before, and is neither
    markup nor emoji codes."""
    from rich.console import Console

    return Console(file=raw_stderr(), highlight=False, markup=False, emoji=False)


class CleanStream:
    """A text stream whose writes are cleaned. All other attributes are those of the stream."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream
        self._cleaner = Cleaner()

    def write(self, text: str) -> int:
        """Returns the length of what was given, as the stream would. Raises ``OSError``."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.raw.write(self._cleaner.add(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


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
