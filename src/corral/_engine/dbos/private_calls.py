"""What corral uses of the DBOS library that its documentation does not promise: all of it.

Everything else in this package is the documented interface. A private use is the smallest that
serves its purpose. ``PRIVATE_USES`` has the reason for each, what the library would have to offer
to make it unnecessary, and the parts of the library that it depends on. A test compares those parts
with the installed version, so that an upgrade cannot change them unnoticed.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corral._core import stored_formats

if TYPE_CHECKING:
    from sqlalchemy import Engine

VERSIONS = ("3.3", "3.4")
"""The library's versions that all this was read in."""
SCHEMA = 123
"""The version of its tables that corral needs, in a file and on a server."""


class PrivateUse(NamedTuple):
    where: tuple[str, ...]
    """Modules or functions of this package."""
    reason: str
    unnecessary_if: str
    """What the library would have to offer."""
    depends_on: tuple[str, ...]
    """Functions and tables of the library."""


PRIVATE_USES = (
    PrivateUse(
        where=("private_calls.recover",),
        reason="Takes over the workflows of a dead executor. The public resume_workflows resets the"
        " count of recoveries: a workflow that kills its executor would be started for ever.",
        unnecessary_if="DBOS.recover_workflows(executor_ids) were public, or resume_workflows could"
        " keep the count.",
        depends_on=(
            "_dbos.DBOS._recover_pending_workflows",
            "_recovery.recover_pending_workflows",
            "_recovery._recover_workflow",
            "_sys_db.SystemDatabase.reenqueue_for_recovery",
        ),
    ),
    PrivateUse(
        where=("private_calls.put_back",),
        reason="A workflow that waits for hours leaves its executor and its place in a limited"
        " queue. The public set_workflow_delay changes only workflows that have not started.",
        unnecessary_if="a running workflow could be put back on its queue with a delay.",
        depends_on=(
            "_sys_db.SystemDatabase.transition_delayed_workflows",
            "_sys_db.SystemDatabase.start_queued_workflows",
            "table workflow_status",
        ),
    ),
    PrivateUse(
        where=(
            "private_calls.select_busy_executors",
            "private_calls.read_top_rows",
            "private_calls.read_nested_ids",
            "private_calls.all_workflow_ids",
            "private_calls.read_formats",
            "private_calls.read_format",
        ),
        reason="Every executor looks once per second for executors that died. The public"
        " list_workflows returns all their workflows. And a list of runs must not take longer than"
        " the import of the library, and not fail because of one row that another program changed:"
        " the public list_workflows decodes some columns of all rows.",
        unnecessary_if="executors with running workflows could be listed; for the list of runs,"
        " nothing.",
        depends_on=("table workflow_status",),
    ),
    PrivateUse(
        where=("private_calls.has_unread_message", "private_calls.find_message"),
        reason="A run whose nodes work in its process waits for them and for messages at once, and"
        " a caller learns whether its answer was the first with its key. The public recv can only"
        " wait, and send returns nothing.",
        unnecessary_if="messages could be listed, with their keys.",
        depends_on=("_sys_db.SystemDatabase._send_bulk_txn", "table notifications"),
    ),
    PrivateUse(
        where=("database",),
        reason="Tables of an older version of the library, or of an interrupted update, are updated"
        " before anything runs: also by commands that do not import the library.",
        unnecessary_if="the version of its tables were documented.",
        depends_on=(
            "_migration.get_migration_versions",
            "_migration.get_sqlite_migration_versions",
            "table application_versions",
            "table workflow_status",
        ),
    ),
    PrivateUse(
        where=("connections._begin",),
        reason="Two processes with one database file must not both take the last place of a limited"
        " queue. The library counts running workflows before it starts a write transaction.",
        unnecessary_if="it began the transaction with BEGIN IMMEDIATE in SQLite.",
        depends_on=("_sys_db.SystemDatabase.start_queued_workflows",),
    ),
    PrivateUse(
        where=("connections.read_text",),
        reason="No row is decoded as a pickle, which would execute its content. The library decodes"
        " rows in the format that they name, whatever serializer is configured.",
        unnecessary_if="it decoded only the format of the configured serializer.",
        depends_on=(
            "_serialization.DefaultSerializer",
            "_serialization.deserialize_args",
            "_serialization.deserialize_exception",
            "_serialization.deserialize_value",
        ),
    ),
)


def recover(executor: str) -> None:
    """Put the workflows of a dead executor back on their queues; their recoveries are counted. The
    caller holds the executor's lease."""
    from dbos import DBOS

    DBOS._recover_pending_workflows([executor])  # pyright: ignore[reportPrivateUsage]


def put_back(engine: Engine, workflow_id: str, executor: str, until: float) -> None:
    """Put a workflow that this executor runs back on its queue, until this time in seconds since
    the epoch: as the library delays a workflow that has not started. Then any executor of the queue
    continues it. Nothing is changed if it was cancelled or another executor has it. Blocking."""
    import sqlalchemy as sa

    table = table_name("workflow_status", is_file=engine.dialect.name == "sqlite")
    statement = sa.text(
        f"UPDATE {table} SET status = 'DELAYED', delay_until_epoch_ms = :until, owner_xid = NULL,"
        # Each start is counted as a recovery; this one did not die.
        " started_at_epoch_ms = NULL, recovery_attempts = recovery_attempts - 1"
        " WHERE workflow_uuid = :id AND status = 'PENDING' AND executor_id = :executor"
        " AND queue_name IS NOT NULL"
    )
    values = {"id": workflow_id, "executor": executor, "until": math.ceil(until * 1000)}
    with engine.begin() as connection:
        connection.execute(statement, values)


def select_busy_executors(*, is_file: bool) -> str:
    """A statement: the executors with workflows of our format that have not ended. Others are
    recovered by executors of their format."""
    table = table_name("workflow_status", is_file=is_file)
    return (
        f"SELECT DISTINCT executor_id FROM {table}"
        f" WHERE status = 'PENDING' AND application_version = '{stored_formats.journal_name()}'"
    )


def read_top_rows(file: Path, columns: str, name: str, limit: int | None) -> list[tuple[Any, ...]]:
    """These columns of the workflows with this name in a database file that no other workflow
    started, newest first."""
    statement = (
        f"SELECT {columns} FROM workflow_status WHERE name = ? AND parent_workflow_id IS NULL"
        " ORDER BY created_at DESC LIMIT ?"
    )
    with closing(sqlite3.connect(file, timeout=30)) as opened:
        return opened.execute(statement, (name, -1 if limit is None else limit)).fetchall()


def read_formats(file: Path) -> set[int]:
    """The formats of the executors that have used a database file. Nothing is written to it."""
    return _read_formats(file, "SELECT version_name FROM application_versions")


def read_format(file: Path, workflow_id: str) -> int | None:
    """The format of a workflow in a database file; None if it is not there."""
    select = "SELECT application_version FROM workflow_status WHERE workflow_uuid = ?"
    return next(iter(_read_formats(file, select, workflow_id)), None)


def _read_formats(file: Path, select: str, *values: str) -> set[int]:
    if not file.exists():
        return set()
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", timeout=30, uri=True)) as opened:
            rows = opened.execute(select, values).fetchall()
    except sqlite3.Error:  # it is damaged, or has no such table: who opens it reports that
        return set()
    return {stored_formats.journal_format(str(row[0])) for row in rows}


def read_labelled_ids(file: Path, name: str, label: str, value: str) -> list[str]:
    """The ids of the workflows with this name in a database file whose label has this value,
    newest first. What is no JSON counts as no labels."""
    statement = (
        "SELECT workflow_uuid FROM workflow_status WHERE name = ? AND"
        " CASE WHEN json_valid(attributes) THEN json_extract(attributes, '$.' || ?) END = ?"
        " ORDER BY created_at DESC"
    )
    with closing(sqlite3.connect(file, timeout=30)) as opened:
        return [str(row[0]) for row in opened.execute(statement, (name, label, value))]


def read_nested_ids(file: Path, name: str, states: Sequence[str]) -> list[str]:
    """The ids of the workflows with this name in a database file that another workflow started and
    that are in one of these states."""
    marks = ", ".join("?" for _ in states)
    statement = (
        "SELECT workflow_uuid FROM workflow_status WHERE name = ?"
        f" AND parent_workflow_id IS NOT NULL AND status IN ({marks}) ORDER BY workflow_uuid"
    )
    with closing(sqlite3.connect(file, timeout=30)) as opened:
        return [str(row[0]) for row in opened.execute(statement, (name, *states))]


def all_workflow_ids(engine: Engine) -> list[str]:
    import sqlalchemy as sa

    table = table_name("workflow_status", is_file=engine.dialect.name == "sqlite")
    with engine.connect() as connection:
        return list(connection.execute(sa.text(f"SELECT workflow_uuid FROM {table}")).scalars())


def has_unread_message(engine: Engine, workflow_id: str, topic: str) -> bool:
    """Whether a message to the workflow was sent that it has not received."""
    import sqlalchemy as sa

    table = table_name("notifications", is_file=engine.dialect.name == "sqlite")
    statement = sa.text(
        f"SELECT 1 FROM {table} WHERE destination_uuid = :id AND topic = :topic AND NOT consumed"
        " LIMIT 1"
    )
    with engine.connect() as connection:
        row = connection.execute(statement, {"id": workflow_id, "topic": topic}).first()
    return row is not None


def find_message(engine: Engine, workflow_id: str, key: str) -> str | None:
    """The message that was sent to the workflow with this key, received or not, as JSON; None if
    there is none."""
    import sqlalchemy as sa

    table = table_name("notifications", is_file=engine.dialect.name == "sqlite")
    statement = sa.text(f"SELECT message FROM {table} WHERE message_uuid = :id")
    with engine.connect() as connection:
        message: str | None = connection.execute(
            statement, {"id": f"{key}::{workflow_id}"}
        ).scalar()
    return message


def table_name(name: str, *, is_file: bool) -> str:
    """The name of a table of the library in a database file, or on a server."""
    return name if is_file else f"dbos.{name}"
