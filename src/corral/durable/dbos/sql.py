"""Database connections with the settings that corral needs, and SQL on the library's tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from corral.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Engine

CONNECT = 5
"""Seconds until a server that does not answer counts as not reachable."""
_DISK_FULL = "53100"
"""The SQLSTATE of Postgres."""
STUCK = 60
"""Seconds that a transaction may be idle."""


def is_full(error: BaseException | None) -> bool:
    """Whether the database reports that it cannot write: its disk is full or fails."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        return any(part in str(cause) for part in ("disk is full", "disk I/O error"))
    return getattr(cause, "sqlstate", None) == _DISK_FULL


def open_engine(
    url: str, connections: int, on_full: Callable[[BaseException], None] | None = None
) -> Engine:
    """An engine with at most ``connections`` connections. ``on_full`` is called, in any
    thread, when the database cannot write any more."""
    import sqlalchemy as sa
    from sqlalchemy import event

    whole = sa.make_url(url)
    if whole.drivername != "sqlite":
        whole = whole.set(drivername="postgresql+psycopg")
    engine = sa.create_engine(
        whole, pool_size=connections, max_overflow=0, pool_timeout=30, pool_pre_ping=True
    )
    if whole.drivername == "sqlite":
        event.listen(engine, "connect", _set_up)
        event.listen(engine, "before_cursor_execute", _begin)
    else:
        event.listen(engine, "do_connect", _within_a_time)
        event.listen(engine, "connect", _let_go)
    if on_full is not None:

        def look(context: Any) -> None:
            if is_full(context.original_exception):
                on_full(context.original_exception)

        event.listen(engine, "handle_error", look)
    return engine


def close_engine(engine: Engine) -> None:
    """Close all connections, also one that a thread still uses because its caller was cancelled:
    the pool would otherwise take it back after this and keep it open."""
    from sqlalchemy import event

    event.listen(engine, "checkin", _end)
    engine.dispose()


def _end(_connection: Any, record: Any) -> None:
    record.invalidate()


def _within_a_time(_dialect: Any, _record: Any, _given: Any, options: dict[str, Any]) -> None:
    options.setdefault("connect_timeout", CONNECT)
    options.setdefault("application_name", "corral")


def _let_go(connection: Any, _record: Any) -> None:
    """As the library does: a session that is idle in a transaction releases its locks."""
    if "idle_in_transaction_session_timeout" not in connection.info.options:
        connection.execute(f"SET idle_in_transaction_session_timeout = {STUCK * 1000}")
        connection.commit()


def _set_up(connection: Any, _record: Any) -> None:
    """As the library does."""
    connection.isolation_level = "IMMEDIATE"
    connection.execute("PRAGMA busy_timeout=30000")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(
    connection: Any, cursor: Any, statement: str, _parameters: Any, _context: Any, _many: bool
) -> None:
    """Start a write transaction before running workflows are counted. SQLite starts one only at
    the first write, so two processes that count at the same time would both take the last place of
    a limited queue."""
    if statement.startswith("SELECT count(") and not connection.connection.in_transaction:
        cursor.execute("BEGIN IMMEDIATE")


_OURS = "portable_json"
"""How corral's rows are serialized."""


def select_busy_executors(*, is_file: bool) -> str:
    """The executors with workflows that have not ended. Executors run it every second, so it
    goes to the database directly."""
    table = _table("workflow_status", is_file=is_file)
    return f"SELECT DISTINCT executor_id FROM {table} WHERE status = 'PENDING'"


def check_origin(engine: Engine, workflow_id: str) -> None:
    """Raises ``ConfigError`` if corral did not write all rows of this workflow: the library
    would execute the content of a row that is marked as a pickle."""
    for table in ("workflow_status", "operation_outputs", "workflow_events"):
        _check_rows(engine, table, [workflow_id])


def check_origins(engine: Engine, workflow_ids: Sequence[str]) -> None:
    """Raises ``ConfigError`` if corral did not write the outputs of these workflows."""
    _check_rows(engine, "workflow_status", workflow_ids)


def _check_rows(engine: Engine, table: str, workflow_ids: Sequence[str]) -> None:
    import sqlalchemy as sa

    name = _table(table, is_file=engine.dialect.name == "sqlite")
    statement = sa.text(
        f"SELECT workflow_uuid FROM {name} WHERE workflow_uuid IN :ids"
        f" AND serialization <> '{_OURS}' LIMIT 1"
    ).bindparams(sa.bindparam("ids", expanding=True))
    with engine.connect() as connection:
        found = connection.execute(statement, {"ids": list(workflow_ids)}).first()
    if found is not None:
        raise ConfigError(f"the record of {found[0]!r} was not written by corral")


def find_message(engine: Engine, workflow_id: str, key: str) -> str | None:
    """The message that was sent to the workflow with this key, received or not, as JSON; None
    if there is none. Raises ``ConfigError`` if corral did not write it."""
    import sqlalchemy as sa

    table = _table("notifications", is_file=engine.dialect.name == "sqlite")
    statement = sa.text(f"SELECT message, serialization FROM {table} WHERE message_uuid = :id")
    with engine.connect() as connection:
        found = connection.execute(statement, {"id": f"{key}::{workflow_id}"}).first()
    if found is None:
        return None
    if found[1] != _OURS:
        raise ConfigError(f"a message to {workflow_id!r} was not written by corral")
    return str(found[0])


def _table(name: str, *, is_file: bool) -> str:
    return name if is_file else f"dbos.{name}"
