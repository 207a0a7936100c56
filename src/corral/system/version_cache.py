"""Answers that a program gave once, remembered between runs by its path, size and time.

Only a memory: where it cannot be read or written the question is asked again.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from corral.system import paths


def key_of(program: str, *words: str) -> str:
    """What an answer is remembered under; another file at the same path has another."""
    info = os.stat(program)
    return ":".join((program, str(info.st_size), str(info.st_mtime_ns), *words))


def recall(topic: str, key: str) -> str | None:
    return _all(topic).get(key)


def keep(topic: str, key: str, answer: str) -> None:
    known = {**_all(topic), key: answer}
    with contextlib.suppress(OSError):
        paths.write_private(paths.cache() / f"{topic}.json", msgspec.json.encode(known))


def _all(topic: str) -> dict[str, str]:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        file = paths.cache() / f"{topic}.json"
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    return {}
