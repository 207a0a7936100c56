"""Clients and engines release their connections, files and threads."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.durable_processes import wait_until

from corral._engine import pipeline_runs, service
from corral._engine.dbos import client
from corral._engine.dbos.database import find
from corral._engine.dbos.leases import ServerLeases
from corral._engine.payloads import RunConfig, RunInput
from corral._pipelines import loader

GRAPH = """digraph one {
    start [shape=Mdiamond]; exit [shape=Msquare]; a [type="set", key=x, value=1]
    start -> a -> exit
}"""


@contextmanager
def no_garbage() -> Generator[None]:
    """Within the block nothing is closed by the garbage collector."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class ConnectionCounter:
    def __init__(self, server: psycopg.Connection[Any]) -> None:
        self._server = server

    def count(self) -> int:
        statement = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        row = self._server.execute(statement).fetchone()
        assert row
        return int(row[0])

    def wait_for_none(self) -> None:
        wait_until(lambda: self.count() == 0, "every connection to be closed")


@pytest.fixture
def connections(new_postgres: str) -> Iterator[ConnectionCounter]:
    with psycopg.connect(new_postgres, autocommit=True) as server:
        yield ConnectionCounter(server)


def open_files_and_threads() -> tuple[int, int]:
    """Open files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.deep
def test_more_runs_leave_no_more_open_files_and_threads(
    new_postgres: str, connections: ConnectionCounter, tmp_path: Path
) -> None:
    def run(number: int) -> None:
        folder = tmp_path / str(number)
        graph = loader.load(GRAPH)
        assert pipeline_runs.run_sync(graph, db=new_postgres, cwd=tmp_path, run_dir=folder).ok
        connections.wait_for_none()

    with no_garbage():
        run(1)
        files, threads = open_files_and_threads()
        for number in range(2, 5):
            run(number)
        wait_until(
            lambda: open_files_and_threads()[0] <= files and open_files_and_threads()[1] <= threads,
            "files and threads to be closed",
        )


def test_a_wait_that_times_out_leaves_no_connection(
    new_postgres: str, connections: ConnectionCounter, tmp_path: Path
) -> None:
    """The thread that reads the database is blocked while the client is closed."""

    async def scenario() -> None:
        config = RunConfig(folder=str(tmp_path / "r"), workspace=str(tmp_path))
        run_input = RunInput(run_id="r", graph=loader.load(GRAPH), config=config)
        await service.start(run_input, db=new_postgres, queue="no-workers")
        with psycopg.connect(new_postgres) as other:
            other.execute("LOCK TABLE dbos.workflow_status")
            with pytest.raises(TimeoutError):
                await service.wait("r", db=new_postgres, timeout=0.2)
        await asyncio.to_thread(connections.wait_for_none)

    with no_garbage():
        asyncio.run(scenario())


async def test_a_client_whose_caller_was_cancelled_is_closed(new_postgres: str) -> None:
    is_opening, may_open = threading.Event(), threading.Event()
    opened: list[str] = []

    class SlowClient(client.DatabaseClient):
        def __init__(self, url: str) -> None:
            is_opening.set()
            may_open.wait()
            super().__init__(url)
            opened.append("opened")

        def close(self) -> None:
            super().close()
            opened.append("closed")

    async def enter() -> None:
        async with client.open_client(find(new_postgres)):
            raise AssertionError("it was cancelled")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "DatabaseClient", SlowClient)
        entering = asyncio.create_task(enter())
        assert await asyncio.to_thread(is_opening.wait, 60)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        may_open.set()
        await asyncio.get_running_loop().shutdown_default_executor()
    assert opened == ["opened", "closed"]


def test_a_released_lease_does_not_connect_again(
    new_postgres: str, connections: ConnectionCounter
) -> None:
    leases = ServerLeases(new_postgres)
    leases.hold("me")
    assert connections.count() == 1
    leases.release()
    with pytest.raises(RuntimeError, match="released"):
        leases.busy()
    connections.wait_for_none()
