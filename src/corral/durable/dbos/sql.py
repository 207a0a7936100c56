"""Connections to the database of an engine, with what the library's own would lack."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from corral.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Engine

CONNECT = 5
"""Seconds until a server that does not answer counts as away."""
_DISK_FULL = "53100"
"""As Postgres says it."""
STUCK = 60
"""Seconds that a transaction may stand still."""


def is_full(error: BaseException | None) -> bool:
    """Whether the database says that it cannot write any more: its disk is full, or fails."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        return any(part in str(cause) for part in ("disk is full", "disk I/O error"))
    return getattr(cause, "sqlstate", None) == _DISK_FULL


def open_engine(
    url: str, connections: int, on_full: Callable[[BaseException], None] | None = None
) -> Engine:
    """So many at once, at most. ``on_full`` is told when the database cannot write any more, in
    whatever thread that is found."""
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
    """And whatever a thread still asks through it, whose caller was cancelled and is gone: the
    pool would take such a connection back after its end, and keep it until it is garbage."""
    from sqlalchemy import event

    event.listen(engine, "checkin", _end)
    engine.dispose()


def _end(_connection: Any, record: Any) -> None:
    record.invalidate()


def _within_a_time(_dialect: Any, _record: Any, _given: Any, options: dict[str, Any]) -> None:
    options.setdefault("connect_timeout", CONNECT)
    options.setdefault("application_name", "corral")


def _let_go(connection: Any, _record: Any) -> None:
    """As the library would: a session that is stuck within a transaction frees its locks."""
    if "idle_in_transaction_session_timeout" not in connection.info.options:
        connection.execute(f"SET idle_in_transaction_session_timeout = {STUCK * 1000}")
        connection.commit()


def _set_up(connection: Any, _record: Any) -> None:
    """As the library would."""
    connection.isolation_level = "IMMEDIATE"
    connection.execute("PRAGMA busy_timeout=30000")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(
    connection: Any, cursor: Any, statement: str, _parameters: Any, _context: Any, _many: bool
) -> None:
    """What runs is counted in the same transaction in which the next is claimed. SQLite begins
    one only with the first write, so two processes that counted at the same time would both
    take the last place of a limited queue."""
    if statement.startswith("SELECT count(") and not connection.connection.in_transaction:
        cursor.execute("BEGIN IMMEDIATE")


def check(engine: Engine, workflow_id: str) -> None:
    """That all there is to decode is ours: the library would run what is in a row that says
    it is a pickle. Raises ``ConfigError``."""
    import sqlalchemy as sa

    schema = "" if engine.dialect.name == "sqlite" else "dbos."
    with engine.connect() as opened:
        for table in ("workflow_status", "operation_outputs", "workflow_events"):
            found = opened.execute(
                sa.text(
                    f"SELECT 1 FROM {schema}{table} WHERE workflow_uuid = :id"
                    " AND serialization <> 'portable_json' LIMIT 1"
                ),
                {"id": workflow_id},
            ).first()
            if found is not None:
                raise ConfigError(f"what is kept of {workflow_id!r} was not written by corral")


def find_message(engine: Engine, workflow_id: str, key: str) -> str | None:
    """The message with this key that was sent to it, taken up or not, as JSON; None: there is
    none. Raises ``ConfigError`` where it is not ours."""
    import sqlalchemy as sa

    schema = "" if engine.dialect.name == "sqlite" else "dbos."
    statement = sa.text(
        f"SELECT message, serialization FROM {schema}notifications WHERE message_uuid = :id"
    )
    with engine.connect() as opened:
        found = opened.execute(statement, {"id": f"{key}::{workflow_id}"}).first()
    if found is None:
        return None
    if found[1] != "portable_json":
        raise ConfigError(f"a message to {workflow_id!r} was not written by corral")
    return str(found[0])
