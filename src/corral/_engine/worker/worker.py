"""``corral worker``: a process that runs the runs of its queues until it receives a signal.

The first signal lets running nodes finish, for a bounded time, and takes no new ones; a second
ends at once. Nothing is lost either way: another worker, or this one when it is started again,
continues.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

import msgspec

from corral._engine.dbos import database
from corral._engine.dbos.client import ANY_NODE, DEFAULT_QUEUE, QueueLimit
from corral._engine.worker import executor, run_workflow
from corral._engine.worker.executor import GRACE, Executor
from corral._publishing import publisher
from corral._system import clock
from corral.errors import StorageFailed

AT_ONCE = 16
"""Nodes that run at once in one worker; the rest waits, or other workers take it."""
DRAIN = 60.0
"""Seconds that running nodes may take to finish after the first signal."""
RETRY = 0.5
"""Seconds until a database that was not reachable at the start is tried again."""

_log = logging.getLogger("corral.engine")


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    queue_names: Sequence[str] = (DEFAULT_QUEUE,)
    """The queues to serve."""
    limits: Sequence[QueueLimit] = ()
    """Limits of resources within these queues."""
    imports: Sequence[str] = ()
    """Modules that register node kinds."""
    concurrency: int | None = AT_ONCE
    """How many nodes that do real work run at once, unless their own limit applies. None: no
    limit."""
    drain: float = DRAIN
    """Seconds that running nodes may take to finish after the first signal."""
    poll: float = 1.0
    """Seconds between two checks for work."""
    grace: float = GRACE
    """Seconds for which the database may be unreachable, also at the start."""


def serve(
    db: str | None = None,
    options: WorkerOptions | None = None,
    *,
    on_ready: Callable[[Executor], None] | None = None,
) -> None:
    """Serve until a signal. Call it in the main thread of a process that does nothing else. Raises
    ``StorageFailed`` if the database is not reachable for more than ``grace`` seconds, from the
    start on."""
    chosen = options or WorkerOptions()
    for module in chosen.imports:
        importlib.import_module(module)
    limits = list(chosen.limits)
    if chosen.concurrency is not None:
        limits.append(QueueLimit(resource=ANY_NODE, each=chosen.concurrency))

    def new_worker() -> Executor:
        return Executor(
            database.find(db),
            run_workflow.all_workflows(),
            queue_names=chosen.queue_names,
            limits=limits,
            poll=chosen.poll,
            grace=chosen.grace,
        )

    worker = new_worker()
    signals: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        signals.append(number)  # first: the next signal may interrupt this handler
        left = chosen.drain if len(signals) == 1 else 0.0
        worker.stop(left)
        threading.Thread(target=_exit_if_stuck, args=(worker, left), daemon=True).start()

    def ready(executor: Executor) -> None:
        with contextlib.suppress(OSError, ImportError):
            publisher.current().stay()  # without a free descriptor it stays invisible
        if on_ready is not None:
            on_ready(executor)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    away = clock.Stopwatch()
    is_reported = False
    try:
        while not signals:
            try:
                worker.run_here(ready)
                return
            except StorageFailed as error:
                # It has not started: an executor that has fails with an error for good.
                if not error.retryable or away.seconds > chosen.grace:
                    raise
                if not is_reported:
                    _log.warning("%s\nTrying again for %g s.", error, chosen.grace)
                    is_reported = True
            worker = new_worker()
            time.sleep(RETRY)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_if_stuck(worker: Executor, drain: float) -> None:
    """A node that blocks the loop cannot be cancelled: then the process exits, as if killed."""
    while executor.running() is worker:
        if not worker.responds(drain + executor.BLOCKED):
            print(f"corral: {worker.stuck_message}", file=sys.stderr, flush=True)
            os._exit(1)
        time.sleep(1.0)
