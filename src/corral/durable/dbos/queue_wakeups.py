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

A notification reaches all workers, but one of them is the first. A thread that was notified and
found nothing therefore doubles that time, up to the length of a poll, until it finds work again.
Otherwise a hundred workers would ask the database two thousand times a second.

Nothing depends on a wake: what no one announces (a lost notification, another process on the same
database file, a rate limit that has passed) is found by the next poll.

The library has no call for this. ``install`` replaces the function that its threads run by one that
passes another stop event to it, and the set in which it counts running workflows by one that
reports those that end.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
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

_pauses: dict[str, Pause] = {}
"""For each queue that this process serves."""
_started: Counter[str] = Counter()
"""How many workflows of each queue this process has started."""
_is_closing = threading.Event()
_send: Callable[[str], None] | None = None
"""Tells other processes that they may find work in this queue."""
_shared: frozenset[str] = frozenset()


def install(instance: DBOS, *, shared: Iterable[str]) -> None:
    """Before the launch. ``shared``: the queues with a limit for all workers together."""
    global _send, _shared  # noqa: PLW0603
    from dbos._core import ActiveWorkflowById, ActiveWorkflowEntry

    class Running(ActiveWorkflowById):
        def add(
            self, key: str, queue_name: str | None = None, queue_partition_key: str | None = None
        ) -> ActiveWorkflowEntry:
            if queue_name is not None:
                _started[queue_name] += 1
            return super().add(key, queue_name, queue_partition_key)

        def _remove(self, key: str, bucket: tuple[str, str | None] | None) -> None:
            super()._remove(key, bucket)
            if bucket is not None:
                _ended(bucket[0])

    instance._active_workflows_set = Running()  # pyright: ignore[reportPrivateUsage]
    threads: Any = import_module("dbos._queue")
    if not isinstance(threads.queue_worker_thread, partial):  # not installed before
        threads.queue_worker_thread = partial(_run_thread, threads.queue_worker_thread)
    _is_closing.clear()
    _pauses.clear()
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
    wake(*_pauses)


def wake(*queues: str) -> None:
    """Let the threads of these queues look for work, where this process serves them."""
    for queue in queues:
        if (pause := _pauses.get(queue)) is not None:
            pause.wake()


def notified(queue: str) -> None:
    """Another process may have put a workflow on this queue, and has notified all others."""
    if (pause := _pauses.get(queue)) is not None:
        pause.wake(is_for_all=True)


def enqueued(queue: str) -> None:
    """An executor of this process has put a workflow on this queue."""
    wake(queue)
    if _send is not None:
        _send(queue)


def recovered() -> None:
    """This process has put workflows of a dead executor back on their queues."""
    for queue in list(_pauses):
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


class Pause:
    """What a thread of a queue gets as its stop event."""

    def __init__(
        self,
        stop: threading.Event,
        *,
        has_room: Callable[[], bool],
        count_started: Callable[[], int],
    ) -> None:
        self._stop, self._has_room, self._count_started = stop, has_room, count_started
        self._woken, self._is_alone = threading.Event(), threading.Event()
        """Whether the thread is to look, and whether only this process was woken."""
        self.between = BETWEEN
        """Seconds between two looks after notifications."""
        self._last = time.monotonic() - BETWEEN
        self._was_for_all, self._started = False, count_started()
        self.wake()  # work may wait there already

    def wake(self, *, is_for_all: bool = False) -> None:
        if not is_for_all:
            self._is_alone.set()
        self._woken.set()

    def is_set(self) -> bool:
        return _is_closing.is_set() or self._stop.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait for a wake, or until the next poll. Returns whether the thread is to end."""
        self._judge_last_look(timeout)
        until = time.monotonic() + timeout
        while self._woken.wait(max(0.0, until - time.monotonic())):
            if self.is_set():
                break
            self._was_for_all = not self._is_alone.wait(
                max(0.0, self._last + self.between - time.monotonic())
            )
            time.sleep(max(GATHER, self._last + BETWEEN - time.monotonic()))
            self._is_alone.clear()
            self._woken.clear()
            if self.is_set() or self._has_room():
                self._last = time.monotonic()
                break
        return self.is_set()

    def _judge_last_look(self, longest: float) -> None:
        started = self._count_started()
        if started != self._started:
            self.between = BETWEEN
        elif self._was_for_all:
            self.between = min(self.between * 2, longest)
        self._started, self._was_for_all = started, False


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

    pause = Pause(stop, has_room=has_room, count_started=lambda: _started[queue.name])
    _pauses[queue.name] = pause
    run(pause, instance, queue)  # type: ignore[arg-type]
