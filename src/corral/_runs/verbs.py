"""The verbs of runs, for every kind: what ``corral runs``, ``corral.runs`` and the API call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from corral import live
from corral._engine import query
from corral._export import formats
from corral._metering.turn_usage import By, UsageQuery, UsageTotals
from corral._pipelines.events import RunEvent
from corral._runs import following, lookup, stored_run
from corral._runs.kinds import KINDS, kind_of
from corral._runs.lookup import RunQuery
from corral._runs.run_record import Kind, Run, RunDetails, State
from corral._sessions import index
from corral._system import clock
from corral._system.git.scan import project_of
from corral._system.threads import in_thread, short_traceback_async, sync_twin
from corral.errors import ConfigError


@short_traceback_async
async def list(  # noqa: PLR0913 (the name of the verb, and its conditions)
    *,
    kind: Kind | None = None,
    state: State | None = None,
    project: str | None = None,
    agent: str | None = None,
    text: str | None = None,
    since: float | None = None,
    parts: bool = False,
    limit: int | None = None,
    db: str | None = None,
) -> Sequence[Run]:
    """The runs of all kinds that fit all conditions, the newest first; what runs or waits comes
    before. ``project``: a folder in it. ``text``: in the id, the title or the reason; of sessions
    anywhere in the transcript. ``since``: seconds since the epoch. ``parts``: also runs that are
    parts of others. ``db``: only those of this database.

    ::

        for run in await corral.runs.list(state="failed", limit=10):
            print(run.id, run.kind, run.title, run.reason)
    """
    query = RunQuery(
        kind=kind,
        state=state,
        project=project,
        agent=agent,
        text=text,
        since=since,
        parts=parts,
        limit=limit,
    )
    return await in_thread(lookup.list_runs, query, db=db)


@short_traceback_async
async def show(run: str, *, db: str | None = None) -> RunDetails:
    """One run with what its kind has: the turns of a session, the state of a pipeline or workflow,
    the report of a batch, attempts, findings, or the entries of a merge queue; and its parts.
    ``run``: an id, a unique beginning of it, or ``last``. Raises ``ConfigError`` for several runs,
    and ``ResumeLost`` for none.

    ::

        details = await corral.runs.show("last")
        print(details.run.state, details.run.cost.usd)
    """

    def read() -> RunDetails:
        found = lookup.find(run, db=db)
        every = lookup.list_runs(RunQuery(parts=True), db=db)
        parts = tuple(part for part in reversed(every) if part.parent == found.id)
        return replace(kind_of(found).show(found), parts=parts)

    return await in_thread(read)


@short_traceback_async
async def export(
    run: str,
    format: str = "ndjson",
    *,
    diff: bool = False,
    content: bool = False,
    full: bool = False,
    db: str | None = None,
) -> bytes:
    """A run in another format: ``ndjson``, ``atif``, ``otel``, ``html``, ``md`` or ``bundle``.
    Secrets are redacted in each. ``diff`` (of ``md``): also how each turn changed files.
    ``content`` (of ``otel``): prompts, answers and the input of tools. ``full`` (of ``html``):
    everything, however large it gets. Raises ``ConfigError``, also for a kind without events.

    ::

        page = await corral.runs.export("last", "html")
        print(len(page))
    """
    options = formats.ExportOptions(diff=diff, content=content, full=full, db=db)
    formats.check(format, options)

    def write() -> bytes:
        pieces = bytearray()
        formats.write(stored_run.find(run, db=db), format, pieces.extend, options)
        return bytes(pieces)

    return await in_thread(write)


@short_traceback_async
async def replay(run: str, *, db: str | None = None) -> Sequence[RunEvent]:
    """The stored events of a run, in order and redacted. Raises ``ConfigError`` for a kind without
    events.

    ::

        for event in await corral.runs.replay("last"):
            print(event.type, event.ts)
    """
    return await in_thread(lambda: tuple(stored_run.find(run, db=db).events()))


async def watch(run: str, *, db: str | None = None) -> AsyncIterator[RunEvent]:
    """The events of a run that another process executes, as they come, until it ends; of a session
    from its current turn on. Raises ``ConfigError`` if it does not run.

    ::

        async for event in corral.runs.watch("last"):
            print(event.type)
    """
    found = await in_thread(lookup.find, run, db=db)
    if not found.is_open:
        raise ConfigError(f"{found.id} is not running", hint=f"See: corral runs show {found.id}")
    if found.durable:
        async for event in query.follow(found.id, db=found.db or None):
            yield event
        return
    log = (await in_thread(stored_run.find, found.id, db=db)).log
    start = following.current_turn(log) if found.kind == "session" else 0

    def is_running() -> bool:
        return any(each.id == found.id and each.state != "idle" for each in live.runs())

    async for event in following.followed(log, is_running, start):
        yield event


@short_traceback_async
async def usage(  # noqa: PLR0913 (the conditions)
    *,
    by: By = "day",
    since: float | None = None,
    until: float | None = None,
    agent: str | None = None,
    model: str | None = None,
    project: str | None = None,
    kind: Kind | None = None,
    run: str | None = None,
    db: str | None = None,
) -> UsageTotals:
    """What runs have used, added up ``by`` day, project, agent, model, kind, label or run. What a
    scripted model answered is in no sum of money. ``model``: a part of its name. ``project``: a
    folder in it. ``run``: only this one, with its parts. Raises ``ConfigError``.

    ::

        report = await corral.runs.usage(by="project")
        print(report.total.cost_usd, [(row.key, row.cost_usd) for row in report.rows])
    """
    if since is not None and until is not None and since >= until:
        raise ConfigError("since is not before until")

    def read() -> UsageTotals:
        query = UsageQuery(
            by=by,
            since=since,
            until=until,
            agent=agent,
            model=model,
            project=None if project is None else project_of(project),
            kind=kind,
            run=None if run is None else lookup.find(run, db=db).id,
        )
        return index.usage_report(query)

    return await in_thread(read)


@short_traceback_async
async def delete(*runs: str, db: str | None = None) -> Sequence[Run]:
    """Delete runs with their parts and files; returns them. If one of them runs or waits, none is
    deleted. Raises ``ConfigError``.

    ::

        await corral.runs.delete("20261115-101500-1f3a9c")
    """

    def remove() -> Sequence[Run]:
        found = [lookup.find(name, db=db) for name in runs]  # all are known before one is deleted
        every = lookup.list_runs(RunQuery(parts=True), db=db)
        ids = {run.id for run in found}
        parts = [run for run in every if run.parent in ids and run.id not in ids]
        for run in (*found, *parts):
            check_ended(run)
        for run in (*parts, *found):
            kind_of(run).delete(run)
        return found

    return await in_thread(remove)


@short_traceback_async
async def prune(
    *,
    older_than: float,
    kind: Kind | None = None,
    dry_run: bool = False,
    db: str | None = None,
) -> Sequence[Run]:
    """Delete the runs that ended more than ``older_than`` seconds ago, with their parts and files;
    returns them, the oldest first. What runs or waits stays; so do branches, and files outside
    corral's home. ``dry_run``: deletes nothing. Raises ``ConfigError``.

    ::

        for run in await corral.runs.prune(older_than=30 * 86400, dry_run=True):
            print(run.id, run.ended)
    """
    if not older_than >= 0:
        raise ConfigError(f"older_than must not be negative, got: {older_than:g}")
    before = clock.now() - older_than

    def remove() -> Sequence[Run]:
        runs = lookup.list_runs(RunQuery(kind=kind, parts=True), db=db)
        found = [
            run
            for run in reversed(runs)
            if not run.is_open and run.ended is not None and run.ended < before
        ]
        for run in () if dry_run else found:
            with suppress(ConfigError):  # it is used again
                kind_of(run).delete(run)
        for name in KINDS if kind is None else [kind]:
            if not dry_run and db is None and (forget := KINDS[name].forget) is not None:
                forget(before)
        return found

    return await in_thread(remove)


def check_ended(run: Run) -> None:
    """Raises ``ConfigError`` for a run that runs or waits."""
    if run.is_open:
        what = "runs" if run.state in ("running", "limited") else f"is {run.state}"
        raise ConfigError(
            f"the {run.kind} {run.id} {what}, so it cannot be deleted",
            hint=f"Wait for its end, or cancel it first. See: corral runs show {run.id}",
        )


list_sync: Final = sync_twin(list)
show_sync: Final = sync_twin(show)
prune_sync: Final = sync_twin(prune)
export_sync: Final = sync_twin(export)
replay_sync: Final = sync_twin(replay)
usage_sync: Final = sync_twin(usage)
delete_sync: Final = sync_twin(delete)
