"""What really changed on disk while an agent worked in a folder.

``look`` before and after; ``compare`` gives the difference, so that ``cp``,
``sed -i`` and scripts are seen and what was dirty before is not. In a git
repository the list of files comes from git (ignored ones stay out), else from
a walk. git is asked for one list alone, out of its index: a command that
compares contents (``status``, ``diff-files``) would run the filters that the
repository names, and the agent may have written the repository's settings.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral.content import FileChanged
from corral.events import FileKind

FILES_LIMIT = 50_000
HASHED_FILE = 1024 * 1024
HASHED_TOTAL = 64 * 1024 * 1024
"""Beyond these a file is known by its size and times alone."""
COUNTED_FILE = 1024 * 1024

_SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__"})
"""Folders a walk leaves out: machine-made, and huge."""
_GIT = (
    "git",
    "--no-optional-locks",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
)
_INDEXED = re.compile(
    rb"  ctime: (\d+):(\d+)\n  mtime: (\d+):(\d+)\n  dev: \d+\tino: (\d+)\n"
    rb"  uid: \d+\tgid: \d+\n  size: (\d+)\tflags: [0-9a-f]+\n"
)
"""What ``--debug`` adds to an entry: the file as it was when git last took it in."""


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
    by_git: bool = False
    staged: dict[str, str] = {}
    """Known to git as it is now: path → blob id."""

    def has(self, path: str) -> bool:
        """Whether an absolute path was there, as far as the folder was looked at."""
        return os.path.relpath(path, self.root) in self.files


def look(root: Path) -> Snapshot:
    """The folder as it is now."""
    listed = _git_files(root)
    indexed = listed or {}
    paths = _walk(root) if listed is None else listed
    files, complete = _stat_all(root, paths, indexed, budget=HASHED_TOTAL)
    staged = {
        path: entry.blob
        for path, seen in files.items()
        if (entry := indexed.get(path)) is not None and entry.is_still(seen)
    }
    return Snapshot(str(root), files, complete, listed is not None, staged)


def look_again(before: Snapshot) -> Snapshot:
    """The same folder, later."""
    root = Path(before.root)
    listed = _git_files(root, names_only=True) if before.by_git else None
    paths: Iterable[str]
    if listed is not None:
        # A file that git tracked and that is now ignored, say, is still worth a look.
        paths = {**dict.fromkeys(listed), **dict.fromkeys(before.files)}
    else:
        paths = _walk(root)
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
    return tuple(found[path] for path in sorted(found))


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
    return blob is None or _blob_id(whole, len(blob)) != blob


class _Entry(msgspec.Struct, frozen=True, gc=False):
    """A file in git's index."""

    blob: str
    taken: tuple[int, ...]
    """Size, times and inode when git last took it in."""

    def is_still(self, seen: Seen) -> bool:
        return self.taken == (seen.size, seen.mtime, seen.ctime, seen.inode & 0xFFFFFFFF)


def _stat_all(
    root: Path, paths: Iterable[str], indexed: Mapping[str, _Entry | None], *, budget: int
) -> tuple[dict[str, Seen], bool]:
    """Every file as it stands; a digest, within the budget, of those that git cannot vouch for."""
    files: dict[str, Seen] = {}
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
        vouched = entry is not None and entry.is_still(seen)
        if not vouched and seen.size <= min(HASHED_FILE, budget) and stat.S_ISREG(seen.mode):
            seen = replace(seen, digest=_digest(whole))
            budget -= seen.size
        files[path] = seen
    return files, True


def _walk(root: Path) -> Iterator[str]:
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(root / folder))
        except OSError:
            continue
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if not entry.is_dir(follow_symlinks=False):
                yield path
            elif entry.name not in _SKIPPED:
                pending.append(path)


def _git_files(root: Path, *, names_only: bool = False) -> dict[str, _Entry | None] | None:
    """Tracked and untracked files below the folder, or None where git cannot say."""
    if not any((folder / ".git").exists() for folder in (root, *root.parents)):
        return None
    entries = () if names_only else ("-s", "--debug")
    listed = _git(root, "ls-files", "-z", *entries, "-c", "-o", "--exclude-standard")
    if listed is None:
        return None
    if names_only:
        return dict.fromkeys(os.fsdecode(path) for path in listed.split(b"\0") if path)
    found: dict[str, _Entry | None] = {}
    path, blob = "", ""
    for row in listed.split(b"\0"):
        # What --debug says of an entry stands behind its NUL, before the next entry.
        indexed = _INDEXED.match(row) if blob else None
        if indexed:
            changed, changed_ns, modified, modified_ns, inode, size = map(int, indexed.groups())
            times = (modified * 10**9 + modified_ns, changed * 10**9 + changed_ns)
            found[path] = _Entry(blob, (size, *times, inode))
            row = row[indexed.end() :]  # noqa: PLW2901
        # "mode id stage\tpath" where tracked, "path" alone where not
        info, tab, name = row.partition(b"\t")
        words = info.split(b" ")
        tracked = bool(tab) and len(words) == 3 and len(words[1]) in (40, 64)
        path, blob = (os.fsdecode(name), words[1].decode()) if tracked else (os.fsdecode(row), "")
        if path:
            found[path] = None
    return found


def _git(root: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            [*_GIT, *arguments],
            cwd=root,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _environment() -> dict[str, str]:
    """Ours without git's variables: inside a hook they lead to another index than this one's."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**ours, "GIT_NO_LAZY_FETCH": "1"}


def _digest(path: str) -> bytes | None:
    import hashlib  # here: an empty folder needs none

    try:
        with open(path, "rb") as file:
            return hashlib.blake2b(file.read(HASHED_FILE + 1), digest_size=16).digest()
    except OSError:
        return None


def _blob_id(path: str, length: int) -> str | None:
    try:
        if os.path.islink(path):
            data = os.fsencode(os.readlink(path))
        else:
            with open(path, "rb") as file:
                data = file.read()
    except OSError:
        return None
    head = b"blob %d\0" % len(data)
    import hashlib

    algorithm = "sha1" if length == 40 else "sha256"
    return hashlib.new(algorithm, head + data, usedforsecurity=False).hexdigest()


def _count_lines(path: str) -> int | None:
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode) or os.path.getsize(path) > COUNTED_FILE:
            return None
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    if b"\0" in data:
        return None
    return data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))
