"""A node that waits for a rate limit: the database has it, and no process and no queue."""

from __future__ import annotations

import asyncio
import signal

import pytest
from support.durable_processes import DurableProcesses, submit, wait_until

from corral._engine import service
from corral._engine.dbos import database
from corral._engine.dbos.client import DatabaseClient, WorkflowInfo
from corral._engine.payloads import NODE_WORKFLOW

pytestmark = pytest.mark.timeout(240)

ONE_AT_ONCE = [{"resource": "scarce", "everywhere": 1, "each": 1}]


def _graph(attrs: str) -> str:
    return (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit;"
        f' a [queue="scarce", {attrs}] }}'
    )


def _node(processes: DurableProcesses, run: str = "r") -> WorkflowInfo | None:
    client = DatabaseClient(database.find(processes.db).url)
    try:
        found = client.list_workflows(prefix=f"{run}/", name=NODE_WORKFLOW)
    finally:
        client.close()
    return found[0] if found else None


def _waits(processes: DurableProcesses) -> bool:
    node = _node(processes)
    return node is not None and node.state == "delayed"


def test_a_waiting_node_has_no_place_in_a_limited_queue(processes: DurableProcesses) -> None:
    processes.worker(limits=ONE_AT_ONCE)
    submit(processes, _graph('type="t.limited", seconds=3600'), detached=False)
    wait_until(lambda: _waits(processes), f"the wait: {processes.output()}")
    submit(processes, _graph('type="t.step"'), "other", detached=False)
    assert processes.wait_for_run("other").status == "success"
    assert _waits(processes)


def test_after_a_kill_another_worker_continues_a_waiting_node(
    processes: DurableProcesses,
) -> None:
    first = processes.worker(limits=ONE_AT_ONCE)
    submit(processes, _graph('type="t.limited", seconds=4'), detached=False)
    wait_until(lambda: _waits(processes), f"the wait: {processes.output()}")
    processes.kill(first)
    processes.worker(limits=ONE_AT_ONCE)
    outcome = processes.wait_for_run().outcomes["a"]
    assert (outcome.status, outcome.attempts) == ("success", 1), outcome
    assert dict(processes.attempt_counts()) == {"a.1#1": 1, "a.1#2": 1}
    ran_in = [line.split()[2] for line in processes.lines()]
    assert len(set(ran_in)) == 2


@pytest.mark.parametrize("moment", ["before leaving", "after leaving"])
def test_a_worker_that_is_killed_while_a_node_leaves_it_loses_nothing(
    file_processes: DurableProcesses, moment: str
) -> None:
    processes = file_processes
    first = processes.worker(limits=ONE_AT_ONCE, kill_at=moment)
    submit(processes, _graph('type="t.limited", seconds=3'), detached=False)
    assert processes.wait(first) == -signal.SIGKILL
    processes.worker(limits=ONE_AT_ONCE)
    outcome = processes.wait_for_run().outcomes["a"]
    assert (outcome.status, outcome.attempts) == ("success", 1), outcome
    assert dict(processes.attempt_counts()) == {"a.1#1": 1, "a.1#2": 1}


def test_a_start_after_a_wait_is_not_counted_as_a_recovery(
    file_processes: DurableProcesses,
) -> None:
    processes = file_processes
    processes.worker(limits=ONE_AT_ONCE)
    submit(processes, _graph('type="t.limited", seconds=0.05, times=2'), detached=False)
    outcome = processes.wait_for_run().outcomes["a"]
    assert (outcome.status, outcome.attempts) == ("success", 1), outcome
    assert len(processes.lines()) == 3
    node = _node(processes)
    assert node is not None
    assert node.recoveries == 1  # its first start
    assert "Traceback" not in processes.output()


def test_a_waiting_node_is_cancelled_with_its_run(file_processes: DurableProcesses) -> None:
    processes = file_processes
    processes.worker(limits=ONE_AT_ONCE)
    submit(processes, _graph('type="t.limited", seconds=3600'), detached=False)
    wait_until(lambda: _waits(processes), f"the wait: {processes.output()}")
    asyncio.run(service.cancel("r", db=processes.db))
    assert processes.wait_for_run().status == "cancelled"
    node = _node(processes)
    assert node is not None
    assert node.state == "cancelled"
