"""A stored diff as rows for two columns.

The text comes from ``system/git/changes``: unified hunks, and lines with ``#`` for files whose
content is not shown. It was made from files that an agent wrote, so nothing in it is trusted: a
hunk ends after as many lines as its header says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from corral.core.terminal_text import plain
from corral.view.records import Cell, Diff, DiffRow, FileDiff, Hunk

MAX_ROWS = 4_000
"""Rows of one file."""
MAX_WIDTH = 2_000
"""Characters of one line."""
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NOTE = re.compile(r"# (created|modified|deleted|moved) (.+): (.+)")
_NOWHERE = "/dev/null"


def side_by_side(text: str) -> Diff:
    """The files of a diff."""
    return Diff(files=[*_read_files(text.split("\n"))])


def _read_files(lines: list[str]) -> Iterator[FileDiff]:
    position = 0
    current: FileDiff | None = None
    while position < len(lines):
        line = lines[position]
        header = _HUNK.match(line)
        if header and current is not None:
            position = _add_hunk(current, lines, position, header)
            continue
        if (
            line.startswith("--- ")
            and lines[position + 1 : position + 2]
            and (lines[position + 1].startswith("+++ "))
        ):
            if current is not None:
                yield current
            old, new = line[4:], lines[position + 1][4:]
            current = FileDiff(path=plain(new.removeprefix("b/")))
            if old == _NOWHERE:
                current.kind = "created"
            elif new == _NOWHERE:
                current.path, current.kind = plain(old.removeprefix("a/")), "deleted"
            position += 2
            continue
        if note := _NOTE.match(line):
            if current is not None:
                yield current
                current = None
            yield FileDiff(
                path=plain(note[2]),
                kind=note[1],
                note=note[3],
                binary="binary" in note[3],
            )
        elif line.startswith("# "):
            if current is not None:
                yield current
                current = None
            yield FileDiff(path="", note=line[2:], truncated=True)
        position += 1
    if current is not None:
        yield current


def _add_hunk(file: FileDiff, lines: list[str], position: int, header: re.Match[str]) -> int:
    """Add the hunk at this line to the file; returns the line after it."""
    old_at, old_left = int(header[1]), int(header[2] or 1)
    new_at, new_left = int(header[3]), int(header[4] or 1)
    hunk = Hunk(old_start=old_at, new_start=new_at, rows=[])
    removed: list[Cell] = []
    added: list[Cell] = []
    position += 1
    while position < len(lines) and (old_left or new_left or lines[position].startswith("\\")):
        mark, text = lines[position][:1], plain(lines[position][1:], MAX_WIDTH)
        position += 1
        if mark == "-" and old_left:
            removed.append(Cell(n=old_at, text=text))
            old_at, old_left = old_at + 1, old_left - 1
        elif mark == "+" and new_left:
            added.append(Cell(n=new_at, text=text))
            new_at, new_left = new_at + 1, new_left - 1
        elif mark == " " and old_left and new_left:
            _pair(file, hunk, removed, added)
            same = (Cell(n=old_at, text=text), Cell(n=new_at, text=text))
            hunk.rows.append(DiffRow(kind="same", left=same[0], right=same[1]))
            old_at, old_left = old_at + 1, old_left - 1
            new_at, new_left = new_at + 1, new_left - 1
        elif mark != "\\":
            break
    _pair(file, hunk, removed, added)
    room = MAX_ROWS - sum(len(other.rows) for other in file.hunks)
    if len(hunk.rows) > room:
        del hunk.rows[room:]
        file.truncated = True
    if hunk.rows:
        file.hunks.append(hunk)
    return position


def _pair(file: FileDiff, hunk: Hunk, removed: list[Cell], added: list[Cell]) -> None:
    """Put the lines of a change beside each other."""
    file.removed += len(removed)
    file.added += len(added)
    for number in range(max(len(removed), len(added))):
        left = removed[number] if number < len(removed) else None
        right = added[number] if number < len(added) else None
        if left is not None and right is not None:
            hunk.rows.append(DiffRow(kind="changed", left=left, right=right))
        elif left is not None:
            hunk.rows.append(DiffRow(kind="removed", left=left))
        else:
            hunk.rows.append(DiffRow(kind="added", right=right))
    removed.clear()
    added.clear()
