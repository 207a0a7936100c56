"""``corral worker``: a process that takes up the runs of its pools until it is told to end.

The first signal lets the nodes under way finish, for a bounded time, and takes no others;
a second ends at once. Either way nothing is lost: another worker, or this one when it is
started again, goes on where it was.
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

from corral.durable.dbos import database, queues
from corral.durable.worker import executor, run_workflow
from corral.durable.worker.executor import GRACE, Executor

AT_ONCE = 16
"""Nodes at once in one worker; the others are for other workers, or for later."""
DRAIN = 60.0
"""Seconds that nodes under way may take to finish after the first signal."""


def serve(
    db: str | None = None,
    *,
    queue_names: Sequence[str] = (queues.DEFAULT,),
    limits: Sequence[queues.Limit] = (),
    imports: Sequence[str] = (),
    concurrency: int | None = AT_ONCE,
    drain: float = DRAIN,
    poll: float = 1.0,
    grace: float = GRACE,
    on_ready: Callable[[Executor], None] | None = None,
) -> None:
    """Until a signal. Call it in the first thread of a process that does nothing else.

    ``concurrency``: how many nodes that do real work it takes at once, where no limit of
    their own says otherwise; None: all there are. ``imports``: modules that register node
    types. Raises ``StorageFailed`` when the database stays away for over ``grace`` seconds.
    """
    for module in imports:
        importlib.import_module(module)
    if concurrency is not None:
        limits = [*limits, queues.Limit(resource=queues.ANY, each=concurrency)]
    worker = Executor(
        database.find(db),
        run_workflow.all_workflows(),
        queue_names=queue_names,
        limits=limits,
        poll=poll,
        grace=grace,
    )
    heard: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        heard.append(number)  # first of all: the next one may come while this one is heard
        left = drain if len(heard) == 1 else 0.0
        worker.stop(left)
        threading.Thread(target=_see_it_end, args=(worker, left), daemon=True).start()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        worker.run_here(on_ready)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _see_it_end(worker: Executor, drain: float) -> None:
    """A node that blocks the loop cannot be told to end: then the process goes, as if killed."""
    while executor.running() is worker:
        if not worker.has_turns(drain + executor.BLOCKED):
            print(f"corral: {worker.held_by}", file=sys.stderr, flush=True)
            os._exit(1)
        time.sleep(1.0)
