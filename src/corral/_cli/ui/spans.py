"""Styled text for a terminal: spans of text with a style, their width, and how they are wrapped.

The texts are clean: they have no control characters (see ``corral._core.terminal_text``). A style
is a list of names, separated by spaces: ``bold green``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

import msgspec

_ATTRIBUTES = {"bold": "1", "dim": "2", "italic": "3", "underline": "4", "strike": "9"}
_COLORS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36"}


class StyledText(msgspec.Struct, frozen=True, gc=False):
    text: str
    style: str = ""


Line: TypeAlias = Sequence[StyledText]


def plain(line: Line) -> str:
    """The text of a line."""
    return "".join(span.text for span in line)


def ansi(line: Line, *, color: bool) -> str:
    """The line with control sequences for its styles. Without ``color``: bold, dim, italic and
    underlined text only."""
    known = {**_ATTRIBUTES, **_COLORS} if color else _ATTRIBUTES
    parts: list[str] = []
    for span in line:
        codes = ";".join(known[name] for name in span.style.split() if name in known)
        parts.append(f"\x1b[{codes}m{span.text}\x1b[0m" if codes and span.text else span.text)
    return "".join(parts)


def char_width(char: str) -> int:
    """Columns that a terminal uses for a character."""
    if " " <= char <= "~":
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def text_width(text: str) -> int:
    """Columns that a terminal uses for a text."""
    return len(text) if text.isascii() else sum(map(char_width, text))


def width(line: Line) -> int:
    return sum(text_width(span.text) for span in line)


def shorten(text: str, limit: int) -> str:
    """The text on one line, cut with an ellipsis after ``limit`` columns."""
    line = " ".join(text.split())
    if text_width(line) <= limit:
        return line
    kept, used = "", 0
    for char in line:
        used += char_width(char)
        if used > limit - 1:
            break
        kept += char
    return kept.rstrip() + "…"


def cut(line: Line, limit: int) -> Line:
    """The line, cut with an ellipsis if it is wider than ``limit`` columns."""
    if width(line) <= limit:
        return line
    kept: list[StyledText] = []
    left = limit - 1
    for span in line:
        part = ""
        for char in span.text:
            left -= char_width(char)
            if left < 0:
                return [*kept, StyledText(part, span.style), StyledText("…", span.style)]
            part += char
        kept.append(StyledText(part, span.style))
    return kept


def wrap(line: Line, limit: int, indent: Line = ()) -> list[Line]:
    """The line in lines of at most ``limit`` columns, broken at spaces where possible. Each line
    after the first starts with ``indent``."""
    if width(line) <= limit:
        return [line]
    chars = [(char, span.style) for span in line for char in span.text]
    lines: list[Line] = []
    start, room = 0, limit
    while start < len(chars):
        end, start_of_next = _break(chars, start, max(room, 1))
        styles = groupby(chars[start:end], key=lambda char: char[1])
        spans = [StyledText("".join(char for char, _ in group), style) for style, group in styles]
        lines.append([*(indent if lines else ()), *spans])
        start, room = start_of_next, limit - width(indent)
    return lines


_Char: TypeAlias = tuple[str, str]


def _break(chars: Sequence[_Char], start: int, room: int) -> tuple[int, int]:
    """Where a line that begins at ``start`` ends, and where the next begins."""
    at, used, space = start, 0, None
    has_text = False
    while at < len(chars):
        char = chars[at][0]
        used += char_width(char)
        if used > room and at > start:
            break
        if char != " ":
            has_text = True
        elif has_text:
            space = at
        at += 1
    if at == len(chars):
        return at, at
    if chars[at][0] == " ":
        space = at
    if space is None:
        return at, at
    following = space
    while following < len(chars) and chars[following][0] == " ":
        following += 1
    return space, following
