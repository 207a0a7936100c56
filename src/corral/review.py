# ruff: noqa: I001 (it would split ``import A as A, B as B``)
"""Reviews of diffs: typed findings of one or more agents, which can do nothing but read.

::

    from corral import review

    found = review.run_sync("main...HEAD", agents=["gemini"])
    for finding in found.findings:
        print(finding.file, finding.line, finding.severity, finding.title)

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral._core.lazy_names import load_public_name, public_names

if TYPE_CHECKING:
    # ``Name as Name`` makes a name public for type checkers.
    from corral._review.api import run as run, run_sync as run_sync
    from corral._review.findings import Finding as Finding
    from corral._review.result import Review as Review, ReviewRun as ReviewRun

_HOMES = {
    "corral._review.api": "run run_sync",
    "corral._review.findings": "Finding",
    "corral._review.result": "Review ReviewRun",
}


def __getattr__(name: str) -> object:
    value = globals()[name] = load_public_name(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return public_names(_HOMES)
