"""Locks on files, between the processes of one machine. No other module calls ``flock``.

A lock belongs to an open file description: it ends when the last descriptor of it is closed, also
if the process is killed. A child that inherits the descriptor holds the lock too. Locks are
advisory: they stop only those that ask for them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)


def lock_file(path: Path) -> int:
    """Lock a file, which is created if it does not exist. Return a descriptor that holds the lock
    until it is closed. Raises ``BlockingIOError`` if another process holds the lock."""
    fd = os.open(path, _FLAGS, 0o600)
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
        if sys.platform == "win32":
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError) or sys.platform == "win32":
            return False
        raise
    return True


def lock_shared(fd: int) -> None:
    """Lock an open file together with others that lock it shared. Waits for an exclusive lock to
    end. An exclusive lock that ``fd`` holds becomes a shared one."""
    if sys.platform != "win32":  # Windows has no such lock
        fcntl.flock(fd, fcntl.LOCK_SH)


@contextmanager
def locked(fd: int) -> Generator[None]:
    """Hold an exclusive lock on an open file inside the block. Waits for it. Blocks."""
    _lock(fd)
    try:
        yield
    finally:
        if sys.platform != "win32":
            fcntl.flock(fd, fcntl.LOCK_UN)


def _lock(fd: int) -> None:
    if sys.platform != "win32":  # Windows has no lock that waits: the later of two may win
        fcntl.flock(fd, fcntl.LOCK_EX)


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock of this file. The check takes the lock for a moment if
    nobody has it: callers must not check at the same time."""
    try:
        fd = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return False
    try:
        return not try_lock(fd)
    finally:
        os.close(fd)


@contextmanager
def exclusive(path: Path) -> Generator[int]:
    """Hold the lock of a file inside the block. Waits for it. Blocks.

    The file is created if needed. The previous holder may have removed it together with its
    folder: then ``FileNotFoundError`` is raised. Yields the descriptor: a process that inherits it
    holds the lock too.
    """
    while True:
        fd = os.open(path, _FLAGS, 0o600)
        try:
            _lock(fd)
            try:
                is_current = os.path.samestat(os.fstat(fd), os.stat(path))
            except FileNotFoundError:
                is_current = False
            if is_current:
                yield fd
                return
        finally:
            os.close(fd)  # and no more: a child that has the descriptor still holds the lock
