"""What changed on disk while an agent worked in a folder.

``take_snapshot`` is called before, ``take_snapshot_after`` afterwards, and ``compare`` returns the
difference. So changes by ``cp``, ``sed -i`` and scripts are found, and earlier changes are not
reported. In a git repository ignored files are left out. The files are listed by
``corral.system.git.scan``. git only reads the index, in a git folder of corral's own: the agent may
have written the repository's settings, its ignore files and embedded repositories.
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
from corral.system.fs import open_regular, read_small
from corral.system.git import repository, scan
from corral.system.git.repository import IndexEntry
from corral.system.git.scan import Scope
from corral.system.git.tree import hash_blob
from corral.values import FileChanged, printable_path

FILES_LIMIT = 50_000
HASHED_FILE = 1024 * 1024
HASHED_TOTAL = 64 * 1024 * 1024
"""Above these limits a file is compared by its size and times only."""
COUNTED_FILE = 1024 * 1024
KEPT_FILE = 256 * 1024
"""Bytes of a file whose content is kept."""

_SKIPPED = frozenset({b".git", b".hg", b".svn", b"node_modules", b"__pycache__"})
"""Folders that are left out if there is no repository: generated, and very large."""


class Seen(msgspec.Struct, frozen=True, gc=False):
    size: int
    mtime: int
    ctime: int
    inode: int
    mode: int
    digest: bytes | None = None


class IndexStamp(msgspec.Struct, frozen=True, gc=False):
    """Identifies the content of an index file: git replaces the file when it changes."""

    path: str
    inode: int
    size: int
    mtime: int
    ctime: int


class Snapshot(msgspec.Struct, frozen=True):
    root: str
    files: dict[str, Seen]
    complete: bool
    scope: Scope | None = None
    """The ignore rules from outside the folder, if it is in a git repository."""
    staged: dict[str, str] = {}
    """Files that are as in the index: path → blob id."""
    contents: dict[str, bytes] = {}
    """The content of other files, as far as there was room for it."""
    index: IndexStamp | None = None
    tracked: frozenset[bytes] = frozenset()
    """The names in the index."""

    def has(self, path: str) -> bool:
        """Whether the snapshot has a file with this absolute path."""
        return os.path.relpath(path, self.root) in self.files


def take_snapshot(root: Path, *, room: int = 0) -> Snapshot:
    """The folder as it is now, with at most ``room`` bytes of contents that git does not have."""
    scope = scan.scope_of(root)
    index = _index_of(root) if scope is not None else None
    indexed = _indexed(root) if scope is not None else {}
    tracked = frozenset(os.fsencode(path) for path in indexed)
    reader = _Reader(HASHED_TOTAL, room)
    files, complete = _stat_all(root, _paths(root, scope, tracked), indexed, reader)
    staged = {
        path: entry.blob
        for path, seen in files.items()
        if (entry := indexed.get(path)) is not None and _is_still(entry, seen)
    }
    return Snapshot(str(root), files, complete, scope, staged, reader.contents, index, tracked)


def take_snapshot_after(before: Snapshot) -> Snapshot:
    """The same folder, later. The ignore rules from outside the folder are those of ``before``,
    even if the repository is gone."""
    root = Path(before.root)
    tracked = _tracked(root, before) if before.scope is not None else frozenset[bytes]()
    paths: Iterable[str] = _paths(root, before.scope, tracked)
    if before.scope is not None:
        # A file that was tracked before is compared even if it is ignored now.
        paths = chain(before.files, (path for path in paths if path not in before.files))
    files, complete = _stat_all(root, paths, {}, _Reader(0, 0))
    return Snapshot(before.root, files, complete)


def compare(
    before: Snapshot, after: Snapshot, reported: Mapping[str, str] | None = None
) -> tuple[FileChanged, ...]:
    """What changed, joined with what the agent's tools ``reported`` (absolute path → kind)."""
    reported = reported or {}
    found: dict[str, FileChanged] = {}
    for path in sorted(before.files.keys() | after.files.keys()):
        absolute = os.path.join(before.root, path)
        change = _change(before, after, path, by_tool=absolute in reported)
        if change is not None:
            found[absolute] = change
    for absolute, kind in reported.items():
        relative = os.path.relpath(absolute, before.root)
        is_same = relative in before.files and relative in after.files
        exists = os.path.lexists(absolute) or kind == "deleted"
        if absolute not in found and not is_same and exists:
            # Ignored by git, or outside the folder: only the tool's report is known.
            found[absolute] = FileChanged(absolute, _kind(kind), by_tool=True)
    return tuple(_printable(found[path]) for path in sorted(found))


def _change(before: Snapshot, after: Snapshot, path: str, *, by_tool: bool) -> FileChanged | None:
    """How one file differs between two snapshots; None if it does not, or that is not known."""
    old, new = before.files.get(path), after.files.get(path)
    absolute = os.path.join(before.root, path)
    if new is None:
        is_gone = after.complete or not os.path.lexists(absolute)
        return FileChanged(absolute, "deleted", by_tool=by_tool) if is_gone else None
    if old is None:
        if not before.complete and not by_tool:
            return None
        lines = _count_lines(absolute)
        return FileChanged(absolute, "created", lines_added=lines, by_tool=by_tool)
    if _differs(before, path, old, new):
        return FileChanged(absolute, "modified", by_tool=by_tool)
    return None


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
    absolute = os.path.join(before.root, path)
    if old.digest is not None:
        data = read_small(absolute, HASHED_FILE)
        return data is None or _digest(data) != old.digest
    blob = before.staged.get(path)
    return blob is None or hash_blob(absolute, len(blob)) != blob


def _is_still(entry: IndexEntry, seen: Seen) -> bool:
    return entry.is_still(seen.size, seen.mtime, seen.ctime, seen.inode)


class _Reader:
    """Reads files for their digests. Small contents are kept while there is room."""

    def __init__(self, budget: int, room: int) -> None:
        """``budget``: bytes of files that get a digest."""
        self._budget = budget
        self._room = room
        self.contents: dict[str, bytes] = {}

    def with_digest(self, path: str, absolute: str, seen: Seen) -> Seen:
        if seen.size > min(HASHED_FILE, self._budget) or not stat.S_ISREG(seen.mode):
            return seen
        self._budget -= seen.size
        data = read_small(absolute, HASHED_FILE)
        if data is None:
            return seen
        if len(data) <= min(KEPT_FILE, self._room):
            self._room -= len(data)
            self.contents[path] = data
        return replace(seen, digest=_digest(data))


def _stat_all(
    root: Path, paths: Iterable[str], indexed: Mapping[str, IndexEntry], reader: _Reader
) -> tuple[dict[str, Seen], bool]:
    """The state of every file, and whether all files were read. A file that is not as in the index
    gets a digest."""
    files: dict[str, Seen] = {}
    try:
        for path in paths:
            if len(files) >= FILES_LIMIT:
                return files, False
            absolute = os.path.join(root, path)
            try:
                info = os.lstat(absolute)
            except OSError:
                continue
            if stat.S_ISDIR(info.st_mode):
                continue
            seen = Seen(info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_mode)
            entry = indexed.get(path)
            is_known = entry is not None and _is_still(entry, seen)
            files[path] = seen if is_known else reader.with_digest(path, absolute, seen)
    except scan.TooManyFiles:
        return files, False
    return files, True


def _paths(root: Path, scope: Scope | None, tracked: frozenset[bytes]) -> Iterator[str]:
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
        for path, entry in (repository.read_index(found, prefix) or {}).items()
    }


def _tracked(root: Path, before: Snapshot) -> frozenset[bytes]:
    """The names of these files only. git is not started if the index is as it was ``before``."""
    if before.index is not None and _index_of(root) == before.index:
        return before.tracked
    found = scan.find_repository(root)
    prefix = _prefix(root, found)
    if found is None or prefix is None:
        return frozenset()
    return frozenset(path.removeprefix(prefix) for path in repository.index_names(found, prefix))


def _index_of(root: Path) -> IndexStamp | None:
    found = scan.find_repository(root)
    if found is None:
        return None
    path = str(found.git_dir / "index")
    try:
        info = os.stat(path)
    except OSError:
        return None
    return IndexStamp(path, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def _prefix(root: Path, found: scan.Layout | None) -> bytes | None:
    if found is None or found.top is None:
        return None
    below = os.path.relpath(os.path.abspath(root), found.top)
    return b"" if below == "." else os.fsencode(below) + b"/"


def _digest(data: bytes) -> bytes:
    import hashlib  # slow to load, and often not needed

    return hashlib.blake2b(data, digest_size=16).digest()


def _count_lines(path: str) -> int | None:
    try:
        with open_regular(path) as file:
            data = file.read(COUNTED_FILE + 1)
    except OSError:
        return None
    if b"\0" in data or len(data) > COUNTED_FILE:
        return None
    return data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))
