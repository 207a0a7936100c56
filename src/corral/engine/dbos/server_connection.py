"""Corral's own tables in a Postgres database: one connection per database and process, which is
closed at the end of the process."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from corral.engine.dbos.database import CONNECT, without_password
from corral.errors import StorageFailed

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

_connections: dict[str, psycopg.Connection[TupleRow]] = {}
_lock = threading.RLock()
"""Held while a connection is used."""


@contextmanager
def transaction(url: str, what: str) -> Generator[psycopg.Connection[TupleRow]]:
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


def has_table(server: psycopg.Connection[TupleRow], table: str) -> bool:
    found = server.execute(b"SELECT to_regclass(%s)", (table,)).fetchone()
    return found is not None and found[0] is not None
