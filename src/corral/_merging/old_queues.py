"""Remove merge queues, and records of branches, that were last used long ago. Only on command.

A queue that a process merges, or that has open entries, stays. The branches themselves stay.
"""

from __future__ import annotations

import contextlib

from corral._merging import owners, queue
from corral._sessions.retention import Pruned, latest_end
from corral._system import fs
from corral.errors import CorralError


def prune_queues(*, older_than: float, dry_run: bool = False) -> list[Pruned]:
    """Delete the merge queues that changed last more than ``older_than`` seconds ago, and the
    records of which session made a branch that are as old; returns them. ``dry_run``: deletes
    nothing. Blocking."""
    before = latest_end(older_than)
    found: list[Pruned] = []
    for store in reversed(queue.all_queues()):
        with contextlib.suppress(CorralError, OSError):
            changed, stored = fs.status(store.path).st_mtime, store.read()
            if stored is None or changed >= before or stored.open or store.is_working:
                continue
            folders = (str(store.folder),)
            found.append(
                Pruned(kind="merge", name=store.id, status="ended", ended=changed, folders=folders)
            )
            if not dry_run:
                fs.remove_tree(store.folder)
    for path in owners.records():
        with contextlib.suppress(OSError):
            changed = fs.status(path).st_mtime
            if changed >= before:
                continue
            found.append(
                Pruned(
                    kind="owner",
                    name=path.stem,
                    status="ended",
                    ended=changed,
                    folders=(str(path),),
                )
            )
            if not dry_run:
                fs.remove_file(path)
    return found
