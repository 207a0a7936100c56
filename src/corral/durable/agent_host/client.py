"""The host of a run, as its workers see it: a process of its own that works at the nodes.

A worker may die at any moment; the host, and the agents in it, go on. A node's attempt is a
job: a folder with what is to be done, and later with its result. Whoever takes the visit up
again finds the result there, or the host still at work, and waits on. It is for one
machine; the files are in corral's own folder, one for each run, readable by the owner.

A host ends by itself when the run has, or when it has had nothing to do for a while. One
that is killed takes all its jobs along, and nobody knows which of them did it: each of them
goes on *apart*, in a host of its own, so that only the guilty one dies again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec

from corral.durable.payloads import RunConfig, RunInput
from corral.pipelines.scheduler.commands import RunNode
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.slug import slug
from corral.system import file_lock, fs, paths
from corral.system.process import daemon

FIRST_LOOK, LAST_LOOK = 0.02, 0.25
"""Seconds between two looks for a result: the first, and after a while."""
CANCELLED = "cancelled"
ALL = "all.cancel"
RESERVED = 64 * 1024
"""Bytes of disk that are reserved for each job's result before it begins: a job whose result
cannot be written on a full disk would otherwise have nobody to report that to."""
APART = "apart"
"""In the folder of a job: it has a host of its own."""


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    visit: RunNode
    attempt: int


class StoredOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job's result."""

    outcome: Outcome | None = None
    """None: it was cancelled."""


class Place:
    """The files of a host: of one run's, or of one job's that goes on apart from it (in
    ``home``, that of the run)."""

    def __init__(self, folder: Path, home: Path | None = None) -> None:
        self.folder, self.home = folder, home or folder
        self.is_apart = home is not None
        self.lock = folder / "lock"
        self.fifo = folder / "wake"
        self.asked = folder / "asked"
        self.log = folder / "host.log"
        self.gate = self.home / "gate"
        self.run = self.home / "run.json"
        self.jobs = self.home / "jobs"
        self.end = self.home / "end"

    @classmethod
    def of(cls, run_id: str) -> Place:
        digest = hashlib.blake2b(run_id.encode(), digest_size=12).hexdigest()
        return cls(paths.home() / "hosts" / digest)

    def apart(self, name: str) -> Place:
        return Place(self.home / "apart" / name, self.home)

    def at(self, name: str) -> Place:
        """Whose host works at this job."""
        return self.apart(name) if (self.job(name) / APART).exists() else Place(self.home)

    def everywhere(self) -> list[Place]:
        """That of the run, and those of jobs that go on apart."""
        found = (self.home / "apart").glob("*")
        return [Place(self.home), *(self.apart(each.name) for each in found)]

    def job(self, name: str) -> Path:
        return self.jobs / name

    def result(self, name: str) -> StoredOutcome | None:
        with contextlib.suppress(FileNotFoundError):
            return msgspec.json.decode(
                (self.job(name) / "result.json").read_bytes(), type=StoredOutcome
            )
        return None

    def keep(self, name: str, kept: StoredOutcome) -> None:
        """Write a job's result. Where the disk is full it goes into the reserved room, and where
        that is too small, a failure that says so does."""
        folder = self.job(name)
        try:
            fs.write_atomically(folder / "result.json", msgspec.json.encode(kept), sync=True)
        except OSError as error:
            why = error.strerror or str(error)
            reason = f"its result cannot be written to {folder}: {why}; free some space"
            lost = StoredOutcome(outcome=failed(reason, retryable=False))
            if not any(self._put_in_reserve(folder, each) for each in (kept, lost)):
                raise
        else:
            (folder / "reserve").unlink(missing_ok=True)

    def _put_in_reserve(self, folder: Path, kept: StoredOutcome) -> bool:
        data = msgspec.json.encode(kept)
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

    def submit(self, begun: RunInput, name: str, job: Job) -> None:
        """Ask for a job, and see that somebody is there to do it. Asking twice is as good
        as once. Blocking."""
        with self._alone():
            if self.result(name) is not None:
                return
            if not self.run.exists():
                self.jobs.mkdir(exist_ok=True)
                fs.write_atomically(self.run, msgspec.json.encode(begun), sync=True)
            if not (self.job(name) / "job.json").exists():
                # Whoever made the folder may have been killed before it wrote the file.
                self.job(name).mkdir(exist_ok=True)
                self.reserve(name)
                fs.write_atomically(
                    self.job(name) / "job.json", msgspec.json.encode(job), sync=True
                )
            if not file_lock.is_locked(self.lock):
                self._set_apart()
            place = self.at(name)
            place.open()
            (place.asked / name).touch()
            self.end.unlink(missing_ok=True)
            which = (name,) if place.is_apart else ()
            daemon.start(
                "corral.durable.agent_host.server",
                str(self.folder),
                *which,
                lock=place.lock,
                log=place.log,
            )
        daemon.wake_fifo(place.fifo)

    def reserve(self, name: str) -> None:
        """Room for the result of a job."""
        path = self.job(name) / "reserve"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Allocates blocks; a file system without such a call gets them written.
            if sys.platform == "linux":
                os.posix_fallocate(fd, 0, RESERVED)
            else:
                os.pwrite(fd, bytes(RESERVED), 0)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
        finally:
            os.close(fd)

    def open(self) -> None:
        """Whoever asks for something there is heard from now on."""
        self.asked.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.fifo, 0o600)

    def _set_apart(self) -> None:
        """What the run's host had begun when it died."""
        for folder in self.jobs.iterdir():
            if any(folder.glob("begun.*")) and self.result(folder.name) is None:
                self.apart(folder.name).open()
                (folder / APART).touch()

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        """In a folder that is there."""
        with contextlib.ExitStack() as stack:
            while True:
                paths.make_dir(self.folder)
                with contextlib.suppress(FileNotFoundError):  # a host has just removed it
                    stack.enter_context(file_lock.exclusive(self.gate))
                    break
            yield

    def is_at(self, name: str) -> bool:
        """Whether a host is there for this job."""
        try:
            with file_lock.exclusive(self.gate):
                return file_lock.is_locked(self.at(name).lock)
        except FileNotFoundError:
            return False

    def cancel(self, name: str) -> None:
        """End this job. The host answers with a result that says so."""
        place = self.at(name)
        with contextlib.suppress(FileNotFoundError):
            (place.asked / f"{name}.cancel").touch()
            daemon.wake_fifo(place.fifo)

    def tidy(self) -> None:
        """Remove the files, where no other host needs them. Behind the gate."""
        others = [each for each in self.everywhere() if each.folder != self.folder]
        if not any(file_lock.is_locked(each.lock) for each in others):
            # At once: whoever comes meanwhile would make a gate in what is left of it.
            gone = self.home.with_name(f".{self.home.name}.{os.urandom(4).hex()}")
            with contextlib.suppress(OSError):
                self.home.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        elif self.is_apart:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            self.lock.unlink(missing_ok=True)


def name_of(visit: str, attempt: int) -> str:
    plain = slug(visit, limit=60, allowed="._-", fill="_")
    return f"{plain}#{attempt}-{hashlib.blake2b(visit.encode(), digest_size=4).hexdigest()}"


async def attempt(
    begun: RunInput, visit: RunNode, number: int, is_leaving: Callable[[], bool]
) -> Outcome:
    """The outcome of this attempt, whoever asked for it first. A cancellation ends the job,
    unless this process is leaving: then it goes on without us."""
    place, name = Place.of(begun.run_id), name_of(visit.id, number)
    try:
        while True:
            try:
                await asyncio.to_thread(place.submit, begun, name, Job(visit=visit, attempt=number))
            except OSError as error:
                return failed(f"the node's host cannot be started: {error}", retryable=True)
            kept = await _kept(place, name)
            if kept is not None:
                if kept.outcome is None:
                    return failed("it was cancelled from outside", retryable=False)
                return kept.outcome
            # The host is gone, and left no result: the next one knows what the node wants then.
    except asyncio.CancelledError:
        if not is_leaving():
            place.cancel(name)
        raise


async def _kept(place: Place, name: str) -> StoredOutcome | None:
    """The job's result; None where the host is gone without one."""
    pause, looks = FIRST_LOOK, 0
    while True:
        kept = place.result(name)
        if kept is not None:
            return kept
        looks += 1
        if looks % 8 == 0 and not await asyncio.to_thread(place.is_at, name):
            # Where all files are gone the run has ended, and took its jobs along.
            return place.result(name) or (None if place.run.exists() else StoredOutcome())
        await asyncio.sleep(pause)
        pause = min(pause * 1.3, LAST_LOOK)


def stop(run_id: str, visit: str) -> None:
    """End the jobs of this visit. Blocking."""
    place = Place.of(run_id)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(place.jobs):
            if name == name_of(visit, int(name.rpartition("#")[2].partition("-")[0])):
                place.cancel(name)


def close(run_id: str, *, cancel: bool = False) -> None:
    """The run is over: its host may go, and take its files along. Blocking."""
    place = Place.of(run_id)
    hosts: list[Place] = []
    with contextlib.suppress(FileNotFoundError), file_lock.exclusive(place.gate):
        hosts = place.everywhere()
        for each in hosts:
            if cancel and each.asked.exists():
                (each.asked / ALL).touch()
        place.end.touch()
        if not file_lock.is_locked(place.lock):
            place.tidy()
    for each in hosts:
        daemon.wake_fifo(each.fifo)


__all__ = ["ALL", "Job", "Place", "RunConfig", "StoredOutcome", "attempt", "close", "name_of"]
