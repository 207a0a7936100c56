"""A database in the lines that tell people what to type next: never with its password."""

from __future__ import annotations

import shlex

from corral.durable.dbos.database import harmless


def option(db: str | None) -> str:
    """`` --db URL``, or nothing where none was given."""
    return f" --db {shlex.quote(harmless(db))}" if db else ""
