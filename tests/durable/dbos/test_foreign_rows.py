"""Rows that corral did not write are not decoded: a pickle would execute code."""

from __future__ import annotations

import base64
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.durable_processes import DurableProcesses, submit, wait_until

from corral.durable.dbos import client
from corral.durable.dbos.database import Database, find, prepare
from corral.durable.dbos.private_calls import table_name
from corral.errors import ConfigError

GRAPH = "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> exit }"


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def pickled(path: Path) -> str:
    """What creates the file when it is decoded."""
    return base64.b64encode(pickle.dumps(Evil(str(path)))).decode()


def execute(database: Database, statement: str, *values: str) -> list[tuple[object, ...]]:
    """Execute a statement, as another program would."""
    if database.path is not None:
        with closing(sqlite3.connect(database.path)) as file, file:
            return file.execute(statement, values).fetchall()
    import psycopg

    with psycopg.connect(database.url, autocommit=True) as server:
        rows = server.execute(statement.replace("?", "%s").encode(), values)
        return rows.fetchall() if rows.description else []


def table(database: Database, name: str) -> str:
    return table_name(name, is_file=database.path is not None)


@pytest.mark.seconds
def test_a_worker_decodes_no_pickle(processes: DurableProcesses) -> None:
    """The library would execute the content of a row that is marked as a pickle."""
    submit(processes, GRAPH)
    database, executed = find(processes.db), processes.folder / "executed"
    status, inputs = table(database, "workflow_status"), table(database, "workflow_input")
    execute(database, f"UPDATE {status} SET serialization = 'py_pickle'")
    execute(database, f"UPDATE {inputs} SET inputs = ?", pickled(executed))
    processes.worker()

    def state() -> object:
        ((found,),) = execute(database, f"SELECT status FROM {status}")
        return found

    wait_until(lambda: executed.exists() or state() == "ERROR", "the row to be refused")
    assert not executed.exists()


@pytest.mark.seconds
def test_a_client_decodes_no_pickle(db: str, tmp_path: Path) -> None:
    database, executed = find(db), tmp_path / "executed"
    prepare(database)
    with client.connect(database) as connected:
        connected.ensure_queue("q")
        connected.submit(client.Submission(name="w", id="some-id", queue="q", payload={}))
        evil = pickled(executed)
        status, inputs = table(database, "workflow_status"), table(database, "workflow_input")
        execute(database, f"UPDATE {status} SET serialization = 'py_pickle'")
        execute(database, f"UPDATE {inputs} SET inputs = ?", evil)
        execute(
            database,
            f"INSERT INTO {table(database, 'workflow_events')} (workflow_uuid, key, value,"
            " serialization) VALUES ('some-id', 'k', ?, 'py_pickle')",
            evil,
        )
        execute(
            database,
            f"INSERT INTO {table(database, 'operation_outputs')} (workflow_uuid, function_id,"
            " function_name, output, serialization) VALUES ('some-id', 1, 'f', ?, 'py_pickle')",
            evil,
        )
        execute(
            database,
            f"INSERT INTO {table(database, 'notifications')} (destination_uuid, topic, message,"
            " message_uuid, serialization) VALUES ('some-id', 't', ?, 'k::some-id', 'py_pickle')",
            evil,
        )
        assert [each.id for each in connected.list_workflows()] == ["some-id"]
        with pytest.raises(ConfigError, match="not written by corral"):
            connected.get_workflow("some-id")
        with pytest.raises(ConfigError, match="not written by corral"):
            connected.get_event("some-id", "k")
        with pytest.raises(ConfigError, match="not written by corral"):
            connected.find_message("some-id", "k")
        assert [entry.output for entry in connected.journal("some-id")] == [evil]
    assert not executed.exists()
