"""An executor: runs workflows in this process, in a separate thread and event loop.

There is at most one per process, because the library has one engine per process. It holds a lease,
checks every second for executors that died, and puts their work back on the queues.

States: starting (``start`` or ``run_here``: lease, queues, library) -> running -> draining (takes
no more work; running nodes may finish) -> closing (what still runs is cancelled, and another
executor recovers it) -> ended. It fails (``failed``) when the database cannot be written, or when
the lease has been lost for longer than ``grace``; then it drains as well, and all callers that wait
for its work are informed (``watched``). If a node blocks the loop, the executor is abandoned: its
thread continues until the process ends, and its results are ignored.
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
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from corral._agents.registry import DEFAULT_AGENT
from corral._engine.dbos import adapter, leases, private_calls
from corral._engine.dbos.client import (
    QueueLimit,
    own_queue,
    register_queues,
    remove_queue,
)
from corral._engine.dbos.connections import is_unusable
from corral._engine.dbos.database import CANNOT_OPEN, Database, prepare, storage_errors
from corral._engine.payloads import RunConfig
from corral._pipelines.execution.handlers import PROMPTS_AT_ONCE, NodeResources
from corral._system import paths, threads
from corral._system.process.tree import ProcessRegistry
from corral.errors import ConfigError, CorralError, StorageFailed
from corral.policy import Policy
from corral.run_kwargs import RunKwargs
from corral.values import JsonObject, convert_to, is_object, slug

if TYPE_CHECKING:
    pass

T = TypeVar("T")

SWEEP = 1.0
"""Seconds between two checks for dead executors."""
GRACE = 120.0
"""Default number of seconds without a lease, because the database is not reachable, until an
executor ends: others may have taken over its work."""
LAUNCH = 60.0
CLOSE = 20.0
BLOCKED = 10.0
"""Seconds in which its loop must respond once it is to end: if something blocks it for longer, the
executor is abandoned."""

_log = logging.getLogger("corral.engine")
_current: Executor | None = None
_starting = threading.Lock()
_watchers: list[Callable[[Database, CorralError], None]] = []


@contextlib.contextmanager
def watched(on_failure: Callable[[Database, CorralError], None]) -> Generator[None]:
    """Within the block ``on_failure`` is called, in any thread, when the executor of this process
    fails on its database: it takes no more work, so waiting for its work would not end."""
    _watchers.append(on_failure)
    try:
        yield
    finally:
        _watchers.remove(on_failure)


def current() -> Executor:
    if _current is None:
        raise RuntimeError("no executor runs in this process")
    return _current


def running() -> Executor | None:
    """The executor of this process; not that of the process that it was forked from."""
    return _current if _current is not None and _current.process == os.getpid() else None


class Executor:
    """``queue_names``: the queues whose runs it takes. None: it takes only runs started through it,
    which can be resumed when it dies."""

    def __init__(
        self,
        database: Database,
        workflows: Mapping[str, tuple[adapter.Workflow, int]],
        *,
        queue_names: Sequence[str] | None = None,
        limits: Sequence[QueueLimit] = (),
        poll: float = 1.0,
        grace: float = GRACE,
    ) -> None:
        self.database: Database = database
        self.grace: float = grace
        self._workflows = workflows
        self.process: int = os.getpid()
        host = slug(socket.gethostname(), limit=40)
        self.id: str = f"{host}-{self.process}-{os.urandom(4).hex()}"
        self.own: str | None = None if queue_names is not None else own_queue(self.id)
        self.queue_names: tuple[str, ...] = (
            tuple(queue_names) if queue_names is not None else (own_queue(self.id),)
        )
        self.limits: tuple[QueueLimit, ...] = tuple(limits)
        self.poll: float = poll
        self.all_queues: list[str] = []
        self.leases: leases.Leases = leases.open_leases(database)
        self.draining: bool = False
        self.closing: bool = False
        self.failed: CorralError | None = None
        self.resource_cache: ResourceCache = ResourceCache()
        self.on_close: list[Callable[[], None]] = []
        """Called when it is closed."""
        self.on_sweep: list[Callable[[Executor], None]] = []
        """Called every second, in a thread."""
        self._suspects: set[str] = set()
        self._running_nodes: dict[int, str] = {}
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._deadlines: list[float] = []
        """The deadline of each call of ``stop``; signals may interrupt each other."""
        self._is_abandoned = False

    # Start and stop.

    def start(self) -> None:
        """Run in a new thread; returns when it takes work. Blocking."""
        global _current  # noqa: PLW0603
        self._become_current()
        thread = threading.Thread(target=self._run, name="corral-engine", daemon=True)
        try:
            threads.start(thread)
        except CorralError:
            _current = None
            raise
        self._thread = thread
        try:
            self._ready.result(LAUNCH)
        except BaseException:
            self.stop()
            raise

    def run_here(self, on_ready: Callable[[Executor], None] | None = None) -> None:
        """Run in this thread until ``stop`` is called. For a process that does nothing else:
        what its first thread starts dies with it, where the kernel supports that."""
        self._become_current()
        if on_ready is not None:

            def report(ready: concurrent.futures.Future[None]) -> None:
                if ready.exception() is None:
                    on_ready(self)

            self._ready.add_done_callback(report)
        self._run()
        if self._ready.exception() is not None:
            self._ready.result()
        if self.failed is not None:
            raise self.failed

    def _become_current(self) -> None:
        """The library has one engine per process. Raises ``ConfigError`` if there is another."""
        global _current  # noqa: PLW0603
        with _starting:
            if _current is not None and _current.process != os.getpid():
                raise ConfigError(
                    "this process was forked while its parent ran an engine, so it cannot run one",
                    hint="Start it as a new program (the method spawn of multiprocessing), or let"
                    " workers execute the run: queue=.",
                )
            if _current is not None:
                shown = _current.database.shown
                raise ConfigError(f"this process already runs an engine, on {shown}")
            prepare(self.database)
            _current = self

    def stop(self, drain: float = 0.0) -> None:
        """Take no more work; wait up to ``drain`` seconds for running nodes; then leave the rest to
        the executor that recovers it. Blocking, unless called in its thread. If a node blocks the
        loop for ever, the executor is abandoned with a warning that names the node."""
        global _current  # noqa: PLW0603
        self._deadlines.append(time.monotonic() + drain)
        self.begin_draining()
        if self._thread is None or self._thread is threading.current_thread():
            return
        if not self._ready.done() or self.responds(drain + BLOCKED):
            self._thread.join(drain + CLOSE + LAUNCH)
        if self._thread.is_alive():
            # It continues until the process ends; its results are ignored.
            _log.warning(self.stuck_message)
            self._stop.set()
            self._is_abandoned = True
            _current = None
            with contextlib.suppress(Exception):  # as far as possible without the loop
                adapter.close()
            self.leases.release()

    def begin_draining(self) -> None:
        """``stop`` that waits for nothing, in any thread."""
        self.draining = True
        if self._loop is None:  # a signal during the start
            self._stop.set()
        else:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stop.set)

    def responds(self, seconds: float) -> bool:
        """Whether its loop responds within that time, or has ended. Blocking."""
        responded = threading.Event()
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(responded.set)
        except RuntimeError:
            return True
        return responded.wait(seconds)

    @property
    def stuck_message(self) -> str:
        """Why it does not end, as a message."""
        nodes = ", ".join(sorted(self._running_nodes.values()))
        return (
            f"the engine did not end because {nodes or 'something'} blocks its event loop;"
            " node code must not block. The run can be resumed."
        )

    def _run(self) -> None:
        global _current  # noqa: PLW0603
        try:
            threads.run_event_loop(self._main())
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
        self._loop.set_exception_handler(_on_loop_error)
        sweeper = threading.Thread(target=self._sweep, name="corral-sweep", daemon=True)
        try:
            try:
                await self._launch()
                threads.start(sweeper)
            except BaseException:
                await self._close_library()
                raise
            self._ready.set_result(None)
            await self._stop.wait()
            while (left := min(self._deadlines, default=0.0) - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), min(left, 0.2))
                    break
            await self._close()
        finally:
            self.draining = self.closing = True
            self._stop.set()
            if sweeper.is_alive():
                await asyncio.to_thread(sweeper.join, CLOSE)
            self.leases.release()

    async def _launch(self) -> None:
        with storage_errors(self.database):
            await asyncio.to_thread(self.leases.hold, self.id)
            self.all_queues = await asyncio.to_thread(
                register_queues, self.database, self.queue_names, self.limits, self.poll
            )
            adapter.launch(
                self.database.url,
                executor=self.id,
                workflows=self._workflows,
                queues=self.all_queues,
                poll=min(self.poll, 1.0),
                on_unusable=self._on_unusable,
            )

    async def _close(self) -> None:
        self.closing = True
        for each in self.on_close:
            each()
        if self._is_abandoned:  # another executor may be running by now
            return
        adapter.stop_workflows()
        mine = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not mine]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=CLOSE)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.resource_cache.close(), CLOSE)
        if self.own is not None:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(remove_queue, self.database, self.own)
        await self._close_library()

    async def _close_library(self) -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:  # the loop's own is closed
            await asyncio.get_running_loop().run_in_executor(thread, adapter.close)
        # The library has shut down the loop's executor, which asyncio.run would wait for.
        asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(1))

    def call(self, work: Coroutine[object, None, T]) -> concurrent.futures.Future[T]:
        """Run this in its event loop. Raises ``RuntimeError`` if the executor has ended."""
        try:
            if self._loop is None:
                raise RuntimeError("the executor was not started")
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise

    # Called by workflows.

    @contextlib.contextmanager
    def attempt(self, node: str) -> Generator[None]:
        """An attempt runs within the block: a draining executor waits for it."""
        self._count += 1
        key = self._count
        self._running_nodes[key] = node
        self._idle.clear()
        try:
            yield
        finally:
            del self._running_nodes[key]
            if not self._running_nodes:
                self._idle.set()

    async def admitted(self) -> None:
        """Returns while it takes work; never otherwise: another executor takes the workflow."""
        if self.draining:
            await asyncio.Event().wait()

    # Recovery of dead executors.

    def _sweep(self) -> None:
        lost_at: float | None = None
        while not self._stop.is_set():
            for each in self.on_sweep:
                each(self)
            try:
                is_held = self.leases.check()
                if is_held:
                    lost_at = None
                    self._take_over()
            except Exception:  # the database is not reachable; the next check may succeed
                is_held = False
            if not is_held:
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at > self.grace:
                    self._fail(
                        StorageFailed(
                            f"the database {self.database.shown} was not reachable for"
                            f" {self.grace:g} s: this worker ends",
                            hint="Other workers take over its runs, or this one does when it is"
                            " started again.",
                        )
                    )
                    return
            for _ in range(10):
                if self._stop.is_set():
                    return
                if not self.leases.wait(SWEEP / 10):
                    self.leases.check()  # get it back before others check twice

    def _take_over(self) -> None:
        suspects: set[str] = set()
        for executor in sorted(self.leases.busy() - {self.id}):
            with self.leases.claim(executor) as is_dead:
                pass
            if is_dead and not self.leases.is_certain and executor not in self._suspects:
                suspects.add(executor)  # it has until the next check to come back
            elif is_dead:
                # Agents that it left on this machine would run beside the restarted ones. This
                # takes seconds, in which the executor must not count as alive.
                ProcessRegistry(paths.process_registry()).reap()
                with leases.taking_over, self.leases.claim(executor) as is_dead:
                    if is_dead:
                        private_calls.recover(executor)
        self._suspects = suspects

    def _on_unusable(self, error: BaseException) -> None:
        """Called in any thread. Finished work is in the journal; more could not be recorded. The
        workflows stay pending: this error is not their result."""
        adapter.stop_workflows()
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        cannot_open = "unable to open" in reason
        self._fail(
            StorageFailed(
                f"the database {self.database.shown} cannot be"
                f" {'opened' if cannot_open else 'written'}: {reason}",
                hint=(CANNOT_OPEN if cannot_open else "Free some disk space.")
                + " The runs can be resumed then.",
            )
        )

    def _fail(self, error: StorageFailed) -> None:
        if self.failed is not None or self._stop.is_set():
            return
        self.failed = error
        self.begin_draining()
        for on_failure in list(_watchers):
            on_failure(self.database, error)


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """The executor itself reports a database that cannot be used, once."""
    error = context.get("exception")
    if not isinstance(error, Exception) or not is_unusable(error):
        loop.default_exception_handler(context)


# The resources of nodes.


def open_resources(config: RunConfig) -> NodeResources:
    """The resources for nodes with this configuration, not entered yet."""
    return NodeResources(
        simulate=config.simulate,
        model=config.model or None,
        options=unpack_options(config.options),
        agent=config.agent or DEFAULT_AGENT,
        processes=max(1, -(-config.concurrency // PROMPTS_AT_ONCE)),
    )


def unpack_options(stored: JsonObject) -> RunKwargs:
    """The options that ``api.as_json`` stored. A policy was stored as an object."""
    options: dict[str, object] = {**stored}
    if is_object(policy := stored.get("policy")):
        options["policy"] = convert_to(policy, Policy)
    return cast("RunKwargs", options)


class ResourceCache:
    """One set of node resources per configuration, opened when it is first needed."""

    def __init__(self) -> None:
        self._open: dict[bytes, NodeResources] = {}
        self._stack = AsyncExitStack()

    async def find(self, config: RunConfig) -> NodeResources:
        key = msgspec.json.encode(
            [config.simulate, config.agent, config.model, config.options, config.concurrency],
            order="sorted",
        )
        resources = self._open.get(key)
        if resources is None:
            resources = self._open[key] = open_resources(config)
            await self._stack.enter_async_context(resources)
        return resources

    async def close(self) -> None:
        self._open.clear()
        await self._stack.aclose()
