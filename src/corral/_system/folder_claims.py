"""Which turns work in a folder at the same time, of this process and of others.

A turn claims its folder while it works there. The claim tells at its end whether another turn did
so too meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral._system import fs, paths
from corral.errors import CorralError


class _FolderUse(msgspec.Struct, gc=False):
    """The turns in progress in this process that work in one folder (``here``), or there and in the
    folders below it (``within``)."""

    here: int = 0
    within: int = 0
    last_here: int = 0
    """The number of the last turn that started there."""
    last_within: int = 0
    file: int | None = None
    """A descriptor of the file by which other processes know that one works ``here``."""


claimed_folders: dict[str, _FolderUse] = {}
_folders_lock = threading.RLock()
"""Turns may run in several threads, each with its event loop. Re-entrant: a claim that is dropped
is released in the middle of anything."""
_claim_numbers = itertools.count(1)


class FolderClaim:
    """A turn works in this folder. Tells whether another turn did so too meanwhile: of this process
    there, below or above, and of another process there. The cost does not depend on the number of
    turns.

    Processes share an empty file for the folder. Each locks it shared while it works there, and
    each turn appends a byte. Who can lock it exclusively is alone, and empties it; who sees more
    than the own byte is not."""

    def __init__(self, folder: str) -> None:
        self._folder: str | None = folder
        with _folders_lock:
            self._number = number = next(_claim_numbers)
            first, *above = _with_parents(folder)
            use = claimed_folders.setdefault(first, _FolderUse())
            self._is_shared = use.within > 0
            if not use.here:
                use.file, has_others = _open_claim_file(folder)
                self._is_shared |= has_others
            self._size = 0
            if use.file is not None:
                with contextlib.suppress(OSError):  # the disk is full
                    os.write(use.file, b".")
                self._size = os.fstat(use.file).st_size
            self._is_shared |= not use.here and self._size > 1
            use.here, use.last_here = use.here + 1, number
            use.within, use.last_within = use.within + 1, number
            for parent in above:
                use = claimed_folders.setdefault(parent, _FolderUse())
                self._is_shared |= use.here > 0
                use.within, use.last_within = use.within + 1, number

    def release(self) -> bool:
        """The turn has ended. Returns whether it shared the folder with another one."""
        with _folders_lock:
            folder, self._folder = self._folder, None
            if folder is None:
                return self._is_shared
            first, *above = _with_parents(folder)
            self._is_shared |= claimed_folders[first].last_within > self._number
            self._is_shared |= any(claimed_folders[path].last_here > self._number for path in above)
            use = claimed_folders[first]
            use.here -= 1
            if use.file is not None:
                self._is_shared |= os.fstat(use.file).st_size > self._size
                if not use.here:
                    with contextlib.suppress(OSError, CorralError):
                        if fs.try_lock(use.file):  # nobody else works there
                            fs.remove_file(_claim_file(folder))
                    os.close(use.file)
                    use.file = None
            for path in (first, *above):
                claimed_folders[path].within -= 1
                if not claimed_folders[path].within:
                    del claimed_folders[path]
            return self._is_shared

    def __del__(self) -> None:
        self.release()


def _open_claim_file(folder: str) -> tuple[int | None, bool]:
    """A descriptor with a shared lock, None without a home that can be written; and whether another
    process works in the folder."""
    while True:
        try:
            path = _claim_file(folder)
            paths.make_dir(path.parent)
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except (OSError, CorralError):
            return None, False
        is_alone = fs.try_lock(number)
        if is_alone:
            os.ftruncate(number, 0)
        fs.lock_shared(number)  # another process may have found itself alone meanwhile
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(number), fs.status(path)):
                return number, not is_alone
        os.close(number)  # the last process in the folder removed the file meanwhile


def _claim_file(folder: str) -> Path:
    name = blake2b(os.fsencode(folder), digest_size=16).hexdigest()
    return paths.cache() / "folders" / name


def _with_parents(folder: str) -> list[str]:
    folders = [folder]
    while (parent := os.path.dirname(folder)) != folder:
        folders.append(folder := parent)
    return folders
