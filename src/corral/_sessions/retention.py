"""Remove stored sessions that were last used long ago. Only on command.

Sessions that a run uses, or that wait for an answer of a person, stay. The name of a named session
is removed with it, so that the next prompt with this name starts a new one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from corral._sessions import store
from corral._sessions.warm import names
from corral._system import clock
from corral.errors import ConfigError


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["run", "batch", "session", "comparison", "merge", "owner"]
    """``owner``: the record of which session made a branch."""
    name: str
    status: str
    ended: float
    """Seconds since the epoch."""
    folders: tuple[str, ...] = ()
    """Directories in corral's home that are removed with it."""


def latest_end(older_than: float) -> float:
    """What ended before this time (seconds since the epoch) is pruned. Raises ``ConfigError``."""
    if not older_than >= 0:
        raise ConfigError(f"older_than must not be negative, got: {older_than:g}")
    return clock.now() - older_than


def prune_sessions(*, older_than: float, dry_run: bool = False) -> list[Pruned]:
    """Delete the sessions whose last turn ended more than ``older_than`` seconds ago, with their
    transcripts; returns them, oldest first. ``dry_run``: deletes nothing. Blocking."""
    before = latest_end(older_than)
    found: list[Pruned] = []
    for record in reversed(store.all_sessions()):
        ended = record.meta.updated or record.meta.created
        if ended >= before or store.open_question(record) or store.is_in_use(record):
            continue
        found.append(
            Pruned(
                kind="session",
                name=record.meta.id,
                status=record.meta.status or "unknown",
                ended=ended,
                folders=(str(record.folder),),
            )
        )
        if not dry_run:
            record.close(keep=False)
    if not dry_run:
        names.forget({each.name for each in found})
    return found
