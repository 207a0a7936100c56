"""``corral worker``: a process that runs the runs of its queues until it receives a signal.

The first signal lets running nodes finish, for a bounded time, and takes no new ones; a second
ends at once. Nothing is lost either way: another worker, or this one when it is started again,
continues.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from corral.durable.dbos import database
from corral.durable.dbos.client import ANY_NODE, DEFAULT_QUEUE, Limit
from corral.durable.worker import executor, run_workflow
from corral.durable.worker.executor import GRACE, Executor

AT_ONCE = 16
"""Nodes that run at once in one worker; the rest waits, or other workers take it."""
DRAIN = 60.0
"""Seconds that running nodes may take to finish after the first signal."""


def serve(  # noqa: PLR0913
    db: str | None = None,
    *,
    queue_names: Sequence[str] = (DEFAULT_QUEUE,),
    limits: Sequence[Limit] = (),
    imports: Sequence[str] = (),
    concurrency: int | None = AT_ONCE,
    drain: float = DRAIN,
    poll: float = 1.0,
    grace: float = GRACE,
    on_ready: Callable[[Executor], None] | None = None,
) -> None:
    """Serve until a signal. Call it in the main thread of a process that does nothing else.

    ``queue_names``: the queues to serve. ``limits``: limits of resources within them.
    ``concurrency``: how many nodes that do real work run at once, unless a limit of their own
    applies; None: no limit. ``imports``: modules that register node kinds. ``drain``: seconds for
    running nodes after the first signal. ``poll``: seconds between two checks for work. Raises
    ``StorageFailed`` if the database is not reachable for more than ``grace`` seconds.
    """
    for module in imports:
        importlib.import_module(module)
    if concurrency is not None:
        limits = [*limits, Limit(resource=ANY_NODE, each=concurrency)]
    worker = Executor(
        database.find(db),
        run_workflow.all_workflows(),
        queue_names=queue_names,
        limits=limits,
        poll=poll,
        grace=grace,
    )
    signals: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        signals.append(number)  # first: the next signal may interrupt this handler
        left = drain if len(signals) == 1 else 0.0
        worker.stop(left)
        threading.Thread(target=_exit_if_stuck, args=(worker, left), daemon=True).start()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        worker.run_here(on_ready)
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
