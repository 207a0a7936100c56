"""The store of a shared budget in a Postgres database: for workers on several machines.

Each store is one row of corral's own table. A change locks the row until it is committed, so
changes of all machines follow one another. A connection that breaks within a change undoes it.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from corral.durable.dbos.database import CONNECT, without_password
from corral.errors import StorageFailed
from corral.sessions.shared_budget import StoredBudget

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

TABLE = "dbos.corral_budgets"
_connections: dict[str, psycopg.Connection[TupleRow]] = {}
_lock = threading.RLock()
"""Held while a connection is used: there is one per database and process."""


class ServerBudgetStore:
    """One row: the store of one run."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name

    def create(self) -> None:
        """Create the table and the row, unless they exist. Raises ``StorageFailed``."""
        with _connected(self._url) as server:
            columns = "id text PRIMARY KEY, state text NOT NULL"
            server.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns})".encode())
            server.execute(
                f"INSERT INTO {TABLE} VALUES (%s, '{{}}') ON CONFLICT DO NOTHING".encode(),
                (self._name,),
            )

    @contextmanager
    def change(self) -> Generator[StoredBudget]:
        with _connected(self._url) as server:
            row = server.execute(
                f"SELECT state FROM {TABLE} WHERE id = %s FOR UPDATE".encode(), (self._name,)
            ).fetchone()
            state = StoredBudget()
            if row is not None:
                state = msgspec.json.decode(str(row[0]), type=StoredBudget)
            yield state
            server.execute(
                f"UPDATE {TABLE} SET state = %s WHERE id = %s".encode(),
                (msgspec.json.encode(state).decode(), self._name),
            )

    def remove(self) -> None:
        """Raises ``StorageFailed``."""
        with _connected(self._url) as server:
            found = server.execute(b"SELECT to_regclass(%s)", (TABLE,)).fetchone()
            if found is not None and found[0] is not None:
                server.execute(f"DELETE FROM {TABLE} WHERE id = %s".encode(), (self._name,))


@contextmanager
def _connected(url: str) -> Generator[psycopg.Connection[TupleRow]]:
    """A transaction. Raises ``StorageFailed``, which may be tried again."""
    import psycopg

    with _lock:
        try:
            server = _connections.get(url)
            if server is None or server.closed:
                server = _connections[url] = psycopg.connect(
                    url,
                    autocommit=True,
                    connect_timeout=CONNECT,
                    application_name="corral budget",
                )
            with server.transaction():
                yield server
        except (psycopg.Error, msgspec.MsgspecError) as error:
            lost = _connections.pop(url, None)
            if lost is not None:
                lost.close()
            reason = str(error).strip().partition("\n")[0]
            raise StorageFailed(
                f"the budget in {without_password(url)} cannot be used: {reason}",
                retryable=isinstance(error, psycopg.OperationalError),
            ) from error
