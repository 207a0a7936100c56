"""Whether anything in a folder has changed, by the sizes, times and inodes of its files.

For folders of installed programs, which are too large to be read: a file that is changed gets
another change time, which its owner cannot set. Blocking.
"""

from __future__ import annotations

import os
import stat
from hashlib import blake2b

import msgspec

MOST_ENTRIES = 500_000
"""Files and folders that are looked at."""
_BYTECODE = "__pycache__"


class FolderStamp(msgspec.Struct, frozen=True):
    """Two stamps of the same folder are equal if nothing in it has changed."""

    files: bytes
    bytecode: bytes
    """Of Python's compiled modules: running a program makes them."""


def take_stamp(path: str) -> FolderStamp | None:
    """The stamp of a folder or a file, also of what a link leads to; None if there is none, or it
    cannot be read completely. Links in a folder are not followed."""
    files, bytecode = blake2b(digest_size=16), blake2b(digest_size=16)
    pending = [(path, False)]
    seen = 0
    try:
        top = os.lstat(path)
        if stat.S_ISLNK(top.st_mode):
            files.update(repr(_facts(top)).encode())
            top = os.stat(path)
        if not stat.S_ISDIR(top.st_mode):
            files.update(repr(_facts(top)).encode())
            return FolderStamp(files.digest(), bytecode.digest())
        while pending:
            folder, is_bytecode = pending.pop()
            with os.scandir(folder) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
            seen += len(entries)
            if seen > MOST_ENTRIES:
                return None
            rows: list[object] = [folder]
            for entry in entries:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    below = is_bytecode or name == _BYTECODE
                    pending.append((entry.path, below))
                    if name == _BYTECODE:
                        continue  # that it was made says as little as what is in it
                    rows.append(name)
                else:
                    rows += (name, _facts(entry.stat(follow_symlinks=False)))
            digest = bytecode if is_bytecode else files
            digest.update(repr(rows).encode())
    except OSError:
        return None
    return FolderStamp(files.digest(), bytecode.digest())


def _facts(info: os.stat_result) -> tuple[int, ...]:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_mode
