# ruff: noqa: I001 (it would split ``import A as A, B as B``)
"""Merge queues: finished branches are merged one after another, behind a gate.

::

    from corral import merge_queue

    report = merge_queue.run_sync(["feature-1", "feature-2"], into="main", gates=["make test"])
    for entry in report.entries:
        print(entry.branch, entry.state, entry.reason)

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral._core.lazy_names import load_public_name, public_names

if TYPE_CHECKING:
    # ``Name as Name`` makes a name public for type checkers.
    from corral._merging.api import (
        MergeReport as MergeReport,
        remove as remove,
        run as run,
        run_sync as run_sync,
    )
    from corral._merging.queue import MergeEntry as MergeEntry, MergeQueue as MergeQueue

_HOMES = {
    "corral._merging.api": "MergeReport remove run run_sync",
    "corral._merging.queue": "MergeEntry MergeQueue",
}


def __getattr__(name: str) -> object:
    value = globals()[name] = load_public_name(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return public_names(_HOMES)
