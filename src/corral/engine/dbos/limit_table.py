"""The rate limits that processes have met, in the database of their runs.

One row of corral's own table for each credential: the fingerprint that ``rate_limits`` computes,
and until when it is limited. Neither the key nor a text of the service is stored. A row is replaced
only by one that ends later; rows whose time has passed are removed with the next write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from corral.engine.dbos import server_connection
from corral.engine.dbos.database import Database
from corral.errors import StorageFailed
from corral.metering.rate_limits import LimitState
from corral.system import clock

TABLE = "corral_limits"
MESSAGE = "another process has met a rate limit with the same key"
_COLUMNS = "id text PRIMARY KEY, until double precision NOT NULL, is_known int, is_spent int"
_WHILE_BUSY = 30.0
"""Seconds to wait while another process writes to a database file."""


def exchange(database: Database, met: Mapping[str, LimitState]) -> dict[str, LimitState]:
    """Store these limits; returns all that have not ended. Blocking. Raises ``StorageFailed``."""
    rows = [(key, each.until, int(each.is_known), int(each.is_spent)) for key, each in met.items()]
    if database.path is not None:
        found = _in_file(database.path, rows)
    else:
        found = _in_server(database.url, rows)
    return {
        str(key): LimitState(float(str(until)), MESSAGE, bool(is_known), bool(is_spent))
        for key, until, is_known, is_spent in found
    }


def _in_file(path: Path, rows: list[tuple[str, float, int, int]]) -> list[tuple[object, ...]]:
    uri, now = f"{path.as_uri()}?mode=rw", clock.now()
    try:
        with closing(sqlite3.connect(uri, timeout=_WHILE_BUSY, uri=True)) as file:
            if rows:
                with file:
                    file.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} ({_COLUMNS})")
                    file.execute(f"DELETE FROM {TABLE} WHERE until <= ?", (now,))
                    file.executemany(_upsert(TABLE, "?"), rows)
            elif not file.execute(
                "SELECT 1 FROM sqlite_master WHERE name = ?", (TABLE,)
            ).fetchone():
                return []
            return file.execute(f"{_select(TABLE)} WHERE until > ?", (now,)).fetchall()
    except sqlite3.Error as error:
        raise StorageFailed(f"the rate limits in {path} cannot be used: {error}") from error


def _in_server(url: str, rows: list[tuple[str, float, int, int]]) -> list[tuple[object, ...]]:
    table, now = f"dbos.{TABLE}", clock.now()
    with server_connection.transaction(url, "rate limits") as server:
        if rows:
            server.execute(f"CREATE TABLE IF NOT EXISTS {table} ({_COLUMNS})".encode())
            server.execute(f"DELETE FROM {table} WHERE until <= %s".encode(), (now,))
            for row in rows:
                server.execute(_upsert(table, "%s").encode(), row)
        elif not server_connection.has_table(server, table):
            return []
        return [*server.execute(f"{_select(table)} WHERE until > %s".encode(), (now,)).fetchall()]


def _select(table: str) -> str:
    return f"SELECT id, until, is_known, is_spent FROM {table}"


def _upsert(table: str, mark: str) -> str:
    return (
        f"INSERT INTO {table} AS old (id, until, is_known, is_spent)"
        f" VALUES ({mark}, {mark}, {mark}, {mark}) ON CONFLICT (id) DO UPDATE SET"
        " until = excluded.until, is_known = excluded.is_known, is_spent = excluded.is_spent"
        " WHERE excluded.until > old.until"
    )
