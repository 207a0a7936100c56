"""glob, list_dir and grep: find files by name and lines by regular expression.

grep uses ripgrep if it is installed, else ``search``.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from corral._builtin.tools import search
from corral._builtin.tools.search import is_pattern, pattern, walk
from corral._builtin.tools.shell import run_program
from corral._builtin.tools.tool import (
    GLOB_LIMITS,
    GREP_LIMITS,
    Arguments,
    BuiltinTool,
    Output,
    ToolOutcome,
)
from corral._builtin.tools.workspace import ToolError, Workspace, replace_surrogates
from corral._system import fs

MAX_LISTED = 5_000
"""Files that are listed, before truncation for the model."""
MAX_SEARCHED = 500_000
"""Files that are searched."""
PAUSE = 20
"""Folders that are visited before other tasks run."""
MAX_RESULTS = 2_000
"""Lines that grep returns."""
GREP_SECONDS = 30.0
PENDING = 1_000_000
"""Bytes without a newline after which the search is stopped."""


class Glob(Arguments, frozen=True):
    pattern: Annotated[
        str,
        Meta(
            description="Such as **/*.py or src/*.{ts,tsx}. ** matches any number of folders.",
            min_length=1,
        ),
    ]
    path: Annotated[str, Meta(description="The folder to search.")] = "."


class ListDir(Arguments, frozen=True):
    path: Annotated[str, Meta(description="The folder.")] = "."


class MatchedFile(msgspec.Struct, frozen=True):
    path: Path
    """Its folder is resolved; it may be a link itself."""
    changed: int
    """In nanoseconds."""


async def find_files(workspace: Workspace, base: Path, wanted: str) -> AsyncIterator[MatchedFile]:
    """The files below ``base`` that match, in no defined order. Raises ``ToolError`` for a
    pattern that leads out of the workspace."""
    prefix, rest = _split_pattern(workspace, wanted)
    start = workspace.resolve(os.path.join(base, prefix)) if prefix else base
    fits = pattern(rest)
    root = next(root for root in workspace.readable if start.is_relative_to(root))
    seen = 0
    for number, folder in enumerate(walk(str(root), str(start.relative_to(root)))):
        if number % PAUSE == PAUSE - 1:
            await asyncio.sleep(0)
        for name in folder.files:
            path = os.path.join(folder.path, name)
            if fits(path):
                try:
                    info = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
                except OSError:
                    continue
                yield MatchedFile(start / path, info.st_mtime_ns)
        seen += len(folder.files)
        if seen > MAX_SEARCHED:
            name = workspace.name(start)
            raise ToolError(f"over {MAX_SEARCHED:,} files are in {name}: use a narrower pattern")


def _split_pattern(workspace: Workspace, wanted: str) -> tuple[str, str]:
    """The folder that a pattern starts with, and the rest. Raises ``ToolError``."""
    if wanted.startswith("~"):
        workspace.resolve(wanted)  # raises the error that explains it
    fixed: list[str] = []
    rest = wanted.split("/")
    while rest and not is_pattern(rest[0]):
        fixed.append(rest.pop(0))
    if not rest:
        rest = [fixed.pop()]
    if ".." in rest:
        raise ToolError(f"{wanted}: .. is only allowed before the first * of a pattern")
    prefix = "/".join(fixed) or ("/" if wanted.startswith("/") else "")
    return prefix, "/".join(rest)


async def glob(workspace: Workspace, args: Glob, _: Output) -> ToolOutcome:
    base = _folder(workspace, args.path)
    files = [file async for file in find_files(workspace, base, args.pattern)]
    if not files:
        return ToolOutcome(f"No file matches {replace_surrogates(args.pattern)}")
    files.sort(key=lambda file: (-file.changed, file.path))
    lines = [workspace.name(file.path) for file in files[:MAX_LISTED]]
    if len(files) > MAX_LISTED:
        lines.append(f"(and {len(files) - MAX_LISTED:,} older ones)")
    return ToolOutcome("\n".join(lines))


async def list_dir(workspace: Workspace, args: ListDir, _: Output) -> ToolOutcome:
    resolved = _folder(workspace, args.path)
    entries: list[tuple[bool, str, str]] = []
    with workspace.folder(resolved) as folder, os.scandir(folder) as listed:
        for entry in listed:
            try:
                info = entry.stat(follow_symlinks=False)
                target = os.readlink(entry.name, dir_fd=folder) if entry.is_symlink() else ""
            except OSError:
                continue
            is_folder = stat.S_ISDIR(info.st_mode)
            entries.append((not is_folder, entry.name, _line(entry.name, info, target)))
    if not entries:
        return ToolOutcome(f"({workspace.name(resolved)} is empty)")
    return ToolOutcome(replace_surrogates("\n".join(line for _, _, line in sorted(entries))))


def _line(name: str, info: os.stat_result, target: str) -> str:
    # A newline in a name would look like two entries.
    name = name.replace("\n", "\\n")
    if stat.S_ISDIR(info.st_mode):
        return f"{name}/"
    if stat.S_ISLNK(info.st_mode):
        return f"{name} -> {target}"
    if not stat.S_ISREG(info.st_mode):
        return f"{name} (not a regular file)"
    mark = "*" if info.st_mode & 0o111 else ""
    return f"{name}{mark} ({info.st_size:,} {'byte' if info.st_size == 1 else 'bytes'})"


def _folder(workspace: Workspace, path: str) -> Path:
    resolved = workspace.resolve(path)
    if not resolved.exists():
        raise ToolError(f"{path} does not exist")
    if not resolved.is_dir():
        raise ToolError(f"{path} is not a folder")
    return resolved


class Grep(Arguments, frozen=True):
    pattern: Annotated[str, Meta(description="A regular expression.", min_length=1)]
    path: Annotated[str, Meta(description="The folder or file to search.")] = "."
    include: Annotated[
        str, Meta(description="Search only files that match this glob, such as *.py.")
    ] = ""
    ignore_case: Annotated[bool, Meta(description="Ignore upper and lower case.")] = False
    max_results: Annotated[
        int, Meta(description="Stop after this many lines.", ge=1, le=MAX_RESULTS)
    ] = 100


class MatchCollector:
    """Collects the lines that the search program writes, up to a limit."""

    def __init__(self, workspace: Workspace, base: Path, most: int) -> None:
        self.lines: list[str] = []
        self.full: bool = False
        self._workspace = workspace
        self._base = base
        self._most = most
        self._rest = b""

    def add_output(self, chunk: bytes) -> bool:
        *rows, self._rest = (self._rest + chunk).split(b"\n")
        for row in rows:
            path, nul, text = row.partition(b"\0")
            if not nul:
                continue  # not a result
            if len(self.lines) == self._most:
                self.full = True
                break
            resolved = self._base / os.fsdecode(path)
            shown = text.removesuffix(b"\r").decode("utf-8", "replace")
            self.lines.append(f"{self._workspace.name(resolved)}:{shown}")
        return self.full or len(self._rest) > PENDING


async def grep(workspace: Workspace, args: Grep, _: Output) -> ToolOutcome:
    if "\0" in args.pattern + args.include:
        raise ToolError("a pattern cannot contain a NUL")
    resolved = workspace.resolve(args.path)
    if not resolved.exists():
        raise ToolError(f"{args.path} does not exist")
    if not resolved.is_dir() and not resolved.is_file():
        # ripgrep would wait until something is written to a pipe.
        raise ToolError(f"{args.path} is not a regular file")
    base, only = (resolved, "") if resolved.is_dir() else (resolved.parent, resolved.name)
    matches = MatchCollector(workspace, base, args.max_results)
    argv = _search_command(workspace, args, base, only)
    ran = await run_program(workspace, argv, base, GREP_SECONDS, matches.add_output)
    lines = matches.lines
    if matches.full:
        lines.append(f"(there are more than {args.max_results:,} results: narrow the search)")
    elif ran.late:
        lines.append(f"(the search was stopped after {GREP_SECONDS:g} s)")
    elif not lines and ran.exit.code not in (0, 1):
        raise ToolError(f"the search failed: {ran.stderr.strip() or ran.exit}")
    elif not lines:
        lines.append(f"No line matches {replace_surrogates(args.pattern)}")
    return ToolOutcome("\n".join(lines))


def _search_command(workspace: Workspace, args: Grep, base: Path, only: str) -> list[str]:
    """The command for ripgrep; for ``search`` if there is no ripgrep that may be used. ``only``
    names one file of the folder ``base``, if it is not empty."""
    program = fs.find_program("rg") or ""
    # Searching needs no permission to run programs: never run one that the tools could write.
    is_writable = any(
        workspace.is_writable(Path(path)) for path in (program, os.path.realpath(program))
    )
    if not os.path.isabs(program) or is_writable:
        root = next(root for root in workspace.readable if base.is_relative_to(root))
        start = str(base.relative_to(root))
        flags = "i" if args.ignore_case else ""
        python = [sys.executable, "-I", "-S", search.__file__]
        return [*python, str(root), start, only, args.include, flags, args.pattern]
    return [
        program,
        "--no-config",
        "--no-messages",
        "--no-heading",
        "--with-filename",
        "--line-number",
        "--null",
        "--crlf",
        "--hidden",
        "--color=never",
        "--sort=path",
        f"--max-columns={search.COLUMNS}",
        "--max-columns-preview",
        *(f"--glob={args.include}" for _ in range(bool(args.include))),
        *(f"--glob=!**/{name}/**" for name in sorted(search.SKIPPED)),
        "--ignore-case" if args.ignore_case else "--case-sensitive",
        f"--regexp={args.pattern}",
        "--",
        os.path.join(".", only),
    ]


TOOLS = (
    BuiltinTool(
        arguments=Glob,
        run=glob,
        name="glob",
        kind="search",
        description=(
            "Find files by a pattern for their names. Files that were changed last come first."
            " .git and node_modules are left out, unless path names them."
        ),
        limits=GLOB_LIMITS,
        title_form="Find pattern",
        path_arguments=("path",),
    ),
    BuiltinTool(
        arguments=ListDir,
        run=list_dir,
        name="list_dir",
        kind="read",
        description=(
            "List a folder. Folders end in a slash, executable files in an asterisk. Links have"
            " their target, files their size."
        ),
        limits=GLOB_LIMITS,
        title_form="List path",
        path_arguments=("path",),
    ),
    BuiltinTool(
        arguments=Grep,
        run=grep,
        name="grep",
        kind="search",
        description=(
            "Search files for lines that match a regular expression. Returns path:line:text."
            " Binary files, .git and node_modules are left out."
        ),
        limits=GREP_LIMITS,
        title_form="Search pattern",
        path_arguments=("path",),
    ),
)
