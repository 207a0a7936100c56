"""Keeps a program in the sandbox from leaving a repository in which git would start programs.

Theory of operation
-------------------
git starts programs that a repository names: hooks, ``core.fsmonitor``, filters. Many tools call git
in the folder that a user opens. So a repository is a way out of the sandbox, once the user works
there again. Two things close it:

- Repositories that exist before the program starts can only be read: each ``.git`` below the
  guarded folders is mounted read-only, and the folders above it stay where they are. bubblewrap
  does that for ``MOST_MOUNTS`` of them, the highest ones; more would make the start slow.
- No mount can forbid a name that does not exist yet, and an agent may clone or create a repository.
  So when the program has ended, every repository is looked at again. A part of one that git obeys
  (``repositories.GitPart``), that is new or changed, that the program could write, and that is not
  known to be harmless, is renamed: git does not obey it any more, nothing is lost, and it is
  reported. Settings that were there before are put back.

If the program may change repositories (an unlimited policy), this is only reported.

States: *started* (made by ``begin``, before the program starts; a record of what was there is in
corral's state, locked) -> any number of ``check`` while the program runs (a persistent agent, after
each turn) -> *finished* (``finish`` checks for the last time and removes the record).

Crashes: if corral is killed, the kernel ends the program and unlocks the record. The next corral
process that makes a session finishes the check (``finish_left_behind``).

The program may still run during a check, and change anything meanwhile: parts are renamed in the
folder that holds them, which is opened without following links below the writable folder. What it
makes after that is found by the next check. All functions here block.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from corral._system import fs, paths
from corral._system.paths import is_inside
from corral._system.sandbox import repositories
from corral._system.sandbox.box import Box
from corral._system.sandbox.repositories import FoundRepositories, GitPart
from corral.values import decode_as

MOST_MOUNTS = 50
"""Repositories that are mounted read-only. The time that bubblewrap takes for mounts grows with the
square of their number: 50 take about 50 ms."""
MOST_REPOSITORIES = 10_000
"""Repositories that are looked at, the highest ones first."""
_SHOWN = 5


class GitNotice(msgspec.Struct, frozen=True):
    """What the user must know about repositories that a program made or changed."""

    code: Literal["git_quarantined", "git_changed", "git_unchecked"]
    message: str


Report: TypeAlias = Callable[[GitNotice], None]


class _Before(msgspec.Struct, frozen=True):
    """What was there before the program started, and what it can write. Paths need not be valid
    text: only ``json`` writes and reads those."""

    folders: tuple[str, ...]
    writable: tuple[str, ...]
    protected: tuple[str, ...]
    skipped: tuple[str, ...]
    unreadable: tuple[str, ...]
    parts: tuple[tuple[str, bytes, bytes | None], ...]
    """The path, stamp and content of each."""
    can_change: bool

    def can_write(self, path: str) -> bool:
        """Whether the program can."""
        is_protected = any(is_inside(path, other) for other in self.protected)
        return not is_protected and any(is_inside(path, folder) for folder in self.writable)


class RepositoryGuard:
    """Made by ``begin``. Its methods may be called in any thread."""

    def __init__(
        self, before: _Before, record: Path, lock: int, report: Report | None = None
    ) -> None:
        self._before = before
        self._report = report
        self._parts = {path: (stamp, old) for path, stamp, old in before.parts}
        self._reported: set[tuple[str, bytes]] = set()
        self._record: Path | None = record
        self._lock: int | None = lock
        self._mutex = threading.Lock()
        self.read_only: tuple[str, ...] = ()
        """What must be mounted read-only."""

    @classmethod
    def begin(cls, box: Box, *, has_mounts: bool, report: Report | None = None) -> RepositoryGuard:
        """Look at the guarded folders of a box. ``has_mounts``: parts of writable folders can be
        made read-only. ``report`` gets the notices; by default they are Python warnings. Raises
        ``OSError`` if the record cannot be written."""
        folders = [os.path.realpath(path) for path in box.guarded if os.path.isdir(path)]
        mounted = (*box.read_only, *box.hidden) if has_mounts else ()
        skipped = [os.path.realpath(path) for path in mounted if os.path.exists(path)]
        found = repositories.find(folders, skipped)
        entries = found.entries[:MOST_REPOSITORIES]
        parts = [part for entry in entries for part in repositories.read_parts(entry)]
        read_only: tuple[str, ...] = ()
        if has_mounts and not box.can_change_git:
            read_only = tuple(_to_mount(found, parts, folders))
        before = _Before(
            folders=tuple(folders),
            writable=tuple(os.path.realpath(path) for path in box.writable),
            protected=(*skipped, *read_only),
            skipped=tuple(skipped),
            unreadable=tuple(found.unreadable),
            parts=(),
            can_change=box.can_change_git,
        )
        changeable = (part for part in parts if before.can_write(part.path))
        before = msgspec.structs.replace(
            before, parts=tuple((part.path, part.stamp, part.content) for part in changeable)
        )
        record, lock = _write_record(before)
        guard = cls(before, record, lock, report)
        guard.read_only = read_only
        return guard

    def check(self) -> list[GitNotice]:
        """Make harmless what the program did so far. The program may still run."""
        with self._mutex:
            return self._check()

    def finish(self) -> list[GitNotice]:
        """The last check: the program has ended. Does nothing if it was called before."""
        with self._mutex:
            if self._record is None:
                return []
            notices = self._check()
            self._drop()
            return notices

    def tell(self, notices: Iterable[GitNotice]) -> None:
        """Report these. Call it in the thread of the caller of the program."""
        for notice in notices:
            if self._report is not None:
                self._report(notice)
            else:
                warnings.warn(notice.message, stacklevel=2)

    def drop(self) -> None:
        """The program was not started."""
        with self._mutex:
            self._drop()

    def _drop(self) -> None:
        record, self._record = self._record, None
        lock, self._lock = self._lock, None
        if record is not None:
            with contextlib.suppress(OSError):
                record.unlink(missing_ok=True)
                record.parent.rmdir()  # if it is empty: then nothing needs to look there
        if lock is not None:
            os.close(lock)

    def __del__(self) -> None:
        if self._lock is not None:  # the record stays, for another process
            os.close(self._lock)

    def _check(self) -> list[GitNotice]:
        found = repositories.find(self._before.folders, self._before.skipped)
        notices: list[GitNotice] = []
        for entry in found.entries[:MOST_REPOSITORIES]:
            dangers: dict[GitPart, list[str]] = {}
            for part in repositories.read_parts(entry):
                stamp, old = self._parts.get(part.path, (None, None))
                is_known = stamp == part.stamp or (part.path, part.stamp) in self._reported
                if not is_known and self._before.can_write(part.path):
                    reasons = repositories.find_dangers(part, old, self._before.writable)
                    if reasons:
                        dangers[part] = reasons
            if dangers:
                notices.append(self._handle(entry, dangers))
        new = sorted(found.unreadable.difference(self._before.unreadable))
        is_complete = found.is_complete and len(found.entries) <= MOST_REPOSITORIES
        if new or not is_complete:
            why = f"cannot read {_listed(new)}" if is_complete else "there are too many files"
            message = (
                f"not every repository that was made in the sandbox could be checked: {why}."
                " Do not use git in folders that were made there."
            )
            notices.append(GitNotice("git_unchecked", message))
        return notices

    def _handle(self, entry: str, dangers: Mapping[GitPart, list[str]]) -> GitNotice:
        is_named = os.path.basename(entry).lower() == ".git"
        folder = os.path.dirname(entry) if is_named else entry
        reasons = _listed(reason for found in dangers.values() for reason in found)
        if self._before.can_change:
            self._reported.update((part.path, part.stamp) for part in dangers)
            return GitNotice(
                "git_changed",
                f"what git starts in {folder} was changed: {reasons}. Read it before you use git"
                " there.",
            )
        renamed: list[str] = []
        failed: list[str] = []
        for part in dangers:
            try:
                new = self._quarantine(part)
            except FileNotFoundError:
                continue  # the program still runs, and has removed it
            except OSError as error:
                failed.append(f"{part.path}: {error.strerror}")
            else:
                renamed.append(new)
                self._reported.add((new, part.stamp))  # one of remotes is found again
        message = f"git would have started programs in {folder}: {reasons}."
        if renamed:
            message += (
                f" corral renamed the files, so that git does not obey them: {_listed(renamed)}."
                " Read them before you rename one back."
            )
        if failed:
            message += f" Do not use git there: not renamed: {_listed(failed)}."
        return GitNotice("git_quarantined", message)

    def _quarantine(self, part: GitPart) -> str:
        """Rename it, and put back what was there. Returns its new path. Raises ``OSError``."""
        root = next(path for path in self._before.writable if is_inside(part.path, path))
        path = os.fsencode(os.path.relpath(part.path, root))
        try:
            new = self._rename(part, root, path)
        except PermissionError:  # the program may have removed the user's own rights
            _allow_owner(root, path)
            new = self._rename(part, root, path)
        return os.path.join(os.path.dirname(part.path), os.fsdecode(new))

    def _rename(self, part: GitPart, root: str, path: bytes) -> bytes:
        with fs.opened_folder(root, follow=True) as top, fs.parent_below(top, path) as parent:
            folder, name = parent
            new = name + os.fsencode(repositories.QUARANTINED + secrets.token_hex(4))
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=folder)
            _, old = self._parts.get(part.path, (None, None))
            if old is not None:
                # Without space on the disk, git has no settings there.
                with contextlib.suppress(OSError):
                    fs.write_atomically(os.fsdecode(name), old, mode=0o644, dir_fd=folder)
        return new


def _allow_owner(root: str, path: bytes) -> None:
    """Give the user all rights to the folders of a path. Links are not followed. Raises
    ``OSError``."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        at = os.open(root, flags)
        opened.callback(os.close, at)
        for part in path.split(b"/")[:-1]:
            os.chmod(f"/proc/self/fd/{at}", 0o700 | stat.S_IMODE(os.fstat(at).st_mode))
            at = os.open(part, flags, dir_fd=at)
            opened.callback(os.close, at)
        os.chmod(f"/proc/self/fd/{at}", 0o700 | stat.S_IMODE(os.fstat(at).st_mode))


def _to_mount(
    found: FoundRepositories, parts: Iterable[GitPart], folders: Iterable[str]
) -> Iterator[str]:
    """Each ``.git``, the folder that it names, and the folder of ``core.hooksPath``, as far as they
    are in the guarded folders. The highest come first."""
    roots = [*folders]
    paths: dict[str, None] = {}
    for entry in found.entries[:MOST_MOUNTS]:
        if os.path.basename(entry).lower() == ".git":
            if not os.path.islink(entry):
                paths[entry] = None
            paths.update(dict.fromkeys(repositories.git_dirs(entry)))
    for part in parts:
        # Those of a repository are in its folder.
        if not part.git_dir and not any(is_inside(part.path, each) for each in paths):
            paths[os.path.dirname(part.path)] = None
    for path in paths:
        inside = any(is_inside(path, root) and path != root for root in roots)
        if inside and os.path.exists(path):
            yield path


def _listed(texts: Iterable[str]) -> str:
    found = [*dict.fromkeys(texts)]
    more = [f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    shown = ", ".join([*found[:_SHOWN], *more])
    return shown.encode("utf-8", "backslashreplace").decode()


def _write_record(before: _Before) -> tuple[Path, int]:
    """The file, and a descriptor that holds its lock. It is locked before it has its name."""
    file = paths.git_checks() / f"{secrets.token_hex(8)}.json"
    while True:
        paths.make_dir(file.parent)
        with contextlib.suppress(FileNotFoundError):  # another process has removed the empty folder
            number, draft = fs.create_draft(file)
            break
    try:
        fs.try_lock(number)
        fs.write_all(number, json.dumps(msgspec.to_builtins(before)).encode())
        fs.move_into_place(draft, file)
    except BaseException:
        os.close(number)
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    return file, number


def finish_left_behind() -> list[GitNotice]:
    """Finish the checks of corral processes that were killed."""
    notices: list[GitNotice] = []
    try:
        files = sorted(file for file in paths.git_checks().iterdir() if not fs.is_draft(file.name))
    except OSError:
        return notices
    for file in files:
        try:
            lock = fs.lock_file(file)
        except OSError:  # its owner lives, or another process finishes it
            continue
        try:
            before = decode_as(file.read_bytes(), _Before)
        except (OSError, ValueError, msgspec.MsgspecError):  # its owner has just removed it
            file.unlink(missing_ok=True)
            os.close(lock)
        else:
            notices += RepositoryGuard(before, file, lock).finish()
    return notices
