"""Emphasis, code and links within a line of Markdown, in time proportional to the line.

The line is read from left to right, mark by mark. What a mark needs to end is not searched from
each mark again: the places where each kind of mark may end are listed once.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections.abc import Iterator

from corral.cli.ui.spans import Span

MAX_DEPTH = 8
"""Emphasis in emphasis. What is deeper is shown as it is."""

_MARK = re.compile(r"\\[!-/:-@\[-`{-~]|`+|!?\[|<|\*\*|__|~~|\*|_")
_LINK = re.compile(
    r"!?\[(?P<label>[^\]\[]++)\]"
    r"\((?P<url>[^()\s]++(?:\([^()\s]*+\)[^()\s]*+)?+)(?:\s++\"[^\"]*+\")?+\)"
)
_ADDRESS = re.compile(r"<(https?://[^<>\s]++)>")
_TICKS = re.compile("`+")
_EMPHASIS = {
    # mark: (style, what may begin it, what may end it)
    "**": ("bold", re.compile(r"\*\*(?=\S)"), re.compile(r"(?<=\S)\*\*")),
    "__": ("bold", re.compile(r"(?<!\w)__(?=\S)"), re.compile(r"(?<=\S)__(?!\w)")),
    "~~": ("strike", re.compile(r"~~(?=\S)"), re.compile(r"(?<=\S)~~")),
    "*": ("italic", re.compile(r"\*(?=[^\s*])"), re.compile(r"(?<=[^\s*])\*(?!\*)")),
    "_": ("italic", re.compile(r"(?<!\w)_(?=[^\s_])"), re.compile(r"(?<=[^\s_])_(?!\w)")),
}


def inline(text: str, style: str = "", depth: int = 0) -> list[Span]:
    """The parts of a line, with their styles. Everything that is not markup is in them."""
    if depth > MAX_DEPTH:
        return [Span(text, style)]
    return [span for span in _Line(text, style, depth).spans() if span.text]


class _Line:
    def __init__(self, text: str, style: str, depth: int) -> None:
        self._text, self._style, self._depth = text, style, depth

    def spans(self) -> Iterator[Span]:
        text, shown, at = self._text, 0, 0
        while (mark := _MARK.search(text, at)) is not None:
            begin = mark.start()
            element, end = self._element(mark[0], begin)
            if not element:
                # Of several stars the next may begin something; of several ticks, none.
                at = mark.end() if mark[0][0] == "`" else begin + 1
                continue
            yield Span(text[shown:begin], self._style)
            yield from element
            shown = at = end
        yield Span(text[shown:], self._style)

    def _element(self, mark: str, begin: int) -> tuple[list[Span], int]:
        """What begins at a mark, and where it ends; nothing if the mark is only a character."""
        if mark[0] == "\\":
            return [Span(mark[1], self._style)], begin + 2
        if mark[0] == "`":
            return self._code(mark, begin)
        if mark[-1] == "[" and (link := _LINK.match(self._text, begin)):
            spans = self._inner(link["label"], "underline")
            if link["url"] != link["label"]:
                spans.append(Span(f" ({link['url']})", "dim"))
            return spans, link.end()
        if mark == "<" and (address := _ADDRESS.match(self._text, begin)):
            return [Span(address[1], self._with("underline"))], address.end()
        return self._emphasis(mark, begin) if mark in _EMPHASIS else ([], begin)

    def _code(self, ticks: str, begin: int) -> tuple[list[Span], int]:
        inside = begin + len(ticks)
        end = _first(self._ticks.get(len(ticks), []), inside)
        if end is None:
            return [], begin
        code = self._text[inside:end]
        # Code may have a space at both ends, to start or end with a backtick.
        if code.startswith(" ") and code.endswith(" ") and code.strip():
            code = code[1:-1]
        return [Span(code, self._with("cyan"))], end + len(ticks)

    def _emphasis(self, mark: str, begin: int) -> tuple[list[Span], int]:
        style, may_begin, _ = _EMPHASIS[mark]
        inside = begin + len(mark)
        end = _first(self._ends(mark), inside + 1) if may_begin.match(self._text, begin) else None
        if end is None:
            return [], begin
        return self._inner(self._text[inside:end], style), end + len(mark)

    def _inner(self, text: str, added: str) -> list[Span]:
        return inline(text, self._with(added), self._depth + 1)

    def _with(self, added: str) -> str:
        return f"{self._style} {added}".strip()

    @functools.cached_property
    def _ticks(self) -> dict[int, list[int]]:
        """Where runs of ticks begin, by their length."""
        found: dict[int, list[int]] = {}
        for run in _TICKS.finditer(self._text):
            found.setdefault(len(run[0]), []).append(run.start())
        return found

    @functools.cached_property
    def _ends_by_mark(self) -> dict[str, list[int]]:
        return {}

    def _ends(self, mark: str) -> list[int]:
        """Where emphasis with this mark may end."""
        if mark not in self._ends_by_mark:
            ends = _EMPHASIS[mark][2].finditer(self._text)
            self._ends_by_mark[mark] = [end.start() for end in ends]
        return self._ends_by_mark[mark]


def _first(places: list[int], at: int) -> int | None:
    """The first of the sorted places that is not before ``at``."""
    number = bisect_left(places, at)
    return places[number] if number < len(places) else None
