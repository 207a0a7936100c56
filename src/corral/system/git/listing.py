"""List the files of a work tree, without git.

What the ignore files name is left out, unless it is tracked. Everything called ``.git`` is left
out, at any depth, and an embedded repository is listed like any other folder: its files count.
Links are not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec

from corral.system.fs import read_small
from corral.system.git import layout, settings
from corral.system.git.ignore import Rules, is_ignored

LARGEST_IGNORE_FILE = 256 * 1024
MOST_ENTRIES = 2_000_000
"""Files and folders that one listing looks at."""


class TooManyFiles(Exception):
    """The folder has more entries than a listing looks at."""


class Scope(msgspec.Struct, frozen=True):
    """Which ignore rules apply to a folder, besides its own ignore files and those below it."""

    outer: tuple[Rules, ...] = ()
    """The nearest first."""
    parts: tuple[bytes, ...] = ()
    """The folder's path from the top of its repository."""


def scope_of(folder: Path) -> Scope | None:
    """The rules for a folder in a repository; None where there is none around it."""
    found = layout.find(folder)
    if found is None or found.top is None:
        return None
    return scope_below(found.top, folder, found.common)


def scope_below(top: Path, folder: Path, common: Path) -> Scope:
    """The rules for ``folder``, which is ``top`` or below it: those of the folders between, of
    the repository, and of the user."""
    parts = Path(os.path.abspath(folder)).relative_to(top).parts
    outer: list[Rules] = []
    for depth in range(len(parts)):
        outer.insert(0, _rules(os.fsencode(top.joinpath(*parts[:depth])), depth))
    for path in (common / "info" / "exclude", settings.user_ignore_file()):
        data = read_small(path, LARGEST_IGNORE_FILE) if path else None
        outer.append(Rules(data or b""))
    return Scope(tuple(each for each in outer if each), tuple(os.fsencode(part) for part in parts))


def files(
    root: Path,
    scope: Scope | None,
    tracked: Collection[bytes] = (),
    *,
    skipped: Collection[bytes] = (b".git",),
    on_error: Callable[[OSError], None] | None = None,
) -> Iterator[bytes]:
    """Paths below ``root`` of what is not a folder. ``tracked`` ones are listed even if they are
    ignored. Without a scope nothing is ignored. ``on_error`` is called for each folder that
    cannot be read; such a folder is passed over. Raises ``TooManyFiles``."""
    base = os.fsencode(root)
    outer = scope.outer if scope else ()
    parts = scope.parts if scope else ()
    pending: list[tuple[bytes, tuple[bytes, ...], tuple[Rules, ...]]] = [(b"", parts, outer)]
    seen: set[bytes] = set()
    looked_at = 0
    while pending:
        folder, parts, chain = pending.pop()
        found = _entries(os.path.join(base, folder) if folder else base, on_error)
        looked_at += len(found)
        if looked_at > MOST_ENTRIES:
            raise TooManyFiles
        if scope is not None and any(entry.name == b".gitignore" for entry in found):
            rules = _rules(os.path.join(base, folder), len(parts))
            chain = (rules, *chain) if rules else chain
        for entry in found:
            path = os.path.join(folder, entry.name) if folder else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in skipped:
                continue
            if not is_folder and path in tracked:
                seen.add(path)
                yield path
                continue
            inner = (*parts, entry.name)
            if chain and is_ignored(chain, inner, is_folder=is_folder):
                continue
            if is_folder:
                pending.append((path, inner, chain))
            else:
                yield path
    if scope is not None:
        yield from _ignored_but_tracked(base, tracked, seen)


def _entries(folder: bytes, on_error: Callable[[OSError], None] | None) -> list[os.DirEntry[bytes]]:
    try:
        return list(os.scandir(folder))
    except OSError as error:
        if on_error is not None:
            on_error(error)
        return []


def _ignored_but_tracked(
    base: bytes, tracked: Collection[bytes], seen: set[bytes]
) -> Iterator[bytes]:
    """Tracked files that the walk did not meet and that exist, in real folders."""
    real: dict[bytes, bool] = {b"": True}

    def is_real(folder: bytes) -> bool:
        """Whether no part of the path is a link, or called ``.git``."""
        at = 0
        while at >= 0:
            at = folder.find(b"/", at + 1)
            part = folder if at < 0 else folder[:at]
            if part not in real:
                try:
                    mode = os.lstat(os.path.join(base, part)).st_mode
                except (OSError, ValueError):
                    mode = 0
                real[part] = stat.S_ISDIR(mode) and os.path.basename(part) != b".git"
            if not real[part]:
                return False
        return True

    for path in tracked:
        if path in seen or not is_real(os.path.dirname(path)):
            continue
        try:
            mode = os.lstat(os.path.join(base, path)).st_mode
        except (OSError, ValueError):
            continue
        if not stat.S_ISDIR(mode):
            yield path


def _rules(folder: bytes, depth: int) -> Rules:
    data = read_small(os.path.join(folder, b".gitignore"), LARGEST_IGNORE_FILE)
    return Rules(data or b"", depth)
