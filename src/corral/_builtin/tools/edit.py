"""write_file and edit_file: write a complete file, or replace text in it.

What an edit changed is counted and shown in bounded time: comparing two texts can take very long.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import stat
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from corral._builtin.tools.file_access import file_access, write
from corral._builtin.tools.files import encoded, find_mode, read_text
from corral._builtin.tools.tool import (
    EDIT_LIMITS,
    Arguments,
    BuiltinTool,
    FileEffect,
    Output,
    ToolOutcome,
    count_lines,
)
from corral._builtin.tools.workspace import ToolError, Workspace, replace_surrogates
from corral.events import FileKind

LISTED = 10
"""Line numbers that an error message lists."""
SEARCHED = 5_000
"""Lines of the file that are compared with ``old_string``."""
ALIKE = 0.6
COMPARED_CHARS = 200
"""Characters of a line that are compared."""
COMPARED_LINES = 1_000
"""Lines of each text that are compared, without the lines that both have at both ends."""
CONTEXT = 3
"""Lines that a diff shows around a change."""
HINT = 12
"""Lines that the hint shows."""


class WriteFile(Arguments, frozen=True):
    file_path: Annotated[str, Meta(description="The file, absolute or from the workspace root.")]
    content: Annotated[str, Meta(description="The complete content of the file.")]


class EditFile(Arguments, frozen=True):
    file_path: Annotated[str, Meta(description="The file, absolute or from the workspace root.")]
    old_string: Annotated[
        str,
        Meta(
            description="The text to replace, exactly as it is in the file, with enough lines"
            " around it that it occurs only once.",
            min_length=1,
        ),
    ]
    new_string: Annotated[str, Meta(description="The new text.")]
    replace_all: Annotated[bool, Meta(description="Replace all occurrences.")] = False


async def write_file(workspace: Workspace, args: WriteFile, _: Output) -> ToolOutcome:
    resolved = workspace.resolve(args.file_path, write=True)
    name = workspace.name(resolved)
    data = encoded(args.content)
    # The old text on disk is read to count changed lines. A file that is not text counts as empty;
    # if it is not even a regular file, writing it fails with an error that explains why.
    old: str | None = None
    if (mode := find_mode(workspace, resolved)) is not None:
        old = ""
        if stat.S_ISREG(mode):
            with contextlib.suppress(ToolError):
                text = read_text(workspace, resolved)
                old = text.bom + text.body
    await write(file_access(workspace), workspace, resolved, data)
    done = file_effect(resolved, old, args.content)
    lines = count_lines(args.content)
    verb = "Created" if old is None else "Replaced"
    summary = f"{verb} {name} ({lines:,} {'line' if lines == 1 else 'lines'})"
    return ToolOutcome(summary, (done,))


async def edit_file(workspace: Workspace, args: EditFile, _: Output) -> ToolOutcome:
    resolved = workspace.resolve(args.file_path, write=True)
    name = workspace.name(resolved)
    access = file_access(workspace)
    text = await access.read(resolved)
    old, new = args.old_string, args.new_string
    newlines = text.body.count("\n")
    if newlines and newlines == text.body.count("\r\n"):
        # Use the file's line endings: models write \n only.
        old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
    if old == new:
        raise ToolError("old_string and new_string are the same: nothing would change")
    count = text.body.count(old)
    if not count:
        raise ToolError(f"old_string is not in {name}{_hint(text.body, args.old_string)}")
    if count > 1 and not args.replace_all:
        lines: list[int] = []
        at = text.body.find(old)
        while at >= 0 and len(lines) < LISTED:
            lines.append(text.body.count("\n", 0, at) + 1)
            at = text.body.find(old, at + len(old))
        listed = ", ".join(map(str, lines)) + (" …" if at >= 0 else "")
        raise ToolError(
            f"old_string is in {name} {count} times, at lines {listed}: add more of the lines"
            " around it, or set replace_all"
        )
    body = text.body.replace(old, new)
    await write(access, workspace, resolved, text.encoded(body))
    done = file_effect(resolved, text.body, body)
    times = f" at {count} places" if count > 1 else ""
    summary = f"Edited {name}{times} (+{done.lines_added} -{done.lines_removed})"
    return ToolOutcome(f"{summary}\n{diff(text.body, body)}", (done,))


def _hint(body: str, old: str) -> str:
    """A hint with the most similar lines of the file."""
    lines = body.split("\n")[:SEARCHED]
    wanted = [line for line in old.split("\n") if line.strip()]
    if not wanted:
        return ""
    first = wanted[0].strip()
    stripped = [line.strip() for line in lines]
    why = "the nearest lines are"
    if first in stripped:
        starts = [number for number, line in enumerate(stripped) if line == first]

        def count_equal(start: int) -> int:
            lines_and_wanted = zip(stripped[start:], wanted, strict=False)
            return sum(line == wanted_line.strip() for line, wanted_line in lines_and_wanted)

        at = max(starts[:LISTED], key=count_equal)
        if stripped[at : at + len(wanted)] == [line.strip() for line in wanted]:
            why = "these lines differ only in leading or trailing spaces"
    else:
        nearest = _find_nearest(stripped, first)
        if nearest is None:
            return ": read the file again, because nothing in it is similar"
        at = nearest
    shown = lines[at : at + min(len(old.split("\n")), HINT)]
    listed = "".join(f"\n{at + number:6}\t{line}" for number, line in enumerate(shown, 1))
    return replace_surrogates(f"; {why}:{listed.replace(chr(13), '')}")


def _find_nearest(stripped: list[str], first: str) -> int | None:
    """The line that is most like ``first``; None if none is alike."""
    best, nearest = ALIKE, None
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(first[:COMPARED_CHARS])
    for number, line in enumerate(stripped):
        matcher.set_seq1(line[:COMPARED_CHARS])
        # Each is an upper bound of the next and faster.
        if (
            matcher.real_quick_ratio() > best
            and matcher.quick_ratio() > best
            and (ratio := matcher.ratio()) > best
        ):
            best, nearest = ratio, number
    return nearest


def count_changed_lines(old: str, new: str) -> tuple[int, int]:
    """Lines added and removed."""
    _, before, after = _compared(_lines(old), _lines(new))
    if max(len(before), len(after)) > COMPARED_LINES:
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
    if max(len(before), len(after)) > COMPARED_LINES:
        return f"(lines {start + 1} to {start + len(after)} are new: too many to show)"
    hunks = difflib.unified_diff(before, after, n=CONTEXT, lineterm="")

    def shift(number: re.Match[str]) -> str:
        return f"{number[1]}{int(number[2]) + start}"

    # The headers count from the first compared line. Only they start with @@.
    shown = (
        re.sub(r"([-+])([0-9]+)", shift, row) if row.startswith("@@") else row
        for row in list(hunks)[2:]
    )
    return replace_surrogates("\n".join(shown))


def file_effect(
    resolved: Path, old: str | None, new: str | None, source: Path | None = None
) -> FileEffect:
    """The effect of writing a file. ``old`` is None if the file did not exist, ``new`` if it does
    not exist any more. ``source`` is where it was moved from."""
    added, removed = count_changed_lines(old or "", new or "")
    kind: FileKind = "created" if old is None else "deleted" if new is None else "modified"
    return FileEffect(
        path=replace_surrogates(str(resolved)),
        kind=kind if source is None else "moved",
        lines_added=added,
        lines_removed=removed,
        source=None if source is None else replace_surrogates(str(source)),
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


TOOLS = (
    BuiltinTool(
        arguments=WriteFile,
        run=write_file,
        name="write_file",
        kind="edit",
        description=(
            "Write a complete file. Missing folders are created. An existing file is replaced;"
            " use edit_file to change part of a file."
        ),
        limits=EDIT_LIMITS,
        title_form="Write file_path",
        path_arguments=("file_path",),
    ),
    BuiltinTool(
        arguments=EditFile,
        run=edit_file,
        name="edit_file",
        kind="edit",
        description=(
            "Replace text in a file. old_string must be in the file exactly, with its spaces"
            " and without line numbers, and only once unless replace_all is set."
        ),
        limits=EDIT_LIMITS,
        title_form="Edit file_path",
        path_arguments=("file_path",),
    ),
)
