"""An executor: this process while it runs workflows, in a thread and a loop of their own.

There is one in a process at most, as the engine below is one for a process. It holds a
lease, looks every second for executors that died, and puts their work back on the queues.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from corral.durable.dbos import adapter, leases, queues, sql
from corral.durable.dbos.database import Database, prepare
from corral.durable.worker import resource_cache
from corral.errors import ConfigError, CorralError, StorageFailed
from corral.slug import slug
from corral.system import paths
from corral.system.process.registry import ProcessRegistry

SWEEP = 1.0
"""Seconds between two looks for dead executors."""
GRACE = 120.0
"""Seconds without a lease, as the database is away, until an executor gives up unless it was
told otherwise: others may have taken its work over long since."""
LAUNCH = 60.0
CLOSE = 20.0
BLOCKED = 10.0
"""Seconds in which its loop must have had a turn, once it is to end: what blocks the loop for
longer is left where it is."""

_log = logging.getLogger("corral.durable")
_current: Executor | None = None
_starting = threading.Lock()
_watchers: list[Callable[[CorralError], None]] = []


@contextlib.contextmanager
def watched(tell: Callable[[CorralError], None]) -> Generator[None]:
    """Meanwhile ``tell`` is called, in any thread, when the executor of this process fails: it
    takes no more work, and whoever waits for its work would wait for ever."""
    _watchers.append(tell)
    try:
        yield
    finally:
        _watchers.remove(tell)


def current() -> Executor:
    if _current is None:
        raise RuntimeError("no executor runs in this process")
    return _current


def running() -> Executor | None:
    return _current


class Executor:
    """``pools``: whose runs it takes up. None: only those begun through it, which wait for
    somebody to resume them when it dies."""

    def __init__(
        self,
        database: Database,
        workflows: Mapping[str, tuple[adapter.Workflow, int]],
        *,
        queue_names: Sequence[str] | None = None,
        limits: Sequence[queues.Limit] = (),
        poll: float = 1.0,
        grace: float = GRACE,
    ) -> None:
        self.database, self.grace = database, grace
        self._workflows = workflows
        self.id = f"{slug(socket.gethostname(), limit=40)}-{os.getpid()}-{os.urandom(4).hex()}"
        self.own = None if queue_names is not None else queues.own(self.id)
        self.queue_names = tuple(queue_names) if queue_names is not None else (queues.own(self.id),)
        self.limits, self.poll = tuple(limits), poll
        self.all_queues: list[str] = []
        self.leases = leases.open_leases(database)
        self.draining = False
        self.closing = False
        self.failed: CorralError | None = None
        self.desks = resource_cache.Desks()
        self._missed: set[str] = set()
        self._at_work: dict[int, str] = {}
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._until: list[float] = []
        """When it was told to end by, each time; a signal may come while another is heard."""
        self._is_abandoned = False

    # The process's own thread, or one of ours.

    def start(self) -> None:
        """In a thread of its own; returns when it takes work. Blocking."""
        global _current  # noqa: PLW0603
        with _starting:
            if _current is not None:
                raise ConfigError(
                    f"this process already runs an engine, on {_current.database.shown}"
                )
            prepare(self.database)
            _current = self
        self._thread = threading.Thread(target=self._whole, name="corral-engine", daemon=True)
        self._thread.start()
        try:
            self._ready.result(LAUNCH)
        except BaseException:
            self.stop()
            raise

    def run_here(self, on_ready: Callable[[Executor], None] | None = None) -> None:
        """In this thread, until somebody calls ``stop``. For a process that does nothing
        else: what its first thread starts dies with it, if the kernel can do that."""
        global _current  # noqa: PLW0603
        with _starting:
            if _current is not None:
                raise ConfigError("this process already runs an engine")
            prepare(self.database)
            _current = self
        if on_ready is not None:
            self._ready.add_done_callback(lambda _: on_ready(self))
        self._whole()
        if self._ready.exception() is not None:
            self._ready.result()
        if self.failed is not None:
            raise self.failed

    def stop(self, drain: float = 0.0) -> None:
        """Take no more work; let the nodes under way finish for that many seconds at most;
        then leave everything to whoever recovers it. Blocking, unless called in its thread.
        A node that holds the loop for ever is left at that, and named."""
        self._until.append(time.monotonic() + drain)
        self.draining = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is None or self._thread is threading.current_thread():
            return
        if not self._ready.done() or self.has_turns(drain + BLOCKED):
            self._thread.join(drain + CLOSE + LAUNCH)
        if self._thread.is_alive():
            self._abandon()

    def has_turns(self, seconds: float) -> bool:
        """Whether its loop comes to anything in that time, or has ended. Blocking."""
        heard = threading.Event()
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(heard.set)
        except RuntimeError:
            return True
        return heard.wait(seconds)

    @property
    def held_by(self) -> str:
        """What keeps it from ending, for people."""
        nodes = ", ".join(sorted(self._at_work.values()))
        return (
            f"the engine did not end, as {nodes or 'something'} holds its loop: what works at a"
            " node must not block. It waits to be resumed."
        )

    def _abandon(self) -> None:
        """Its thread goes on until the process ends; whatever it comes to nobody takes."""
        global _current  # noqa: PLW0603
        _log.warning(self.held_by)
        self._stop.set()
        self._is_abandoned = True
        _current = None
        with contextlib.suppress(Exception):  # as much as can be done beside the loop
            adapter.close()
        self.leases.release()

    def _whole(self) -> None:
        global _current  # noqa: PLW0603
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            elif not isinstance(error, Exception):
                raise
        finally:
            if _current is self:
                _current = None

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_heard)
        sweeper = threading.Thread(target=self._sweep, name="corral-sweep", daemon=True)
        try:
            await asyncio.to_thread(self.leases.hold, self.id)
            self.all_queues = await asyncio.to_thread(
                queues.register, self.database, self.queue_names, self.limits, self.poll
            )
            adapter.launch(
                self.database.url,
                executor=self.id,
                workflows=self._workflows,
                queues=self.all_queues,
                poll=min(self.poll, 1.0),
                on_full=self._cannot_write,
            )
            sweeper.start()
            self._ready.set_result(None)
            await self._stop.wait()
            await self._drained()
            await self._close()
        finally:
            self.draining = self.closing = True
            self._stop.set()
            if sweeper.is_alive():
                await asyncio.to_thread(sweeper.join, CLOSE)
            self.leases.release()

    async def _drained(self) -> None:
        while (left := min(self._until, default=0.0) - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), min(left, 0.2))
                return

    async def _close(self) -> None:
        self.closing = True
        if self._is_abandoned:  # there may be another by now
            return
        mine = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not mine]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=CLOSE)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.desks.close(), CLOSE)
        if self.own is not None:
            with contextlib.suppress(Exception):  # it is only tidied up
                await asyncio.to_thread(queues.remove, self.database, self.own)
        with concurrent.futures.ThreadPoolExecutor(1) as apart:  # the loop's own one is closed too
            await asyncio.get_running_loop().run_in_executor(apart, adapter.close)
        # The library's executor is shut down, and the loop would wait for it again.
        asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(1))

    # What the workflows ask it.

    @contextlib.contextmanager
    def attempt(self, node: str) -> Generator[None]:
        """It is being worked at: a draining executor waits for it."""
        self._count += 1
        key = self._count
        self._at_work[key] = node
        self._idle.clear()
        try:
            yield
        finally:
            del self._at_work[key]
            if not self._at_work:
                self._idle.set()

    async def admitted(self) -> None:
        """Returns while it takes work; else never: another executor will have it."""
        if self.draining:
            await asyncio.Event().wait()

    # Others that died.

    def _sweep(self) -> None:
        lost: float | None = None
        while not self._stop.is_set():
            try:
                held = self.leases.check()
                if held:
                    lost = None
                    self._take_over()
            except Exception:  # the database is away: the next look may find it again
                held = False
            if not held:
                lost = lost or time.monotonic()
                if time.monotonic() - lost > self.grace:
                    self._give_up()
                    return
            for _ in range(10):
                if self._stop.is_set():
                    return
                time.sleep(SWEEP / 10)
                if not self.leases.is_certain:
                    self.leases.check()  # got back before others look twice

    def _take_over(self) -> None:
        missed: set[str] = set()
        for executor in sorted(self.leases.busy() - {self.id}):
            with self.leases.claim(executor) as gone:
                if gone and not self.leases.is_certain and executor not in self._missed:
                    missed.add(executor)  # it has until the next look to come back
                elif gone:
                    # Agents that it left on this machine would work beside those begun again.
                    ProcessRegistry(paths.ledger()).reap()
                    adapter.recover(executor)
        self._missed = missed

    def _give_up(self) -> None:
        self._fail(
            StorageFailed(
                f"the database {self.database.shown} was away for {self.grace:g} s:"
                " this worker ends",
                hint="What it ran is taken up by others, or when it is started again.",
            )
        )

    def _cannot_write(self, error: BaseException) -> None:
        """In any thread. What is done is journalled; the rest would be done in vain."""
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        self._fail(
            StorageFailed(
                f"the database {self.database.shown} cannot be written: {said}",
                hint="Free some space on its disk. What it ran can be resumed then.",
            )
        )

    def _fail(self, error: StorageFailed) -> None:
        if self.failed is not None or self._stop.is_set():
            return
        self.failed = error
        self.draining = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        for tell in list(_watchers):
            tell(error)


def _heard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A full disk is told once, by the executor."""
    if not sql.is_full(context.get("exception")):
        loop.default_exception_handler(context)
