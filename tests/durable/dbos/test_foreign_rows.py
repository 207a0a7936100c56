"""Rows that corral did not write are not decoded: a pickle would execute code."""

from __future__ import annotations

import base64
import pickle
import sqlite3

from support.durable_processes import DurableProcesses, submit, wait_until


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def test_a_worker_decodes_no_pickle(file_processes: DurableProcesses) -> None:
    """The library would execute the content of a row that is marked as a pickle."""
    processes = file_processes
    submit(processes, "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> exit }")
    executed = processes.folder / "executed"
    pickled = base64.b64encode(pickle.dumps(Evil(str(executed)))).decode()
    with sqlite3.connect(processes.db) as opened:
        changed = opened.execute(
            "UPDATE workflow_status SET inputs = ?, serialization = 'py_pickle'", (pickled,)
        )
        assert changed.rowcount == 1
        changed = opened.execute("UPDATE workflow_input SET inputs = ?", (pickled,))
        assert changed.rowcount == 1
    opened.close()
    processes.worker()

    wait_until(lambda: _status(processes) != "ENQUEUED", "a worker to take the row")
    wait_until(lambda: executed.exists() or _status(processes) == "ERROR", "the row to be refused")
    assert not executed.exists()


def _status(processes: DurableProcesses) -> str:
    with sqlite3.connect(processes.db) as opened:
        (status,) = opened.execute("SELECT status FROM workflow_status").fetchone()
    opened.close()
    return str(status)
