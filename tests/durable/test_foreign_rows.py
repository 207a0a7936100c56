"""Rows that corral did not write: whoever can write to the database must not get code to run."""

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


def test_a_worker_decodes_no_pickle_of_a_row(file_world: DurableProcesses) -> None:
    """A row that says it is a pickle would run what is in it."""
    world = file_world
    submit(world, "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> exit }")
    trap = world.folder / "sprung"
    poison = base64.b64encode(pickle.dumps(Evil(str(trap)))).decode()
    with sqlite3.connect(world.db) as opened:
        changed = opened.execute(
            "UPDATE workflow_status SET inputs = ?, serialization = 'py_pickle'", (poison,)
        )
        assert changed.rowcount == 1
        changed = opened.execute("UPDATE workflow_input SET inputs = ?", (poison,))
        assert changed.rowcount == 1
    opened.close()
    world.worker()

    wait_until(lambda: _status(world) != "ENQUEUED", "the row to be taken up")
    wait_until(lambda: trap.exists() or _status(world) == "ERROR", "the row to be refused")
    assert not trap.exists()


def _status(world: DurableProcesses) -> str:
    with sqlite3.connect(world.db) as looked:
        (status,) = looked.execute("SELECT status FROM workflow_status").fetchone()
    looked.close()
    return str(status)
