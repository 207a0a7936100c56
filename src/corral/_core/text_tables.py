"""Tables as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from corral._core.terminal_text import clean

NARROWEST = 8
"""Columns of a table get no narrower."""


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """A table as text. It fits the ``width``: the widest columns but the first, which identifies
    the row, are wrapped. Without one, a row is one line, for other programs."""
    # On one line, without control characters, so that the length of a cell is its width.
    cells = ([" ".join(clean(cell).split("\n")) for cell in row] for row in rows)
    lines = [list(head), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    if width is not None:
        room = width - 2 * (len(widths) - 1)
        while sum(widths) > room and max(widths[1:], default=0) > NARROWEST:
            widths[1 + widths[1:].index(max(widths[1:]))] -= 1
    out: list[str] = []
    for line in lines:
        wrapped = [
            textwrap.wrap(cell, size) if len(cell) > size else [cell]
            for cell, size in zip(line, widths, strict=True)
        ]
        for parts in zip_longest(*wrapped, fillvalue=""):
            padded = (f"{part:{size}}" for part, size in zip(parts, widths, strict=True))
            out.append("  ".join(padded).rstrip())
    return "\n".join(out)
