"""Find files by pattern and lines by regular expression, with the standard library only.

Run as a program, it replaces ripgrep and has the same output: file name, NUL, line number, colon,
line. It is a separate program because a regular expression can run without end, blocks the process
meanwhile, and can be stopped only by ending the process. It imports nothing of corral, because it
is started by its path.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__"})
"""Folders that are left out unless the search starts there: generated, and very large."""
ALTERNATIVES = 64
"""Alternatives that braces may expand to; above that, braces are literal."""
COLUMNS = 500
"""Characters of a line that are shown."""
LONGEST = 1_000_000
"""Bytes of a line that are searched at a time."""
HEAD = 8_192

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BRACES = re.compile(r"\{([^{},]*,[^{}]*)\}")

Fits = Callable[[str], bool]


def is_pattern(text: str) -> bool:
    return any(char in text for char in "*?[{")


def pattern(text: str) -> Fits:
    """A function that tests a relative path against a glob: ``*`` within a name, ``**`` any
    folders or none, ``{a,b}`` either. Its time is proportional to the path's length."""
    # For each alternative, a matcher for each component; None for ``**``.
    wanted: list[list[Callable[[str], object] | None]] = [
        [
            None if part == "**" else re.compile(fnmatch.translate(part)).match
            for part in _parts(alternative)
        ]
        for alternative in _expand_braces(text)
    ]

    def fits(path: str) -> bool:
        names = path.split("/")
        return any(_fits(names, parts) for parts in wanted)

    return fits


def included(text: str) -> Fits:
    """Like ripgrep's ``--glob``: a pattern without a slash matches the file name; ``!`` in front
    excludes what matches."""
    glob = text.removeprefix("!")
    fits = pattern(glob if "/" in glob else f"**/{glob}")
    return (lambda path: not fits(path)) if text.startswith("!") else fits


def _parts(text: str) -> list[str]:
    return [part for part in text.split("/") if part not in ("", ".")]


def _expand_braces(text: str) -> list[str]:
    finished: list[str] = []
    pending = [text]
    while pending:
        pattern = pending.pop(0)
        if (braces := _BRACES.search(pattern)) is None:
            finished.append(pattern)
            continue
        before, after = pattern[: braces.start()], pattern[braces.end() :]
        pending += (before + choice + after for choice in braces[1].split(","))
        if len(finished) + len(pending) > ALTERNATIVES:
            return [text]
    return finished


def _fits(names: list[str], wanted: list[Callable[[str], object] | None]) -> bool:
    # Every number of names that the pattern so far can match.
    used = {0}
    for name in wanted:
        if name is None:
            used = set(range(min(used), len(names) + 1))
        else:
            used = {at + 1 for at in used if at < len(names) and name(names[at])}
        if not used:
            return False
    return len(names) in used


class Folder(NamedTuple):
    path: str
    """Relative to the start of the walk; empty for the start."""
    fd: int
    """Open until the next folder is requested."""
    files: list[str]
    """Names of everything that is not a folder, including links."""


def walk(root: str, start: str = "") -> Iterator[Folder]:
    """Every folder from ``start``, which is below ``root``. Links are not followed. Folders that
    cannot be read are left out. A folder comes before the folders in it."""
    pending = [""]
    while pending:
        path = pending.pop()
        try:
            fd = _descend(root, os.path.join(start, path))
        except OSError:
            continue
        try:
            files: list[str] = []
            folders: list[str] = []
            with contextlib.suppress(OSError), os.scandir(fd) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        files.append(entry.name)
                    elif entry.name not in SKIPPED:
                        folders.append(entry.name)
            yield Folder(path, fd, sorted(files))
        finally:
            os.close(fd)
        pending += (os.path.join(path, name) for name in sorted(folders, reverse=True))


def _descend(root: str, path: str) -> int:
    fd = os.open(root, _FOLDER)
    for part in _parts(path):
        try:
            below = os.open(part, _FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def matching_lines(folder: int, name: str, wanted: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """The lines of a text file that match. None for a binary file, or one that is not regular."""
    try:
        fd = os.open(name, _FILE, dir_fd=folder)
    except OSError:
        return
    with os.fdopen(fd, "rb") as file, contextlib.suppress(OSError):
        if not os.path.isfile(fd) or b"\0" in file.read(HEAD):
            return
        file.seek(0)
        number = 1
        while line := file.readline(LONGEST):
            text = line.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
            if match := wanted.search(text):
                if len(text) > COLUMNS:
                    at = match.start()
                    begin = 0 if at < COLUMNS else at - COLUMNS // 4
                    text = f"{'[…]' * (begin > 0)}{text[begin : begin + COLUMNS]}[…]"
                yield number, text
            number += line.endswith(b"\n")


def main(*arguments: str) -> int:
    """Print every matching line below ``start``; ``only`` names one file there, if not empty."""
    root, start, only, include, flags, expression = arguments
    try:
        wanted = re.compile(expression, re.IGNORECASE if "i" in flags else 0)
    except (re.error, RecursionError, OverflowError) as error:
        print(f"not a regular expression: {error}", file=sys.stderr)
        return 2
    fits = included(include) if include else None
    for folder in walk(root, start):
        for name in [only] if only else folder.files:
            path = os.path.join(folder.path, name)
            if fits is not None and not fits(path):
                continue
            for number, text in matching_lines(folder.fd, name, wanted):
                line = f"{number}:{text}\n".encode("utf-8", "replace")
                sys.stdout.buffer.write(os.fsencode(path) + b"\0" + line)
            sys.stdout.flush()
        if only:
            break
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except BrokenPipeError:
        os._exit(0)
