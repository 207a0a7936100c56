"""The agent host of a run, as its workers see it: submit a job, wait for its result, cancel it.

A host (``server``) is a separate process that runs node attempts. A worker may die at any moment;
the host and the agents in it continue. The worker that takes the node over finds its result, or
waits for the host. A host serves one machine; its files are in corral's home, in one directory per
run (``hosts/<digest>``), readable only by the owner:

* ``gate``: locked while jobs are submitted and while a host decides to exit;
* ``lock``: held by the host process as long as it lives; ``wake``: the FIFO that wakes it;
* ``run.json``: the input of the run; ``end/``: exists when the run has ended (a directory: it can
  be created without a free descriptor);
* ``requests/``: one file per command for the host;
* ``jobs/NAME/``: ``job.json``, ``started.N`` for each start, ``reserve`` (disk space for the
  result) and ``result.json``;
* ``isolated/NAME/``: the same files (lock, wake, requests) for the host of an isolated job.

A host exits when its run has ended or when it has had no job for a while. If it is killed, each of
its jobs is isolated in its own host, so that only the guilty one can kill its host again.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec

from corral._engine.payloads import RunConfig, RunInput
from corral._pipelines.scheduler.commands import RunNode
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._system import fs, paths, platform
from corral._system.process import daemon
from corral.values import decode_as, slug

FIRST_POLL, LAST_POLL = 0.02, 0.25
"""Seconds between two checks for a result: the first pause and the longest."""
CANCELLED = "cancelled"
ALL = "all.cancel"
RETIRE = "idle.exit"
EXIT = "now.exit"
RETIRE_SECONDS = {RETIRE: 3.0, EXIT: 20.0}
"""How long ``retire`` waits until a host has exited; with jobs it ends their agents first."""
RESERVED = 64 * 1024
"""Bytes of disk reserved for each job's result before it starts: on a full disk a job could not
report anything otherwise."""
ISOLATED = "isolated"
"""A file in a job's directory: the job is isolated in its own host."""


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    visit: RunNode
    attempt: int
    database: str = ""
    """The database file of the run, for the rate limits that others have met; empty for a server,
    which only workers know."""


class StoredOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a job."""

    outcome: Outcome | None = None
    """None: it was cancelled."""


class HostFiles:
    """The files of a host: that of a run, or that of one isolated job (then ``home`` is the
    directory of the run's host)."""

    def __init__(self, folder: Path, home: Path | None = None) -> None:
        self.folder: Path = folder
        self.home: Path = home or folder
        self.is_isolated: bool = home is not None
        self.lock: Path = folder / "lock"
        self.fifo: Path = folder / "wake"
        self.requests: Path = folder / "requests"
        self.log: Path = folder / "host.log"
        self.gate: Path = self.home / "gate"
        self.run: Path = self.home / "run.json"
        self.jobs: Path = self.home / "jobs"
        self.end: Path = self.home / "end"

    @classmethod
    def for_run(cls, run_id: str) -> HostFiles:
        digest = hashlib.blake2b(run_id.encode(), digest_size=12).hexdigest()
        return cls(paths.home() / "hosts" / digest)

    def isolated(self, name: str) -> HostFiles:
        return HostFiles(self.home / "isolated" / name, self.home)

    def for_job(self, name: str) -> HostFiles:
        """The files of the host that runs this job."""
        return self.isolated(name) if (self.job(name) / ISOLATED).exists() else HostFiles(self.home)

    def all_hosts(self) -> list[HostFiles]:
        """Those of the run's host and of the hosts of isolated jobs."""
        found = (self.home / "isolated").glob("*")
        return [HostFiles(self.home), *(self.isolated(each.name) for each in found)]

    def job(self, name: str) -> Path:
        return self.jobs / name

    def result(self, name: str) -> StoredOutcome | None:
        with contextlib.suppress(FileNotFoundError):
            return decode_as((self.job(name) / "result.json").read_bytes(), StoredOutcome)
        return None

    def write_result(self, name: str, stored: StoredOutcome) -> None:
        """Write a job's result. On a full disk it is written into the reserved space; if that is
        too small, a failure with that reason is written instead."""
        folder = self.job(name)
        try:
            fs.write_atomically(folder / "result.json", msgspec.json.encode(stored), sync=True)
        except OSError as error:
            why = error.strerror or str(error)
            reason = f"the result cannot be written to {folder}: {why}; free some space"
            lost = StoredOutcome(outcome=failed(reason, retryable=False))
            if not any(self._write_into_reserve(folder, each) for each in (stored, lost)):
                raise
        else:
            (folder / "reserve").unlink(missing_ok=True)

    def _write_into_reserve(self, folder: Path, stored: StoredOutcome) -> bool:
        data = msgspec.json.encode(stored)
        if len(data) > RESERVED:
            return False
        try:
            fd = os.open(folder / "reserve", os.O_WRONLY | os.O_CLOEXEC)
            try:
                if os.pwrite(fd, data, 0) < len(data):
                    return False
                os.ftruncate(fd, len(data))
                os.fsync(fd)
            finally:
                os.close(fd)
            fs.move_into_place(folder / "reserve", folder / "result.json")
        except OSError:
            return False
        return True

    def submit(self, run_input: RunInput, name: str, job: Job) -> None:
        """Submit a job and make sure that a host runs. Submitting twice has the effect of once.
        Blocking."""
        with self._hold_gate():
            if self.result(name) is not None:
                return
            if not self.run.exists():
                self.jobs.mkdir(exist_ok=True)
                fs.write_atomically(self.run, msgspec.json.encode(run_input), sync=True)
            if not (self.job(name) / "job.json").exists():
                # A process that created the directory may have been killed before this.
                self.job(name).mkdir(exist_ok=True)
                self.reserve(name)
                fs.write_atomically(
                    self.job(name) / "job.json", msgspec.json.encode(job), sync=True
                )
            if not fs.is_locked(self.lock):
                remove_trash(spared=self.home)
                # The run's host died. Jobs that it had started may have killed it.
                for folder in self.jobs.iterdir():
                    if any(folder.glob("started.*")) and self.result(folder.name) is None:
                        self.isolated(folder.name).open()
                        (folder / ISOLATED).touch()
            files = self.for_job(name)
            files.open()
            (files.requests / name).touch()
            with contextlib.suppress(FileNotFoundError):
                self.end.rmdir()
            which = (name,) if files.is_isolated else ()
            daemon.start(
                "corral._engine.agent_host.server",
                str(self.folder),
                *which,
                lock=files.lock,
                log=files.log,
            )
        daemon.wake_fifo(files.fifo)

    def reserve(self, name: str) -> None:
        """Reserve disk space for the result of a job."""
        path = self.job(name) / "reserve"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Allocates blocks; other systems have no such call, so zeros are written.
            if sys.platform == "linux":
                os.posix_fallocate(fd, 0, RESERVED)
            else:
                os.pwrite(fd, bytes(RESERVED), 0)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
        finally:
            os.close(fd)

    def open(self) -> None:
        """Create the directory for commands and the FIFO."""
        self.requests.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.fifo, 0o600)

    @contextlib.contextmanager
    def _hold_gate(self) -> Generator[None]:
        """Hold the gate, in a directory that exists."""
        with contextlib.ExitStack() as stack:
            while True:
                paths.make_dir(self.folder)
                with contextlib.suppress(FileNotFoundError):  # a host has just removed it
                    stack.enter_context(fs.exclusive_lock(self.gate))
                    break
            yield

    def is_host_alive(self, name: str) -> bool:
        """Whether the host of this job is alive."""
        try:
            with fs.exclusive_lock(self.gate):
                return fs.is_locked(self.for_job(name).lock)
        except FileNotFoundError:
            return False

    def cancel(self, name: str) -> None:
        """Cancel this job. The host writes a result for it."""
        files = self.for_job(name)
        with contextlib.suppress(FileNotFoundError):
            (files.requests / f"{name}.cancel").touch()
            daemon.wake_fifo(files.fifo)

    def remove(self) -> None:
        """Remove the files unless another host needs them. Call it while the gate is held."""
        others = [each for each in self.all_hosts() if each.folder != self.folder]
        if not any(fs.is_locked(each.lock) for each in others):
            # Renamed first: a worker could otherwise create a gate in a half-removed directory.
            trash = self.home.with_name(f".{self.home.name}.{os.urandom(4).hex()}")
            with contextlib.suppress(OSError):
                self.home.rename(trash)
            remove_tree(trash)
        elif self.is_isolated:
            remove_tree(self.folder)
        else:
            self.lock.unlink(missing_ok=True)


def job_name(visit: str, attempt: int) -> str:
    readable = slug(visit, limit=60, allowed="._-", fill="_")
    return f"{readable}#{attempt}-{hashlib.blake2b(visit.encode(), digest_size=4).hexdigest()}"


async def attempt(run_input: RunInput, job: Job, is_leaving: Callable[[], bool]) -> Outcome:
    """The outcome of this attempt, also if another worker submitted it. A cancellation cancels the
    job, unless this process is closing (``is_leaving``): then the job continues."""
    files, name = HostFiles.for_run(run_input.run_id), job_name(job.visit.id, job.attempt)
    try:
        while True:
            try:
                await asyncio.to_thread(files.submit, run_input, name, job)
            except OSError as error:
                return failed(f"the agent host cannot be started: {error}", retryable=True)
            stored = await _wait_for_result(files, name)
            if stored is not None:
                if stored.outcome is None:
                    return failed("it was cancelled from outside", retryable=False)
                return stored.outcome
            # The host died without a result: the next one applies the node's on_crash rule.
    except asyncio.CancelledError:
        if not is_leaving():
            files.cancel(name)
        raise


async def _wait_for_result(files: HostFiles, name: str) -> StoredOutcome | None:
    """The job's result; None if the host died without one."""
    pause, checks = FIRST_POLL, 0
    while True:
        stored = files.result(name)
        if stored is not None:
            return stored
        checks += 1
        if checks % 8 == 0 and not await asyncio.to_thread(files.is_host_alive, name):
            # If all files are gone the run has ended, and its jobs were cancelled.
            return files.result(name) or (None if files.run.exists() else StoredOutcome())
        await asyncio.sleep(pause)
        pause = min(pause * 1.3, LAST_POLL)


def stop(run_id: str, visit: str) -> None:
    """Cancel the jobs of this visit. Blocking."""
    files = HostFiles.for_run(run_id)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(files.jobs):
            if name == job_name(visit, int(name.rpartition("#")[2].partition("-")[0])):
                files.cancel(name)


def retire(run_id: str, *, at_once: bool = False) -> None:
    """Let the host of a run exit if it has no job: the next one, started by this process, has its
    environment. ``at_once``: also if it has jobs. They end without a result, and those that failed
    meanwhile lose it: what no journal has of them starts again in the next host, by the rule
    ``on_crash`` of their nodes. Blocking."""
    home = HostFiles.for_run(run_id)
    request = EXIT if at_once else RETIRE
    with contextlib.suppress(OSError):
        with fs.exclusive_lock(home.gate):
            jobs = [name for name in os.listdir(home.jobs) if home.result(name) is None]
            hosts = [files for files in home.all_hosts() if fs.is_locked(files.lock)]
            if jobs and not at_once:
                return
            for files in hosts:
                (files.requests / request).touch()
        for files in hosts:
            daemon.wake_fifo(files.fifo)
        end = time.monotonic() + RETIRE_SECONDS[request]
        while time.monotonic() < end and any(fs.is_locked(files.lock) for files in hosts):
            time.sleep(FIRST_POLL)
        if at_once:
            with fs.exclusive_lock(home.gate):
                for name in os.listdir(home.jobs):
                    if _may_succeed_again(home.result(name)):
                        remove_tree(home.job(name))


def _may_succeed_again(stored: StoredOutcome | None) -> bool:
    """Whether the job failed, and another start may help."""
    outcome = None if stored is None else stored.outcome
    return outcome is not None and not outcome.ok and outcome.retryable is not False


def close(run_id: str, *, cancel: bool = False) -> None:
    """The run has ended: its host exits and removes its files. Blocking. A machine without
    descriptors or disk space is no error here: the result of the run is known."""
    files = HostFiles.for_run(run_id)
    with contextlib.suppress(OSError):
        _close(files, cancel=cancel)
        return
    with contextlib.suppress(OSError, ImportError), platform.extra_descriptors():
        _close(files, cancel=cancel)
        return
    # A host looks for this once per second. If no host runs, this process removes the files when it
    # ends, and has closed its own; or the next one does.
    with contextlib.suppress(OSError):
        try:
            files.end.mkdir(exist_ok=True)
        except OSError:
            # A full disk. The results of a run that has ended are not read again.
            for each in files.jobs.glob("*/result.json"):
                each.unlink(missing_ok=True)
            files.end.mkdir(exist_ok=True)
        _remove_at_exit()


def _close(files: HostFiles, *, cancel: bool) -> None:
    try:
        with fs.exclusive_lock(files.gate):
            hosts = files.all_hosts()
            for each in hosts:
                if cancel and each.requests.exists():
                    (each.requests / ALL).touch()
            files.end.mkdir(exist_ok=True)
            if not fs.is_locked(files.lock):
                files.remove()
    except FileNotFoundError:  # it has no host
        return
    for each in hosts:
        daemon.wake_fifo(each.fifo)
    if files.folder.exists():
        _remove_at_exit()  # in case the host is killed before it has removed its files


def _remove_at_exit() -> None:
    """Call ``remove_trash`` once when this process ends."""
    atexit.unregister(remove_trash)
    atexit.register(remove_trash)


def remove_trash(spared: Path | None = None) -> None:
    """Remove directories of hosts that were renamed to be removed, and those of runs that have
    ended and have no host, if their process was killed or had no free descriptors. ``spared``: the
    one whose gate the caller holds. Blocking."""
    for folder in (paths.home() / "hosts").glob("*"):
        if folder.name.startswith("."):
            remove_tree(folder)
        elif folder != spared and (folder / "end").exists():
            with contextlib.suppress(OSError):  # another process holds the gate
                gate = fs.lock_file(folder / "gate")
                try:
                    files = HostFiles(folder)
                    if files.end.exists() and not fs.is_locked(files.lock):
                        files.remove()
                finally:
                    os.close(gate)


def remove_tree(folder: Path) -> None:
    """Remove a directory of a host as far as possible, with one descriptor at a time; ``shutil``
    needs one for each level."""
    for place, folders, names in os.walk(folder, topdown=False):
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(place, name))
        for name in folders:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(place, name))
    with contextlib.suppress(OSError):
        os.rmdir(folder)


__all__ = ["ALL", "HostFiles", "Job", "RunConfig", "StoredOutcome", "attempt", "close", "job_name"]
