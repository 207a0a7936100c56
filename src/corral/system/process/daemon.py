"""A process that outlives us, and holds a lock from before its first moment to its last."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_FORK = """
import os, sys
if os.fork():
    os._exit(0)
from importlib import import_module
import_module(sys.argv[1]).main(*sys.argv[2:])
"""
"""The middle one ends at once, so that nobody has to wait for the other when it ends."""


def is_held(lock: Path) -> bool:
    """Whether some process has this lock. Asking takes it for a moment where nobody has:
    only one at a time may ask."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def start(module: str, *arguments: str, lock: Path, log: Path) -> bool:
    """Run ``main`` of a module of ours in a process of its own, in a session of its own;
    False where the lock is held already. The lock is taken before, and goes over to it."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # -P: a workspace must not decide what is imported.
            subprocess.run(
                [sys.executable, "-P", "-c", _FORK, module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=(fd,),
                start_new_session=True,
                check=True,
            )
        finally:
            os.close(said)
        return True
    finally:
        os.close(fd)


@contextmanager
def alone(gate: Path) -> Generator[int]:
    """One process at a time, and each sees what the one before it did. That may have removed
    the folder: ``FileNotFoundError``. Blocking. A process that gets the descriptor holds the
    gate too."""
    while True:
        fd = os.open(gate, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                same = os.path.samestat(os.fstat(fd), os.stat(gate))
            except FileNotFoundError:
                same = False
            if same:
                yield fd
                return
        finally:
            os.close(fd)


def put(path: Path, data: bytes) -> None:
    """A file whole or not at all, also when the machine loses its power."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def knock(fifo: Path) -> None:
    """Wake whoever listens there; nobody: nothing."""
    try:
        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, b"!")
    except OSError:
        pass  # it has been knocked at often enough
    finally:
        os.close(fd)
