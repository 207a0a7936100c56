"""The names of warm sessions and their files. ``client`` describes the files.

Commands that only list sessions load this module: it does not load asyncio.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from corral._system import fs, paths
from corral.errors import ConfigError, StorageFailed
from corral.values import Json, decode_as

MAX_NAME = 100
"""Characters of a name."""
MAX_SOCKET_PATH = 100
"""Bytes of a socket's path: systems allow 104 or 108."""


class StoredName(msgspec.Struct, kw_only=True):
    """The content of ``session.json``."""

    name: str
    cwd: str
    agent: str
    session: str
    options: dict[str, Json] = {}
    interactive: bool = False
    pid: int = 0


class WarmFiles:
    """The files of one named session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock: Path = folder / "lock"
        self.meta: Path = folder / "session.json"
        self.log: Path = folder / "log"

    @classmethod
    def of(cls, name: str, cwd: str) -> WarmFiles:
        """``cwd`` is the resolved working directory. Raises ``ConfigError`` for an invalid name."""
        if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            raise ConfigError(
                f"a session name has 1 to {MAX_NAME} printable characters, got: {name!r}"
            )
        digest = hashlib.blake2b(f"{cwd}\0{name}".encode(), digest_size=10).hexdigest()
        return cls(root() / digest)

    @property
    def socket(self) -> str:
        path = self.folder / "socket"
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            path = paths.temporary() / f"{self.folder.name}.socket"
        return str(path)

    def stored(self) -> StoredName | None:
        try:
            return decode_as(fs.read_bytes(self.meta), StoredName)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise StorageFailed(f"{self.meta} is damaged: {error}", hint="Delete it.") from error

    def is_warm(self) -> bool:
        """Whether the background process runs."""
        return fs.is_locked(self.lock)


def root() -> Path:
    return paths.home() / "warm"


def all_names() -> list[tuple[WarmFiles, StoredName]]:
    """All named sessions, by name."""
    found: list[tuple[WarmFiles, StoredName]] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in fs.list_names(root()):
            files = WarmFiles(root() / name)
            stored = files.stored()
            if stored is not None:
                found.append((files, stored))
    return sorted(found, key=lambda each: (each[1].name, each[1].cwd))


def forget(sessions: Collection[str]) -> None:
    """Remove the names of these stored sessions: the next prompt with one starts a new session."""
    for files, stored in all_names():
        if stored.session in sessions and not files.is_warm():
            fs.remove_file(files.meta)
