"""A stored diff as rows for two columns.

The text comes from ``_system/git/changes``: unified hunks, and lines with ``#`` for files whose
content is not shown. It was made from files that an agent wrote, so nothing in it is trusted: a
hunk ends after as many lines as its header says.
"""

from __future__ import annotations

import re
from itertools import zip_longest

from corral._core.terminal_text import plain
from corral._view.records import Cell, Diff, DiffRow, FileDiff, Hunk, RowKind

MAX_ROWS = 4_000
"""Rows of one file."""
MAX_WIDTH = 2_000
"""Characters of one line."""
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NOTE = re.compile(r"# (created|modified|deleted|moved) (.+): (.+)")
_NOWHERE = "/dev/null"


def side_by_side(text: str) -> Diff:
    """The files of a diff."""
    lines = text.split("\n")
    files: list[FileDiff] = []
    position = 0
    is_in_file = False
    while position < len(lines):
        line, following = lines[position], lines[position + 1 : position + 2]
        if is_in_file and (header := _HUNK.match(line)):
            position = _add_hunk(files[-1], lines, position, header)
            continue
        if line.startswith("--- ") and following and following[0].startswith("+++ "):
            old, new = line[4:], following[0][4:]
            file = FileDiff(path=plain(new.removeprefix("b/")))
            if old == _NOWHERE:
                file.kind = "created"
            elif new == _NOWHERE:
                file.path, file.kind = plain(old.removeprefix("a/")), "deleted"
            files.append(file)
            is_in_file = True
            position += 1
        elif note := _NOTE.match(line):
            kind, path, why = note.groups()
            files.append(FileDiff(path=plain(path), kind=kind, note=why, binary="binary" in why))
            is_in_file = False
        elif line.startswith("# "):
            files.append(FileDiff(path="", note=line[2:], truncated=True))
            is_in_file = False
        position += 1
    return Diff(files=files)


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
            left, right = Cell(n=old_at, text=text), Cell(n=new_at, text=text)
            hunk.rows.append(DiffRow(kind="same", left=left, right=right))
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
    for left, right in zip_longest(removed, added):
        kind: RowKind = "changed" if left and right else "removed" if left else "added"
        hunk.rows.append(DiffRow(kind=kind, left=left, right=right))
    removed.clear()
    added.clear()
