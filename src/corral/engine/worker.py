"""``corral worker``: a process that takes up the runs of its pools until it is told to end.

The first signal lets the nodes under way finish, for a bounded time, and takes no others;
a second ends at once. Either way nothing is lost: another worker, or this one when it is
started again, goes on where it was.
"""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Sequence
from types import FrameType

from corral.engine import database, queues
from corral.engine.executor import Executor

AT_ONCE = 16
"""Nodes at once in one worker; the others are for other workers, or for later."""
DRAIN = 60.0
"""Seconds that nodes under way may take to finish after the first signal."""


def serve(
    db: str | None = None,
    *,
    pools: Sequence[str] = (queues.DEFAULT,),
    limits: Sequence[queues.Limit] = (),
    imports: Sequence[str] = (),
    concurrency: int | None = AT_ONCE,
    drain: float = DRAIN,
    poll: float = 1.0,
    on_ready: Callable[[Executor], None] | None = None,
) -> None:
    """Until a signal. Call it in the first thread of a process that does nothing else.

    ``concurrency``: how many nodes that do real work it takes at once, where no limit of
    their own says otherwise; None: all there are. ``imports``: modules that register node
    types. Raises ``StorageFailed`` when the database stays away.
    """
    for module in imports:
        importlib.import_module(module)
    if concurrency is not None:
        limits = [*limits, queues.Limit(resource=queues.ANY, each=concurrency)]
    worker = Executor(database.find(db), pools=pools, limits=limits, poll=poll)
    told = False

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal told
        worker.stop(0.0 if told else drain)
        told = True

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        worker.run_here(on_ready)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
