"""What changed on disk while an agent worked in a folder, and the diff of it.

``take_snapshot`` is called before, ``take_snapshot_after`` afterwards, and ``compare`` returns the
difference. So changes by ``cp``, ``sed -i`` and scripts are found, and earlier changes are not
reported. In a git repository ignored files are left out. The files are listed by
``corral._system.git.scan``. git only reads the index, in a git folder of corral's own: the agent
may have written the repository's settings, its ignore files and embedded repositories.

``diff_since`` returns one text in the unified format. The content before is in the snapshot, or it
is the blob that git's index had. Where neither is known, a line says so. Binary and large files are
named only. The text is bounded: it is stored with a session and read by people. Blocking.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral._system.fs import is_draft, read_small
from corral._system.git import repository, scan
from corral._system.git.repository import IndexEntry, Stamp, stamp_of
from corral._system.git.scan import Scope
from corral._system.git.tree import hash_blob
from corral.errors import StorageFailed
from corral.events import FileKind
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
    """A file as it was."""

    stamp: Stamp
    digest: bytes | None = None

    @property
    def size(self) -> int:
        return self.stamp[0]

    @property
    def mode(self) -> int:
        return self.stamp[4]


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
    index: tuple[str, Stamp] | None = None
    """The path and the stamp of the index file: git replaces the file when it changes."""
    tracked: frozenset[bytes] = frozenset()
    """The names in the index."""

    def has(self, path: str) -> bool:
        """Whether the snapshot has a file with this absolute path."""
        return os.path.relpath(path, self.root) in self.files


def take_snapshot(root: Path, *, room: int = 0) -> Snapshot:
    """The folder as it is now, with at most ``room`` bytes of contents that git does not have."""
    located = _locate(root)
    scope = index = None
    indexed: dict[str, IndexEntry] = {}
    if located is not None:
        layout, top, prefix = located
        scope = scan.scope_below(top, root, layout.common)
        index = _index_stamp(layout)
        indexed = {
            os.fsdecode(path.removeprefix(prefix)): entry
            for path, entry in (repository.read_index(layout, prefix) or {}).items()
        }
    tracked = frozenset(os.fsencode(path) for path in indexed)
    reader = _ContentReader(HASHED_TOTAL, room)
    files, complete = _stat_all(root, _paths(root, scope, tracked), indexed, reader)
    staged = {
        path: entry.blob
        for path, seen in files.items()
        if (entry := indexed.get(path)) is not None and entry.is_still(seen.stamp)
    }
    return Snapshot(str(root), files, complete, scope, staged, reader.contents, index, tracked)


def take_snapshot_after(before: Snapshot) -> Snapshot:
    """The same folder, later. The ignore rules from outside the folder are those of ``before``,
    even if the repository is gone."""
    root = Path(before.root)
    tracked: frozenset[bytes] = frozenset()
    if before.scope is not None and (located := _locate(root)) is not None:
        layout, _, prefix = located
        if before.index is not None and _index_stamp(layout) == before.index:
            tracked = before.tracked  # so git need not be started
        else:
            names = repository.index_names(layout, prefix)
            tracked = frozenset(path.removeprefix(prefix) for path in names)
    paths: Iterable[str] = _paths(root, before.scope, tracked)
    if before.scope is not None:
        # A file that was tracked before is compared even if it is ignored now.
        paths = chain(before.files, (path for path in paths if path not in before.files))
    files, complete = _stat_all(root, paths, {}, _ContentReader(0, 0))
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
            known: FileKind = "modified"
            match kind:
                case "created" | "deleted" | "moved":
                    known = kind
                case _:
                    pass
            found[absolute] = FileChanged(absolute, known, by_tool=True)
    return tuple(
        replace(found[path], path=printable_path(found[path].path)) for path in sorted(found)
    )


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


def _differs(before: Snapshot, path: str, old: Seen, new: Seen) -> bool:
    if old.stamp == new.stamp:
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


class _ContentReader:
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
    root: Path, paths: Iterable[str], indexed: Mapping[str, IndexEntry], reader: _ContentReader
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
            seen = Seen(stamp_of(info))
            entry = indexed.get(path)
            is_known = entry is not None and entry.is_still(seen.stamp)
            files[path] = seen if is_known else reader.with_digest(path, absolute, seen)
    except scan.TooManyFiles:
        return files, False
    return files, True


def _paths(root: Path, scope: Scope | None, tracked: frozenset[bytes]) -> Iterator[str]:
    """Raises ``TooManyFiles``."""
    skipped = _SKIPPED if scope is None else frozenset({b".git"})
    for path in map(os.fsdecode, scan.files(root, scope, tracked, skipped=skipped)):
        if not is_draft(os.path.basename(path)):  # of a file that corral replaces at this moment
            yield path


def _locate(root: Path) -> tuple[scan.RepositoryLayout, Path, bytes] | None:
    """The repository around a folder, the top of its work tree, and the path of the folder from
    there as it begins in the index; None if the folder is not in a work tree."""
    layout = scan.find_repository(root)
    if layout is None or layout.top is None:
        return None
    below = os.path.relpath(os.path.abspath(root), layout.top)
    return layout, layout.top, b"" if below == "." else os.fsencode(below) + b"/"


def _index_stamp(layout: scan.RepositoryLayout) -> tuple[str, Stamp] | None:
    path = str(layout.git_dir / "index")
    try:
        return path, stamp_of(os.stat(path))
    except OSError:
        return None


def _digest(data: bytes) -> bytes:
    import hashlib  # slow to load, and often not needed

    return hashlib.blake2b(data, digest_size=16).digest()


def _count_lines(path: str) -> int | None:
    data = read_small(path, COUNTED_FILE)
    if data is None or b"\0" in data:
        return None
    return data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))


MAX_FILE = 256 * 1024
"""Bytes of a file whose diff is made."""
MAX_COMPARED = 2_000
"""Lines of a changed part that are compared one by one; a longer part is replaced as a whole."""
MAX_TOTAL = 1024 * 1024
"""Characters of the complete diff."""
CONTEXT = 3
"""Unchanged lines around a change."""
_NO_NEWLINE = "\n\\ No newline at end of file"


def diff_since(before: Snapshot, files: Sequence[FileChanged]) -> str:
    """The diff of these files, which have changed since the snapshot."""
    paths = {file.path: os.path.relpath(file.path, before.root) for file in files}
    wanted = sorted({before.staged[path] for path in paths.values() if path in before.staged})
    blobs: Mapping[str, bytes] = {}
    if wanted:
        with contextlib.suppress(StorageFailed):  # the repository is gone, or git is
            blobs = repository.blobs(Path(before.root), wanted, MAX_FILE)
    parts: list[str] = []
    size = 0
    for number, file in enumerate(files):
        path = paths[file.path]
        old = before.contents.get(path, blobs.get(before.staged.get(path, "")))
        part = _file_diff(file, path, b"" if file.kind == "created" else old)
        size += len(part)
        if size > MAX_TOTAL:
            parts.append(
                f"# {len(files) - number:,} more files are not shown: the diff is too long\n"
            )
            break
        parts.append(part)
    return "".join(parts)


def _file_diff(file: FileChanged, path: str, old: bytes | None) -> str:
    new = b"" if file.kind == "deleted" else read_small(file.path, MAX_FILE)
    if old is None:
        return f"# {file.kind} {path}: the content before is not known\n"
    if new is None:
        return f"# {file.kind} {path}: the file is large or cannot be read\n"
    if b"\0" in old or b"\0" in new:
        return f"# {file.kind} {path}: the file is binary\n"
    head = (
        f"--- {'/dev/null' if file.kind == 'created' else f'a/{path}'}\n"
        f"+++ {'/dev/null' if file.kind == 'deleted' else f'b/{path}'}\n"
    )
    return head + "".join(f"{line}\n" for line in unified(split_lines(old), split_lines(new)))


def split_lines(data: bytes) -> list[str]:
    """Lines without their ends; a last line without an end has a mark."""
    lines = data.decode("utf-8", "replace").split("\n")
    if lines[-1]:
        lines[-1] += _NO_NEWLINE
    else:
        lines.pop()
    return lines


def unified(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """The hunks of a unified diff. Equal beginnings and ends are not compared again, so that the
    cost depends on the size of the change."""
    start = _common(old, new)
    end = min(_common(old[::-1], new[::-1]), len(old) - start, len(new) - start)
    first = max(0, start - CONTEXT)
    old_part = old[first : len(old) - max(0, end - CONTEXT)]
    new_part = new[first : len(new) - max(0, end - CONTEXT)]
    for hunk in _hunks(old_part, new_part, start - first, min(end, CONTEXT)):
        (_, a, _, c, _), (_, _, b, _, d) = hunk[0], hunk[-1]
        yield f"@@ -{_range(first + a, first + b)} +{_range(first + c, first + d)} @@"
        for kind, i, j, k, m in hunk:
            if kind == "equal":
                yield from (f" {line}" for line in old_part[i:j])
            else:
                yield from (f"-{line}" for line in old_part[i:j])
                yield from (f"+{line}" for line in new_part[k:m])


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """How many lines are equal at the beginning."""
    return next(
        (n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )


_Opcode = tuple[str, int, int, int, int]


def _hunks(
    old: Sequence[str], new: Sequence[str], head: int, tail: int
) -> Iterable[Sequence[_Opcode]]:
    if max(len(old), len(new)) <= MAX_COMPARED:
        return SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT)
    a, b = len(old) - tail, len(new) - tail
    complete: list[_Opcode] = [
        ("equal", 0, head, 0, head),
        ("replace", head, a, head, b),
        ("equal", a, len(old), b, len(new)),
    ]
    return [complete]


def _range(start: int, stop: int) -> str:
    """As in the unified format: the first line and the number of lines."""
    count = stop - start
    return f"{start + 1 if count else start},{count}"
