"""Workflows that leave their executor until a time.

The library has the state DELAYED for a workflow that is enqueued now and starts later. Executors
look once per second for those whose time has come. Corral uses the same state for a workflow that
has started: it is put back on its queue with a time, and this execution of it ends. Nothing of it
runs until then, it takes no place of its queue, and any executor of the queue continues it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Engine


def put_back(engine: Engine, workflow_id: str, executor: str, until: float) -> None:
    """Put a workflow that this executor runs back on its queue, until this time in seconds since
    the epoch. Nothing is changed if it was cancelled or another executor has it. Blocking."""
    import sqlalchemy as sa

    table = "workflow_status" if engine.dialect.name == "sqlite" else "dbos.workflow_status"
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
