"""Remove comparisons that were last changed long ago. Only on command. One that runs stays."""

from __future__ import annotations

from corral.comparison import patches, store
from corral.errors import ConfigError
from corral.sessions.retention import Pruned
from corral.system import clock


def prune(*, older_than: float, dry_run: bool = False) -> list[Pruned]:
    """Remove the comparisons in which nothing has happened for ``older_than`` seconds, with their
    commits; returns them, oldest first. ``dry_run``: removes nothing. Raises ``ConfigError``.
    Blocks."""
    if not older_than >= 0:
        raise ConfigError(f"older_than must not be negative, got: {older_than:g}")
    before = clock.now() - older_than
    found: list[Pruned] = []
    for name in reversed(store.names()):
        changed = store.last_change(name)
        if changed >= before or store.is_in_use(name):
            continue
        folder = str(store.folder_of(name))
        found.append(
            Pruned(kind="comparison", name=name, status="ended", ended=changed, folders=(folder,))
        )
        if not dry_run:
            patches.remove(name)
    return found
