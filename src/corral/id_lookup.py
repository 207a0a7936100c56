"""Finds the id of a stored session, run or batch by a unique beginning of it, or by ``last``."""

from __future__ import annotations

from collections.abc import Sequence

from corral.errors import ConfigError

LAST = "last"
"""The name of the newest."""
MAX_LISTED = 10
"""Ids that an error lists."""


def find_id(name: str, ids: Sequence[str], kind: str) -> str | None:
    """The id that ``name`` stands for: this id itself, the only one that begins with it or whose
    last part does, or with ``last`` the first. ``ids``: the newest first. None if there is none.
    Raises ``ConfigError`` if several begin with it. ``kind`` is their plural, for the message."""
    if name == LAST and LAST not in ids:
        return ids[0] if ids else None
    if name in ids:
        return name
    found = [each for each in ids if name and _begins_with(each, name)]
    if len(found) > 1:
        more = f" and {len(found) - MAX_LISTED:,} more" if len(found) > MAX_LISTED else ""
        raise ConfigError(
            f"{len(found):,} {kind} begin with {name!r}: {', '.join(found[:MAX_LISTED])}{more}",
            hint="Write more of the id.",
        )
    return found[0] if found else None


def _begins_with(full: str, name: str) -> bool:
    return full.startswith(name) or full.rpartition("-")[2].startswith(name)
