"""Batches as runs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from corral._engine.dbos import database
from corral._runs.run_record import Run, RunDetails, Sources, State
from corral._system import threads
from corral._system.git.scan import project_of
from corral.values import Cost

STATES: dict[str, tuple[State, str, str]] = {
    "success": ("success", "", ""),
    "fail": ("failed", "some tasks failed", "tasks_failed"),
    "budget": ("failed", "its budget is spent", "budget_exceeded"),
    "cancelled": ("cancelled", "it was cancelled", ""),
    "running": ("running", "", ""),
    "paused": ("paused", "the next model call does not fit into the budget", "budget_exceeded"),
    "interrupted": ("interrupted", "its process has ended", ""),
}
"""Status of a batch -> state, reason and code."""


def list_runs(sources: Sources) -> Iterator[Run]:
    """The batches of a database, and those in memory that run."""
    listed: set[str] = set()
    if database.is_installed() and database.is_there(database.find(sources.db)):
        from corral._engine.batch import query

        for row in threads.blocking(query.list_batches(db=sources.db, limit=None)):
            listed.add(row.name)
            if row.kind == "compare":
                continue
            state, reason, code = STATES[row.status]
            if row.failed and row.status == "fail":
                reason = f"{row.failed:,} of {row.total:,} tasks failed"
            needs = sources.needs_of(row.name)
            yield Run(
                id=row.name,
                kind="batch",
                state="waiting" if needs and state == "running" else state,
                title=row.goal.strip().partition("\n")[0] or row.name,
                project=project_of(row.started_in),
                reason=reason,
                code=code,
                cost=Cost() if row.scripted or not row.cost_usd else Cost(row.cost_usd, "computed"),
                scripted=row.scripted,
                needs=needs,
                started=row.created,
                ended=row.ended,
                updated=row.ended or row.created,
                tries=max(1, len(row.rounds)),
                label=row.label,
                durable=True,
                db=sources.db or "",
            )
    for id, live in sources.live.items():
        name = id.partition("#")[0]
        if live.kind == "batch" and name not in listed and sources.db is None:
            yield Run(
                id=name,
                kind="batch",
                state=sources.state_of(id) or "running",
                title=live.title,
                project=project_of(live.cwd),
                needs=sources.needs_of(name),
                started=live.since,
                updated=live.since,
                label=live.label or "",
            )


def show(run: Run) -> RunDetails:
    """The progress and the failures of a batch. Raises ``ConfigError``."""
    from corral._engine.batch import api, query

    stored = threads.blocking(query.show_batch(run.id, db=run.db or None))
    one, report = stored.overview, stored.report
    agent = "" if ":" in stored.model else stored.agent  # vendor:model is the built-in agent
    lines = [
        f"tasks      {one.total:,}: {one.succeeded:,} done, {one.failed:,} failed,"
        f" {one.left:,} left",
        f"output     {one.output or '–'}",
        f"folder     {stored.folder}",
        f"agent      {' · '.join(filter(None, (agent, stored.model))) or 'the default agent'}",
        f"prompt     {_short(stored.prompt)}",
    ]
    for failure in report.failures:
        named = ", ".join(failure.tasks) + (" …" if failure.count > len(failure.tasks) else "")
        lines.append(f"  {failure.count:,} × {failure.code} ({named}): {_short(failure.message)}")
    if run.state in ("interrupted", "failed", "cancelled"):
        lines.append(f"continue   corral runs resume {one.name}")
    if run.state == "paused":
        lines.append(f"continue   corral runs budget {one.name} +1.00")
    content: dict[str, object] = {
        **msgspec.to_builtins(one),
        "prompt": stored.prompt,
        "agent": stored.agent,
        "model": stored.model,
        "folder": stored.folder,
        "report": api.as_json(report),
    }
    return RunDetails(run=run, content=content, lines=tuple(lines))


def delete(run: Run) -> None:
    """Delete a batch that has ended, without the file of its results."""
    from corral._engine import retention

    retention.delete_run(run.id, db=run.db or None)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 100 else flat[:99] + "…"
