"""Differences between operating systems in files, pipes and file watching."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from corral.system.process.platform import libc


def scratch_file(folder: Path) -> tuple[int, int, Path | None]:
    """A new private file: a descriptor to read, one that appends, and its path where
    it has to be removed afterwards. On POSIX it has no name left to remove."""
    flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not every file system can
            appends = os.open(folder, flags | os.O_TMPFILE, 0o600)
            try:
                return os.open(f"/proc/self/fd/{appends}", os.O_RDWR), appends, None
            except OSError:
                os.close(appends)
                raise
    path = folder / f"stdout-{os.urandom(8).hex()}"
    appends = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        reads = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    except OSError:
        os.close(appends)
        raise
    finally:
        if sys.platform != "win32":
            path.unlink(missing_ok=True)
    return reads, appends, path if sys.platform == "win32" else None


def memory_file() -> int:
    """A descriptor of a nameless file, for what the child reads as its stdin."""
    if sys.platform == "linux":
        return os.memfd_create("corral-stdin")
    import tempfile  # slow to load, and not needed on Linux

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def punch_hole(fd: int, start: int, length: int) -> bool:
    """Give a part of a file back to the disk; False where that cannot be done."""
    if sys.platform != "linux":
        return False
    import ctypes

    keep_size_and_punch = 0x01 | 0x02
    offsets = ctypes.c_int64(start), ctypes.c_int64(length)
    system = libc()
    fallocate = getattr(system, "fallocate64", None) or system.fallocate
    return bool(fallocate(fd, keep_size_and_punch, *offsets) == 0)


def grow_pipe(fd: int, size: int) -> bool:
    """Enlarge a pipe's buffer; False where that cannot be done."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size) >= size
    except OSError:
        return False


def inotify_open() -> int:
    """A descriptor that turns readable when a watched file is written to."""
    if sys.platform != "linux":
        raise OSError("no inotify here")
    import ctypes

    fd = int(libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    return fd


def inotify_once(inotify: int, fd: int) -> int:
    """Watch an open file for one write to it; returns the number the event will have."""
    import ctypes

    modify_oneshot = 0x2 | 0x80000000
    path = f"/proc/self/fd/{fd}".encode()
    watch = int(libc().inotify_add_watch(inotify, path, ctypes.c_uint32(modify_oneshot)))
    if watch < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
    return watch


def inotify_saves(inotify: int, folder: Path) -> None:
    """Watch a folder for files that are closed after writing or moved into it, and for its end."""
    import ctypes

    close_write, moved_to, delete_self, move_self = 0x8, 0x80, 0x400, 0x800
    mask = ctypes.c_uint32(close_write | moved_to | delete_self | move_self)
    if int(libc().inotify_add_watch(inotify, os.fsencode(folder), mask)) < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
