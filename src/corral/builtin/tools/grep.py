"""grep: searches lines by regular expression, with ripgrep if it is installed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from corral.builtin.tools import search, truncate
from corral.builtin.tools.run_program import Completed, run_program
from corral.builtin.tools.tool import (
    Arguments,
    Outcome,
    Output,
    ToolDefinition,
    define_tool,
    outcome,
)
from corral.builtin.tools.workspace import ToolError, Workspace, replace_surrogates

RESULTS = 100
MOST = 2_000
SECONDS = 30.0
PENDING = 1_000_000
"""Bytes without a newline after which the search is stopped."""


class Grep(Arguments, frozen=True):
    pattern: Annotated[str, Meta(description="A regular expression.", min_length=1)]
    path: Annotated[str, Meta(description="The folder or file to search.")] = "."
    include: Annotated[
        str, Meta(description="Search only files that match this glob, such as *.py.")
    ] = ""
    ignore_case: Annotated[bool, Meta(description="Ignore upper and lower case.")] = False
    max_results: Annotated[int, Meta(description="Stop after this many lines.", ge=1, le=MOST)] = (
        RESULTS
    )


class MatchCollector:
    """Collects the lines that the search program writes, up to a limit."""

    def __init__(self, workspace: Workspace, base: Path, most: int) -> None:
        self.lines: list[str] = []
        self.full = False
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


async def grep(workspace: Workspace, args: Grep, _: Output) -> Outcome:
    if "\0" in args.pattern + args.include:
        raise ToolError("a pattern cannot contain a NUL")
    resolved = workspace.resolve(args.path)
    if not resolved.exists():
        raise ToolError(f"{args.path} does not exist")
    if not resolved.is_dir() and not resolved.is_file():
        # ripgrep would wait until something is written to a pipe.
        raise ToolError(f"{args.path} is not a regular file")
    base, only = (resolved, "") if resolved.is_dir() else (resolved.parent, resolved.name)
    found = MatchCollector(workspace, base, args.max_results)
    ripgrep = _ripgrep(workspace)
    argv = _rg(ripgrep, args, only) if ripgrep else _python(workspace, args, base, only)
    ran = await run_program(workspace, argv, base, SECONDS, found.add_output)
    return outcome("\n".join([*found.lines, *_notes(args, found, ran)]), truncate.GREP)


def _notes(args: Grep, found: MatchCollector, ran: Completed) -> list[str]:
    """What the model must know besides the lines. Raises ``ToolError`` if the search failed."""
    if found.full:
        return [f"(there are more than {args.max_results:,} results: narrow the search)"]
    if ran.late:
        return [f"(the search was stopped after {SECONDS:g} s)"]
    if found.lines:
        return []
    if ran.exit.code not in (0, 1):
        raise ToolError(f"the search failed: {ran.stderr.strip() or ran.exit}")
    return [f"No line matches {replace_surrogates(args.pattern)}"]


def _ripgrep(workspace: Workspace) -> str | None:
    program = shutil.which("rg")
    if program is None or not os.path.isabs(program):
        return None
    # Searching needs no permission to run programs: never run one that the tools could write.
    is_writable = any(
        workspace.is_writable(Path(path)) for path in (program, os.path.realpath(program))
    )
    return None if is_writable else program


def _rg(program: str, args: Grep, only: str) -> list[str]:
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


def _python(workspace: Workspace, args: Grep, base: Path, only: str) -> list[str]:
    root = next(root for root in workspace.readable if base.is_relative_to(root))
    start = str(base.relative_to(root))
    flags = "i" if args.ignore_case else ""
    program = [sys.executable, "-I", "-S", search.__file__]
    return [*program, str(root), start, only, args.include, flags, args.pattern]


TOOLS = (
    define_tool(
        ToolDefinition(
            arguments=Grep,
            run=grep,
            name="grep",
            kind="search",
            description=(
                "Search files for lines that match a regular expression. Returns path:line:text."
                " Binary files, .git and node_modules are left out."
            ),
            limits=truncate.GREP,
            title="Search pattern",
            paths=("path",),
        )
    ),
)
