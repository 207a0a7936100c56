"""Delete runs and batches of a database. Only on command: nothing is removed automatically.

Directories outside corral's home, files of results, and branches stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from corral._engine import limits
from corral._engine.agent_host import client
from corral._engine.dbos.client import WorkflowInfo, connect
from corral._engine.dbos.database import find
from corral._system import fs, paths


def delete_run(name: str, *, db: str | None = None) -> None:
    """Delete a run or batch that no process works on, with its directories in corral's home. What
    has not ended is cancelled before. Blocking."""
    database = find(db)
    with connect(database) as store:
        later = store.list_workflows(prefix=f"{name}#")  # tries of a run, or rounds of a batch
        roots = [*store.list_workflows(ids=[name]), *(row for row in later if "/" not in row.id)]
        rows = [*roots]
        for root in roots:
            rows += store.list_workflows(prefix=f"{root.id}/")
        store.cancel([row.id for row in rows if not row.has_ended])
        # The nodes are deleted first: an interrupted deletion leaves the run, and is repeated.
        store.delete([row.id for row in rows])
        limits.remove_budget(database, name)
        for root in roots:
            client.close(root.id, cancel=True)
            for folder in _own_folders(root):
                fs.remove_tree(folder)


def _own_folders(row: WorkflowInfo) -> Iterator[Path]:
    """Those of its directories that exist directly below corral's own."""
    home = paths.home()
    for place, path in (
        (home / "runs", paths.local_run_folder(str(row.labels.get("folder", "")))),
        (home / "batches", str(home / "batches" / row.id)),
    ):
        if path and fs.is_dir(path) and Path(path).resolve().parent == place.resolve():
            yield Path(path)
