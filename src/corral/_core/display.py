"""How results and errors look in a Python prompt and in a notebook.

The text of a model is never trusted: in HTML it is escaped, and in Markdown it is in a code fence
that it cannot close. So no tag, link or image of an answer is loaded. To render an answer as
Markdown, pass ``result.text`` to the notebook's own ``Markdown``.

An error shows the line of the caller, not the lines inside corral: its message and hint say what
happened, and the frames inside corral, and the errors that led to it, only hide that. Public
functions remove them with ``short_traceback``. With the logger ``corral`` at level ``DEBUG`` the
complete traceback is logged first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ContextDecorator
from types import TracebackType

import msgspec

from corral._core.spending import dollars
from corral._core.terminal_text import counted
from corral.errors import CorralError, lacks_descriptors, no_descriptor_error
from corral.values import Cost, Usage

SHORT = 60
"""Characters of a text in a ``repr``, or in a cell of a table."""
MOST_ROWS = 200
"""Rows of a table that a notebook shows."""


class Card(msgspec.Struct, frozen=True, gc=False):
    """What is shown of a result."""

    title: str
    facts: Sequence[str]
    text: str
    rows: Sequence[Mapping[str, object]] = ()
    """A table below the text, in HTML."""

    def html(self) -> str:
        facts = " · ".join(_escape(fact) for fact in self.facts)
        head = (
            f"<div><b>{_escape(self.title)}</b> <small>{facts}</small>"
            '<pre style="white-space: pre-wrap; margin: 0.5em 0">'
            f"{_escape(self.text)}</pre>"
        )
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        if not columns:
            return f"{head}</div>"
        lines = [f"<tr>{''.join(f'<th>{_escape(name)}</th>' for name in columns)}</tr>"]
        for row in self.rows[:MOST_ROWS]:
            shown = ("" if row.get(name) is None else str(row.get(name)) for name in columns)
            cells = (f"<td>{_escape(shorten(text))}</td>" for text in shown)
            lines.append(f"<tr>{''.join(cells)}</tr>")
        more = len(self.rows) - MOST_ROWS
        rest = f"… {more:,} more" if more > 0 else ""
        return f"{head}<table>{''.join(lines)}</table>{rest}</div>"

    def markdown(self) -> str:
        longest = max((len(run) for run in re.findall("`+", self.text)), default=0)
        fence = "`" * max(3, longest + 1)
        facts = " · ".join(_plain(fact) for fact in self.facts)
        return f"**{_plain(self.title)}** {facts}\n\n{fence}text\n{self.text}\n{fence}\n"

    def short(self) -> str:
        """One line, for ``repr``."""
        facts = f" ({', '.join(map(shorten, self.facts))})" if self.facts else ""
        return f"<{self.title}: {shorten(self.text)!r}{facts}>"


class Displayed:
    """A result with a short ``repr``, and HTML and Markdown for notebooks."""

    __slots__ = ()

    def _card(self) -> Card:
        """What is shown."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._card().short()

    def _repr_html_(self) -> str:
        return self._card().html()

    def _repr_markdown_(self) -> str:
        return self._card().markdown()


def shorten(text: str, limit: int = SHORT) -> str:
    """The text on one line, cut with an ellipsis."""
    line = " ".join(text[: limit * 10].split())
    return line if len(line) <= limit and len(text) <= limit * 10 else f"{line[: limit - 1]}…"


def spent(usage: Usage, cost: Cost, seconds: float = 0.0) -> Iterable[str]:
    """The tokens, the cost and the duration, as far as they are known."""
    if usage.total is not None:
        yield f"{usage.total:,} tokens"
    if cost.usd is not None:
        yield dollars(cost.usd)
    if seconds:
        yield f"{seconds:.1f} s"


def count(number: int, noun: str) -> Iterable[str]:
    """``2 files``, ``1 file``; nothing for 0."""
    if number:
        yield counted(number, noun)


def _escape(text: str) -> str:
    from html import escape  # loads a table of 2,000 names

    return escape(text)


def _plain(text: str) -> str:
    """Text without a meaning in Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|~])", r"\\\1", _escape(text)).replace("\n", " ")


class _ShortTraceback(ContextDecorator):
    """A block whose ``CorralError`` shows no frame of the block, nor of what it called.

    Python adds a frame to a traceback when an error leaves it, but not when a ``with`` statement
    raises it again. So the frame of the block itself is not shown either.

    Without a free descriptor Python itself raises, wherever a file is opened or a module is loaded.
    That becomes a ``ProcessFailed``.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, CorralError):
            import logging

            log = logging.getLogger("corral")
            if error.__traceback__ is not None and log.isEnabledFor(logging.DEBUG):
                log.debug("%s was raised", type(error).__name__, exc_info=error)
            if error.__cause__ is not None:
                error.__context__ = error.__cause__
            error.__cause__ = None  # this also hides the context, which stays for debuggers
            error.__traceback__ = None
        elif error is not None and lacks_descriptors(error):
            raise no_descriptor_error(error) from error


short_traceback: _ShortTraceback = _ShortTraceback()
"""``with short_traceback:`` in a public function, or ``@short_traceback`` above it."""
