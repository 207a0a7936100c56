"""Files as tasks of a batch: each file is one task with the fields ``path`` and ``content``.

The rules:

* A pattern is a glob: ``*``, ``?``, ``[...]``, and ``**`` for any number of folders. A path that
  exists is taken as it is, whatever characters it has.
* Hidden names (``.env``) match only a pattern that has the dot. ``**`` does not enter hidden
  folders, ``node_modules`` and ``__pycache__``, and follows no links to folders.
* Each file is one task, in the order of the paths. Paths are relative to the working directory.
* If the content is needed, files that are binary, not UTF-8, unreadable or too large are skipped
  and reported. A file that is named without a wildcard is an error instead.
"""

from __future__ import annotations

import fnmatch
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from corral.engine.batch.tasks import MAX_BYTES, MAX_ID
from corral.errors import ConfigError
from corral.values import printable_path, slug

SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})
"""Folders that ``**`` does not enter: generated, and very large."""
MAX_LISTED = 3
"""Skipped files that a message names."""

_WILDCARD = re.compile(r"[*?\[]")


class FileTasks(NamedTuple):
    tasks: list[dict[str, str]]
    skipped: dict[str, str]
    """Path to the reason."""

    @property
    def note(self) -> str:
        """What was skipped, in one line; empty if nothing was."""
        if not self.skipped:
            return ""
        reasons: dict[str, list[str]] = {}
        for path, reason in self.skipped.items():
            reasons.setdefault(reason, []).append(path)
        parts = [
            f"{len(paths):,} {reason} ({', '.join(paths[:MAX_LISTED])}"
            f"{', …' if len(paths) > MAX_LISTED else ''})"
            for reason, paths in reasons.items()
        ]
        total = len(self.tasks) + len(self.skipped)
        return f"skipped {len(self.skipped):,} of {total:,} files: {', '.join(parts)}"


def file_tasks(
    *patterns: str, cwd: str | os.PathLike[str] | None = None, content: bool = True
) -> list[dict[str, str]]:
    """Tasks for ``corral.batch``, one for each file that matches a pattern, with the fields ``id``,
    ``path`` and ``content``.

    ::

        tasks = corral.file_tasks("src/**/*.py")
        report = await corral.batch(tasks, "Review {{path}}:\\n\\n{{content}}")

    ``cwd``: the folder that patterns and paths are relative to; the current one if it is not given.
    ``content=False``: do not read the files. Files that cannot be read as text are left out, with a
    warning. Raises ``ConfigError`` if no file matches.
    """
    found = find_files(patterns, cwd=cwd, content=content)
    if found.note:
        warnings.warn(found.note, stacklevel=2)
    return found.tasks


def find_files(
    patterns: Sequence[str], *, cwd: str | os.PathLike[str] | None = None, content: bool
) -> FileTasks:
    """The files that match any of the patterns. Raises ``ConfigError`` if a pattern matches none,
    or if nothing is left."""
    root = os.path.abspath(cwd or ".")
    named: dict[str, bool] = {}
    for pattern in patterns:
        found, is_literal = _matches(root, pattern)
        for path in found:
            named[path] = named.get(path, False) or is_literal
    tasks: list[dict[str, str]] = []
    skipped: dict[str, str] = {}
    for path in sorted(named):
        try:
            tasks.append(_task(root, path, content=content))
        except _Unusable as reason:
            if named[path]:
                shown = printable_path(path)
                raise ConfigError(f"{shown} {reason.alone}", hint=reason.hint) from reason
            skipped[printable_path(path)] = reason.several
    done = FileTasks(tasks, skipped)
    if not tasks:
        raise ConfigError(f"there are no tasks: {done.note}")
    return done


def batch_name(patterns: Sequence[str], cwd: str | os.PathLike[str] | None = None) -> str:
    """The name of a batch of these files: the same patterns in the same folder continue it."""
    key = "\0".join([os.path.realpath(cwd or "."), *patterns])
    stem = slug(patterns[0], limit=30, default="files")
    return f"{stem}-{blake2b(os.fsencode(key), digest_size=4).hexdigest()}"


class _Unusable(Exception):
    """Why a file is no task: as the end of a sentence about it, and about several."""

    def __init__(self, alone: str, several: str, hint: str | None = None) -> None:
        self.alone, self.several, self.hint = alone, several, hint
        super().__init__(alone)


def _task(root: str, path: str, *, content: bool) -> dict[str, str]:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _Unusable("has a name that is not UTF-8", "with names that are not UTF-8") from error
    # The path is the id, unless it is no valid one.
    task = {"id": path, "path": path}
    if len(path) > MAX_ID or not path.isprintable() or path != path.strip():
        task["id"] = f"file-{blake2b(path.encode(), digest_size=8).hexdigest()}"
    if content:
        task["content"] = _content(os.path.join(root, path))
        if len(msgspec.json.encode(task)) > MAX_BYTES:
            raise _too_large()
    return task


def _content(path: str) -> str:
    try:
        if os.path.getsize(path) > MAX_BYTES:
            raise _too_large()
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _Unusable(
            f"cannot be read: {error.strerror}", f"cannot be read: {error.strerror}"
        ) from error
    if b"\0" in data:
        raise _Unusable("is binary", "binary")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Unusable("is not UTF-8", "not UTF-8") from error


def _too_large() -> _Unusable:
    return _Unusable(
        f"has more than {MAX_BYTES // 1024:,} KB",
        f"larger than {MAX_BYTES // 1024:,} KB",
        "Leave {{content}} out of the prompt: the agent can read the file at {{path}}.",
    )


def _matches(root: str, pattern: str) -> tuple[list[str], bool]:
    """The files that match, and whether the pattern is the path of one."""
    full = os.path.join(root, os.path.expanduser(pattern))
    if os.path.isfile(full):
        return [_relative(root, full)], True
    if os.path.isdir(full):
        raise ConfigError(
            f"{pattern} is a folder", hint=f"For all files in it: {pattern.rstrip('/')}/**"
        )
    if not pattern.strip() or not _WILDCARD.search(pattern):
        raise ConfigError(f"there is no file {pattern!r} in {root}")
    drive, rest = os.path.splitdrive(os.path.normpath(full))
    parts = [part for part in rest.split(os.sep) if part]
    if parts[-1] == "**":
        parts.append("*")
    found = [_relative(root, path) for path in _expand(drive + os.sep, parts)]
    if not found:
        raise ConfigError(
            f"no file matches {pattern!r} in {root}",
            hint="Quote the pattern. Hidden files match only a pattern with their dot.",
        )
    return found, False


def _relative(root: str, path: str) -> str:
    return os.path.relpath(path, root).replace(os.sep, "/")


def _expand(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """The files below ``folder`` whose path matches ``parts``."""
    head, rest = parts[0], parts[1:]
    if head == "**":
        yield from _expand(folder, rest)
        for entry in _entries(folder):
            # Whether ``**`` enters this folder.
            is_open = not entry.name.startswith(".") and entry.name not in SKIPPED_FOLDERS
            if is_open and entry.is_dir(follow_symlinks=False):
                yield from _expand(entry.path, parts)
    elif _WILDCARD.search(head):
        for entry in _entries(folder):
            name = entry.name
            is_hidden = name.startswith(".") and not head.startswith(".")
            if not is_hidden and fnmatch.fnmatchcase(name, head):
                yield from _below(entry.path, rest)
    else:
        yield from _below(os.path.join(folder, head), rest)


def _below(path: str, rest: Sequence[str]) -> Iterator[str]:
    if rest:
        yield from _expand(path, rest)
    elif os.path.isfile(path):
        yield path


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
