"""Workers find work without waiting for their next poll, which is ten minutes away here."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.durable_processes import (
    DurableProcesses,
    ForkServer,
    parallel_graph,
    submit,
    wait_until,
)

from corral.durable.dbos.queue_wakeups import BETWEEN, Pause

POLL = 600.0
pytestmark = pytest.mark.seconds


def test_a_worker_that_has_finished_a_node_takes_the_next_at_once(
    processes: DurableProcesses,
) -> None:
    submit(processes, parallel_graph(5, 'type="t.step"'))
    processes.worker(at_once=2, poll=POLL)
    assert processes.wait_for_run().status == "success"
    assert sorted(processes.attempt_counts().values()) == [1] * 5


class Look:
    """A thread of a queue that looks for work when its pause ends."""

    def __init__(self) -> None:
        self.found = 0
        self.pause = Pause(
            threading.Event(), has_room=lambda: True, count_started=lambda: self.found
        )
        self.pause.wait(1.0)

    def __call__(self, *, is_for_all: bool, found: int = 0) -> float:
        """Returns the pause after it."""
        self.pause.wake(is_for_all=is_for_all)
        self.pause.wait(1.0)
        self.found += found
        self.pause.wake()
        self.pause.wait(1.0)
        return self.pause.between


def test_a_worker_that_others_outrun_looks_less_often() -> None:
    look = Look()
    assert [look(is_for_all=True) for _ in range(3)] == [2 * BETWEEN, 4 * BETWEEN, 8 * BETWEEN]
    assert look(is_for_all=True, found=1) == BETWEEN
    look.pause.between = 0.8
    assert look(is_for_all=True) == 1.0  # the length of a poll


def test_a_worker_that_nobody_competes_with_looks_at_once() -> None:
    look = Look()
    assert [look(is_for_all=False) for _ in range(3)] == [BETWEEN] * 3


@pytest.fixture
def server_processes(
    fork_server: ForkServer, new_postgres: str, tmp_path: Path
) -> Iterator[DurableProcesses]:
    with contextlib.closing(DurableProcesses(fork_server, new_postgres, tmp_path)) as made:
        yield made


@pytest.mark.postgres
def test_workers_on_a_server_notice_work_that_others_enqueue(
    server_processes: DurableProcesses,
) -> None:
    processes = server_processes
    workers = {processes.worker(at_once=1, poll=POLL) for _ in range(2)}
    submit(processes, parallel_graph(2, f'type="t.wait", file="{processes.folder}/go"'))
    # Each worker has room for one: the worker that does not have the run was notified.
    wait_until(lambda: len(processes.lines()) == 2, "both nodes to start")
    (processes.folder / "go").touch()
    assert processes.wait_for_run().status == "success"
    assert {int(line.split()[2]) for line in processes.lines()} == workers
