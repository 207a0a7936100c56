"""The kinds of runs: the only list of them. A kind says in one record what is its own; no one else
asks which kind a run is of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import msgspec

from corral._merging import owners
from corral._runs import (
    actions,
    batch_runs,
    comparison_runs,
    durable_runs,
    merge_runs,
    review_runs,
    session_runs,
)
from corral._runs.run_record import Kind, Run, RunDetails, Sources

Act: TypeAlias = Callable[..., Awaitable[Any]]
"""What a verb calls with the run, the verb's own arguments, and the database."""


class RunKind(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of runs has of its own. A verb that is None means nothing for it."""

    name: Kind
    part: str
    """What a place in it is called."""
    list_runs: Callable[[Sources], Iterator[Run]]
    """Those that are stored or run now, with their parts, in any order. Blocks."""
    show: Callable[[Run], RunDetails]
    """Blocks."""
    delete: Callable[[Run], None]
    """Deletes a run that neither runs nor waits, with its files. Blocks."""
    page: str
    """The part of the page that shows one of them."""
    formats: tuple[str, ...] = ()
    """In which it can be exported."""
    forget: Callable[[float], None] | None = None
    """Removes what is stored besides and was not used since this time. Blocks."""
    resume: Act
    answer: Act = actions.answer
    cancel: Act = actions.cancel
    budget: Act = actions.budget
    fork: Act | None = None


FORMATS = {
    "ndjson": "every event on a line",
    "atif": "ATIF 1.8, a trajectory as JSON",
    "otel": "OpenTelemetry spans",
    "html": "one page to look at, which needs no server",
    "md": "a document to read",
    "bundle": "a zip file for a bug report, without secrets",
}
"""The formats of exports: of all kinds that have events. ``corral._export.formats`` writes them."""
_EVENTS = tuple(FORMATS)

KINDS: dict[str, RunKind] = {
    kind.name: kind
    for kind in (
        RunKind(
            name="session",
            page="sessions",
            part="turn",
            list_runs=session_runs.list_runs,
            show=session_runs.show,
            delete=session_runs.delete,
            formats=_EVENTS,
            resume=actions.resume_session,
            fork=actions.fork_session,
        ),
        RunKind(
            name="pipeline",
            page="pipelines",
            part="node",
            list_runs=durable_runs.list_pipelines,
            show=durable_runs.show,
            delete=durable_runs.delete,
            formats=_EVENTS,
            resume=actions.resume_durable,
            fork=actions.fork_durable,
            answer=actions.answer_durable,
            cancel=actions.cancel_durable,
            budget=actions.budget_durable,
        ),
        RunKind(
            name="workflow",
            page="pipelines",
            part="step",
            list_runs=durable_runs.list_workflows,
            show=durable_runs.show,
            delete=durable_runs.delete,
            formats=_EVENTS,
            resume=actions.resume_durable,
            fork=actions.fork_durable,
            answer=actions.answer_durable,
            cancel=actions.cancel_durable,
            budget=actions.budget_durable,
        ),
        RunKind(
            name="batch",
            page="batches",
            part="task",
            list_runs=batch_runs.list_runs,
            show=batch_runs.show,
            delete=batch_runs.delete,
            resume=actions.resume_batch,
            cancel=actions.cancel_batch,
            budget=actions.budget_durable,
        ),
        RunKind(
            name="comparison",
            page="compare",
            part="attempt",
            list_runs=comparison_runs.list_runs,
            show=comparison_runs.show,
            delete=comparison_runs.delete,
            resume=actions.resume_comparison,
            cancel=actions.cancel_batch,
            budget=actions.budget_stored,
        ),
        RunKind(
            name="review",
            page="",
            part="part",
            list_runs=review_runs.list_runs,
            show=review_runs.show,
            delete=review_runs.delete,
            resume=actions.resume_review,
        ),
        RunKind(
            name="merge",
            page="merges",
            part="branch",
            list_runs=merge_runs.list_runs,
            show=merge_runs.show,
            delete=merge_runs.delete,
            forget=owners.forget_older,
            resume=actions.resume_merge,
            cancel=actions.cancel_merge,
        ),
    )
}


def kind_of(run: Run) -> RunKind:
    return KINDS[run.kind]
