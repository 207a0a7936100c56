"""Corral's own tables in the database of runs: shared budgets and rate limits.

A process has one connection to each server, which is closed at the end of the process.
"""

from __future__ import annotations

import atexit
import sqlite3
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from corral._engine.dbos.connections import CONNECT
from corral._engine.dbos.database import Database, without_password
from corral._metering.budget_stores import StoredBudget
from corral._metering.rate_limits import LimitState
from corral._system import clock
from corral.errors import StorageFailed
from corral.values import decode_as

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

_connections: dict[str, psycopg.Connection[TupleRow]] = {}
_lock = threading.RLock()
"""Held while a connection is used."""


@contextmanager
def _transaction(url: str, what: str) -> Generator[psycopg.Connection[TupleRow]]:
    """A transaction; ``what`` is used in it, for messages. Raises ``StorageFailed``, which may be
    tried again."""
    import psycopg

    with _lock:
        try:
            server = _connections.get(url)
            if server is None or server.closed:
                server = _connections[url] = psycopg.connect(
                    url, autocommit=True, connect_timeout=CONNECT, application_name=f"corral {what}"
                )
            with server.transaction():
                yield server
        except (psycopg.Error, msgspec.MsgspecError) as error:
            lost = _connections.pop(url, None)
            if lost is not None:
                lost.close()
            reason = str(error).strip().partition("\n")[0]
            raise StorageFailed(
                f"the {what} in {without_password(url)} cannot be used: {reason}",
                retryable=isinstance(error, psycopg.OperationalError),
            ) from error


@atexit.register
def _close_all() -> None:
    while _connections:
        _connections.popitem()[1].close()


def _has_table(server: psycopg.Connection[TupleRow], table: str) -> bool:
    row = server.execute(b"SELECT to_regclass(%s)", (table,)).fetchone()
    return row is not None and row[0] is not None


# Budgets.

BUDGETS = "dbos.corral_budgets"


class ServerBudgetStore:
    """The store of one shared budget on a server, for workers on several machines: one row. A
    change locks the row until it is committed, so changes of all machines follow one another. A
    connection that breaks within a change undoes it."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name

    def create(self) -> None:
        """Create the table and the row, unless they exist. Raises ``StorageFailed``."""
        with _transaction(self._url, "budget") as server:
            columns = "id text PRIMARY KEY, state text NOT NULL"
            server.execute(f"CREATE TABLE IF NOT EXISTS {BUDGETS} ({columns})".encode())
            server.execute(
                f"INSERT INTO {BUDGETS} VALUES (%s, '{{}}') ON CONFLICT DO NOTHING".encode(),
                (self._name,),
            )

    @contextmanager
    def change(self) -> Generator[StoredBudget]:
        with _transaction(self._url, "budget") as server:
            row = server.execute(
                f"SELECT state FROM {BUDGETS} WHERE id = %s FOR UPDATE".encode(), (self._name,)
            ).fetchone()
            state = StoredBudget() if row is None else decode_as(str(row[0]), StoredBudget)
            yield state
            server.execute(
                f"UPDATE {BUDGETS} SET state = %s WHERE id = %s".encode(),
                (msgspec.json.encode(state).decode(), self._name),
            )

    def remove(self) -> None:
        """Raises ``StorageFailed``."""
        with _transaction(self._url, "budget") as server:
            if _has_table(server, BUDGETS):
                server.execute(f"DELETE FROM {BUDGETS} WHERE id = %s".encode(), (self._name,))


def read_budgets(url: str, names: Sequence[str]) -> dict[str, StoredBudget]:
    """The budgets with these names that exist. Raises ``StorageFailed``."""
    with _transaction(url, "budget") as server:
        if not _has_table(server, BUDGETS):
            return {}
        select = f"SELECT id, state FROM {BUDGETS} WHERE id = ANY(%s)".encode()
        rows = server.execute(select, ([*names],)).fetchall()
    return {str(row[0]): decode_as(str(row[1]), StoredBudget) for row in rows}


# Rate limits.

LIMITS = "corral_limits"
LIMIT_MESSAGE = "another process has met a rate limit with the same key"
_LIMIT_COLUMNS = "id text PRIMARY KEY, until double precision NOT NULL, is_known int, is_spent int"
_WHILE_BUSY = 30.0
"""Seconds to wait while another process writes to a database file."""

Execute: TypeAlias = Callable[[str, Sequence[object]], Sequence[tuple[object, ...]]]
"""Runs a statement with its values and returns its rows."""


def exchange_limits(database: Database, met: Mapping[str, LimitState]) -> dict[str, LimitState]:
    """Store the rate limits that this process has met; returns all that have not ended. Blocking.
    Raises ``StorageFailed``.

    There is one row for each credential: the fingerprint that ``rate_limits`` computes, and until
    when it is limited. Neither the key nor a text of the service is stored. A row is replaced only
    by one that ends later; rows whose time has passed are removed with the next write."""
    rows = [(key, each.until, int(each.is_known), int(each.is_spent)) for key, each in met.items()]
    stored: Sequence[tuple[object, ...]] = []
    if database.path is None:
        with _transaction(database.url, "rate limits") as server:

            def execute_there(text: str, values: Sequence[object]) -> Sequence[tuple[object, ...]]:
                cursor = server.execute(text.encode(), values)
                return [] if cursor.description is None else cursor.fetchall()

            table = f"dbos.{LIMITS}"
            if rows or _has_table(server, table):
                stored = _exchange_rows(execute_there, table, "%s", rows)
    else:
        uri = f"{database.path.as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(uri, timeout=_WHILE_BUSY, uri=True)) as file, file:

                def execute(text: str, values: Sequence[object]) -> Sequence[tuple[object, ...]]:
                    return file.execute(text, values).fetchall()

                if rows or execute("SELECT 1 FROM sqlite_master WHERE name = ?", (LIMITS,)):
                    stored = _exchange_rows(execute, LIMITS, "?", rows)
        except sqlite3.Error as error:
            raise StorageFailed(
                f"the rate limits in {database.path} cannot be used: {error}"
            ) from error
    return {
        str(key): LimitState(float(str(until)), LIMIT_MESSAGE, bool(is_known), bool(is_spent))
        for key, until, is_known, is_spent in stored
    }


def _exchange_rows(
    execute: Execute, table: str, mark: str, rows: Sequence[tuple[object, ...]]
) -> Sequence[tuple[object, ...]]:
    now = clock.now()
    if rows:
        execute(f"CREATE TABLE IF NOT EXISTS {table} ({_LIMIT_COLUMNS})", ())
        execute(f"DELETE FROM {table} WHERE until <= {mark}", (now,))
    for row in rows:
        execute(
            f"INSERT INTO {table} AS old (id, until, is_known, is_spent)"
            f" VALUES ({mark}, {mark}, {mark}, {mark}) ON CONFLICT (id) DO UPDATE SET"
            " until = excluded.until, is_known = excluded.is_known, is_spent = excluded.is_spent"
            " WHERE excluded.until > old.until",
            row,
        )
    columns = "id, until, is_known, is_spent"
    return execute(f"SELECT {columns} FROM {table} WHERE until > {mark}", (now,))
