"""Write files of a commit into a work tree.

A new folder is filled by git. Later changes are written here, file by file:
no part of a path is followed if it is a link, and a file is replaced only if it holds what the
earlier commit holds.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from corral.errors import StorageFailed
from corral.system import fs
from corral.system.git import repository, stub
from corral.system.git.command import Limits
from corral.system.git.repository import Difference, Entry
from corral.system.git.tree import LINK, SUBMODULE, hash_blob
from corral.values import printable_path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1024 * 1024


def fill(root: Path, place: Path, commit: str, index: Path) -> None:
    """Write all files of a commit into an empty folder, and an index of them. Raises
    ``StorageFailed``."""
    env = {"GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(place)}
    repository.run(root, "read-tree", "--reset", "-u", commit, env=env)


def update(root: Path, place: Path, changes: Sequence[Difference], *, force: bool) -> None:
    """Bring a work tree from one commit to another. Without ``force`` nothing is touched unless
    every file to change is as in the earlier commit. Raises ``StorageFailed``."""
    try:
        with _opened(place) as top:
            if not force:
                for change in changes:
                    _verify(top, place, change)
            for change in changes:
                if change.old is not None and (change.new is None or force):
                    _remove(top, change, force=force)
            _write(root, top, [each for each in changes if each.new is not None], force=force)
    except OSError as error:
        raise StorageFailed(f"{place} cannot be updated: {error}") from error


def _verify(top: int, place: Path, change: Difference) -> None:
    """Raises ``StorageFailed``."""
    try:
        with _parent(top, change.path) as (folder, name):
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        info = None
    wanted = change.old
    if wanted is None and info is None:
        return
    if wanted is not None and wanted.mode == SUBMODULE:
        return
    some = change.old or change.new
    if info is not None and some is not None:
        current = hash_blob(os.path.join(os.fsencode(place), change.path), len(some.id))
        if current and Entry(_mode(info), current) in (change.old, change.new):
            return
    raise StorageFailed(f"{_shown(change.path)} was changed meanwhile")


def _mode(info: os.stat_result) -> str:
    if stat.S_ISLNK(info.st_mode):
        return LINK
    return "100755" if info.st_mode & 0o100 else "100644"


def _remove(top: int, change: Difference, *, force: bool) -> None:
    parts = change.path.split(b"/")
    try:
        with _parent(top, change.path) as (folder, name):
            if change.old is not None and change.old.mode == SUBMODULE:
                with contextlib.suppress(OSError):  # not empty: it has other files
                    os.rmdir(name, dir_fd=folder)
            else:
                _unlink(folder, name, force=force)
    except (FileNotFoundError, NotADirectoryError):
        return
    for depth in range(len(parts) - 1, 0, -1):
        try:
            with _parent(top, b"/".join(parts[:depth])) as (folder, name):
                os.rmdir(name, dir_fd=folder)
        except OSError:
            return  # not empty


def _unlink(folder: int, name: bytes, *, force: bool) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        if force:
            shutil.rmtree(name, dir_fd=folder)


def _write(root: Path, top: int, changes: Sequence[Difference], *, force: bool) -> None:
    wanted = [(each.path, each.new) for each in changes if each.new is not None]
    blobs = [entry.id for _, entry in wanted if entry.mode != SUBMODULE]
    with tempfile.TemporaryFile(dir=stub.folder()) as contents:
        if blobs:
            feed = (f"{name}\n".encode() for name in blobs)
            limits = Limits(output=1 << 62)
            words = ("cat-file", "--batch")
            answer = repository.call(root, *words, feed=feed, output=contents, limits=limits)
            repository.checked(words, answer)
            contents.seek(0)
        for path, entry in wanted:
            with _parent(top, path, make=True, force=force) as (folder, name):
                if entry.mode == SUBMODULE:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=folder)
                    continue
                size = int(contents.readline().split(b" ")[2])
                _replace(folder, name, entry, contents, size, force=force)
                contents.read(1)


def _replace(
    folder: int, name: bytes, entry: Entry, contents: IO[bytes], size: int, *, force: bool
) -> None:
    draft = b".corral-" + secrets.token_hex(8).encode()
    try:
        _write_draft(folder, draft, entry, contents, size)
        try:
            fs.move_into_place(draft, name, dir_fd=folder)
        except IsADirectoryError:
            if not force:
                raise
            shutil.rmtree(name, dir_fd=folder)
            fs.move_into_place(draft, name, dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise


def _write_draft(folder: int, draft: bytes, entry: Entry, contents: IO[bytes], size: int) -> None:
    if entry.mode == LINK:
        os.symlink(contents.read(size), draft, dir_fd=folder)
    else:
        mode = 0o777 if entry.mode == "100755" else 0o666
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, mode, dir_fd=folder), "wb") as file:
            for chunk in _chunks(contents, size):
                file.write(chunk)


def _chunks(contents: IO[bytes], size: int) -> Iterable[bytes]:
    while size:
        data = contents.read(min(size, _CHUNK))
        if not data:
            raise StorageFailed("git cat-file: the output ended too early")
        size -= len(data)
        yield data


@contextmanager
def _opened(place: Path) -> Generator[int]:
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _parent(
    top: int, path: bytes, *, make: bool = False, force: bool = False
) -> Generator[tuple[int, bytes]]:
    """The open folder that holds a path, and the last part. No link on the way is followed."""
    *parts, name = path.split(b"/")
    at = os.dup(top)
    try:
        for part in parts:
            if make:
                _make_folder(at, part, force=force)
            inner = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        yield at, name
    finally:
        os.close(at)


def _make_folder(at: int, part: bytes, *, force: bool) -> None:
    try:
        os.mkdir(part, dir_fd=at)
    except FileExistsError:
        if force and not stat.S_ISDIR(os.stat(part, dir_fd=at, follow_symlinks=False).st_mode):
            os.unlink(part, dir_fd=at)
            os.mkdir(part, dir_fd=at)


def _shown(path: bytes) -> str:
    return printable_path(os.fsdecode(path))
