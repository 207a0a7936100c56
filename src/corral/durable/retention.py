"""What is kept, and for how long: runs and batches that ended long ago are forgotten.

Only by command: nothing is removed behind anybody's back. What has not ended stays, however
old; so do folders outside corral's own, files of results, branches.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import msgspec

from corral.durable import query as durable_query
from corral.durable.agent_host import client
from corral.durable.batch import query
from corral.durable.batch.queue import BatchStore
from corral.durable.dbos.database import Database, find, storage_errors
from corral.errors import ConfigError
from corral.system import paths as folders


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["run", "batch"]
    name: str
    status: str
    ended: float
    """Seconds since the epoch."""
    folders: tuple[str, ...] = ()
    """Of ours, that go along."""


async def prune(*, older_than: float, db: str | None = None, dry_run: bool = False) -> list[Pruned]:
    """Forget the runs and the batches that ended over so many seconds ago, the oldest first,
    with their folders in corral's home; returns them. ``dry_run``: only says which."""
    if not older_than >= 0:
        raise ConfigError(f"older_than must not be negative, got: {older_than:g}")
    before = time.time() - older_than
    runs = await durable_query.list_runs(db=db, limit=None)
    batches = await query.list_batches(db=db, limit=None)
    found = [
        Pruned(
            kind="run",
            name=each.id,
            status=each.status,
            ended=each.ended,
            folders=_ours("runs", [each.folder]),
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
            folders=_ours("batches", [str(folders.home() / "batches" / r) for r in each.rounds]),
        )
        for each in batches
        if each.status in query.OVER and each.ended is not None and each.ended < before
    ]
    found.sort(key=lambda each: each.ended)
    if not found or dry_run:
        return found
    return await asyncio.to_thread(_forget, find(db), found)


def _ours(kind: str, paths: Sequence[str]) -> tuple[str, ...]:
    """Those of the folders that are there, each a folder of corral's own."""
    place = (folders.home() / kind).resolve()
    return tuple(
        path
        for path in paths
        if path and Path(path).is_dir() and Path(path).resolve().parent == place
    )


def _forget(database: Database, found: Sequence[Pruned]) -> list[Pruned]:
    gone: list[Pruned] = []
    with storage_errors(database), closing(BatchStore(database)) as ledger:
        batches = query.families(ledger)
        for each in found:
            roots = [each.name]
            if each.kind == "batch":
                roots = [row.id for row in batches.get(each.name, [])]
            # Asked once more: it may have been taken up again meanwhile.
            rows = ledger.client.list_workflows(ids=roots)
            for root in roots:
                rows += ledger.client.list_workflows(prefix=f"{root}/")
            if not rows or not all(row.has_ended for row in rows):
                continue
            # The nodes go first: a run that is left in part is found again, and pruned then.
            ledger.client.delete([row.id for row in rows])
            for root in roots:
                client.close(root, cancel=True)
            for folder in each.folders:
                shutil.rmtree(folder, ignore_errors=True)
            gone.append(each)
    return gone
