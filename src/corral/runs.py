# ruff: noqa: I001 (it would split ``import A as A, B as B``)
"""Runs of every kind: sessions, pipelines, workflows, batches, comparisons, reviews and merges.

::

    from corral import runs

    for run in runs.list_sync(state="failed"):
        print(run.id, run.kind, run.title, run.reason)

Each name is loaded when it is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral._core.lazy_names import load_public_name, public_names

if TYPE_CHECKING:
    # ``Name as Name`` makes a name public for type checkers.
    from corral._runs.act import (
        answer as answer,
        answer_sync as answer_sync,
        answer_with_token as answer_with_token,
        answer_with_token_sync as answer_with_token_sync,
        budget as budget,
        budget_sync as budget_sync,
        cancel as cancel,
        cancel_sync as cancel_sync,
        fork as fork,
        fork_sync as fork_sync,
        resume as resume,
        resume_sync as resume_sync,
        steer as steer,
        steer_sync as steer_sync,
    )
    from corral._runs.run_record import Run as Run, RunDetails as RunDetails
    from corral._runs.verbs import (
        delete as delete,
        delete_sync as delete_sync,
        export as export,
        export_sync as export_sync,
        list as list,
        list_sync as list_sync,
        prune as prune,
        prune_sync as prune_sync,
        replay as replay,
        replay_sync as replay_sync,
        show as show,
        show_sync as show_sync,
        usage as usage,
        usage_sync as usage_sync,
        watch as watch,
    )

_HOMES = {
    "corral._runs.act": "answer answer_sync answer_with_token answer_with_token_sync budget"
    " budget_sync cancel cancel_sync fork fork_sync resume resume_sync steer steer_sync",
    "corral._runs.run_record": "Run RunDetails",
    "corral._runs.verbs": "delete delete_sync export export_sync list list_sync prune prune_sync"
    " replay replay_sync show show_sync usage usage_sync watch",
}


def __getattr__(name: str) -> object:
    value = globals()[name] = load_public_name(__name__, _HOMES, name)
    return value


def __dir__() -> Sequence[str]:
    return public_names(_HOMES)
