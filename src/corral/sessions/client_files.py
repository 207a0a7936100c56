"""Files that an agent asks us to read or write for it, kept inside the workspace.

Every path is resolved, symlinks included, before it is compared: a link that
leads out is outside, and so is ``/repo-evil`` beside ``/repo``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

LARGEST = 64 * 1024 * 1024


class Outside(Exception):
    """A path that is not the agent's to touch."""


class ClientFiles:
    def __init__(self, cwd: str, readable: Iterable[str], writable: Iterable[str]) -> None:
        """The workspace, and further folders, relative to it or absolute. What is writable
        is readable too."""
        self._writable = [Path(cwd, folder).resolve() for folder in (".", *writable)]
        self._readable = [*self._writable, *(Path(cwd, folder).resolve() for folder in readable)]

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The text, or ``limit`` lines of it from ``line`` (counted from 1). Raises
        ``FileNotFoundError``, ``Outside`` or ``OSError``."""
        whole = self._inside(path, self._readable)
        _check_kind(whole, path)
        if whole.stat().st_size > LARGEST:
            raise OSError(f"{path} is over {LARGEST:,} bytes")
        text = whole.read_bytes().decode("utf-8", "replace")
        if line is None and limit is None:
            return text
        lines = text.split("\n")
        lines = [each + "\n" for each in lines[:-1]] + lines[-1:]
        lines = lines[max(0, (line or 1) - 1) :]
        return "".join(lines if limit is None else lines[: max(0, limit)])

    def write(self, path: str, content: str) -> tuple[Path, bool]:
        """Write the text, folders included; the path that was written, and whether it is new."""
        whole = self._inside(path, self._writable)
        new = not whole.exists()
        if not new:
            _check_kind(whole, path)
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(content.encode())
        return whole, new

    def may_write(self, path: str) -> bool:
        """Whether it is the workspace's, or of the folders that are writable."""
        try:
            self._inside(os.path.join(self._writable[0], path), self._writable)
        except Outside:
            return False
        return True

    def _inside(self, path: str, roots: list[Path]) -> Path:
        if not Path(path).is_absolute():
            raise Outside(f"not an absolute path: {path}")
        try:
            whole = Path(path).resolve()
        except (ValueError, RuntimeError) as error:  # a NUL byte, a loop of links
            raise Outside(f"not a path: {path!r}") from error
        if not any(whole.is_relative_to(root) for root in roots):
            raise Outside(f"outside the workspace: {path}")
        return whole


def _check_kind(whole: Path, path: str) -> None:
    """A pipe or a device would keep the whole loop waiting."""
    if whole.exists() and not whole.is_file():
        raise OSError(f"not a regular file: {path}")
