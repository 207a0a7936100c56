"""Reviews of diffs as runs."""

from __future__ import annotations

from collections.abc import Iterator

from corral._review import formats
from corral._review import review_store as store
from corral._review.review_store import StoredReview
from corral._runs.run_record import Run, RunDetails, Sources, State
from corral._system import fs
from corral.errors import ConfigError
from corral.values import Cost, Usage


def list_runs(sources: Sources) -> Iterator[Run]:
    """The stored reviews."""
    for stored in store.all_reviews() if sources.db is None else ():
        yield _run(stored, sources)


def _run(stored: StoredReview, sources: Sources) -> Run:
    state: State = "success"
    reason, code = stored.reason, stored.code
    review = stored.review
    if store.is_running(stored.id):
        state = "waiting" if sources.needs_of(stored.id) else "running"
    elif stored.is_cancelled:
        state, reason = "cancelled", "it was cancelled"
    elif stored.ended is None:
        state, reason = "interrupted", "its process has ended"
    elif review is None:
        state = "failed"
    elif review.status == "incomplete":
        failed = next(run for run in review.runs if run.error)
        state, reason, code = "failed", f"{failed.agent}: {failed.error}", failed.error_code
    runs = () if review is None else review.runs
    tokens = [run.tokens for run in runs if run.tokens is not None]
    costs = [run.cost_usd for run in runs if run.cost_usd is not None]
    is_free = stored.scripted
    return Run(
        id=stored.id,
        kind="review",
        state=state,
        title=stored.title,
        project=stored.project,
        reason=reason,
        code=code,
        usage=Usage(input=sum(tokens) if tokens else None),
        cost=Cost(sum(costs), "computed") if costs and not is_free else Cost(),
        scripted=is_free,
        needs=sources.needs_of(stored.id),
        started=stored.started,
        ended=stored.ended,
        tries=stored.tries,
        updated=stored.ended or stored.started,
        agent=", ".join(dict.fromkeys(run.agent for run in runs)),
        label=stored.label,
        folder=str(store.folder_of(stored.id)),
    )


def show(run: Run) -> RunDetails:
    """The findings of a review."""
    stored = store.read(run.id)
    text = "" if stored.review is None else formats.text(stored.review)
    return RunDetails(run=run, content=stored.review, lines=tuple(text.splitlines()))


def delete(run: Run) -> None:
    """Delete what is stored of a review. Its sessions stay."""
    if store.is_running(run.id):
        raise ConfigError(f"{run.id} is running", hint="Wait for its end, or stop it with Ctrl-C.")
    fs.remove_tree(run.folder)
