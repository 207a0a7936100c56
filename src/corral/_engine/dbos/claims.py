"""Workflows that a process runs itself, without the library: many per transaction.

The library takes about ten transactions for a workflow on a queue. For short ones, that is most of
their cost. A process that has submitted workflows and would run them itself can claim them at
once (``begin``), run them in its own way, and store several outputs together (``complete``).

The rows are those that the library writes for a workflow that it has taken from the queue. So a
list shows them, another process can cancel them, and if this process dies, its workflows are
recovered and run by the library like any others.

Each claim has a token, the *owner* of the rows. A row that was cancelled, or that another process
has taken over, has another owner or none: then the output is not stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from corral._core import stored_formats
from corral._engine.dbos import adapter
from corral._engine.dbos.database import APPLICATION, WorkflowSubmission
from corral._engine.dbos.private_calls import table_name
from corral._system import clock
from corral.values import Json

if TYPE_CHECKING:
    from sqlalchemy import Engine


class Claims:
    """The workflows of one process. Blocking."""

    def __init__(self, engine: Engine, executor: str) -> None:
        from dbos import DBOSPortableJSONSerializer

        self._engine, self._executor = engine, executor
        self._serializer = DBOSPortableJSONSerializer()
        self._owner = uuid4().hex
        is_file = engine.dialect.name == "sqlite"
        status = table_name("workflow_status", is_file=is_file)
        inputs = table_name("workflow_input", is_file=is_file)
        self._insert_status = (
            f"INSERT INTO {status} (workflow_uuid, status, name, queue_name, executor_id,"
            " owner_xid, creator_xid, started_at_epoch_ms, application_version, serialization,"
            " application_name, recovery_attempts, priority)"
            " VALUES (:id, 'PENDING', :name, :queue, :executor, :owner, :owner, :now, :version,"
            " :serialization, :application, 1, 0) ON CONFLICT DO NOTHING"
        )
        self._select_ours = (
            f"SELECT workflow_uuid FROM {status} WHERE workflow_uuid IN :ids"
            " AND creator_xid = :owner AND status = 'PENDING'"
        )
        self._insert_input = (
            f"INSERT INTO {inputs} (workflow_uuid, inputs) VALUES (:id, :inputs)"
            " ON CONFLICT DO NOTHING"
        )

    def begin(self, claims: Sequence[WorkflowSubmission]) -> set[str]:
        """Store them as running, in one transaction: all or none; if this process dies, the library
        puts them on their queue. Returns the ids of those that are new; others exist already, and
        stay as they are."""
        import sqlalchemy as sa

        shared = {
            "executor": self._executor,
            "owner": self._owner,
            "now": _now(),
            "version": stored_formats.journal_name(),
            "serialization": self._serializer.name(),
            "application": APPLICATION,
        }
        rows = [
            {
                "id": claim.id,
                "name": claim.name,
                "queue": claim.queue,
                "inputs": self._serializer.serialize(
                    {"positionalArgs": [claim.payload], "namedArgs": {}}
                ),
                **shared,
            }
            for claim in claims
        ]
        ids = {"ids": [claim.id for claim in claims], "owner": self._owner}
        adapter.watch("before begin")
        with self._engine.begin() as transaction:
            # The library's own statement has a cost that is most of what a short task takes.
            transaction.execute(sa.text(self._insert_status), rows)
            select = sa.text(self._select_ours).bindparams(sa.bindparam("ids", expanding=True))
            new = {str(row[0]) for row in transaction.execute(select, ids)}
            transaction.execute(
                sa.text(self._insert_input), [row for row in rows if row["id"] in new]
            )
        adapter.watch("after begin")
        return new

    def complete(self, outputs: Mapping[str, Json]) -> set[str]:
        """Store outputs in one transaction. Returns the ids of those that were stored: a workflow
        that is no longer ours has no output from us."""
        import sqlalchemy as sa

        is_file = self._engine.dialect.name == "sqlite"
        update = sa.text(
            f"UPDATE {table_name('workflow_status', is_file=is_file)} SET status = 'SUCCESS',"
            " owner_xid = NULL, updated_at = :now, completed_at = :now"
            " WHERE workflow_uuid IN :ids AND status = 'PENDING' AND owner_xid = :owner"
            " RETURNING workflow_uuid"
        ).bindparams(sa.bindparam("ids", expanding=True))
        insert = sa.text(
            f"INSERT INTO {table_name('workflow_output', is_file=is_file)}"
            " (workflow_uuid, output) VALUES (:id, :output)"
            " ON CONFLICT (workflow_uuid) DO UPDATE SET output = :output, error = NULL"
        )
        adapter.watch("before complete")
        with self._engine.begin() as transaction:
            values = {"now": _now(), "ids": list(outputs), "owner": self._owner}
            ours = {str(row[0]) for row in transaction.execute(update, values)}
            if ours:
                rows = [
                    {"id": each, "output": self._serializer.serialize(outputs[each])}
                    for each in outputs
                    if each in ours
                ]
                transaction.execute(insert, rows)
        adapter.watch("after complete")
        return ours

    def record_step(self, workflow_id: str, name: str, output: Json) -> None:
        """Store the result of the workflow's first step: the library continues after it."""
        import sqlalchemy as sa

        table = table_name("operation_outputs", is_file=self._engine.dialect.name == "sqlite")
        insert = sa.text(
            f"INSERT INTO {table} (workflow_uuid, function_id, function_name, output,"
            " serialization, started_at_epoch_ms, completed_at_epoch_ms, application_name)"
            " VALUES (:id, 1, :name, :output, :serialization, :now, :now, :application)"
            " ON CONFLICT DO NOTHING"
        )
        adapter.watch("before step")
        with self._engine.begin() as transaction:
            transaction.execute(
                insert,
                {
                    "id": workflow_id,
                    "name": name,
                    "output": self._serializer.serialize(output),
                    "serialization": self._serializer.name(),
                    "now": _now(),
                    "application": APPLICATION,
                },
            )
        adapter.watch("after step")


def _now() -> int:
    return int(clock.now() * 1000)
