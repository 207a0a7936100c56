"""Where a path really leads, and whether an agent may read or write there.

A path is resolved component by component, every link on the way included, whether or not its
target exists: opening a dangling link for writing creates the target. Only the result is compared
with the folders of the session. ``..`` after a link means the parent of the link's target.

What is refused without looking further: a path with a NUL byte, an empty one, ``~`` (programs
differ in who expands it), links that lead in a circle, and links made by the kernel
(``/proc/self/cwd``, ``/dev/fd/3``), which mean something else in the agent's process than here.

Programs also differ in how they read a path before they open it: some remove spaces, a leading
``@`` or backslashes, or take ``..`` away from the text before links are followed. ``PathGuard``
allows a path only if every such reading is allowed.

Guaranteed: nothing that exists at the moment of the check leads out. Not guaranteed: a program that
replaces a folder by a link between the check and the agent's own use of the path wins that race.
An agent that may only edit files cannot make links; one that runs commands needs no race. Where
corral opens the file itself (``open_beneath``), no link is followed and there is no race. A hard
link to a file outside cannot be distinguished from the file. git never creates one.
"""

from __future__ import annotations

import errno
import functools
import itertools
import math
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal

from corral._core.protected_paths import Link, Links, protection_of, regex
from corral._system import fs
from corral._system.paths import is_inside, is_own, own_files_in

MOST_HOPS = 40
"""Links on the way of one path: as the kernel counts them."""
MOST_ENTRIES = 1_000_000
"""Files and folders that are looked at for links."""
MOST_LINKS = MOST_NAMES = 1_000
"""Links that lead out, and names of files that may not be written: more would make too many
rules."""
_ENTRIES_PER_LOOK = 1_000
"""Files and folders between looks at the clock."""
_GIT_OBJECT = re.compile(r"[0-9a-f]{38}|pack-[0-9a-f]{40}\.\w+")
"""Names of files that git compressed: nobody edits their text."""

MOST_PATHS = 1_000
"""Paths of one tool call."""

Access = Literal["read", "write"]


class PathRefused(Exception):
    """A path that the agent may not use; the text says why."""


def resolve(path: str, cwd: str) -> str:
    """The absolute path without links, ``.`` and ``..``; it need not exist. Raises
    ``PathRefused``."""
    if not path or "\0" in path:
        raise PathRefused(f"not a path: {path!r}")
    if path.startswith("~"):
        raise PathRefused(f"~ is not expanded: {path}")
    ahead = _parts(os.path.join(cwd, path))
    if not os.path.isabs(cwd):
        raise PathRefused(f"the folder is not absolute: {cwd}")
    real, hops = "/", 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            real = os.path.dirname(real)
            continue
        here = os.path.join(real, part)
        target = _link(here, path)
        if target is None:
            real = here
            continue
        hops += 1
        if hops > MOST_HOPS:
            raise PathRefused(f"too many links: {path}")
        if os.path.isabs(target):
            real = "/"
        ahead += _parts(target)
    return real


def _parts(path: str) -> list[str]:
    """The components, last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _link(here: str, path: str) -> str | None:
    """The target of the link; None if it is not a link or does not exist."""
    try:
        found = os.lstat(here)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM):
            return None
        raise PathRefused(f"cannot be resolved: {path}: {error.strerror}") from error
    except ValueError as error:
        raise PathRefused(f"not a path: {path!r}") from error
    if not stat.S_ISLNK(found.st_mode):
        return None
    if found.st_size == 0 or here.startswith("/proc/"):
        raise PathRefused(f"leads through a link of the kernel: {path}")
    try:
        return os.readlink(here)
    except OSError as error:
        raise PathRefused(f"cannot be resolved: {path}: {error.strerror}") from error


class PathGuard:
    """The folders of one session: ``cwd`` and ``writable`` may be read and written, ``readable``
    only read. Further folders are relative to ``cwd`` or absolute. Protected names are not
    written in any of them, unless ``protects`` is false (an unlimited policy)."""

    def __init__(
        self,
        cwd: str,
        readable: Iterable[str] = (),
        writable: Iterable[str] = (),
        *,
        protects: bool = True,
    ) -> None:
        self._protects = protects
        self.cwd: str = os.path.realpath(cwd)
        self.writable: tuple[str, ...] = self._roots(("", *writable))
        self.readable: tuple[str, ...] = tuple(
            dict.fromkeys((*self.writable, *self._roots(readable)))
        )

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def _roots(self, folders: Iterable[str]) -> tuple[str, ...]:
        return tuple(os.path.realpath(os.path.join(self.cwd, folder)) for folder in folders)

    def check(self, path: str, access: Access) -> str:
        """The resolved path. Raises ``PathRefused`` if this access is not allowed."""
        for reading in _readings(path, self.cwd):
            self._check(resolve(reading, self.cwd), path, access)
        real = resolve(path, self.cwd)
        self._check(real, path, access)  # a link may have been swapped meanwhile
        return real

    def _check(self, real: str, path: str, access: Access) -> None:
        root = _root_of(real, self.writable if access == "write" else self.readable)
        if root is None:
            if access == "write" and _root_of(real, self.readable) is not None:
                raise PathRefused(f"may be read but not written: {path}")
            raise PathRefused(f"outside the workspace: {path}")
        if is_own(real, self.readable):
            raise PathRefused(f"it belongs to corral: {path}")
        if access == "write" and self._protects:
            protection = protection_of(real[len(root) :])
            if protection is not None:
                raise PathRefused(f"protected ({protection.reason}): {path}")

    def root_of(self, real: str, access: Access) -> str:
        """The folder that contains what ``check`` returned."""
        root = _root_of(real, self.writable if access == "write" else self.readable)
        if root is None:
            raise PathRefused(f"outside the workspace: {real}")
        return root

    def refusal(self, paths: Iterable[str], access: Access) -> str | None:
        """Why one of these paths may not be used; None if all may be used. More than ``MOST_PATHS``
        are refused as they are: to look at each would block all other work."""
        paths = [*itertools.islice(paths, MOST_PATHS + 1)]
        if len(paths) > MOST_PATHS:
            return f"one call names more than {MOST_PATHS:,} paths"
        for path in paths:
            try:
                self.check(path, access)
            except PathRefused as error:
                return str(error)
        return None

    def links(self, most: int = MOST_ENTRIES, seconds: float = math.inf) -> Links:
        """The links below the session's folders that lead out of the writable area, or to a
        protected name. Folders are listed without following links. Raises ``TimeoutError`` if
        this takes longer than ``seconds``."""
        found: list[Link] = []
        aliases: list[str] = []
        names: set[str] = set()
        can_write: dict[str, bool] = {}
        own = own_files_in(self.readable)
        seen = 0
        complete = True
        end = time.monotonic() + seconds
        for entry in _entries(self.readable):
            seen += 1
            if entry is None or seen > most or len(found) > MOST_LINKS:
                complete = False
                if entry is not None:
                    break
                continue
            if seen % _ENTRIES_PER_LOOK == 0 and time.monotonic() > end:
                raise TimeoutError(f"{seen:,} files and folders were looked at")
            if entry.is_symlink():
                try:
                    target = resolve(entry.path, self.cwd)
                except PathRefused:  # a circle, or a link of the kernel: it leads to no file
                    found.append(Link(entry.path, entry.path, readable=False))
                    continue
                is_own = any(is_inside(target, path) for path in own)
                if is_own or not self._can_write(target):
                    readable = _root_of(target, self.readable) is not None
                    found.append(Link(entry.path, target, readable=readable))
                elif entry.is_dir():
                    aliases.append(entry.path)
            elif len(names) <= MOST_NAMES and not entry.is_dir(follow_symlinks=False):
                folder = entry.path[: -len(entry.name) - 1]  # a path without links
                if folder not in can_write:
                    can_write[folder] = self._can_write(folder)
                if not can_write[folder] and not _GIT_OBJECT.fullmatch(entry.name):
                    names.add(entry.name)
        unwritable = frozenset(names) if len(names) <= MOST_NAMES else None
        return Links(tuple(found), complete, tuple(aliases), unwritable)

    def _can_write(self, real: str) -> bool:
        """Whether a resolved path is in a writable folder and has no protected name. It is compared
        as text."""
        root = _root_of(real, self.writable)
        if root is None:
            return False
        return not (self._protects and _protected().search(real[len(root) :].casefold()))


def _readings(path: str, cwd: str) -> set[str]:
    """The path as it is, and as a program may read it."""
    if not path.strip():
        raise PathRefused(f"not a path: {path!r}")
    if path.lstrip().lower().startswith("file:"):
        raise PathRefused(f"not a path but an address: {path}")
    plain = path.replace("\ufeff", " ")  # a blank to JavaScript
    found = {path, path.strip(), plain.strip(), " ".join(path.split())}
    found |= {each.removeprefix("@") or each for each in found}
    found |= {each.replace("\\", "") or each for each in found}
    found |= {each.replace("\\", "/") for each in found}
    return found | {os.path.normpath(os.path.join(cwd, each)) for each in found}


def _root_of(real: str, roots: Iterable[str]) -> str | None:
    """The innermost of these folders that contains the path."""
    return max((root for root in roots if is_inside(real, root)), key=len, default=None)


@functools.cache
def _protected() -> re.Pattern[str]:
    return re.compile(regex())


def _entries(roots: Iterable[str]) -> Iterator[os.DirEntry[str] | None]:
    """Everything below these folders, each folder once; None for a folder that cannot be listed
    though its files may be reached."""
    waiting = [*roots]
    listed: set[str] = set()
    while waiting:
        folder = waiting.pop()
        if folder in listed:
            continue
        listed.add(folder)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            if os.access(folder, os.X_OK):
                yield None


def open_beneath(root: str, real: str, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a file whose resolved path ``real`` is below the resolved folder ``root``.
    Opened one component at a time and through no link: what was swapped for a link since the
    check is an ``OSError``. With ``O_CREAT``, missing folders are created."""
    path = os.path.relpath(real, root)
    if os.pardir in path.split("/") or path == os.curdir:
        raise OSError(errno.EACCES, "not below the folder", real)
    makes = bool(flags & os.O_CREAT)
    with (
        fs.opened_folder(root) as top,
        fs.parent_below(top, os.fsencode(path), make=makes) as (folder, name),
    ):
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
