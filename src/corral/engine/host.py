"""The host of a run, as its workers see it: a process of its own that works at the nodes.

A worker may die at any moment; the host, and the agents in it, go on. A node's attempt is a
job: a folder with what is to be done, and later with its result. Whoever takes the visit up
again finds the result there, or the host still at work, and waits on. It is for one
machine; the files are in corral's own folder, one for each run, readable by the owner.

A host ends by itself when the run has, or when it has had nothing to do for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec

from corral.engine.journal import Begun, Setting
from corral.io import detached, folders
from corral.pipelines.orders import Visit
from corral.pipelines.outcome import Outcome, failed

FIRST_LOOK, LAST_LOOK = 0.02, 0.25
"""Seconds between two looks for a result: the first, and after a while."""
CANCELLED = "cancelled"
ALL = "all.cancel"


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    visit: Visit
    attempt: int


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job's result."""

    outcome: Outcome | None = None
    """None: it was cancelled."""


class Place:
    """The files of one run's host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gate = folder / "gate"
        self.lock = folder / "lock"
        self.fifo = folder / "wake"
        self.run = folder / "run.json"
        self.asked = folder / "asked"
        self.jobs = folder / "jobs"
        self.end = folder / "end"
        self.log = folder / "host.log"

    @classmethod
    def of(cls, run_id: str) -> Place:
        digest = hashlib.blake2b(run_id.encode(), digest_size=12).hexdigest()
        return cls(folders.home() / "hosts" / digest)

    def job(self, name: str) -> Path:
        return self.jobs / name

    def result(self, name: str) -> Kept | None:
        with contextlib.suppress(FileNotFoundError):
            return msgspec.json.decode((self.job(name) / "result.json").read_bytes(), type=Kept)
        return None

    def submit(self, begun: Begun, name: str, job: Job) -> None:
        """Ask for a job, and see that somebody is there to do it. Asking twice is as good
        as once. Blocking."""
        with self._alone():
            if self.result(name) is not None:
                return
            if not self.run.exists():
                self.asked.mkdir(exist_ok=True)
                self.jobs.mkdir(exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    os.mkfifo(self.fifo, 0o600)
                detached.put(self.run, msgspec.json.encode(begun))
            if not (self.job(name) / "job.json").exists():
                # Whoever made the folder may have been killed before it wrote the file.
                self.job(name).mkdir(exist_ok=True)
                detached.put(self.job(name) / "job.json", msgspec.json.encode(job))
            (self.asked / name).touch()
            self.end.unlink(missing_ok=True)
            detached.start("corral.engine.hosting", str(self.folder), lock=self.lock, log=self.log)
        detached.knock(self.fifo)

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        """In a folder that is there."""
        with contextlib.ExitStack() as stack:
            while True:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # a host has just removed it
                    stack.enter_context(detached.alone(self.gate))
                    break
            yield

    def is_alive(self) -> bool:
        try:
            with detached.alone(self.gate):
                return detached.is_held(self.lock)
        except FileNotFoundError:
            return False

    def cancel(self, name: str) -> None:
        """End this job. The host answers with a result that says so."""
        with contextlib.suppress(FileNotFoundError):
            (self.asked / f"{name}.cancel").touch()
            detached.knock(self.fifo)


def name_of(visit: str, attempt: int) -> str:
    plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in visit)[:60].strip(".")
    return f"{plain}#{attempt}-{hashlib.blake2b(visit.encode(), digest_size=4).hexdigest()}"


async def attempt(
    begun: Begun, visit: Visit, number: int, is_leaving: Callable[[], bool]
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


async def _kept(place: Place, name: str) -> Kept | None:
    """The job's result; None where the host is gone without one."""
    pause, looks = FIRST_LOOK, 0
    while True:
        kept = place.result(name)
        if kept is not None:
            return kept
        looks += 1
        if looks % 8 == 0 and not await asyncio.to_thread(place.is_alive):
            return place.result(name)
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
    with contextlib.suppress(FileNotFoundError), detached.alone(place.gate):
        if cancel and place.asked.exists():
            (place.asked / ALL).touch()
        place.end.touch()
        if not detached.is_held(place.lock):
            shutil.rmtree(place.folder, ignore_errors=True)
    detached.knock(place.fifo)


__all__ = ["ALL", "Job", "Kept", "Place", "Setting", "attempt", "close", "name_of"]
