"""What really changed on disk while an agent worked in a folder.

``look`` before and after; ``compare`` gives the difference, so that ``cp``, ``sed -i`` and scripts
are seen and what was dirty before is not. In a git repository ignored files are left out. The list
of files comes from a walk of our own; git is asked for its index alone, in a git folder of ours:
the agent may have written the repository's settings, its ignore files and embedded repositories.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral.events import FileKind
from corral.system.fs import open_regular
from corral.system.git import repository, scan
from corral.system.git.repository import IndexEntry
from corral.system.git.scan import Scope
from corral.system.git.tree import hash_blob
from corral.values import FileChanged, printable_path

FILES_LIMIT = 50_000
HASHED_FILE = 1024 * 1024
HASHED_TOTAL = 64 * 1024 * 1024
"""Beyond these a file is known by its size and times alone."""
COUNTED_FILE = 1024 * 1024

_SKIPPED = frozenset({b".git", b".hg", b".svn", b"node_modules", b"__pycache__"})
"""Folders a walk leaves out where there is no repository: machine-made, and huge."""


class Seen(msgspec.Struct, frozen=True, gc=False):
    size: int
    mtime: int
    ctime: int
    inode: int
    mode: int
    digest: bytes | None = None


class Snapshot(msgspec.Struct, frozen=True):
    root: str
    files: dict[str, Seen]
    complete: bool
    scope: Scope | None = None
    """The ignore rules from outside the folder, where it is in a git repository."""
    staged: dict[str, str] = {}
    """Known to git as it is now: path → blob id."""

    def has(self, path: str) -> bool:
        """Whether an absolute path was there, as far as the folder was looked at."""
        return os.path.relpath(path, self.root) in self.files


def look(root: Path) -> Snapshot:
    """The folder as it is now."""
    scope = scan.scope_of(root)
    indexed = _indexed(root) if scope is not None else {}
    tracked = {os.fsencode(path) for path in indexed}
    files, complete = _stat_all(root, _paths(root, scope, tracked), indexed, budget=HASHED_TOTAL)
    staged = {
        path: entry.blob
        for path, seen in files.items()
        if (entry := indexed.get(path)) is not None and _is_still(entry, seen)
    }
    return Snapshot(str(root), files, complete, scope, staged)


def look_again(before: Snapshot) -> Snapshot:
    """The same folder, later. What was ignored from outside the folder still is, even if the
    repository is gone."""
    root = Path(before.root)
    tracked = _tracked(root) if before.scope is not None else set[bytes]()
    paths: Iterable[str] = _paths(root, before.scope, tracked)
    if before.scope is not None:
        # A file that was tracked and that is ignored by now is still worth a look.
        paths = chain(before.files, (path for path in paths if path not in before.files))
    files, complete = _stat_all(root, paths, {}, budget=0)
    return Snapshot(before.root, files, complete)


def compare(
    before: Snapshot, after: Snapshot, reported: Mapping[str, str] | None = None
) -> tuple[FileChanged, ...]:
    """What changed, joined with what the agent's tools ``reported`` (absolute path → kind)."""
    told = dict(reported or {})
    found: dict[str, FileChanged] = {}
    for path in sorted(before.files.keys() | after.files.keys()):
        old, new = before.files.get(path), after.files.get(path)
        whole = os.path.join(before.root, path)
        if new is None:
            if after.complete or not os.path.lexists(whole):
                found[whole] = FileChanged(whole, "deleted", by_tool=whole in told)
        elif old is None:
            if before.complete or whole in told:
                lines = _count_lines(whole)
                found[whole] = FileChanged(
                    whole, "created", lines_added=lines, by_tool=whole in told
                )
        elif _differs(before, path, old, new):
            found[whole] = FileChanged(whole, "modified", by_tool=whole in told)
    for whole, kind in told.items():
        relative = os.path.relpath(whole, before.root)
        seen_same = relative in before.files and relative in after.files
        if whole not in found and not seen_same and (os.path.lexists(whole) or kind == "deleted"):
            # Ignored by git, or outside the folder: the tool's word is all there is.
            found[whole] = FileChanged(whole, _kind(kind), by_tool=True)
    return tuple(_printable(found[path]) for path in sorted(found))


def _printable(change: FileChanged) -> FileChanged:
    path = printable_path(change.path)
    return change if path == change.path else replace(change, path=path)


def _kind(kind: str) -> FileKind:
    match kind:
        case "created" | "deleted" | "moved":
            return kind
        case _:
            return "modified"


def _differs(before: Snapshot, path: str, old: Seen, new: Seen) -> bool:
    if (old.size, old.mtime, old.ctime, old.inode, old.mode) == (
        new.size,
        new.mtime,
        new.ctime,
        new.inode,
        new.mode,
    ):
        return False
    if old.size != new.size or stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        return True
    if (old.mode ^ new.mode) & 0o111:
        return True
    whole = os.path.join(before.root, path)
    if old.digest is not None:
        return _digest(whole) != old.digest
    blob = before.staged.get(path)
    return blob is None or hash_blob(whole, len(blob)) != blob


def _is_still(entry: IndexEntry, seen: Seen) -> bool:
    return entry.is_still(seen.size, seen.mtime, seen.ctime, seen.inode)


def _stat_all(
    root: Path, paths: Iterable[str], indexed: Mapping[str, IndexEntry], *, budget: int
) -> tuple[dict[str, Seen], bool]:
    """Every file as it is; a digest, within the budget, of those that the index does not have as
    they are. False where there were too many."""
    files: dict[str, Seen] = {}
    try:
        for path in paths:
            if len(files) >= FILES_LIMIT:
                return files, False
            whole = os.path.join(root, path)
            try:
                info = os.lstat(whole)
            except OSError:
                continue
            if stat.S_ISDIR(info.st_mode):
                continue
            seen = Seen(info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_mode)
            entry = indexed.get(path)
            is_known = entry is not None and _is_still(entry, seen)
            if not is_known and seen.size <= min(HASHED_FILE, budget) and stat.S_ISREG(seen.mode):
                seen = replace(seen, digest=_digest(whole))
                budget -= seen.size
            files[path] = seen
    except scan.TooManyFiles:
        return files, False
    return files, True


def _paths(root: Path, scope: Scope | None, tracked: set[bytes]) -> Iterator[str]:
    """Raises ``TooManyFiles``."""
    skipped = _SKIPPED if scope is None else frozenset({b".git"})
    for path in scan.files(root, scope, tracked, skipped=skipped):
        yield os.fsdecode(path)


def _indexed(root: Path) -> dict[str, IndexEntry]:
    """The files in the index of the repository around a folder, by their path from the folder."""
    found = scan.find_repository(root)
    prefix = _prefix(root, found)
    if found is None or prefix is None:
        return {}
    return {
        os.fsdecode(path.removeprefix(prefix)): entry
        for path, entry in (repository.read_index(found) or {}).items()
        if path.startswith(prefix)
    }


def _tracked(root: Path) -> set[bytes]:
    """Their names alone."""
    found = scan.find_repository(root)
    prefix = _prefix(root, found)
    if found is None or prefix is None:
        return set()
    names = repository.index_names(found)
    return {path.removeprefix(prefix) for path in names if path.startswith(prefix)}


def _prefix(root: Path, found: scan.Layout | None) -> bytes | None:
    if found is None or found.top is None:
        return None
    below = os.path.relpath(os.path.abspath(root), found.top)
    return b"" if below == "." else os.fsencode(below) + b"/"


def _digest(path: str) -> bytes | None:
    import hashlib  # here: an empty folder needs none

    try:
        with open_regular(path) as file:
            return hashlib.blake2b(file.read(HASHED_FILE + 1), digest_size=16).digest()
    except OSError:
        return None


def _count_lines(path: str) -> int | None:
    try:
        with open_regular(path) as file:
            data = file.read(COUNTED_FILE + 1)
    except OSError:
        return None
    if b"\0" in data or len(data) > COUNTED_FILE:
        return None
    return data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))
