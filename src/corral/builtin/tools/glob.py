"""glob and list_dir: list files."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from corral.builtin.tools import truncate
from corral.builtin.tools.search import is_pattern, pattern, walk
from corral.builtin.tools.tool import (
    Arguments,
    Outcome,
    Output,
    ToolDefinition,
    define_tool,
    outcome,
)
from corral.builtin.tools.workspace import ToolError, Workspace, replace_surrogates

FOUND = 5_000
"""Files that are listed, before truncation for the model."""
SEEN = 500_000
"""Files that are searched."""
PAUSE = 20
"""Folders that are visited before other tasks run."""


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


class Match(msgspec.Struct, frozen=True):
    path: Path
    """Its folder is resolved; it may be a link itself."""
    changed: int
    """In nanoseconds."""


async def matching(workspace: Workspace, base: Path, wanted: str) -> AsyncIterator[Match]:
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
                yield Match(start / path, info.st_mtime_ns)
        seen += len(folder.files)
        if seen > SEEN:
            raise ToolError(
                f"over {SEEN:,} files are in {workspace.name(start)}: use a narrower pattern"
            )


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


async def glob(workspace: Workspace, args: Glob, _: Output) -> Outcome:
    base = _folder(workspace, args.path)
    found = [match async for match in matching(workspace, base, args.pattern)]
    if not found:
        return outcome(f"No file matches {replace_surrogates(args.pattern)}", truncate.GLOB)
    found.sort(key=lambda match: (-match.changed, match.path))
    lines = [workspace.name(match.path) for match in found[:FOUND]]
    if len(found) > FOUND:
        lines.append(f"(and {len(found) - FOUND:,} older ones)")
    return outcome("\n".join(lines), truncate.GLOB)


async def list_dir(workspace: Workspace, args: ListDir, _: Output) -> Outcome:
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
        return outcome(f"({workspace.name(resolved)} is empty)", truncate.GLOB)
    return outcome(
        replace_surrogates("\n".join(line for _, _, line in sorted(entries))), truncate.GLOB
    )


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


TOOLS = (
    define_tool(
        ToolDefinition(
            arguments=Glob,
            run=glob,
            name="glob",
            kind="search",
            description=(
                "Find files by a pattern for their names. Files that were changed last come first."
                " .git and node_modules are left out, unless path names them."
            ),
            limits=truncate.GLOB,
            title="Find pattern",
            paths=("path",),
        )
    ),
    define_tool(
        ToolDefinition(
            arguments=ListDir,
            run=list_dir,
            name="list_dir",
            kind="read",
            description=(
                "List a folder. Folders end in a slash, executable files in an asterisk. Links have"
                " their target, files their size."
            ),
            limits=truncate.GLOB,
            title="List path",
            paths=("path",),
        )
    ),
)
