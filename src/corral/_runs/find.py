"""Finds a stored run by what a person writes: its id, a unique beginning of it, or ``last``.

A session is looked for first, then the folder of a pipeline run in corral's home, then a durable
pipeline run and a batch in the database. ``last`` is the newest run of any kind in a folder, else
the newest anywhere, which is said. All of this blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from corral import live
from corral._comparison import store as comparisons
from corral._core.lookup import LAST, find_id
from corral._engine.batch.batch_store import KIND
from corral._engine.dbos import database
from corral._engine.dbos.client import list_top
from corral._engine.payloads import BATCH_CLOSED, BATCH_WORKFLOW, RUN_WORKFLOW
from corral._pipelines.execution import run_dir
from corral._sessions import store
from corral._system import fs, paths, threads
from corral.errors import ConfigError, ResumeLost
from corral.values import Json, as_object, as_text, number_or_none

RunKind: TypeAlias = Literal["session", "pipeline", "batch", "comparison"]
NAMES: dict[RunKind, str] = {"pipeline": "pipeline run"}
"""How users know a kind, where it has another name."""
SHOWN_BY: dict[RunKind, str] = {
    "session": "corral sessions show",
    "pipeline": "corral pipeline show",
    "batch": "corral batches show",
    "comparison": "corral compare show",
}


class FoundRun(NamedTuple):
    kind: RunKind
    id: str
    folder: Path | None = None
    """Of a session or a pipeline run. That of a durable run may be on another machine."""


class _Listed(NamedTuple):
    """A run that may be the last one."""

    at: float
    """When it began, while it runs; else when it was written last."""
    run: FoundRun
    cwd: str
    """Where it works; empty if that is not known."""
    rank: tuple[bool, bool, bool] = (False, False, False)
    """Whether it runs; whether it waits for a person; whether it has parts: the sessions of a
    pipeline or batch are not the last run while that runs."""


def find_last(
    wanted: RunKind | None = None, *, cwd: str | None = None, db: str | None = None
) -> FoundRun:
    """What ``last`` means: the newest run of any kind in the folder ``cwd`` (the current one), else
    the newest anywhere, with a warning that says so. A run that runs is newer than one that has
    ended, and one that waits for a person is the newest. With ``db``, only that database counts.

    Raises ``ResumeLost`` if there is none, ``ConfigError`` if it is not of the ``wanted`` kind."""
    runs = sorted(_list_runs(db), key=lambda each: (each.rank, each.at), reverse=True)
    if not runs:
        raise ResumeLost("there is no run yet", hint="`corral run PROMPT` starts one.")
    folder = fs.real_path(cwd or ".")
    here = [each for each in runs if each.cwd and fs.real_path(each.cwd) == folder]
    found = (here or runs)[0]
    run = found.run
    kind = NAMES.get(run.kind, run.kind)
    if wanted in (None, run.kind):
        if not here:
            place = found.cwd or "another folder"
            message = f"there is no run in this folder; last is the {kind} {run.id} in {place}"
            warnings.warn(message, stacklevel=2)
        return run
    fitting = [each for each in (*here, *runs) if each.run.kind == wanted]
    hint = f"See: {SHOWN_BY[run.kind]} {run.id}"
    if fitting:
        hint = f"The newest {NAMES.get(wanted, wanted)} is {fitting[0].run.id}. {hint}"
    raise ConfigError(f"last is the {kind} {run.id}, not a {NAMES.get(wanted, wanted)}", hint=hint)


def find(name: str, *, db: str | None = None) -> FoundRun:
    """The run that a name stands for. With ``db``, only that database is searched. Raises
    ``ResumeLost`` for none, ``ConfigError`` for several."""
    if name == LAST:
        return find_last(db=db)
    if db is None:
        folders = _run_folders()
        try:
            record = store.find(name)
        except ResumeLost:
            pass
        else:
            return FoundRun("session", record.meta.id, record.folder)
        by_name = {folder.name: folder for _, folder in folders}
        found = find_id(name, list(by_name), "runs")
        if found is not None:
            return FoundRun("pipeline", found, by_name[found])
    stored = (
        threads.run_event_loop(_find_in_database(name, db)) if database.is_installed() else None
    )
    if stored is None:
        raise ResumeLost(
            f"no session or run is called {name!r}",
            hint="`corral sessions list`, `corral pipeline runs`, `corral workflow runs` and"
            " `corral batches list` list them; a path is a file of events or a folder.",
        )
    return stored


def find_pipeline_run(name: str, db: str | None) -> str:
    """The id of a durable pipeline run that is named by its id, a unique beginning of it, ``last``,
    or its run folder. A name that fits no run is returned as it is. Raises ``ConfigError``."""
    if name == LAST:
        return find_last("pipeline", db=db).id
    folder = Path(name)
    if not fs.is_dir(folder):
        from corral._engine import query

        return threads.run_event_loop(query.find_run(name, db=db))
    run_id = as_text((read_manifest(folder) or {}).get("run_id"))
    if not run_id:
        raise ConfigError(
            f"{folder} is not a run folder: it has no {run_dir.MANIFEST} with a run_id",
            hint="Give the id of a run: corral pipeline runs.",
        )
    return run_id


def read_manifest(folder: Path) -> dict[str, Json] | None:
    """What a run folder says about its run; None if it is no run folder."""
    try:
        return msgspec.json.decode(fs.read_bytes(folder / run_dir.MANIFEST), type=dict[str, Json])
    except (OSError, msgspec.MsgspecError):
        return None


def _run_folders() -> list[tuple[float, Path]]:
    """The run folders in corral's home with the time of their last event, the newest first."""
    found: list[tuple[float, Path]] = []
    for log in (paths.home() / "runs").glob(f"*/{run_dir.EVENTS}"):
        try:
            found.append((log.stat().st_mtime, log.parent))
        except OSError:
            continue  # it was removed meanwhile
    return sorted(found, reverse=True)


def _list_runs(db: str | None) -> Iterator[_Listed]:
    """All runs in any order. One that runs and is stored comes twice."""
    shown = None if db is None else database.find(db).shown
    for each in live.runs():
        if each.state != "idle" and shown in (None, each.db):
            run = FoundRun(each.kind, each.id, Path(each.folder) if each.folder else None)
            waits, has_parts = bool(each.pending), each.kind != "session"
            yield _Listed(each.since, run, each.cwd, (True, waits, has_parts))
    if db is None:
        for record in store.all_sessions():
            run = FoundRun("session", record.meta.id, record.folder)
            yield _Listed(record.meta.updated, run, record.meta.cwd)
        for at, folder in _run_folders():
            yield _Listed(at, FoundRun("pipeline", folder.name, folder), _workspace(folder))
        for name in comparisons.names():
            run = FoundRun("comparison", name)
            yield _Listed(comparisons.last_change(name), run, comparisons.cwd_of(name))
    source = database.find(db) if database.is_installed() else None
    if source is None or not database.is_there(source):
        return
    with database.storage_errors(source):
        for row in list_top(source, RUN_WORKFLOW, None):
            folder = Path(paths.local_run_folder(as_text(row.labels.get("folder"))))
            run = FoundRun("pipeline", row.id, folder)
            yield _Listed(row.ended or row.created, run, _workspace(folder))
        for row in list_top(source, BATCH_WORKFLOW, None):
            if row.labels.get(KIND) == "compare":
                continue
            run = FoundRun("batch", row.id.partition("#")[0])
            at = number_or_none(as_object(row.labels.get(BATCH_CLOSED)).get("at")) or row.created
            with suppress(OSError):  # a batch that was killed is as new as its last result
                at = max(at, fs.status(as_text(row.labels.get("output"))).st_mtime)
            yield _Listed(at, run, as_text(row.labels.get("workspace")))


def _workspace(folder: Path) -> str:
    """In which a pipeline run works; empty if its folder does not say so."""
    return as_text((read_manifest(folder) or {}).get("workspace"))


async def _find_in_database(name: str, db: str | None) -> FoundRun | None:
    from corral._engine import query, run_list
    from corral._engine.batch import query as batches

    run_id = await query.find_run(name, db=db)
    for run in await run_list.list_runs(db=db, limit=None):
        if run.id == run_id:
            return FoundRun("pipeline", run_id, Path(run.folder) if run.folder else None)
    batch = await batches.find_batch(name, db=db)
    if any(each.name == batch for each in await batches.list_batches(db=db, limit=None)):
        return FoundRun("batch", batch)
    return None
