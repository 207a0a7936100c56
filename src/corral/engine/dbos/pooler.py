"""Connection poolers between corral and Postgres, such as pgbouncer.

A pooler in session mode gives each client its own connection to the server and is fine. In
transaction mode clients share connections: a lease, which is a lock of a connection, would then be
held for all of them, and the work of an executor that is alive would be run a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.errors import ConfigError

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

    from corral.engine.dbos.database import Database

    Connection = psycopg.Connection[TupleRow]

ROUNDS = 20
"""How often two clients are compared. A pooler gives the connection that was released last to the
next client, so that the first round finds it, unless others use the pooler at the same moment."""


def check(database: Database, first: Connection, connect_timeout: int) -> None:
    """Raises ``ConfigError`` if clients share connections. ``first`` is in no transaction."""
    import psycopg

    if _backend(first) == first.info.backend_pid:
        return  # the server itself: a pooler has numbers of its own for its clients
    with psycopg.connect(database.url, connect_timeout=connect_timeout) as second:
        if any(_is_shared(first, second) for _ in range(ROUNDS)):
            raise ConfigError(
                f"{database.shown} is a connection pooler in transaction mode, where locks are not"
                " held by one client",
                hint="Connect to Postgres directly, or set the pooler to session mode.",
            )


def _is_shared(first: Connection, second: Connection) -> bool:
    before = _backend(first)
    during = _backend(second, end=False)
    after = _backend(first)
    second.rollback()
    return len({before, during, after}) != 2 or before != after


def _backend(connection: Connection, *, end: bool = True) -> int:
    """The process of the server that runs the statements of a transaction."""
    ((number,),) = connection.execute(b"SELECT pg_backend_pid()").fetchall()
    if end:
        connection.rollback()
    return int(number)
