"""Comparisons of agents as runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from corral._comparison import existing, store
from corral._comparison.plan import load_plan
from corral._comparison.result_lines import report_lines
from corral._comparison.summary import summarize, summary
from corral._runs.run_record import Run, RunDetails, Sources, State
from corral._system.git.scan import project_of
from corral.errors import CorralError
from corral.values import Cost, Usage


def list_runs(sources: Sources) -> Iterator[Run]:
    """The stored comparisons; one that cannot be read is left out."""
    for name in store.names() if sources.db is None else ():
        with suppress(CorralError):
            yield _run(name, sources)


def _run(name: str, sources: Sources) -> Run:
    plan = load_plan(name)
    found = summarize(plan, store.results(name))
    open_attempts = found.total - found.done - sum(row.count for row in found.missing)
    missing = sum(row.count for row in found.missing)
    state: State = "success"
    reason = code = ""
    if store.is_in_use(found.id):
        state = sources.state_of(found.id) or "running"
    elif open_attempts:
        state, reason = "interrupted", f"{open_attempts:,} of {found.total:,} attempts have not run"
    elif missing:
        state, code = "failed", found.missing[0].code
        reason = f"{missing:,} of {found.total:,} attempts have no verdict"
    rows = [row for row in found.attempts if row.verdict != "pending"]
    usage = sum((row.usage for row in rows), start=Usage())
    costs = [row.cost_usd for row in rows if row.cost_usd is not None]
    changed = store.last_change(found.id)
    is_running = state not in ("success", "failed", "interrupted")
    return Run(
        id=found.id,
        kind="comparison",
        state=state,
        title=found.title,
        project=project_of(found.cwd),
        reason=reason,
        code=code,
        usage=usage,
        cost=Cost(sum(costs), "computed") if costs and not plan.scripted else Cost(),
        scripted=plan.scripted,
        needs=sources.needs_of(found.id),
        started=found.created,
        ended=None if is_running else changed,
        updated=changed,
        agent=", ".join(agent.agent for agent in found.agents),
        folder=str(store.folder_of(found.id)),
    )


def show(run: Run) -> RunDetails:
    """The attempts of a comparison so far. Raises ``ConfigError``."""
    found = summary(run.id)
    lines = tuple("\n".join(report_lines(found)).splitlines())
    return RunDetails(run=run, content=found, lines=lines)


def delete(run: Run) -> None:
    """Delete a comparison with its commits. Its sessions stay. Raises ``ConfigError``."""
    existing.remove(run.id)
