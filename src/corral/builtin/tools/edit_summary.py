"""Count and show what an edit changed, in bounded time: comparing two texts can take very long."""

from __future__ import annotations

import difflib
from pathlib import Path

from corral.builtin.tools.tool import Effect
from corral.builtin.tools.workspace import replace_surrogates
from corral.events import FileKind

COMPARED = 1_000
"""Lines of each text that are compared, without the lines that both have at both ends."""
CONTEXT = 3


def count_changed_lines(old: str, new: str) -> tuple[int, int]:
    """Lines added and removed."""
    _, before, after = _compared(_lines(old), _lines(new))
    if max(len(before), len(after)) > COMPARED:
        return len(after), len(before)
    added = removed = 0
    for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after).get_opcodes():
        if tag != "equal":
            removed += j - i
            added += m - k
    return added, removed


def diff(old: str, new: str) -> str:
    """The change as ``@@`` hunks. A short note if it is too long."""
    start, before, after = _compared(_lines(old), _lines(new))
    if max(len(before), len(after)) > COMPARED:
        return f"(lines {start + 1} to {start + len(after)} are new: too many to show)"
    hunks = difflib.unified_diff(before, after, n=CONTEXT, lineterm="")
    shown = [_shifted(row, start) if row.startswith("@@") else row for row in list(hunks)[2:]]
    return replace_surrogates("\n".join(shown))


def effect(resolved: Path, old: str | None, new: str) -> Effect:
    """The effect of writing a file. ``old`` is None if the file did not exist."""
    added, removed = count_changed_lines(old or "", new)
    kind: FileKind = "created" if old is None else "modified"
    return Effect(
        path=replace_surrogates(str(resolved)), kind=kind, lines_added=added, lines_removed=removed
    )


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if not lines[-1] else lines


def _compared(old: list[str], new: list[str]) -> tuple[int, list[str], list[str]]:
    """The line where the texts start to differ, and the lines of each between the common start and
    the common end. Some common lines are included as context for the hunks."""
    shorter = min(len(old), len(new))
    start = end = 0
    while start < shorter and old[start] == new[start]:
        start += 1
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    start, end = max(0, start - CONTEXT), max(0, end - CONTEXT)
    return start, old[start : len(old) - end], new[start : len(new) - end]


def _shifted(header: str, by: int) -> str:
    def moved(place: str) -> str:
        sign, (line, *count) = place[0], place[1:].split(",")
        return ",".join([f"{sign}{int(line) + by}", *count])

    _, old, new, _ = header.split(" ")
    return f"@@ {moved(old)} {moved(new)} @@"
