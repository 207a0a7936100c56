"""write_file and edit_file: write a complete file, or replace text in it."""

from __future__ import annotations

import stat
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from corral.builtin.tools import truncate
from corral.builtin.tools.edit_summary import diff, effect
from corral.builtin.tools.files import Text, encoded, mode_of, read_text, write
from corral.builtin.tools.tool import (
    Arguments,
    Outcome,
    Output,
    ToolDefinition,
    define_tool,
    outcome,
)
from corral.builtin.tools.workspace import ToolError, Workspace, replace_surrogates

LISTED = 10
"""Line numbers that an error message lists."""
SEARCHED = 5_000
"""Lines of the file that are compared with ``old_string``."""
ALIKE = 0.6
COMPARED = 200
"""Characters of a line that are compared."""
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


async def write_file(workspace: Workspace, args: WriteFile, _: Output) -> Outcome:
    resolved = workspace.resolve(args.file_path, write=True)
    name = workspace.name(resolved)
    data = encoded(args.content)
    old = _old_text(workspace, resolved)
    write(workspace, resolved, data)
    done = effect(resolved, old, args.content)
    lines = truncate.count_lines(args.content)
    verb = "Created" if old is None else "Replaced"
    text = f"{verb} {name} ({lines:,} {'line' if lines == 1 else 'lines'})"
    return outcome(text, truncate.EDIT, (done,))


def _old_text(workspace: Workspace, resolved: Path) -> str | None:
    """The old text, to count changed lines; a file that is not text counts as empty."""
    mode = mode_of(workspace, resolved)
    if mode is None:
        return None
    if not stat.S_ISREG(mode):
        return ""  # writing it fails with an error that explains why
    try:
        text = read_text(workspace, resolved)
    except ToolError:
        return ""
    return text.bom + text.body


async def edit_file(workspace: Workspace, args: EditFile, _: Output) -> Outcome:
    resolved = workspace.resolve(args.file_path, write=True)
    name = workspace.name(resolved)
    text = read_text(workspace, resolved)
    old, new = _endings(text, args.old_string, args.new_string)
    if old == new:
        raise ToolError("old_string and new_string are the same: nothing would change")
    count = text.body.count(old)
    if not count:
        raise ToolError(f"old_string is not in {name}{_hint(text.body, args.old_string)}")
    if count > 1 and not args.replace_all:
        raise ToolError(
            f"old_string is in {name} {count} times, at {_places(text.body, old)}: add more of the"
            " lines around it, or set replace_all"
        )
    body = text.body.replace(old, new)
    write(workspace, resolved, text.encoded(body))
    done = effect(resolved, text.body, body)
    times = f" at {count} places" if count > 1 else ""
    summary = f"Edited {name}{times} (+{done.lines_added} -{done.lines_removed})"
    return outcome(f"{summary}\n{diff(text.body, body)}", truncate.EDIT, (done,))


def _endings(text: Text, old: str, new: str) -> tuple[str, str]:
    """Use the file's line endings: models write ``\\n`` only."""
    newlines = text.body.count("\n")
    if newlines and newlines == text.body.count("\r\n"):
        old, new = (each.replace("\r\n", "\n").replace("\n", "\r\n") for each in (old, new))
    return old, new


def _places(body: str, old: str) -> str:
    lines: list[int] = []
    at = body.find(old)
    while at >= 0 and len(lines) < LISTED:
        lines.append(body.count("\n", 0, at) + 1)
        at = body.find(old, at + len(old))
    listed = ", ".join(map(str, lines))
    return f"line {listed}" if len(lines) == 1 else f"lines {listed}" + (" …" if at >= 0 else "")


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
        at = _best(
            [number for number, line in enumerate(stripped) if line == first], stripped, wanted
        )
        if stripped[at : at + len(wanted)] == [line.strip() for line in wanted]:
            why = "these lines differ only in leading or trailing spaces"
    else:
        found = _nearest(stripped, first)
        if found is None:
            return ": read the file again, because nothing in it is similar"
        at = found
    shown = lines[at : at + min(len(old.split("\n")), HINT)]
    listed = "".join(f"\n{at + number:6}\t{line}" for number, line in enumerate(shown, 1))
    return replace_surrogates(f"; {why}:{listed.replace(chr(13), '')}")


def _best(places: list[int], stripped: list[str], wanted: list[str]) -> int:
    def alike(at: int) -> int:
        return sum(a == b.strip() for a, b in zip(stripped[at:], wanted, strict=False))

    return max(places[:LISTED], key=alike)


def _nearest(stripped: list[str], first: str) -> int | None:
    best, place = ALIKE, None
    matcher = SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(first[:COMPARED])
    for number, line in enumerate(stripped):
        matcher.set_seq1(line[:COMPARED])
        # Each is an upper bound of the next and faster.
        if (
            matcher.real_quick_ratio() > best
            and matcher.quick_ratio() > best
            and (ratio := matcher.ratio()) > best
        ):
            best, place = ratio, number
    return place


TOOLS = (
    define_tool(
        ToolDefinition(
            arguments=WriteFile,
            run=write_file,
            name="write_file",
            kind="edit",
            description=(
                "Write a complete file. Missing folders are created. An existing file is replaced;"
                " use edit_file to change part of a file."
            ),
            limits=truncate.EDIT,
            title="Write file_path",
            paths=("file_path",),
        )
    ),
    define_tool(
        ToolDefinition(
            arguments=EditFile,
            run=edit_file,
            name="edit_file",
            kind="edit",
            description=(
                "Replace text in a file. old_string must be in the file exactly, with its spaces"
                " and without line numbers, and only once unless replace_all is set."
            ),
            limits=truncate.EDIT,
            title="Edit file_path",
            paths=("file_path",),
        )
    ),
)
