"""Processes of the durable engine on one database, with a log of the attempts they made."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from support import costs

from corral._engine import service
from corral._engine.payloads import PipelineOutput, RunConfig, RunInput, RunWorktree
from corral._pipelines import loader
from corral._workflows.program_turn import StoredProgram

T = TypeVar("T")
TIMEOUT = 60.0
"""Seconds. Generous, because the machines are shared and slow at times."""

CHAIN = """digraph chain {
    goal="be done"
    start [shape=Mdiamond]; exit [shape=Msquare]
    a [type="t.step"]; b [type="t.step", fails=1, max_retries=2]; c [type="t.step"]
    start -> a -> b -> c -> exit
}"""
"""A graph with three nodes; the second one fails once."""


class ForkServer:
    """A preloaded process that forks others (``programs/fork_server.py``); ends with this one."""

    def __init__(self) -> None:
        program = Path(__file__).parents[1] / "engine" / "programs" / "fork_server.py"
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        subprocess.run([sys.executable, program], stdin=orders, stdout=answers, check=True)
        os.close(orders)
        os.close(answers)
        self._one_at_a_time = threading.Lock()
        costs.count_also(self._answer())

    def request(self, **order: Any) -> int:
        with self._one_at_a_time:
            os.write(self._orders, (json.dumps(order) + "\n").encode())
            return self._answer()

    def _answer(self) -> int:
        reply = b""
        while not reply.endswith(b"\n"):
            read = os.read(self._answers, 4096)
            assert read, "the fork server died"
            reply += read
        answer = json.loads(reply)
        assert isinstance(answer, int)
        return answer

    def wait(self, pid: int, timeout: float) -> int | None:
        """The exit code, or None if the process did not end in time."""
        watched = os.pidfd_open(pid)
        try:
            if not select.select([watched], [], [], timeout)[0]:
                return None
        finally:
            os.close(watched)
        return self.request(do="reap", pid=pid)


@functools.cache
def shared_fork_server() -> ForkServer:
    """The fork server of this process."""
    return ForkServer()


class DurableProcesses:
    """Starts, kills and observes the processes of one database."""

    def __init__(self, fork_server: ForkServer, db: str, folder: Path) -> None:
        self.fork_server, self.db, self.folder = fork_server, db, folder
        self.log = folder / "log"
        self.out = folder / "out"
        self.moments = folder / "moment"
        self.workspace = folder / "work"
        self.workspace.mkdir()
        self._pids: list[int] = []
        self._count = 0

    # Processes.

    def start(self, do: str, **order: Any) -> int:
        env = {key: os.environ[key] for key in ("HOME", "CORRAL_HOME")}
        order = {
            "db": self.db,
            "log": str(self.log),
            "out": str(self.out),
            "env": env,
            "moments": str(self.moments),
            "workspace": str(self.workspace),
            **order,
        }
        pid = self.fork_server.request(do=do, **order)
        self._pids.append(pid)
        return pid

    def run(self, graph: str, run: str = "r", **order: Any) -> int:
        """A process that starts or resumes the run, and ends with it."""
        return self.start("run", graph=graph, run=run, folder=str(self.folder / run), **order)

    def workflow(self, file: Path, args: dict[str, Any], run: str = "r", **order: Any) -> int:
        """A process that starts or resumes the run of a workflow, and ends with it."""
        folder = str(self.folder / run)
        return self.start("workflow", file=str(file), args=args, run=run, folder=folder, **order)

    def worker(self, *queue_names: str, **order: Any) -> int:
        """A worker; returns when it accepts work."""
        self._count += 1
        ready = self.folder / f"ready{self._count}"
        pid = self.start("work", queue_names=queue_names or ["default"], ready=str(ready), **order)
        wait_until(ready.exists, f"the worker to take work: {self.output()}")
        return pid

    def wait(self, pid: int, timeout: float = TIMEOUT) -> int:
        code = self.fork_server.wait(pid, timeout)
        assert code is not None, f"{pid} did not end: {self.output()}"
        self._pids.remove(pid)
        return code

    def suspend(self, pid: int) -> None:
        """Stop a process with SIGSTOP, in a moment in which it does not lock the database file:
        nobody else could write then."""
        os.kill(pid, signal.SIGSTOP)
        while not can_write(self.db):
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
            os.kill(pid, signal.SIGSTOP)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert self.wait(pid) == -signal.SIGKILL

    def output(self) -> str:
        return self.out.read_text() if self.out.exists() else ""

    def close(self) -> None:
        for pid in list(self._pids):
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGKILL)
            self.wait(pid)

    # What happened.

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def attempt_counts(self) -> Counter[str]:
        """Visit and attempt → how often it was started."""
        return Counter(line.split()[1] for line in self.lines() if line.startswith("begin "))

    def wait_for_run(self, run: str = "r", timeout: float = TIMEOUT) -> PipelineOutput:
        return asyncio.run(service.wait(run, db=self.db, timeout=timeout))


def wait_until(found: Callable[[], T], what: str, timeout: float = TIMEOUT) -> T:
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        value = found()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"timed out waiting for {what}")


def submit(
    processes: DurableProcesses,
    graph: str,
    run: str = "r",
    *,
    detached: bool | None = None,
    simulate: bool = False,
    tree: RunWorktree | None = None,
    artifacts_url: str = "",
    program: StoredProgram | None = None,
) -> str:
    """Start a run on the queue ``default``; returns its id."""

    async def start() -> str:
        run_input = RunInput(
            run_id=run,
            graph=loader.load(graph),
            config=RunConfig(
                folder=str(processes.folder / run),
                workspace=str(processes.workspace) if tree is None else tree.within,
                detached=detached,
                simulate=simulate,
                tree=tree,
                artifacts_url=artifacts_url,
            ),
            values={"log": str(processes.log)},
            program=program,
        )
        return await service.start(run_input, db=processes.db, queue="default")

    return asyncio.run(start())


def parallel_graph(count: int, attrs: str) -> str:
    """A graph with ``count`` parallel nodes."""
    lines = [f"n{i} [{attrs}]; fork -> n{i} -> join" for i in range(count)]
    return (
        "digraph wide { start [shape=Mdiamond]; exit [shape=Msquare]\n"
        f"fork [shape=component, max_parallel={count}]; join [shape=tripleoctagon]\n"
        "start -> fork; join -> exit\n" + "\n".join(lines) + "}"
    )


def can_write(db: str) -> bool:
    """Whether no process locks the database for longer than a moment. A server locks rows only."""
    if "://" in db:
        return True
    database = sqlite3.connect(db, timeout=0.5, isolation_level=None)
    try:
        database.execute("BEGIN IMMEDIATE")
        database.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        database.close()
    return True


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
