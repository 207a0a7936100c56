"""Open files whose kind somebody else decides.

A plain ``open`` of a FIFO blocks until a writer comes, and a link leads elsewhere. These functions
open regular files only and never wait.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from typing import BinaryIO

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_FOLDER = _FLAGS | getattr(os, "O_DIRECTORY", 0)


def open_regular(path: str | bytes | os.PathLike[str], dir_fd: int | None = None) -> BinaryIO:
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
def parent_below(top: int, path: bytes) -> Generator[tuple[int, bytes]]:
    """The open folder that holds ``path``, and the path's last part. ``top`` is an open folder. No
    part of the way may be a link, even if somebody swaps it meanwhile. Raises ``OSError``."""
    *parts, name = path.split(b"/")
    at = os.dup(top)
    try:
        for part in parts:
            inner = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        yield at, name
    finally:
        os.close(at)


def read_small(path: str | bytes | os.PathLike[str], limit: int) -> bytes | None:
    """Return the content of a regular file of at most ``limit`` bytes, else None."""
    try:
        with open_regular(path) as file:
            data = file.read(limit + 1)
    except (OSError, ValueError):
        return None
    return data if len(data) <= limit else None
