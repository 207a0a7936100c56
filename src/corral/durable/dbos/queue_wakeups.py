"""Workers look for work when there is some, not only when their next poll is due.

Theory of operation
-------------------
The library has one thread per queue, which looks for work, then waits for the length of a poll.
Here that wait ends early (``wake``) when

* a workflow of a limited queue has ended in this process, so there is room for the next;
* this process has enqueued a workflow or has recovered those of a dead executor;
* another process has, and says so: with Postgres by a notification (``CHANNEL``), which arrives on
  the connection of the lease (``leases.ServerLeases.wait``).

A thread that is woken looks once. While its queue has no room in this process, it does not look:
the next workflow that ends wakes it. Wakes that come close together are one: a thread looks at most
once in ``BETWEEN`` seconds.

Nothing depends on a wake: what no one announces (a lost notification, another process on the same
database file, a rate limit that has passed) is found by the next poll.

The library has no call for this. ``install`` replaces the function that its threads run by one that
passes another stop event to it, and the set in which it counts running workflows by one that
reports those that end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dbos import DBOS
    from dbos._queue import Queue
    from sqlalchemy import Engine

CHANNEL = "corral_queues"
"""The Postgres channel; the payload is the name of a queue."""
GATHER, BETWEEN = 0.005, 0.05
"""Seconds from a wake, and from the last look, until a thread looks: other wakes may follow."""

_threads: dict[str, threading.Event] = {}
"""The event of each queue that this process serves."""
_is_closing = threading.Event()
_send: Callable[[str], None] | None = None
"""Tells other processes that they may find work in this queue."""
_shared: frozenset[str] = frozenset()


def install(instance: DBOS, *, shared: Iterable[str]) -> None:
    """Before the launch. ``shared``: the queues with a limit for all workers together."""
    global _send, _shared  # noqa: PLW0603
    from dbos._core import ActiveWorkflowById

    class Running(ActiveWorkflowById):
        def _remove(self, key: str, bucket: tuple[str, str | None] | None) -> None:
            super()._remove(key, bucket)
            if bucket is not None:
                _ended(bucket[0])

    instance._active_workflows_set = Running()  # pyright: ignore[reportPrivateUsage]
    threads: Any = import_module("dbos._queue")
    if not isinstance(threads.queue_worker_thread, partial):  # not installed before
        threads.queue_worker_thread = partial(_run_thread, threads.queue_worker_thread)
    _is_closing.clear()
    _threads.clear()
    _shared = frozenset(shared)

    def send(queue: str) -> None:
        # Gathered and sent by a thread of the library. Does nothing with a database file.
        signal = instance._sys_db._signal_notification  # pyright: ignore[reportPrivateUsage]
        signal(CHANNEL, queue)

    _send = send


def close() -> None:
    """End the threads: they do not notice the library's own stop event before their next poll."""
    global _send  # noqa: PLW0603
    _send = None
    _is_closing.set()
    wake(*_threads)


def wake(*queues: str) -> None:
    """Let the threads of these queues look for work, where this process serves them."""
    for queue in queues:
        if (event := _threads.get(queue)) is not None:
            event.set()


def enqueued(queue: str) -> None:
    """An executor of this process has put a workflow on this queue."""
    wake(queue)
    if _send is not None:
        _send(queue)


def recovered() -> None:
    """This process has put workflows of a dead executor back on their queues."""
    for queue in list(_threads):
        enqueued(queue)


def announce(engine: Engine, queues: Iterable[str]) -> None:
    """A process that need not run an executor has put workflows on these queues."""
    import sqlalchemy as sa

    names = sorted(set(queues))
    wake(*names)
    if engine.dialect.name == "sqlite":
        return
    with engine.begin() as connection:
        for name in names:
            connection.execute(
                sa.text("SELECT pg_notify(:channel, :name)"), {"channel": CHANNEL, "name": name}
            )


def _ended(queue: str) -> None:
    if "/" in queue:  # another queue has no limit, so nothing waits for room
        wake(queue)
        if queue in _shared and _send is not None:
            _send(queue)


class _Pause:
    """What a thread of a queue gets as its stop event."""

    def __init__(
        self, stop: threading.Event, woken: threading.Event, has_room: Callable[[], bool]
    ) -> None:
        self._stop, self._woken, self._has_room = stop, woken, has_room
        self._last = time.monotonic() - BETWEEN

    def is_set(self) -> bool:
        return _is_closing.is_set() or self._stop.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait for a wake, or until the next poll. Returns whether the thread is to end."""
        until = time.monotonic() + timeout
        while self._woken.wait(max(0.0, until - time.monotonic())):
            if self.is_set():
                break
            time.sleep(max(GATHER, self._last + BETWEEN - time.monotonic()))
            self._woken.clear()
            if self._has_room():
                break
        self._last = time.monotonic()
        return self.is_set()


def _run_thread(
    run: Callable[[threading.Event, DBOS, Queue], None],
    stop: threading.Event,
    instance: DBOS,
    queue: Queue,
) -> None:
    running = instance._active_workflows_set  # pyright: ignore[reportPrivateUsage]
    most = queue._worker_concurrency  # pyright: ignore[reportPrivateUsage]

    def has_room() -> bool:
        return most is None or running.count_for_queue(queue.name) < most

    woken = threading.Event()
    woken.set()  # work may wait there already
    _threads[queue.name] = woken
    run(_Pause(stop, woken, has_room), instance, queue)  # type: ignore[arg-type]
