"""Rows that another program wrote or changed: none executes anything, each is one clear error, and
the others are not affected."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import pickle
import sqlite3
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest
from support.durable_processes import CHAIN, DurableProcesses, submit, wait_until

import corral
from corral import runs
from corral._engine import query, run_list
from corral._engine.batch import query as batches
from corral._engine.dbos import client
from corral._engine.dbos.database import (
    Database,
    UnreadableRecord,
    WorkflowSubmission,
    find,
    prepare,
)
from corral._engine.dbos.leases import open_leases
from corral._engine.dbos.private_calls import table_name
from corral.errors import ConfigError

GRAPH = "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> exit }"

DAMAGED = (
    ("workflow_status", "status", "what"),
    ("workflow_status", "name", "another"),
    ("workflow_status", "serialization", "py_pickle"),
    ("workflow_status", "authenticated_roles", "{"),
    ("workflow_input", "inputs", None),
    ("workflow_input", "inputs", "["),
    ("workflow_input", "inputs", "[" * 100_000),
    ("workflow_input", "inputs", '{"positionalArgs":[{"run_id":1}],"namedArgs":{}}'),
    ("workflow_output", "output", "{"),
    ("workflow_output", "output", '{"status":"what"}'),
    ("operation_outputs", "output", '{"messages":[5]}'),
    ("operation_outputs", "output", '"\\ud800"'),
)
"""Table, column and value of edits of an ended run that can be made in a file and on a server."""

DAMAGED_IN_A_FILE = (
    ("workflow_status", "attributes", "{"),
    ("workflow_status", "attributes", "[1]"),
    ("workflow_status", "created_at", "x"),
    ("workflow_status", "completed_at", b"\xff"),
    ("workflow_status", "executor_id", b"\xff"),
    ("workflow_status", "queue_name", 1.5),
    ("operation_outputs", "completed_at_epoch_ms", "x"),
    ("operation_outputs", "function_name", b"\xff"),
)
"""A column of SQLite takes any value."""


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def pickled(path: Path) -> str:
    """What creates the file when it is decoded."""
    return base64.b64encode(pickle.dumps(Evil(str(path)))).decode()


def execute(database: Database, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Execute a statement, as another program would."""
    if database.path is not None:
        with contextlib.closing(sqlite3.connect(database.path)) as file, file:
            return file.execute(statement, values).fetchall()
    with psycopg.connect(database.url, autocommit=True) as server:
        rows = server.execute(statement.replace("?", "%s").encode(), values)
        return rows.fetchall() if rows.description else []


def table(database: Database, name: str) -> str:
    return table_name(name, is_file=database.path is not None)


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


def test_a_client_decodes_no_pickle(db: str, tmp_path: Path) -> None:
    database, executed = find(db), tmp_path / "executed"
    prepare(database)
    with client.connect(database) as connected:
        connected.ensure_queue("q")
        connected.submit(WorkflowSubmission(name="w", id="some-id", queue="q", payload={}))
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
        with pytest.raises(ConfigError, match="cannot be read"):
            connected.get_workflow("some-id")
        with pytest.raises(ConfigError, match="cannot be read"):
            connected.get_event("some-id", "k")
        with pytest.raises(ConfigError, match="cannot be read"):
            connected.find_message("some-id", "k")
        assert [entry.output for entry in connected.journal("some-id")] == [evil]
    assert not executed.exists()


@pytest.mark.deep
def test_a_damaged_run_is_one_clear_error_and_others_are_shown(
    processes: DurableProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    db, is_file = processes.db, find(processes.db).path is not None
    assert processes.wait(processes.run(CHAIN)) == 0
    submit(processes, GRAPH, "other")
    for table, column, value in DAMAGED + (DAMAGED_IN_A_FILE if is_file else ()):
        with _changed(db, table, column, value, "r"):
            # Some changes do not damage it: they count as missing values.
            with contextlib.suppress(ConfigError):
                asyncio.run(query.show("r", db=db))
            with contextlib.suppress(ConfigError):
                asyncio.run(runs.cancel("r", db=db))
            listed = [each.id for each in asyncio.run(run_list.list_runs(db=db))]
            assert "other" in listed, (table, column, value)
            assert asyncio.run(query.show("other", db=db)).status == "queued"
    with (
        _changed(db, "workflow_input", "inputs", "[", "r"),
        pytest.raises(UnreadableRecord, match="'r' cannot be read: its input is damaged"),
    ):
        asyncio.run(query.show("r", db=db))
    logged = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert all("the record of 'r'" in record.getMessage() for record in logged)


def test_the_executor_of_a_row_is_no_path_of_a_file(new_file: str, tmp_path: Path) -> None:
    """Whether an executor lives is decided by a lock file, which is deleted if it does not."""
    precious = tmp_path / "precious"
    precious.write_text("x")
    leases = open_leases(find(new_file))
    (tmp_path / "engine.db.executors").mkdir()
    for executor in (str(precious), "../precious", "..", ".made", "a\0b", "x" * 5000):
        with leases.claim(executor) as is_dead:
            assert is_dead
    assert precious.read_text() == "x"
    assert not list((tmp_path / "engine.db.executors").iterdir())


def test_a_damaged_run_can_be_cancelled(file_processes: DurableProcesses) -> None:
    submit(file_processes, GRAPH)
    _change(file_processes.db, "workflow_input", "inputs", "[")
    asyncio.run(runs.cancel("r", db=file_processes.db))
    assert _status(file_processes) == "CANCELLED"


def test_a_worker_refuses_a_run_that_names_another_in_one_line(
    file_processes: DurableProcesses,
) -> None:
    """It would write the files and send the messages of that run."""
    processes = file_processes
    submit(processes, CHAIN)
    submit(processes, GRAPH, "damaged")
    stored = json.loads(str(_read(processes.db, "workflow_input", "inputs", "damaged")))
    stored["positionalArgs"][0]["run_id"] = "r"
    _change(processes.db, "workflow_input", "inputs", json.dumps(stored), "damaged")
    processes.worker()
    assert processes.wait_for_run().status == "success"
    output = processes.wait_for_run("damaged")
    assert output.status == "fail"
    assert "the record of 'damaged' cannot be read: it names another run, 'r'" in output.reason
    assert "Traceback" not in processes.output()


def test_one_damaged_batch_does_not_hide_the_others(
    new_file: str, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two"):
        corral.batch_sync(["a", "b"], simulate=True, db=new_file, name=name, cwd=workspace)
    for column, value in (("attributes", "{"), ("serialization", "py_pickle")):
        with _changed(new_file, "workflow_status", column, value, "one"):
            found = asyncio.run(batches.list_batches(db=new_file))
            assert [each.name for each in found if each.name != "one"] == ["two"]
    assert "the record of 'one'" in caplog.text
    with (
        _changed(new_file, "operation_outputs", "output", "{", "one"),
        pytest.raises(ConfigError, match="the record of 'one' cannot be read"),
    ):
        asyncio.run(batches.show_batch("one", db=new_file))


@contextlib.contextmanager
def _changed(db: str, table: str, column: str, value: object, row: str) -> Generator[None]:
    before = _read(db, table, column, row)
    _change(db, table, column, value, row)
    yield
    _change(db, table, column, before, row)


def _change(db: str, name: str, column: str, value: object, row: str = "r") -> None:
    database = find(db)
    statement = f"UPDATE {table(database, name)} SET {column} = ? WHERE workflow_uuid = '{row}'"
    execute(database, statement, value)


def _read(db: str, name: str, column: str, row: str) -> object:
    database = find(db)
    where = f"WHERE workflow_uuid = '{row}' ORDER BY 1"
    return execute(database, f"SELECT {column} FROM {table(database, name)} {where}")[0][0]


def _status(processes: DurableProcesses) -> str:
    return str(_read(processes.db, "workflow_status", "status", "r"))
