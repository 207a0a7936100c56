"""Find a repository's folders and list the files of its work tree, without starting git.

git itself would obey the configuration of any repository that it finds. Here only the names of
folders are read: ``.git`` may be a folder, a link to one, or a file that names one (linked
worktrees, submodules), and ``commondir`` names the folder that linked worktrees share.

A listing leaves out what the ignore files name, unless it is tracked, and everything called
``.git``, at any depth. An embedded repository is listed like any other folder. Links are not
followed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec

from corral.system.fs import read_small
from corral.system.git import settings
from corral.system.git.ignore import Rules, is_ignored

_SMALL = 64 * 1024
_HEX = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
LARGEST_IGNORE_FILE = 256 * 1024
MOST_ENTRIES = 2_000_000
"""Files and folders that one listing looks at."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of a repository."""

    top: Path | None
    """The work tree that was found; None for a bare repository."""
    git_dir: Path
    """Holds ``HEAD`` and ``index``."""
    common: Path
    """Holds ``objects``, ``refs`` and ``config``. Differs from ``git_dir`` in linked worktrees."""

    @property
    def head(self) -> str | None:
        """The full name of a reference, or a commit's id."""
        return read_head(self.git_dir)


def find_repository(folder: Path) -> Layout | None:
    """Find the repository around a folder: a work tree, or a bare repository."""
    folder = Path(os.path.abspath(folder))
    for each in (folder, *folder.parents):
        if (git_dir := _pointed_to(each / ".git")) is not None:
            common = _common(git_dir)
            if common is not None:
                return Layout(top=each, git_dir=git_dir, common=common)
        if (common := _common(each)) is not None:
            return Layout(top=None, git_dir=each, common=common)
    return None


def read_head(git_dir: Path) -> str | None:
    """The full name of the reference in ``HEAD``, or a commit's id; None if neither is there."""
    data = read_small(git_dir / "HEAD", _SMALL)
    text = (data or b"").decode("utf-8", "replace").strip()
    if text.startswith("ref:"):
        name = text.removeprefix("ref:").strip()
        return name if name.startswith("refs/") else None
    return text if _HEX.fullmatch(text) else None


def _pointed_to(dot_git: Path) -> Path | None:
    if dot_git.is_dir():
        return dot_git.resolve()
    text = _read_line(dot_git)
    if not text.startswith("gitdir:"):
        return None
    return Path(os.path.normpath(dot_git.parent / text.removeprefix("gitdir:").strip()))


def _common(git_dir: Path) -> Path | None:
    """The folder that holds the objects; None if this is not a git folder."""
    if read_head(git_dir) is None:
        return None
    other = _read_line(git_dir / "commondir")
    common = Path(os.path.normpath(git_dir / other)) if other else git_dir
    is_git = (common / "objects").is_dir() and (common / "refs").is_dir()
    return common if is_git else None


def _read_line(path: Path) -> str:
    data = read_small(path, _SMALL)
    return os.fsdecode(data or b"").strip()


class TooManyFiles(Exception):
    """The folder has more entries than a listing looks at."""


class Scope(msgspec.Struct, frozen=True):
    """Which ignore rules apply to a folder, besides its own ignore files and those below it."""

    outer: tuple[Rules, ...] = ()
    """The nearest first."""
    parts: tuple[bytes, ...] = ()
    """The folder's path from the top of its repository."""


def scope_of(folder: Path) -> Scope | None:
    """The rules for a folder in a repository; None if it is not in a work tree."""
    found = find_repository(folder)
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
    """Paths below ``root`` of everything that is not a folder. ``tracked`` ones are listed even if
    they are ignored. Without a scope nothing is ignored. ``on_error`` is called for each folder
    that cannot be read; such a folder is left out. Raises ``TooManyFiles``."""
    walk = _Walk(os.fsencode(root), scope is not None, tracked, skipped, on_error)
    pending = [_Folder(b"", scope.parts if scope else (), scope.outer if scope else ())]
    while pending:
        found, folders = walk.visit(pending.pop())
        yield from found
        pending += folders
    if scope is not None:
        yield from _ignored_but_tracked(walk.base, tracked, walk.seen)


class _Folder(msgspec.Struct, frozen=True, gc=False):
    """A folder that is to be listed."""

    path: bytes
    """From the root of the listing."""
    parts: tuple[bytes, ...]
    """From the top of the repository."""
    rules: tuple[Rules, ...]
    """Those of the nearest folder first."""

    def with_rules(self, rules: Rules) -> _Folder:
        return _Folder(self.path, self.parts, (rules, *self.rules)) if rules else self


class _Walk:
    """The state of one listing."""

    def __init__(
        self,
        base: bytes,
        ignores: bool,
        tracked: Collection[bytes],
        skipped: Collection[bytes],
        on_error: Callable[[OSError], None] | None,
    ) -> None:
        self.base = base
        self.seen: set[bytes] = set()
        """Tracked files that were found."""
        self._ignores = ignores
        self._tracked = tracked
        self._skipped = skipped
        self._on_error = on_error
        self._looked_at = 0

    def visit(self, folder: _Folder) -> tuple[list[bytes], list[_Folder]]:
        """The files of a folder that are listed, and the folders to visit. Raises
        ``TooManyFiles``."""
        place = os.path.join(self.base, folder.path) if folder.path else self.base
        entries = _entries(place, self._on_error)
        self._looked_at += len(entries)
        if self._looked_at > MOST_ENTRIES:
            raise TooManyFiles
        if self._ignores and any(entry.name == b".gitignore" for entry in entries):
            folder = folder.with_rules(_rules(place, len(folder.parts)))
        found: list[bytes] = []
        folders: list[_Folder] = []
        for entry in entries:
            if entry.name in self._skipped:
                continue
            path = os.path.join(folder.path, entry.name) if folder.path else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder and path in self._tracked:
                self.seen.add(path)
                found.append(path)
                continue
            parts = (*folder.parts, entry.name)
            if folder.rules and is_ignored(folder.rules, parts, is_folder=is_folder):
                continue
            if is_folder:
                folders.append(_Folder(path, parts, folder.rules))
            else:
                found.append(path)
        return found, folders


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
    """Tracked files that the walk did not find and that exist, in real folders."""
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
