"""Finds the run that a name on the command line stands for."""

from __future__ import annotations

import asyncio

from corral.durable.dbos.database import is_installed
from corral.errors import ConfigError, ResumeLost
from corral.sessions import store
from corral.view.records import Kind


def find_run(name: str) -> tuple[Kind, str]:
    """The kind and id of a run: a session (also ``last``), else a pipeline run or a batch of the
    default database. Blocking. Raises ``ConfigError``."""
    try:
        return "session", store.find(name).meta.id
    except ResumeLost:
        pass
    if is_installed():
        found = asyncio.run(_find_stored(name))
        if found is not None:
            return found
    raise ConfigError(
        f"there is no run {name!r}",
        hint="`corral sessions list`, `corral pipeline runs` and `corral batches list` show them.",
    )


async def _find_stored(name: str) -> tuple[Kind, str] | None:
    from corral.durable import query, run_list
    from corral.durable.batch import query as batches

    run = await query.find_run(name)
    if run in {each.id for each in await run_list.list_runs(limit=None)}:
        return "pipeline", run
    batch = await batches.find_batch(name)
    if batch in {each.name for each in await batches.list_batches(limit=None)}:
        return "batch", batch
    return None
