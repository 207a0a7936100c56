"""The agent host of a run: a detached process that runs node attempts (jobs).

Theory of operation
-------------------
Who starts it: ``HostFiles.submit`` in ``client``, at the first job of a run. One host serves one
run (or, after a crash, one isolated job). It needs no worker and no engine library: it communicates
by files in the host directory (see ``client`` for the layout) and is woken through a FIFO. Of a
database file it uses only the table of rate limits.

States: starting -> serving -> idle -> exited.

* starting: it holds ``lock``, reads ``run.json``, imports the modules that register node kinds,
  and ends processes that an earlier host of this run left behind.
* serving: each file in ``requests/`` is a command: ``NAME`` starts a job, ``NAME.cancel`` cancels
  it, ``all.cancel`` cancels all, ``idle.exit`` asks the host to exit as soon as it is idle,
  ``now.exit`` to exit at once and to leave its jobs to the next host. A command file is deleted
  when it is taken. Jobs run concurrently, as tasks of one event loop, with shared warm agents.
* idle: no job runs. The host exits when the run has ended (``end``), when it is isolated, when it
  was asked to, or after ``LINGER`` seconds; agents stay warm for the next node until then.
* exited: it decides to exit while it holds ``gate``, so that no job can be submitted between the
  decision and the exit. The next submit starts another host.

Guarantees
* A job has exactly one result (``result.json``), written atomically before the job counts as
  ended; on a full disk it goes into space that was reserved for it (``client``).
* A job runs in one host at a time: ``lock`` is held by the host process until it dies.

Crashes
* The worker dies: the host continues; the next worker finds the running job or its result.
* The host fails: it releases its lock, and removes its files if the run has ended.
* The host is killed: all its jobs die, and it is unknown which one caused it. At the next submit
  each job that had started is isolated: it gets its own host, so that only the guilty one
  can kill its host again. Each start is counted by a file ``started.N``; after ``CRASHES`` starts
  the job fails. What a restarted attempt does is decided by ``on_crash`` (``node_workflow``).
* The machine dies: as if host and worker were killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import time
from pathlib import Path

from corral._engine.agent_host.client import (
    ALL,
    EXIT,
    RETIRE,
    HostFiles,
    Job,
    StoredOutcome,
    remove_tree,
)
from corral._engine.dbos.database import Database
from corral._engine.payloads import RunInput
from corral._engine.worker import executor, node_workflow
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.scheduler.outcome import failed
from corral._system import fs, logs, paths
from corral._system.process.tree import ProcessRegistry
from corral.errors import ConfigError
from corral.values import decode_as

LINGER = 30.0
"""Seconds without a job until the host exits; agents stay warm for the next node meanwhile."""
CRASHES = 3
"""Maximum number of starts of one job: a job that killed three hosts would kill the fourth."""


def main(folder: str, isolated: str = "") -> None:
    """``isolated``: the name of the isolated job; empty: the host serves all jobs of the run."""
    files = HostFiles(Path(folder))
    if isolated:
        files = files.isolated(isolated)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the worker
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(ConfigError):  # a log that cannot be written stops nothing
        logs.follow_environment()
    with contextlib.suppress(OSError):  # for people only: what counts is the lock
        (files.folder / "pid").write_text(f"{os.getpid()}\n")
    try:
        asyncio.run(_Host(files).serve())
    except BaseException:
        with contextlib.suppress(OSError), fs.exclusive_lock(files.gate):
            _release(files)
        raise


def _release(files: HostFiles) -> None:
    """Remove the files if the run has ended, otherwise only the lock: the next submit starts
    another host. Call it while the gate is held: the run ends either before this or after it."""
    if files.end.exists():
        files.remove()
    else:
        files.lock.unlink(missing_ok=True)


class _Host:
    def __init__(self, files: HostFiles) -> None:
        self.files = files
        self.run_input = decode_as(files.run.read_bytes(), RunInput)
        self.running: dict[str, asyncio.Task[None]] = {}
        self.wake = asyncio.Event()
        self.is_retired = False
        self.leaves_jobs = False
        """Its jobs end without a result, for another host."""

    async def serve(self) -> None:
        for module in self.run_input.config.imports:
            importlib.import_module(module)
        fifo = os.open(self.files.fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        loop = asyncio.get_running_loop()
        loop.add_reader(fifo, self._on_wake, fifo)
        loop.add_signal_handler(signal.SIGTERM, self._end_all)
        # Processes of an earlier host would run beside those that are started again. Not in a
        # thread: nothing else is to be done yet, and there may be none.
        ProcessRegistry(paths.process_registry()).reap()
        async with executor.open_resources(self.run_input.config) as resources:
            idle_since = time.monotonic()
            while True:
                self.wake.clear()
                self._take_commands(resources)
                if self.running:
                    idle_since = time.monotonic()
                elif (
                    self.files.is_isolated
                    or self.is_retired
                    or self.files.end.exists()
                    or time.monotonic() - idle_since > LINGER
                ) and self._try_exit():
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.wake.wait(), 1.0)

    def _on_wake(self, fifo: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(fifo, 4096):
                pass
        self.wake.set()

    def _end_all(self) -> None:
        for task in self.running.values():
            task.cancel()

    def _take_commands(self, resources: NodeResources) -> None:
        for name in sorted(os.listdir(self.files.requests)):
            (self.files.requests / name).unlink(missing_ok=True)
            if name == ALL:
                self._end_all()
            elif name == RETIRE:
                self.is_retired = True
            elif name == EXIT:
                self.is_retired = self.leaves_jobs = True
                self._end_all()
            elif name.endswith(".cancel"):
                job = name.removesuffix(".cancel")
                if job in self.running:
                    self.running[job].cancel()
                elif self.files.job(job).exists() and self.files.result(job) is None:
                    self.files.write_result(job, StoredOutcome())
            elif name not in self.running and self.files.result(name) is None:
                self.running[name] = asyncio.create_task(self._run_job(name, resources))

    async def _run_job(self, name: str, resources: NodeResources) -> None:
        folder = self.files.job(name)
        stored: StoredOutcome | None
        try:
            job = decode_as((folder / "job.json").read_bytes(), Job)
            starts = sum(1 for _ in folder.glob("started.*"))
            if starts >= CRASHES:
                reason = f"its agent host was killed while it ran, {starts} times"
                stored = StoredOutcome(outcome=failed(reason, retryable=False))
            else:
                (folder / f"started.{starts + 1}").touch()
                file = Path(job.database) if job.database else None
                outcome = await node_workflow.run_in_process(
                    self.run_input,
                    job.visit,
                    job.attempt,
                    resources,
                    None if file is None else Database(f"sqlite:///{file}", file),
                )
                stored = StoredOutcome(outcome=outcome)
        except asyncio.CancelledError:
            stored = None if self.leaves_jobs else StoredOutcome()
        except Exception as error:  # otherwise the worker would wait for ever
            stored = StoredOutcome(outcome=failed(f"{type(error).__name__}: {error}"))
        try:
            if stored is not None:
                self.files.write_result(name, stored)
            else:  # the job did not kill its host
                for mark in folder.glob("started.*"):
                    mark.unlink()
        finally:
            self.running.pop(name, None)
            self.wake.set()

    def _try_exit(self) -> bool:
        """Whether to exit: not if a command has just arrived. No more arrive while the gate is
        held."""
        with fs.exclusive_lock(self.files.gate):
            if os.listdir(self.files.requests):
                return False
            if self.files.is_isolated and not self.files.end.exists():
                remove_tree(self.files.folder)
            else:
                _release(self.files)
            return True
