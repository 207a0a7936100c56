"""Renders Markdown for a terminal while it arrives.

It works line by line: a line of the source becomes one or more lines of the screen as soon as it
is complete, so that an answer can be printed while it is written. Line breaks of the source stay.
Only a table waits for its end, because its columns depend on all rows. Every text that is not
markup is shown; what is not understood is shown as it is.

The input is clean: it has no control characters except newline (``corral._core.terminal_text``).
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from corral._cli.ui import spans
from corral._cli.ui.spans import Line, StyledText

LARGEST_TABLE = 200
"""Rows. A longer table is printed in parts."""
LONGEST_LINE = 10_000
"""Characters. The unfinished line is rendered again with each piece that comes, so a longer one is
printed in parts."""
DEEPEST_QUOTE = 4
"""Bars before a quote."""
MIN_COLUMN = 6
"""Columns of the screen for a column of a table, at least."""

_FENCE = re.compile(r"( *+)(`{3,}+|~{3,}+) *+([^`\s]*+)[^`]*+$")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:\s(.*))?$")
_RULE = re.compile(r" {0,3}([-*_])(?:\s*\1){2,}\s*$")
_ITEM = re.compile(r"(\s*)([-*+]|\d{1,9}[.)])(\s+)(?:\[([ xX])\]\s+)?(.*)$")
_QUOTE = re.compile(r"((?: {0,3}+> ?+)++)(.*)$")
_DELIMITER = re.compile(r":?-+:?")
_CELLS = re.compile(r"(?<!\\)\|")


class MarkdownStream:
    """``add`` returns the finished lines. ``tail`` is what is not finished yet; it may change."""

    def __init__(self) -> None:
        self._partial = ""
        self._fence: tuple[str, int] | None = None
        """The marks of the open code block, and its indentation."""
        self._table: list[str] = []

    def add(self, text: str, columns: int) -> list[Line]:
        *complete, partial = (self._partial + text).split("\n")
        *parts, self._partial = _cut(partial)
        sources = [part for line in complete for part in _cut(line)] + parts
        return [line for source in sources for line in self._take(source, columns)]

    def end(self, columns: int) -> list[Line]:
        """Finish what is unfinished."""
        partial, self._partial = self._partial, ""
        lines = self._take(partial, columns) if partial else []
        lines += self._end_table(columns)
        self._fence = None
        return lines

    def tail(self, columns: int) -> list[Line]:
        """What is unfinished, as it looks now."""
        lines = _table(self._table, columns) if self._table else []
        if self._partial:
            lines += self._render(self._partial, columns)
        return lines

    def _take(self, source: str, columns: int) -> list[Line]:
        source = source.rstrip("\r").expandtabs(4)
        if self._fence is None and source.lstrip().startswith("|"):
            self._table.append(source)
            return self._end_table(columns) if len(self._table) >= LARGEST_TABLE else []
        lines = self._end_table(columns)
        fence = _FENCE.match(source)
        if self._fence is not None:
            if fence and not fence[3] and fence[2].startswith(self._fence[0]):
                self._fence = None
                return lines
        elif fence:
            self._fence = fence[2], len(fence[1])
            return lines
        return [*lines, *self._render(source, columns)]

    def _render(self, source: str, columns: int) -> list[Line]:
        if self._fence is None:
            return block(source, columns)
        indent = self._fence[1]
        code = source[indent:] if source[:indent].isspace() or not indent else source.lstrip()
        return [[StyledText(" " * (indent + 4)), StyledText(code, "cyan")]] if code else [[]]

    def _end_table(self, columns: int) -> list[Line]:
        rows, self._table = self._table, []
        return _table(rows, columns) if rows else []


def _cut(line: str) -> list[str]:
    return [line[at : at + LONGEST_LINE] for at in range(0, len(line), LONGEST_LINE)] or [""]


def block(source: str, columns: int) -> list[Line]:
    """One line of the source: a heading, an item, a quote, a rule or text."""
    room = max(columns - 1, 10)
    if _RULE.match(source):
        return [[StyledText("─" * min(room, 40), "dim")]]
    if heading := _HEADING.match(source):
        style = "bold underline" if len(heading[1]) == 1 else "bold"
        text = (heading[2] or "").strip()
        unclosed = text.rstrip("#")  # marks may close a heading, too
        if not unclosed or unclosed[-1].isspace():
            text = unclosed.rstrip()
        return spans.wrap(inline(text, style), room)
    if quote := _QUOTE.match(source):
        bar = [StyledText("│ " * min(quote[1].count(">"), DEEPEST_QUOTE), "dim")]
        return spans.wrap([*bar, *inline(quote[2], "italic")], room, bar)
    if item := _ITEM.match(source):
        return _item(item, room)
    lead = source[: len(source) - len(source.lstrip())]
    return spans.wrap(
        [StyledText(lead), *inline(source.lstrip())], room, [StyledText(lead[: room // 2])]
    )


def _item(item: re.Match[str], room: int) -> list[Line]:
    lead, mark, _, checked, text = item.groups()
    mark = "•" if mark in "-*+" else mark
    box = "" if checked is None else "☐ " if checked == " " else "☑ "
    start = [StyledText(lead), StyledText(f"{mark} ", "cyan"), StyledText(box)]
    indent = [StyledText(" " * min(spans.width(start), room // 2))]
    return spans.wrap([*start, *inline(text)], room, indent)


def _table(rows: Sequence[str], columns: int) -> list[Line]:
    """A table with aligned columns; the rows as text if they are no table."""
    if len(rows) < 2 or not all(map(_DELIMITER.fullmatch, _cells(rows[1]))):
        return [line for row in rows for line in block(row, columns)]
    count = max(len(_cells(row)) for row in rows)
    head = _styled_cells(rows[0], count, "bold")
    table = [head, *(_styled_cells(row, count) for row in rows[2:])]
    widths = _widths(table, columns - 1 - 3 * (count - 1))
    lines = _row(head, widths)
    lines.append([StyledText("─┼─".join("─" * each for each in widths), "dim")])
    for row in table[1:]:
        lines += _row(row, widths)
    return lines


def _styled_cells(row: str, count: int, style: str = "") -> list[Line]:
    cells = _cells(row)
    return [inline(cell, style) for cell in [*cells, *[""] * (count - len(cells))]]


def _cells(row: str) -> list[str]:
    text = row.strip().removeprefix("|")
    text = text[:-1] if text.endswith("|") and not text.endswith("\\|") else text
    return [cell.strip() for cell in _CELLS.split(text)]


def _widths(table: Sequence[Sequence[Line]], room: int) -> list[int]:
    """The widths of the columns. The widest are made narrower until the table fits."""
    widths = [
        max(1, *(spans.width(cell) for cell in column)) for column in zip(*table, strict=True)
    ]
    while sum(widths) > room and max(widths) > MIN_COLUMN:
        widest = widths.index(max(widths))
        widths[widest] -= 1
    return widths


def _row(row: Sequence[Line], widths: Sequence[int]) -> list[Line]:
    wrapped = [spans.wrap(cell, each) for cell, each in zip(row, widths, strict=True)]
    lines: list[Line] = []
    for number in range(max(map(len, wrapped))):
        line: list[StyledText] = []
        for column, parts in enumerate(wrapped):
            part = parts[number] if number < len(parts) else ()
            line += [StyledText(" │ ", "dim")] if column else []
            line += [*part, StyledText(" " * (widths[column] - spans.width(part)))]
        # The line without spaces at its end.
        while line and not line[-1].text.strip() and not line[-1].style:
            line.pop()
        lines.append(line)
    return lines


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


def inline(text: str, style: str = "", depth: int = 0) -> list[StyledText]:
    """The parts of a line, with their styles. Everything that is not markup is in them."""
    if depth > MAX_DEPTH:
        return [StyledText(text, style)]
    return [span for span in _InlineParser(text, style, depth).spans() if span.text]


class _InlineParser:
    """Finds emphasis, code and links within a line, in time proportional to the line: it is read
    from left to right, mark by mark. What a mark needs to end is not searched from each mark again;
    the places where each kind of mark may end are listed once."""

    def __init__(self, text: str, style: str, depth: int) -> None:
        self._text, self._style, self._depth = text, style, depth
        self._ends_by_mark: dict[str, list[int]] = {}

    def spans(self) -> Iterator[StyledText]:
        text, shown, at = self._text, 0, 0
        while (mark := _MARK.search(text, at)) is not None:
            begin = mark.start()
            element, end = self._element(mark[0], begin)
            if not element:
                # Of several stars the next may begin something; of several ticks, none.
                at = mark.end() if mark[0][0] == "`" else begin + 1
                continue
            yield StyledText(text[shown:begin], self._style)
            yield from element
            shown = at = end
        yield StyledText(text[shown:], self._style)

    def _element(self, mark: str, begin: int) -> tuple[list[StyledText], int]:
        """What begins at a mark, and where it ends; nothing if the mark is only a character."""
        if mark[0] == "\\":
            return [StyledText(mark[1], self._style)], begin + 2
        if mark[0] == "`":
            return self._code(mark, begin)
        if mark[-1] == "[" and (link := _LINK.match(self._text, begin)):
            spans = self._inner(link["label"], "underline")
            if link["url"] != link["label"]:
                spans.append(StyledText(f" ({link['url']})", "dim"))
            return spans, link.end()
        if mark == "<" and (address := _ADDRESS.match(self._text, begin)):
            return [StyledText(address[1], self._with("underline"))], address.end()
        return self._emphasis(mark, begin) if mark in _EMPHASIS else ([], begin)

    def _code(self, ticks: str, begin: int) -> tuple[list[StyledText], int]:
        inside = begin + len(ticks)
        end = _first(self._ticks.get(len(ticks), []), inside)
        if end is None:
            return [], begin
        code = self._text[inside:end]
        # Code may have a space at both ends, to start or end with a backtick.
        if code.startswith(" ") and code.endswith(" ") and code.strip():
            code = code[1:-1]
        return [StyledText(code, self._with("cyan"))], end + len(ticks)

    def _emphasis(self, mark: str, begin: int) -> tuple[list[StyledText], int]:
        style, may_begin, _ = _EMPHASIS[mark]
        inside = begin + len(mark)
        end = _first(self._ends(mark), inside + 1) if may_begin.match(self._text, begin) else None
        if end is None:
            return [], begin
        return self._inner(self._text[inside:end], style), end + len(mark)

    def _inner(self, text: str, added: str) -> list[StyledText]:
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
