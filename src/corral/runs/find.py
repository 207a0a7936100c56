"""Finds a stored run by what a person writes: its id, a unique beginning of it, or ``last``.

A session is looked for first, then the folder of a pipeline run in corral's home, then a durable
pipeline run and a batch in the database. ``last`` is the newest session with a transcript or the
newest run folder, whichever wrote last. All of this blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from corral.core.lookup import LAST, find_id
from corral.engine.dbos.database import is_installed
from corral.errors import ConfigError, ResumeLost
from corral.pipelines.execution import run_dir
from corral.sessions import store
from corral.system import paths, threads
from corral.values import Json, as_text


class FoundRun(NamedTuple):
    kind: Literal["session", "pipeline", "batch"]
    id: str
    folder: Path | None = None
    """Of a session or a pipeline run. That of a durable run may be on another machine."""


def find(name: str, *, db: str | None = None) -> FoundRun:
    """The run that a name stands for. With ``db``, only that database is searched. Raises
    ``ResumeLost`` for none, ``ConfigError`` for several."""
    if db is None:
        folders = _run_folders()
        if name == LAST:
            recorded = (
                each for each in store.all_sessions() if (each.folder / store.EVENTS).exists()
            )
            session = next(recorded, None)
            if folders and (session is None or folders[0][0] > session.meta.updated):
                return FoundRun("pipeline", folders[0][1].name, folders[0][1])
            if session is None:
                raise ResumeLost("there is no run yet", hint="`corral run PROMPT` starts one.")
            return FoundRun("session", session.meta.id, session.folder)
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
    stored = threads.run_event_loop(_find_in_database(name, db)) if is_installed() else None
    if stored is None:
        raise ResumeLost(
            f"no session or run is called {name!r}",
            hint="`corral sessions list`, `corral pipeline runs` and `corral batches list` list"
            " them; a path is a file of events or a folder.",
        )
    return stored


def find_pipeline_run(name: str, db: str | None) -> str:
    """The id of a durable pipeline run that is named by its id, a unique beginning of it, ``last``,
    or its run folder. A name that fits no run is returned as it is. Raises ``ConfigError``."""
    folder = Path(name)
    if not folder.is_dir():
        from corral.engine import query

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
        return msgspec.json.decode((folder / run_dir.MANIFEST).read_bytes(), type=dict[str, Json])
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


async def _find_in_database(name: str, db: str | None) -> FoundRun | None:
    from corral.engine import query, run_list
    from corral.engine.batch import query as batches

    run_id = await query.find_run(name, db=db)
    for run in await run_list.list_runs(db=db, limit=None):
        if run.id == run_id:
            return FoundRun("pipeline", run_id, Path(run.folder) if run.folder else None)
    batch = await batches.find_batch(name, db=db)
    if any(each.name == batch for each in await batches.list_batches(db=db, limit=None)):
        return FoundRun("batch", batch)
    return None
