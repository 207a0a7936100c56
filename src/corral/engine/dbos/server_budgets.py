"""The store of a shared budget in a Postgres database: for workers on several machines.

Each store is one row of corral's own table. A change locks the row until it is committed, so
changes of all machines follow one another. A connection that breaks within a change undoes it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from corral.engine.dbos.server_connection import has_table, transaction
from corral.metering.budget_stores import StoredBudget
from corral.values import decode_as

TABLE = "dbos.corral_budgets"


class ServerBudgetStore:
    """One row: the store of one run."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name

    def create(self) -> None:
        """Create the table and the row, unless they exist. Raises ``StorageFailed``."""
        with transaction(self._url, "budget") as server:
            columns = "id text PRIMARY KEY, state text NOT NULL"
            server.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns})".encode())
            server.execute(
                f"INSERT INTO {TABLE} VALUES (%s, '{{}}') ON CONFLICT DO NOTHING".encode(),
                (self._name,),
            )

    @contextmanager
    def change(self) -> Generator[StoredBudget]:
        with transaction(self._url, "budget") as server:
            row = server.execute(
                f"SELECT state FROM {TABLE} WHERE id = %s FOR UPDATE".encode(), (self._name,)
            ).fetchone()
            state = StoredBudget()
            if row is not None:
                state = decode_as(str(row[0]), StoredBudget)
            yield state
            server.execute(
                f"UPDATE {TABLE} SET state = %s WHERE id = %s".encode(),
                (msgspec.json.encode(state).decode(), self._name),
            )

    def remove(self) -> None:
        """Raises ``StorageFailed``."""
        with transaction(self._url, "budget") as server:
            if has_table(server, TABLE):
                server.execute(f"DELETE FROM {TABLE} WHERE id = %s".encode(), (self._name,))
