"""Texts in columns beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from corral.core.terminal_text import clean

NARROWEST = 38
"""Characters of a column; with less room the texts come one after another."""
GAP = " │ "


def terminal_columns(columns: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Lines for this terminal."""
    from shutil import get_terminal_size

    yield from side_by_side(columns, get_terminal_size((160, 24)).columns)


def side_by_side(columns: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """``columns``: titles and patches. Each file of the patches begins on the same line in every
    column, so that the same file is beside itself."""
    room = (width - len(GAP) * (len(columns) - 1)) // max(1, len(columns))
    if room < NARROWEST:
        return _in_sequence(columns)
    return _beside(columns, room)


def _in_sequence(columns: Sequence[tuple[str, str]]) -> Iterator[str]:
    for title, text in columns:
        yield from (f"=== {title}", *(text.splitlines() or ["(no changes)"]), "")


def _beside(columns: Sequence[tuple[str, str]], room: int) -> Iterator[str]:
    parts = [_by_file(text) for _, text in columns]
    names = list(dict.fromkeys(name for each in parts for name in each))
    yield _line([title for title, _ in columns], room)
    yield GAP.replace(" ", "─").replace("│", "┼").join("─" * room for _ in columns)
    if not names:
        yield _line(["(no changes)" for _ in columns], room)
    for name in names:
        cells = [each.get(name, [f"({name}: no change)"]) for each in parts]
        wrapped = [[piece for line in each for piece in _wrap(line, room)] for each in cells]
        for row in zip_longest(*wrapped, fillvalue=""):
            yield _line(row, room)


def _line(cells: Sequence[str], room: int) -> str:
    return GAP.join(clean(cell)[:room].ljust(room) for cell in cells).rstrip()


def _wrap(line: str, room: int) -> list[str]:
    line = clean(line).expandtabs(4)
    return [line[at : at + room] for at in range(0, len(line), room)] or [""]


def _by_file(patch: str) -> dict[str, list[str]]:
    """The lines of a patch by file."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in patch.splitlines():
        if line.startswith("diff --git "):
            current = found.setdefault(line.rpartition(" b/")[2], [])
        current.append(line)
    return found
