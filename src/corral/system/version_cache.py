"""A cache of answers that programs gave, by the program's path, size and modification time.

It is only a cache: if it cannot be read or written, the program is asked again.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from corral.system import paths


def cache_key(program: str, *words: str) -> str:
    """The key of an answer. It changes when the file at this path changes."""
    info = os.stat(program)
    return ":".join((program, str(info.st_size), str(info.st_mtime_ns), *words))


def get(topic: str, key: str) -> str | None:
    return _read(topic).get(key)


def put(topic: str, key: str, answer: str) -> None:
    known = {**_read(topic), key: answer}
    with contextlib.suppress(OSError):
        paths.write_private(paths.cache() / f"{topic}.json", msgspec.json.encode(known))


def _read(topic: str) -> dict[str, str]:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        file = paths.cache() / f"{topic}.json"
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    return {}
