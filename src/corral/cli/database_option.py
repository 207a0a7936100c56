"""The ``--db`` option in printed commands, without the password of the database."""

from __future__ import annotations

import shlex

from corral.durable.dbos.database import without_password


def database_option(db: str | None) -> str:
    """`` --db URL`` to append to a printed command, or ``""``."""
    return f" --db {shlex.quote(without_password(db))}" if db else ""
