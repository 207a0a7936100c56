"""Connections to the database of runs, with the settings that corral needs.

A row that is marked as a pickle is never decoded (``read_text``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

from corral._system import clock

if TYPE_CHECKING:
    import psycopg
    from psycopg.abc import Buffer
    from psycopg.rows import TupleRow
    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine import Dialect, ExceptionContext
    from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
    from sqlalchemy.pool import ConnectionPoolEntry

CONNECT = 5
"""Seconds until a server that does not answer counts as not reachable."""
STUCK = 60
"""Seconds that a transaction on a server may be idle."""
_DISK_FULL = "53100"
"""The SQLSTATE of Postgres."""
_SUBSECONDS = (3, 42)
"""The version of SQLite that knows fractions of seconds."""
PATIENCE = 600
"""Seconds to wait for a connection that others use. A thousand runs that continue at once share
ten, and a run that waits in vain fails."""

UNUSABLE = ("disk is full", "disk I/O error", "unable to open database file")
"""SQLite's messages."""


def is_unusable(error: BaseException | None) -> bool:
    """Whether the database reports that it cannot be written, because its disk is full or fails; or
    not be opened, because this process has no free descriptor."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        return any(part in str(cause) for part in UNUSABLE)
    return getattr(cause, "sqlstate", None) == _DISK_FULL


def open_engine(
    url: str, connections: int, on_unusable: Callable[[BaseException], None] | None = None
) -> Engine:
    """An engine with at most ``connections`` connections. ``on_unusable`` is called, in any
    thread, when the database cannot be written or opened any more."""
    import sqlalchemy as sa
    from sqlalchemy import event

    address = sa.make_url(url)
    if address.drivername != "sqlite":
        address = address.set(drivername="postgresql+psycopg")
    engine = sa.create_engine(
        address,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=PATIENCE,
        pool_pre_ping=True,
    )
    if address.drivername == "sqlite":
        event.listen(engine, "connect", _set_up_file)
        event.listen(engine, "before_cursor_execute", _begin)
    else:
        event.listen(engine, "do_connect", _limit_connect_time)
        event.listen(engine, "connect", _set_up_server)
    if on_unusable is not None:

        def report_if_unusable(context: ExceptionContext) -> None:
            if is_unusable(context.original_exception):
                on_unusable(context.original_exception)

        event.listen(engine, "handle_error", report_if_unusable)
    return engine


def close_engine(engine: Engine) -> None:
    """Close all connections, also one that a thread still uses because its caller was cancelled:
    the pool would otherwise take it back after this and keep it open."""
    from sqlalchemy import event

    def close_returned(_connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        record.invalidate()

    event.listen(engine, "checkin", close_returned)
    engine.dispose()


def _set_up_file(connection: sqlite3.Connection, _record: ConnectionPoolEntry) -> None:
    """As the library does, but no text is the name of pickles."""
    connection.text_factory = read_text
    connection.isolation_level = "IMMEDIATE"
    connection.execute("PRAGMA busy_timeout=30000")
    connection.execute("PRAGMA foreign_keys=ON")
    if sqlite3.sqlite_version_info < _SUBSECONDS:
        connection.create_function("unixepoch", 1, _unixepoch)


def _limit_connect_time(
    _dialect: Dialect, _record: ConnectionPoolEntry, _given: object, options: dict[str, object]
) -> None:
    options.setdefault("connect_timeout", CONNECT)
    options.setdefault("application_name", "corral")


def _set_up_server(connection: psycopg.Connection[TupleRow], _record: ConnectionPoolEntry) -> None:
    """As the library does, a session that is idle in a transaction releases its locks. And no text
    is the name of pickles (``read_text``)."""
    from psycopg.types.string import TextLoader

    class Loader(TextLoader):
        def load(self, data: Buffer) -> bytes | str:
            return JSON if bytes(data) == PICKLE else super().load(data)

    for kind in ("text", "varchar"):
        connection.adapters.register_loader(kind, Loader)
    if "idle_in_transaction_session_timeout" not in connection.info.options:
        connection.execute(b"SET idle_in_transaction_session_timeout = %d" % (STUCK * 1000))
        connection.commit()


PICKLE = b"py_pickle"
JSON = "portable_json"
"""What the library calls the format of corral's rows."""


def read_text(raw: bytes) -> str:
    """The text of a column. The library decodes each row in the format that the row names, and
    decoding a pickle executes its content. corral's rows are JSON, so a row that names that format
    is read as if it named JSON, and decoding it fails. No other text is the name of a format."""
    return JSON if raw == PICKLE else raw.decode()


def _unixepoch(modifier: str) -> float:
    """As newer versions of SQLite have it. From Python 3.12 on the library uses it, whatever the
    version of SQLite is, which then returns NULL."""
    if modifier != "subsec":
        raise ValueError(f"unixepoch({modifier!r}) is not available")
    return clock.now()


def _begin(connection: Connection, cursor: DBAPICursor, statement: str, *_other: object) -> None:
    """Start a write transaction before running workflows are counted. SQLite starts one only at
    the first write, so two processes that count at the same time would both take the last place of
    a limited queue."""
    if statement.startswith("SELECT count(") and not connection.connection.in_transaction:
        cursor.execute("BEGIN IMMEDIATE")
