"""A program that runs pipelines all day holds no more of its server than on the first run."""

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

from corral.durable import api, service
from corral.durable.dbos import client
from corral.durable.dbos.database import find
from corral.durable.dbos.leases import ServerLeases
from corral.pipelines import loader

GRAPH = """digraph one {
    start [shape=Mdiamond]; exit [shape=Msquare]; a [type="set", key=x, value=1]
    start -> a -> exit
}"""


@contextmanager
def no_garbage() -> Generator[None]:
    """What only the collector would close stays open."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Looker:
    def __init__(self, server: psycopg.Connection[Any]) -> None:
        self._server = server

    def others(self) -> int:
        asked = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        row = self._server.execute(asked).fetchone()
        assert row
        return int(row[0])

    def none(self) -> None:
        wait_until(lambda: self.others() == 0, "every connection to be closed")


@pytest.fixture
def looker(new_postgres: str) -> Iterator[Looker]:
    with psycopg.connect(new_postgres, autocommit=True) as server:
        yield Looker(server)


def held() -> tuple[int, int]:
    """Open files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def test_five_runs_leave_what_one_leaves(new_postgres: str, looker: Looker, tmp_path: Path) -> None:
    def run(number: int) -> None:
        folder = tmp_path / str(number)
        graph = loader.load(GRAPH)
        assert api.run_sync(graph, db=new_postgres, workspace=tmp_path, run_dir=folder).ok
        looker.none()

    with no_garbage():
        run(1)
        files, threads = held()
        for number in range(2, 6):
            run(number)
        wait_until(lambda: held()[0] <= files and held()[1] <= threads, "files and threads to go")


def test_one_who_waits_in_vain_leaves_no_connection(
    new_postgres: str, looker: Looker, tmp_path: Path
) -> None:
    """The thread that asks for him is stuck while his door is closed."""

    async def whole() -> None:
        await service.start(
            loader.load(GRAPH),
            service.RunRequest(folder=tmp_path / "r", workspace=tmp_path, run_id="r"),
            db=new_postgres,
            queue="nobody",
        )
        with psycopg.connect(new_postgres) as other:
            other.execute("LOCK TABLE dbos.workflow_status")
            with pytest.raises(TimeoutError):
                await service.wait("r", db=new_postgres, timeout=0.2)
        await asyncio.to_thread(looker.none)

    with no_garbage():
        asyncio.run(whole())


async def test_a_door_that_nobody_waits_for_any_more_is_closed_again(new_postgres: str) -> None:
    may_open = threading.Event()
    opened: list[str] = []

    class SlowClient(client.Client):
        def __init__(self, url: str) -> None:
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
        patch.setattr(client, "Client", SlowClient)
        entering = asyncio.create_task(enter())
        await asyncio.sleep(0.05)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        may_open.set()
        await asyncio.get_running_loop().shutdown_default_executor()
    assert opened == ["opened", "closed"]


def test_a_lease_that_was_released_is_not_opened_again(new_postgres: str, looker: Looker) -> None:
    leases = ServerLeases(new_postgres)
    leases.hold("me")
    assert looker.others() == 1
    leases.release()
    with pytest.raises(RuntimeError, match="released"):
        leases.busy()
    looker.none()
