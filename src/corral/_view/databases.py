"""The pipelines and batches of all known databases, as the list of runs shows them, and batches in
detail.

The default database is read, those of running processes, and those that were used before. A
database that has not changed is not read again. One that cannot be read gives a warning, not an
error: the others are still shown. Without the engine there are none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from corral._comparison import store as comparisons
from corral._core.terminal_text import plain
from corral._engine.dbos.database import is_installed
from corral._system import clock, fs
from corral._view.live_runs import ACTIVE, KnownState, LiveRuns, state_of
from corral._view.pipeline_view import file_stamp, pipeline_summary, question_of
from corral._view.records import BatchDetail, BatchRow, FailureGroup, NotFound, Pending, Summary
from corral.errors import ConfigError, CorralError, FormatUnsupported

if TYPE_CHECKING:
    from corral._engine.batch.query import BatchDetails, BatchOverview, BatchTaskRow


LISTED = 200
"""Runs and batches that are listed of each database."""
SERVER_SECONDS = 5.0
"""How often a database server is asked. A file is asked when it has changed."""
OPEN_SECONDS = 2.0
"""How often a file is asked that has not changed but has open runs: their process may have died."""


TASK_ROWS = 100
"""Tasks of a page of a batch."""
MAX_ANSWER = 500
"""Characters of an answer in a row of a batch."""


class StoredRuns(msgspec.Struct, kw_only=True):
    """What the databases have."""

    summaries: list[Summary] = []
    pending: list[Pending] = []
    warnings: list[str] = []


class Databases:
    """Reads databases, and remembers what did not change."""

    def __init__(self) -> None:
        self._known: dict[str | None, tuple[tuple[float, ...], float, StoredRuns]] = {}
        """Database -> its stamp, when it was read, and what it had."""

    async def read_all(self, live: LiveRuns) -> StoredRuns:
        """The runs and batches of all databases."""
        found = StoredRuns(summaries=[], pending=[], warnings=[])
        if not is_installed():
            return found
        for db in [None, *sorted(await asyncio.to_thread(other_databases, live))]:
            each = await self._read(db)
            found.summaries += each.summaries
            found.pending += each.pending
            found.warnings += each.warnings
        for summary in found.summaries:
            # What the process of a run says of it.
            running = live.runs.get((summary.kind, summary.id))
            if running is not None:
                summary.live = True
                summary.agent = summary.agent or running.agent
                summary.model = summary.model or running.model
                summary.label = running.label
        return found

    async def _read(self, db: str | None) -> StoredRuns:
        stamp = await asyncio.to_thread(_stamp, db)
        if db in self._known and self._known[db][0] == stamp:
            _, at, found = self._known[db]
            is_open = any(each.state in ACTIVE for each in found.summaries)
            pause = OPEN_SECONDS if is_open else (SERVER_SECONDS if not stamp else float("inf"))
            if clock.now() - at < pause:
                return found
        try:
            found = await _read_database(db)
        except CorralError as error:
            from corral._engine.dbos.database import find

            found = StoredRuns(warnings=[f"{find(db).shown}: {error.message}"])
        self._known[db] = stamp, clock.now(), found
        return found


def other_databases(live: LiveRuns) -> set[str]:
    """The databases besides the default one: those of running processes, and those used before."""
    from corral._engine.dbos.database import find, other_default_files, remembered

    default = find(None).shown
    found: set[str] = set()
    for db in (*live.databases, *remembered(), *map(str, other_default_files())):
        try:
            place = find(db)
        except CorralError:
            continue
        # A server whose password is not known cannot be asked; a file may be gone.
        is_known = "***" not in db and (place.path is None or fs.exists(place.path))
        if place.shown != default and is_known:
            found.add(place.shown)
    return found


def _stamp(db: str | None) -> tuple[float, ...]:
    """Changes when a database file does; empty for a server."""
    from corral._engine.dbos.database import find

    path = find(db).path
    if path is None:
        return ()
    return (*file_stamp(path), *file_stamp(path.with_name(path.name + "-wal")))


async def _read_database(db: str | None) -> StoredRuns:
    from corral._engine import open_questions, run_list
    from corral._engine.batch import query as batches
    from corral._engine.dbos.database import UnreadableRecord

    runs = await run_list.list_runs(db=db, limit=LISTED)
    found = StoredRuns(summaries=[], pending=[], warnings=[])
    for run in runs:
        title = run.goal or run.pipeline
        found.summaries.append(pipeline_summary(run, title, run.asks, db))
        if run.asks:
            try:
                asked = await open_questions.questions(run.id, db=db)
            except (UnreadableRecord, FormatUnsupported) as error:
                found.warnings.append(error.message)
                continue
            found.pending += [question_of(run.id, each, db) for each in asked if not each.answered]
    found.summaries += [
        batch_summary(each, db) for each in await batches.list_batches(db=db, limit=LISTED)
    ]
    return found


def batch_summary(batch: BatchOverview, db: str | None) -> Summary:
    """A batch in the list."""
    done = batch.succeeded + batch.failed
    is_live = batch.status in ("running", "paused")
    known = KnownState(
        status=batch.status, live=is_live, live_state="paused" if batch.status == "paused" else ""
    )
    shown_state = state_of(known, clock.now())
    failed = f", {batch.failed:,} failed" if batch.failed else ""
    return Summary(
        kind="batch",
        id=batch.name,
        db=db,
        title=f"{done:,} of {batch.total:,} tasks{failed}",
        state=shown_state.state,
        state_text=shown_state.text,
        comparison=comparisons.is_stored(batch.name),
        created=batch.created,
        updated=batch.ended or (clock.now() if is_live else batch.created),
        last_event=batch.ended,
        turns=batch.total,
        cost_usd=batch.cost_usd or None,
        cost_source="unknown" if not batch.cost_usd else "computed",
        live=is_live,
    )


async def read_batch(name: str, db: str | None) -> BatchDetails:
    """A batch. Raises ``NotFound``."""
    from corral._engine.batch import query

    try:
        return await query.show_batch(name, db=db)
    except ConfigError as error:
        raise NotFound(error.message, hint=error.hint) from error


async def batch_detail(
    name: str, db: str | None, *, start: int = 0, only_failed: bool = False
) -> BatchDetail:
    """A batch with one page of its tasks. Raises ``NotFound``."""
    from corral._engine.batch import query

    found = await read_batch(name, db)
    tasks = await query.list_tasks(
        name, start=start, limit=TASK_ROWS, only_failed=only_failed, db=db
    )
    one = found.overview
    summary = batch_summary(one, db)
    summary.agent, summary.model, summary.cwd = found.agent, found.model or None, found.folder
    summary.tokens = found.report.tokens or None
    return BatchDetail(
        summary=summary,
        total=one.total,
        succeeded=one.succeeded,
        failed=one.failed,
        running=tasks.running,
        left=max(0, one.left - tasks.running),
        prompt=plain(found.prompt, 20_000),
        output=one.output,
        folder=found.folder,
        rounds=len(one.rounds),
        command=f"corral runs resume {found.overview.name}",
        failures=[
            FailureGroup(
                code=each.code,
                message=plain(each.message, 2_000),
                count=each.count,
                tasks=[*each.tasks],
            )
            for each in found.report.failures
        ],
        rows=[*map(_batch_row, tasks.rows)],
        next=None if tasks.next is None else str(tasks.next),
        budgets=[] if found.budget is None else [found.budget.as_state()],
    )


def _batch_row(task: BatchTaskRow) -> BatchRow:
    result = task.result
    if result is None:
        return BatchRow(task=task.id, status="queued" if task.state == "left" else "running")
    return BatchRow(
        task=task.id,
        status=result.status,
        error=plain(result.error.message, 2_000) if result.error else None,
        code=result.error.code if result.error else None,
        seconds=result.seconds,
        attempts=result.attempts,
        cost_usd=result.cost_usd,
        tokens=result.tokens,
        text=plain(result.text, MAX_ANSWER),
    )
