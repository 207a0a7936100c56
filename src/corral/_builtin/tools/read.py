"""read_file and read_many_files: text with numbered lines."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from corral._builtin.tools.file_access import file_access
from corral._builtin.tools.files import HEAD, find_binary_kind
from corral._builtin.tools.find import find_files
from corral._builtin.tools.search import is_pattern
from corral._builtin.tools.tool import (
    READ_LIMITS,
    Arguments,
    BuiltinTool,
    Output,
    OutputLimits,
    ToolOutcome,
    truncate,
)
from corral._builtin.tools.workspace import ToolError, Workspace, replace_surrogates
from corral._system import fs

LINES = 2_000
LONGEST = 2_000
"""Characters of a line that are shown: a longer line is generated text."""
MAX_TEXT = 1_000_000
"""Characters of text in one result, before it is truncated for the model."""
PIECE = 1_048_576
COUNTED = 64 * 1024 * 1024
"""Files over this size are not read to the end to count their lines."""
FILES = 100
SHARE = 2_000
"""Characters that each of several files gets at least."""
PAUSE = 4_096
"""Lines that are read before other tasks run."""


class ReadFile(Arguments, frozen=True):
    file_path: Annotated[str, Meta(description="The file, absolute or from the workspace root.")]
    offset: Annotated[int, Meta(description="The first line to read, counted from 1.", ge=1)] = 1
    limit: Annotated[int, Meta(description="How many lines to read.", ge=1)] = LINES


class ReadManyFiles(Arguments, frozen=True):
    paths: Annotated[
        list[str],
        Meta(
            description="Files, or glob patterns such as src/**/*.py, from the workspace root.",
            min_length=1,
        ),
    ]


class Window(msgspec.Struct):
    """The requested lines, and what is known about the others."""

    lines: list[str]
    more: bool = False
    total: int | None = None
    replaced: bool = False
    """Whether some bytes were not UTF-8."""


async def read_file(workspace: Workspace, args: ReadFile, _: Output) -> ToolOutcome:
    resolved = workspace.resolve(args.file_path)
    text = await _numbered(workspace, resolved, args.offset, args.limit)
    return ToolOutcome(text)


async def read_many_files(workspace: Workspace, args: ReadManyFiles, _: Output) -> ToolOutcome:
    names: dict[Path, str] = {}
    notes_for_all: list[str] = []
    for path in args.paths:
        try:
            for resolved in await _matching_paths(workspace, path):
                names.setdefault(resolved, workspace.name(resolved))
        except ToolError as error:
            notes_for_all.append(f"[{error}]")
    share = OutputLimits(max(SHARE, READ_LIMITS.chars // max(1, min(len(names), FILES)) - 100))
    texts: list[str] = []
    parts: list[str] = []
    room = MAX_TEXT
    left: list[str] = []
    read = 0
    for number, (resolved, name) in enumerate(names.items()):
        if number >= FILES or room <= 0:
            left.append(name)
            continue
        try:
            text = await _numbered(workspace, resolved, 1, LINES)
            read += 1
        except ToolError as error:
            text = f"[{error}]"
        room -= len(text)
        texts.append(f"==> {name} <==\n{text}")
        parts.append(f"==> {name} <==\n{truncate(text, share)}")
    if left:
        notes_for_all.append(
            f"[not read, because there are too many files: {', '.join(left[:FILES])}]"
        )
    shown = truncate("\n\n".join([*parts, *notes_for_all]), READ_LIMITS)
    text = "\n\n".join([*texts, *notes_for_all])
    return ToolOutcome(text, is_error=not read, shown=replace_surrogates(shown))


async def _matching_paths(workspace: Workspace, path: str) -> list[Path]:
    """The file with this name, or the files that match the pattern."""
    if "\0" not in path and (not is_pattern(path) or fs.exists(workspace.root / path)):
        return [workspace.resolve(path)]
    paths = sorted([file.path async for file in find_files(workspace, workspace.root, path)])
    if not paths:
        raise ToolError(f"no file matches {path}")
    for number, matched in enumerate(paths):
        # A link that leads out stays as it is, and reading it then fails.
        with suppress(ToolError):
            paths[number] = workspace.resolve(str(matched))
    return paths


async def _numbered(workspace: Workspace, resolved: Path, offset: int, limit: int) -> str:
    name = workspace.name(resolved)
    opened = await file_access(workspace).open(resolved, offset, limit)
    with opened.file as file:
        head = file.read(HEAD)
        size = file.seek(0, 2)
        if kind := find_binary_kind(head):
            raise ToolError(f"{name} is {kind} of {size:,} bytes, which cannot be shown as text")
        file.seek(0)
        window = await _window(file, offset - opened.skipped, limit, huge=size > COUNTED)
    if window.total is not None:
        window.total = None if opened.goes_on else opened.skipped + window.total
    if not window.lines:
        if opened.skipped:
            raise ToolError(f"{name} has no line {offset:,}")
        if not window.total:
            return f"({name} is empty)"
        raise ToolError(f"{name} has only {window.total:,} lines, so there is no line {offset:,}")
    last = offset + len(window.lines) - 1
    text = "".join(f"{offset + at:6}\t{line}\n" for at, line in enumerate(window.lines))
    notes: list[str] = []
    if window.more:
        of = f" of {window.total:,}" if window.total is not None else ""
        notes.append(f"lines {offset:,} to {last:,}{of}; continue with offset={last + 1}")
    if window.replaced:
        notes.append("some bytes are not UTF-8 and are shown as \ufffd")
    return text + "".join(f"({note})\n" for note in notes)


async def _window(file: BinaryIO, offset: int, limit: int, *, huge: bool) -> Window:
    """Read line by line, so that a huge file takes time but no memory."""
    window = Window([])
    number = size = 0
    while True:
        full = len(window.lines) == limit or size >= MAX_TEXT
        line = b"" if full and huge else file.readline(LONGEST * 4)
        if not line:
            window.more = window.more or bool(file.read(1))
            window.total = None if window.more and huge else number
            return window
        number += 1
        over = 0
        if not line.endswith(b"\n"):
            # The rest of a long line is counted and not stored.
            while rest := file.readline(PIECE):
                over += len(rest.removesuffix(b"\n"))
                if rest.endswith(b"\n"):
                    break
                await asyncio.sleep(0)
        if number % PAUSE == 0:
            await asyncio.sleep(0)
        if full:
            window.more = True
        elif number >= offset:
            text = _display_line(line, over, window)
            size += len(text)
            window.lines.append(text)


def _display_line(line: bytes, over: int, window: Window) -> str:
    if line.startswith(b"\xef\xbb\xbf"):
        line = line[3:]
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    text = line.decode("utf-8", "replace")
    if over:
        # The file is valid: the character was cut here.
        text = text.rstrip("\ufffd")
    if "\ufffd" in text and "\ufffd".encode() not in line:
        window.replaced = True
    if over or len(text) > LONGEST:
        more = max(0, len(text) - LONGEST) + over
        text = f"{text[:LONGEST]}[… {more:,} more in this line]"
    return text


TOOLS = (
    BuiltinTool(
        arguments=ReadFile,
        run=read_file,
        name="read_file",
        kind="read",
        description=(
            "Read a text file. Each line starts with its number and a tab, which are not part"
            " of the file. For a long file, use offset and limit."
        ),
        title_form="Read file_path",
        path_arguments=("file_path",),
    ),
    BuiltinTool(
        arguments=ReadManyFiles,
        run=read_many_files,
        name="read_many_files",
        kind="read",
        description="Read several text files at once, given by path or by glob pattern.",
        title_form="Read paths",
        path_arguments=("paths",),
    ),
)
