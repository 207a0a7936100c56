"""A database on a Postgres server: ``prepare`` checks or creates it, ``set_up`` prepares its
connections."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from corral.engine.dbos import pooler
from corral.engine.dbos.database import (
    CONNECT,
    JSON,
    PICKLE,
    Database,
    check_protocol,
    count_open_workflows,
    first_line,
    migrate,
    protocol_versions,
)
from corral.errors import StorageFailed

if TYPE_CHECKING:
    import psycopg
    from psycopg.abc import Buffer
    from psycopg.rows import TupleRow
    from sqlalchemy import Engine
    from sqlalchemy.engine import Dialect
    from sqlalchemy.pool import ConnectionPoolEntry

STUCK = 60
"""Seconds that a transaction may be idle."""


def prepare(database: Database) -> None:
    """Check that the server can be reached and written, and create the tables if they are missing.
    Blocking. Raises ``StorageFailed`` or ``ConfigError``."""
    import psycopg

    versions: list[str] = []
    left: dict[str, int] = {}
    try:
        with psycopg.connect(database.url, connect_timeout=CONNECT) as server:

            def select(statement: str) -> list[TupleRow]:
                return server.execute(statement.encode()).fetchall()

            pooler.check(database, server, CONNECT)
            ((table,),) = select("SELECT to_regclass('dbos.application_versions')")
            if table:
                versions = protocol_versions(select, "dbos.application_versions")
                left = count_open_workflows(select, "dbos.workflow_status")
            ((is_read_only,),) = select("SHOW transaction_read_only")
            if is_read_only == "on":
                raise StorageFailed(
                    f"the database {database.shown} is read-only",
                    hint="Is it a standby?",
                    phase="config",
                )
    except psycopg.OperationalError as error:
        name = unquote(urlsplit(database.url).path.lstrip("/"))
        if f'database "{name}" does not exist' not in str(error):
            raise StorageFailed(
                f"the database {database.shown} cannot be reached: {first_line(error)}",
                hint="Is the server up, and are host, user and password right?",
                phase="config",
                retryable=True,
            ) from error
    except psycopg.Error as error:
        raise StorageFailed(
            f"the database {database.shown}: {first_line(error)}", phase="config"
        ) from error
    check_protocol(database, versions, left)
    if not versions:
        try:
            migrate(database.url)
        except Exception as error:
            raise StorageFailed(
                f"the tables of {database.shown} cannot be created: {first_line(error)}",
                hint="Run corral once as the owner of the database.",
                phase="config",
            ) from error


def set_up(engine: Engine) -> None:
    """Limit the time for a connection, and the time that a connection may be idle in a
    transaction; refuse pickles."""
    from sqlalchemy import event

    event.listen(engine, "do_connect", _limit_connect_time)
    event.listen(engine, "connect", _set_up_connection)


def _limit_connect_time(
    _dialect: Dialect, _record: ConnectionPoolEntry, _given: object, options: dict[str, object]
) -> None:
    options.setdefault("connect_timeout", CONNECT)
    options.setdefault("application_name", "corral")


def _set_up_connection(
    connection: psycopg.Connection[TupleRow], _record: ConnectionPoolEntry
) -> None:
    """As the library does, a session that is idle in a transaction releases its locks. And no text
    is the name of pickles (``database.read_text``)."""
    from psycopg.types.string import TextLoader

    class Loader(TextLoader):
        def load(self, data: Buffer) -> bytes | str:
            return JSON if bytes(data) == PICKLE else super().load(data)

    for kind in ("text", "varchar"):
        connection.adapters.register_loader(kind, Loader)
    if "idle_in_transaction_session_timeout" not in connection.info.options:
        connection.execute(b"SET idle_in_transaction_session_timeout = %d" % (STUCK * 1000))
        connection.commit()
