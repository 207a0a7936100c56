"""The host of a run, from within: works at the jobs it is asked for, keeps agents warm.

It runs without any worker, without the database, and without the engine's libraries. What
a host before it began and did not end, as it was killed, is treated as the node's
``on_crash`` says (``crashes``), and given up when it has killed three hosts: after the first
it has a host of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shutil
import signal
import time
from pathlib import Path

import msgspec

from corral.durable.agent_host.client import ALL, Job, Place, StoredOutcome
from corral.durable.payloads import RunInput
from corral.durable.worker import attempt_runner, resource_cache
from corral.pipelines.execution.resources import NodeResources
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.system import file_lock, paths
from corral.system.process.registry import ProcessRegistry

LINGER = 30.0
"""Seconds without a job until it ends: agents stay warm for the next node so long."""
CRASHES = 3
"""Times that one job may be begun. What kills three hosts would kill the fourth."""


def main(folder: str, apart: str = "") -> None:
    """``apart``: the one job that it is for, else it is for the run's."""
    place = Place(Path(folder))
    if apart:
        place = place.apart(apart)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a person's Ctrl-C is for the worker
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # for people: only the lock counts
        (place.folder / "pid").write_text(f"{os.getpid()}\n")
    asyncio.run(_Host(place).serve())


class _Host:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.begun = msgspec.json.decode(place.run.read_bytes(), type=RunInput)
        self.running: dict[str, asyncio.Task[None]] = {}
        self.woken = asyncio.Event()

    async def serve(self) -> None:
        for module in self.begun.setting.imports:
            importlib.import_module(module)
        fifo = os.open(self.place.fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        loop = asyncio.get_running_loop()
        loop.add_reader(fifo, self._knocked, fifo)
        loop.add_signal_handler(signal.SIGTERM, self._end_all)
        # What a host before us left would work beside what is begun again.
        await asyncio.to_thread(ProcessRegistry(paths.ledger()).reap)
        async with resource_cache.open_desk(self.begun.setting) as desk:
            idle_since = time.monotonic()
            while True:
                self.woken.clear()
                self._take(desk)
                if self.running:
                    idle_since = time.monotonic()
                elif self._is_over(idle_since) and self._leave():
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.woken.wait(), 1.0)

    def _knocked(self, fifo: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(fifo, 4096):
                pass
        self.woken.set()

    def _end_all(self) -> None:
        for task in self.running.values():
            task.cancel()

    def _take(self, desk: NodeResources) -> None:
        for name in sorted(os.listdir(self.place.asked)):
            (self.place.asked / name).unlink(missing_ok=True)
            if name == ALL:
                self._end_all()
            elif name.endswith(".cancel"):
                self._cancel(name.removesuffix(".cancel"))
            elif name not in self.running and self.place.result(name) is None:
                self.running[name] = asyncio.create_task(self._work(name, desk))

    def _cancel(self, name: str) -> None:
        if name in self.running:
            self.running[name].cancel()
        elif self.place.job(name).exists() and self.place.result(name) is None:
            self._keep(name, StoredOutcome())

    async def _work(self, name: str, desk: NodeResources) -> None:
        try:
            outcome = await self._outcome(name, desk)
        except asyncio.CancelledError:
            self._keep(name, StoredOutcome())
        except Exception as error:  # else whoever asked would wait for ever
            self._keep(name, StoredOutcome(outcome=failed(f"{type(error).__name__}: {error}")))
        else:
            self._keep(name, StoredOutcome(outcome=outcome))
        finally:
            self.running.pop(name, None)
            self.woken.set()

    async def _outcome(self, name: str, desk: NodeResources) -> Outcome:
        folder = self.place.job(name)
        job = msgspec.json.decode((folder / "job.json").read_bytes(), type=Job)
        begun = sorted(each.name for each in folder.glob("begun.*"))
        if len(begun) >= CRASHES:
            reason = f"its host was killed while it ran, {len(begun)} times"
            return failed(reason, retryable=False)
        (folder / f"begun.{len(begun) + 1}").touch()
        return await attempt_runner.run_in_process(self.begun, job.visit, job.attempt, desk)

    def _keep(self, name: str, kept: StoredOutcome) -> None:
        self.place.keep(name, kept)

    def _is_over(self, idle_since: float) -> bool:
        return (
            self.place.is_apart or self.place.end.exists() or time.monotonic() - idle_since > LINGER
        )

    def _leave(self) -> bool:
        """Unless somebody has just asked for something: nobody can while we look."""
        with file_lock.exclusive(self.place.gate):
            if os.listdir(self.place.asked):
                return False
            if self.place.end.exists():
                self.place.tidy()
            elif self.place.is_apart:
                shutil.rmtree(self.place.folder, ignore_errors=True)
            else:
                # Whoever asks from now on starts another host.
                self.place.lock.unlink(missing_ok=True)
            return True
