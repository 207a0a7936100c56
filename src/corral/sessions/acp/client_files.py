"""Reads and writes files for an agent that asks its client to, inside the workspace only.

Every path is checked by the guard after links are resolved. The result is opened without following
links (``path_guard.open_beneath``): if a folder is replaced by a link meanwhile, that is an error.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from corral.system.path_guard import Access, PathGuard, Refused, open_beneath

LARGEST = 64 * 1024 * 1024


class ClientFiles:
    def __init__(self, guard: PathGuard) -> None:
        self._guard = guard

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The text, or ``limit`` lines of it from ``line`` (counted from 1). Raises
        ``FileNotFoundError``, ``PermissionError`` or ``OSError``."""
        fd = self._open(self._checked(path, "read"), path, "read", os.O_RDONLY)
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_size > LARGEST:
                raise OSError(f"{path} is over {LARGEST:,} bytes")
            text = file.read(LARGEST + 1).decode("utf-8", "replace")
        if line is None and limit is None:
            return text
        lines = text.split("\n")
        lines = [each + "\n" for each in lines[:-1]] + lines[-1:]
        lines = lines[max(0, (line or 1) - 1) :]
        return "".join(lines if limit is None else lines[: max(0, limit)])

    def write(self, path: str, content: str) -> tuple[Path, bool]:
        """Write the text, folders included; the path that was written, and whether it is new.
        Raises ``PermissionError`` or ``OSError``."""
        real = self._checked(path, "write")
        new = not os.path.lexists(real)
        fd = self._open(real, path, "write", os.O_WRONLY | os.O_CREAT)
        with os.fdopen(fd, "wb") as file:
            file.truncate()
            file.write(content.encode())
        return Path(real), new

    def _open(self, real: str, path: str, access: Access, flags: int) -> int:
        """A descriptor of a regular file. A pipe or a device would block the event loop."""
        root = self._guard.root_of(real, access)
        if real == root or os.path.isdir(real):
            raise OSError(f"not a regular file: {path}")
        if os.path.exists(real) and not os.path.isfile(real):
            raise OSError(f"not a regular file: {path}")
        fd = open_beneath(root, real, flags | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(f"not a regular file: {path}")
        return fd

    def _checked(self, path: str, access: Access) -> str:
        if not os.path.isabs(path):
            raise PermissionError(f"not an absolute path: {path}")
        try:
            return self._guard.check(path, access)
        except Refused as error:
            raise PermissionError(str(error)) from error
