"""Comparisons on disk: ``CORRAL_HOME/comparisons/NAME``.

* ``plan.json``: what is compared. It is written once, before anything is started.
* ``results.jsonl``: one line per attempt that has ended, the file of results of the batch.
* ``attempts/NAME/``: ``changes.patch``, ``answer.md`` and ``verifier.txt`` of each attempt.
* ``sources/N``: repositories with the files of folders that are in no repository.

The commits of the attempts are in the repository that was compared, as ``refs/corral/NAME/...``.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral._core.lookup import LAST, find_id
from corral._system import fs, paths
from corral.errors import ConfigError
from corral.values import decode_as

if TYPE_CHECKING:
    from corral._engine.batch.results import BatchResult

PLAN, RESULTS = "plan.json", "results.jsonl"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def root() -> Path:
    return paths.home() / "comparisons"


def folder_of(name: str) -> Path:
    return root() / name


def check_name(name: str) -> None:
    """Raises ``ConfigError``."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a valid name of a comparison",
            hint="Use letters, digits, dots, underscores and hyphens.",
        )


def names() -> list[str]:
    """The newest first."""
    found: list[tuple[float, str]] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in fs.list_names(root()):
            with suppress(OSError):
                found.append(((root() / name / PLAN).stat().st_mtime, name))
    return [name for _, name in sorted(found, reverse=True)]


def find(name: str) -> str:
    """The name of a comparison, given a unique beginning of it, or ``last``, the newest. Raises
    ``ConfigError``."""
    known = names()
    found = known[0] if name == LAST and known else find_id(name, known, "comparisons")
    if found is None:
        raise ConfigError(f"there is no comparison {name!r}", hint="`corral runs list` shows them.")
    return found


def is_stored(name: str) -> bool:
    return fs.is_file(folder_of(name) / PLAN)


def results(name: str) -> dict[str, BatchResult]:
    """The results so far, by attempt; of an attempt that was repeated, the last one. A line that is
    not complete yet is left out."""
    from corral._engine.batch.results import BatchResult

    found: dict[str, BatchResult] = {}
    try:
        data = fs.read_bytes(folder_of(name) / RESULTS)
    except FileNotFoundError:
        return found
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            result: BatchResult = decode_as(line, BatchResult)
            found[result.id] = result
    return found


def last_change(name: str) -> float:
    """When the plan or a result was last written, in seconds since the epoch."""
    moments = [0.0]
    for path in (folder_of(name) / PLAN, folder_of(name) / RESULTS):
        with suppress(OSError):
            moments.append(path.stat().st_mtime)
    return max(moments)


class _Place(msgspec.Struct):
    cwd: str = ""


def cwd_of(name: str) -> str:
    """The folder of a comparison; empty if its plan cannot be read."""
    with suppress(OSError, msgspec.MsgspecError):
        return decode_as(fs.read_bytes(folder_of(name) / PLAN), _Place).cwd
    return ""


def is_in_use(name: str) -> bool:
    """Whether a process runs the comparison."""
    path = folder_of(name) / RESULTS
    return fs.exists(path) and fs.is_locked(path)


def remove(name: str) -> None:
    """Remove the files of a comparison. Its commits stay until git removes them."""
    fs.remove_tree(folder_of(name))
