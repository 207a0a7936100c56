"""Prune runs and batches that ended long ago.

Only on command: nothing is removed automatically. What has not ended stays, however old it is; so
do directories outside corral's home, files of results, and branches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path

from corral._engine import limits, run_list
from corral._engine.agent_host import client
from corral._engine.batch import query
from corral._engine.batch.batch_store import BatchStore
from corral._engine.dbos.database import Database, find, storage_errors
from corral._sessions.retention import Pruned, latest_end
from corral._system import fs
from corral._system import paths as folders


async def prune(
    *,
    older_than: float,
    kinds: Collection[str] = ("run", "batch"),
    db: str | None = None,
    dry_run: bool = False,
) -> list[Pruned]:
    """Delete the runs and batches that ended more than ``older_than`` seconds ago, oldest first,
    with their directories in corral's home; returns them. ``kinds``: only these. ``dry_run``:
    deletes nothing."""
    before = latest_end(older_than)
    runs = await run_list.list_runs(db=db, limit=None) if "run" in kinds else []
    batches = await query.list_batches(db=db, limit=None) if "batch" in kinds else []
    found = [
        Pruned(
            kind="run",
            name=each.id,
            status=each.status,
            ended=each.ended,
            folders=_own_folders("runs", [each.folder]),
        )
        for each in runs
        if each.ended is not None and each.ended < before
    ]
    found += [
        Pruned(
            kind="batch",
            name=each.name,
            status=each.status,
            ended=each.ended,
            folders=_own_folders(
                "batches", [str(folders.home() / "batches" / r) for r in each.rounds]
            ),
        )
        for each in batches
        if each.status in query.ENDED and each.ended is not None and each.ended < before
    ]
    found.sort(key=lambda each: each.ended)
    if not found or dry_run:
        return found
    return await asyncio.to_thread(_delete, find(db), found)


def _own_folders(kind: str, paths: Sequence[str]) -> tuple[str, ...]:
    """Those of the directories that exist directly below corral's own."""
    place = (folders.home() / kind).resolve()
    return tuple(
        path for path in paths if path and fs.is_dir(path) and Path(path).resolve().parent == place
    )


def _delete(database: Database, found: Sequence[Pruned]) -> list[Pruned]:
    deleted: list[Pruned] = []
    with storage_errors(database), closing(BatchStore(database)) as store:
        batches = query.batch_rounds(store)
        for each in found:
            roots = [each.name]
            if each.kind == "batch":
                roots = [row.id for row in batches.get(each.name, [])]
            # Checked again: it may have been resumed meanwhile.
            rows = store.list_workflows(ids=roots)
            for root in roots:
                rows += store.list_workflows(prefix=f"{root}/")
            if not rows or not all(row.has_ended for row in rows):
                continue
            # The nodes are deleted first: an interrupted deletion leaves the run, and is repeated.
            store.delete([row.id for row in rows])
            for root in roots:
                client.close(root, cancel=True)
                limits.remove_budget(database, root)
            for folder in each.folders:
                fs.remove_tree(folder)
            deleted.append(each)
    return deleted
