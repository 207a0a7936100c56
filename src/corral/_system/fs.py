"""Read files that may be of any kind, replace files atomically, lock files, remove trees, and find
programs.

Reading: a plain ``open`` of a FIFO blocks until a writer comes, and a link may point anywhere.
These functions open regular files only and never wait.

Writing: corral replaces a file in two steps. It writes a draft, a hidden file in the same folder,
and moves it over the file. A reader sees the old content or the new content, never a part. If
corral is killed between the steps, the draft stays behind and the file is unchanged. No other
module calls ``os.replace``.

Locking, between the processes of one machine: a lock belongs to an open file description. It ends
when the last descriptor of it is closed, also if the process is killed. A child that inherits the
descriptor holds the lock too. Locks are advisory: they stop only those that ask for them. No other
module calls ``flock``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, TypeAlias

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

AnyPath = str | bytes | os.PathLike[str]
TemporaryFolder: TypeAlias = "TemporaryDirectory[str]"

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER = _FLAGS | os.O_DIRECTORY
_DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_NAMELESS = os.O_WRONLY | getattr(os, "O_TMPFILE", 0) | os.O_CLOEXEC
_NO_NAMELESS = (errno.EISDIR, errno.EOPNOTSUPP, errno.EACCES)
"""How systems, and file systems, without such files refuse to create one."""
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_DRAFT_NAME = 40
"""Characters of a file's name that its draft's name repeats: a name has at most 255 bytes."""

_DRAFT_END = 12
"""Hexadecimal digits at the end of the name of a draft."""


def real_path(path: str | os.PathLike[str]) -> str:
    """The path without links. It need not exist."""
    return os.path.realpath(path)


def exists(path: AnyPath) -> bool:
    """Whether there is something at the end of the path and its links."""
    return os.path.exists(path)


def is_file(path: AnyPath) -> bool:
    return os.path.isfile(path)


def is_dir(path: AnyPath) -> bool:
    return os.path.isdir(path)


def is_link(path: AnyPath) -> bool:
    return os.path.islink(path)


def read_bytes(path: AnyPath) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def read_text(path: AnyPath) -> str:
    """Raises ``UnicodeDecodeError`` if the file is not UTF-8."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def status(file: AnyPath | int) -> os.stat_result:
    """Of a file at the end of a path and its links, or of an open one by its number."""
    return os.stat(file)


def is_own_file(path: AnyPath) -> bool:
    """Whether it is a regular file of this user, and not a link."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and those above it, if they are not there."""
    os.makedirs(path, exist_ok=True)


def files_below(folder: Path) -> list[Path]:
    """All files in a folder and in the folders below it."""
    return [path for path in folder.rglob("*") if path.is_file()]


def temporary_file(in_memory: int = 0) -> IO[bytes]:
    """A file without a name, which is gone when it is closed. Up to ``in_memory`` bytes are not
    written to the disk."""
    import tempfile

    return tempfile.SpooledTemporaryFile(in_memory) if in_memory else tempfile.TemporaryFile()


def temporary_folder(prefix: str) -> TemporaryFolder:
    """A folder that is removed at the end of its block, or by ``cleanup``."""
    import tempfile

    return tempfile.TemporaryDirectory(prefix=prefix)


def current_folder() -> str:
    """The working directory of this process. Raises ``OSError`` if it is gone."""
    return os.getcwd()


def may_enter(folder: AnyPath) -> bool:
    """Whether the names in a folder can be read, and what is there."""
    return os.access(folder, os.R_OK | os.X_OK)


def list_names(folder: str | os.PathLike[str]) -> list[str]:
    """The names of all that is in a folder, in no order."""
    return os.listdir(folder)


def written_times(folder: AnyPath, name: str) -> dict[str, int]:
    """When the file ``name`` in each folder of this folder was last written, in nanoseconds. Hidden
    folders, and those without the file, are left out."""
    times: dict[str, int] = {}
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for below in os.listdir(root):
            if below[0] != ".":
                # Relative to the open folder: the system does not look up its path each time.
                with suppress(OSError):
                    times[below] = os.stat(f"{below}/{name}", dir_fd=root).st_mtime_ns
    finally:
        os.close(root)
    return times


def remove_file(path: AnyPath) -> None:
    """Remove a file if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def open_regular(path: AnyPath, dir_fd: int | None = None) -> BinaryIO:
    """Open a regular file for reading. Links are not followed. Raises ``OSError``."""
    fd = os.open(path, _FLAGS, dir_fd=dir_fd)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


@contextmanager
def opened_folder(path: AnyPath, *, follow: bool = False) -> Generator[int]:
    """A descriptor of a folder. Raises ``OSError``, also for a link unless ``follow`` is set."""
    folder = os.open(path, _FOLDER & ~os.O_NOFOLLOW if follow else _FOLDER)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def parent_below(
    top: int, path: bytes, *, make: bool = False, force: bool = False
) -> Generator[tuple[int, bytes]]:
    """The open folder that holds ``path``, and the path's last part. ``top`` is an open folder. No
    part of the way may be a link, even if it is replaced meanwhile. With ``make``, folders that are
    missing are made; with ``force``, what is in the place of one is removed. Raises ``OSError``."""
    *parts, name = path.split(b"/")
    at = os.dup(top)
    try:
        for part in parts:
            if make:
                try:
                    os.mkdir(part, dir_fd=at)
                except FileExistsError:
                    mode = os.stat(part, dir_fd=at, follow_symlinks=False).st_mode
                    if force and not stat.S_ISDIR(mode):
                        os.unlink(part, dir_fd=at)
                        os.mkdir(part, dir_fd=at)
            inner = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        yield at, name
    finally:
        os.close(at)


def mode_below(folder: Path, path: str) -> int | None:
    """The mode of what a relative path names below a folder; None if there is nothing. No link is
    followed: if a part of the path is one, the mode is that of the link. Raises ``OSError``."""
    mode = None
    for part in path.split("/"):
        folder = folder / part
        try:
            mode = os.lstat(folder).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(mode):
            return mode
    return mode


def read_small(path: AnyPath, limit: int) -> bytes | None:
    """Return the content of a regular file of at most ``limit`` bytes, else None."""
    try:
        with open_regular(path) as file:
            data = file.read(limit + 1)
    except (OSError, ValueError):
        return None
    return data if len(data) <= limit else None


def read_from(path: AnyPath, start: int, limit: int) -> bytes:
    """At most ``limit`` bytes of a regular file from ``start`` on; none if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(start)
            return file.read(limit)
    except OSError:
        return b""


def write_atomically(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    mode: int = 0o600,
    sync: bool = False,
    dir_fd: int | None = None,
) -> None:
    """Replace the content of a file, or create the file, atomically.

    ``mode`` is the new file's, reduced by the umask. With ``sync`` the new content is on the disk
    when this returns. ``dir_fd`` is an open folder that ``path`` is relative to. A link at
    ``path`` is replaced, not followed. Raises ``OSError``; then the file is as it was.
    """
    fd, draft = create_draft(path, mode=mode, dir_fd=dir_fd)
    try:
        try:
            write_all(fd, data)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        move_into_place(draft, path, sync=sync, dir_fd=dir_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=dir_fd)
        raise


def create_complete(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o600) -> None:
    """Create a file that has its content from the first moment. Raises ``OSError``, which is
    ``FileExistsError`` if there is one.

    A process that is killed here leaves nothing behind, except where the system has no files
    without a name: there it can leave a draft, like ``write_atomically``."""
    path = os.fspath(path)
    try:
        fd = os.open(os.path.dirname(path) or ".", _NAMELESS, mode)
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
        _create_from_draft(path, data, mode)
        return
    try:
        write_all(fd, data)
        try:
            # Only with a descriptor the link in /proc is followed.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd)
        except FileExistsError:
            raise
        except OSError:  # without /proc
            _create_from_draft(path, data, mode)
    finally:
        os.close(fd)


def _create_from_draft(path: str, data: bytes, mode: int) -> None:
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    write_atomically(path, data, mode=mode)


def overwrite_start(path: AnyPath, data: bytes) -> None:
    """Write over the first bytes of a file that exists, with one ``write``. Of up to a page, a
    process that is killed writes all or nothing. Raises ``OSError``."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def append(path: AnyPath, data: bytes) -> None:
    """Append to a file, which is created for this user alone, with one ``write``: so the data of
    several processes are not mixed. Raises ``OSError``."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        write_all(file, data)  # a further one only if the disk became full
    finally:
        os.close(file)


def create_draft(
    path: str | os.PathLike[str], *, mode: int = 0o600, dir_fd: int | None = None
) -> tuple[int, str]:
    """Create an empty hidden file beside ``path``. Return a descriptor that appends, and its path.
    The caller closes the descriptor and calls ``move_into_place`` or removes the file."""
    draft = draft_path(path)
    return os.open(draft, _DRAFT, mode, dir_fd=dir_fd), draft


def draft_path(path: str | os.PathLike[str]) -> str:
    """Return a new hidden name in the folder of ``path``."""
    folder, slash, name = os.fspath(path).rpartition("/")
    return f"{folder}{slash}.{name[:_DRAFT_NAME]}.{os.urandom(_DRAFT_END // 2).hex()}"


def is_draft(name: str) -> bool:
    """Whether this is the name of a draft."""
    head, _, end = name.rpartition(".")
    return head.startswith(".") and len(end) == _DRAFT_END and not end.strip("0123456789abcdef")


def move_into_place(
    draft: AnyPath, path: AnyPath, *, sync: bool = False, dir_fd: int | None = None
) -> None:
    """Rename ``draft`` to ``path`` atomically; a file that is there is replaced. With ``sync`` the
    new name is on the disk when this returns. Raises ``OSError``."""
    os.replace(draft, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    if sync:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        folder = os.open(os.path.dirname(path) or ".", flags, dir_fd=dir_fd)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes to a descriptor, however many calls that takes."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def lock_file(path: Path) -> int:
    """Lock a file, which is created if it does not exist. Return a descriptor that holds the lock
    until it is closed. Raises ``BlockingIOError`` if another process holds the lock."""
    fd = os.open(path, _LOCK_FLAGS, 0o600)
    try:
        if not try_lock(fd):
            raise BlockingIOError(f"another process holds the lock {path}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def try_lock(fd: int) -> bool:
    """Lock an open file exclusively. False if another process holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_shared(fd: int) -> None:
    """Lock an open file together with others that lock it shared. Waits for an exclusive lock to
    end. An exclusive lock that ``fd`` holds becomes a shared one."""
    fcntl.flock(fd, fcntl.LOCK_SH)


@contextmanager
def hold_lock(fd: int) -> Generator[None]:
    """Hold an exclusive lock on an open file inside the block. Waits for it. Blocks."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock of this file. The check takes the lock for a moment if
    it is free: callers must not check at the same time."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return not try_lock(fd)
    finally:
        os.close(fd)


@contextmanager
def exclusive_lock(path: Path) -> Generator[int]:
    """Hold the lock of a file inside the block. Waits for it. Blocks.

    The file is created if needed. The previous holder may have removed it together with its
    folder: then ``FileNotFoundError`` is raised. Yields the descriptor: a process that inherits it
    holds the lock too.
    """
    while True:
        fd = os.open(path, _LOCK_FLAGS, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                is_current = os.path.samestat(os.fstat(fd), os.stat(path))
            except FileNotFoundError:
                is_current = False
            if is_current:
                yield fd
                return
        finally:
            os.close(fd)  # and no more: a child that has the descriptor still holds the lock


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Remove a folder and what is in it, as far as possible. Links are not followed. Unlike
    ``shutil``, this loads no compression libraries, which take 2 ms."""
    with suppress(OSError):
        for _, folders, files, fd in os.fwalk(folder, topdown=False):
            for name in files:
                with suppress(OSError):
                    os.unlink(name, dir_fd=fd)
            for name in folders:
                with suppress(OSError):
                    try:
                        os.rmdir(name, dir_fd=fd)
                    except NotADirectoryError:  # a link to a folder
                        os.unlink(name, dir_fd=fd)
        os.rmdir(folder)


def find_program(name: str, path: str | None = None) -> str | None:
    """The program of this name in the folders of ``path`` (default: PATH), or at this place if it
    has a slash: as ``shutil.which``, which loads compression libraries."""
    path = os.environ.get("PATH", os.defpath) if path is None else path
    folders = [""] if os.path.dirname(name) else path.split(os.pathsep) if path else []
    for folder in folders:
        place = os.path.join(folder, name)
        if os.access(place, os.X_OK) and not os.path.isdir(place):
            return place
    return None
