"""Files that agents read and write through an editor that drives corral (``corral acp``).

The editor has text that is not saved yet, and shows what is written at once. What an agent may read
or write is decided before the editor is asked, with all links resolved: the paths are real paths.
"""

from __future__ import annotations

from typing import Protocol


class EditorError(Exception):
    """The editor did not do what it was asked; the text says why."""

    def __init__(self, why: str, *, is_missing: bool = False) -> None:
        super().__init__(why)
        self.is_missing = is_missing
        """It has no such file."""


class EditorTimeout(EditorError):
    """It did not answer in time. Whether it has written a file is not known."""


class EditorFiles(Protocol):
    """The files of one session that an editor reads and writes. The methods raise ``EditorError``
    and end in bounded time."""

    def reads(self, path: str) -> bool:
        """Whether this file is read through the editor."""
        ...

    def writes(self, path: str) -> bool:
        """Whether this file is written through the editor."""
        ...

    async def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The text of a file, or ``limit`` lines of it from ``line`` (counted from 1)."""
        ...

    async def write(self, path: str, content: str) -> None:
        """Replace the text of a file, or create the file."""
        ...
