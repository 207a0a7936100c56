"""One state of each rate limit for all processes that work for the runs of a database.

Theory of operation
-------------------
A process that runs nodes keeps the limits that it has met in memory (``rate_limits``). The first
node with ``on_limit`` joins the process to the others: from then on, limits are exchanged with a
table of the database when a model call has met one, before each model call, and when a node starts
and ends. Between two reads there are at least ``FRESH`` seconds, whatever the number of calls.

So a node does not spend a call to find out what another worker knows. If the limit is longer than
it may hold its agent, the node ends at once, and waits without a process (``node_workflow``).

A process that is waiting reads nothing. If the database cannot be used, each process finds its
limits itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from corral.engine.dbos import limit_table
from corral.engine.dbos.database import Database
from corral.engine.worker import executor
from corral.errors import CorralError, StorageFailed
from corral.metering import rate_limits
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.execution.node_options import node_rule
from corral.system import clock

FRESH = 1.0
"""Seconds for which what was read counts."""

_log = logging.getLogger("corral.engine")
_joined: DatabaseLimits | None = None


class DatabaseLimits:
    """Exchanges the limits of this process with those of a database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._lock = threading.Lock()
        self._stored: dict[str, float] = {}
        """What the database has, by credential: until when."""
        self._since_read: clock.Stopwatch | None = None

    async def exchange(self) -> None:
        if self._is_due():
            await asyncio.to_thread(self._exchange)

    def _is_due(self) -> bool:
        is_fresh = self._since_read is not None and self._since_read.seconds < FRESH
        return not is_fresh or bool(self._to_store())

    def _to_store(self) -> dict[str, rate_limits.LimitState]:
        stored, current = self._stored, rate_limits.all_current()
        return {
            key: each for key, each in current.items() if each.until > stored.get(key, -math.inf)
        }

    def _exchange(self) -> None:
        with self._lock:
            if not self._is_due():  # another thread has just done it
                return
            self._since_read = clock.Stopwatch()
            try:
                found = limit_table.exchange(self.database, self._to_store())
            except StorageFailed as error:
                _log.warning("rate limits are not shared: %s", error.message)
                return
            self._stored = {key: each.until for key, each in found.items()}
            for key, each in found.items():
                rate_limits.report(key, each)


@asynccontextmanager
async def shared(context: NodeContext, database: Database) -> AsyncGenerator[None]:
    """Within the block the agent of the node knows the limits that others have met, and they know
    its own, unless the node fails at a limit."""
    if not _has_rule(context):
        yield
        return
    join(database)
    await rate_limits.exchange()
    yield
    await rate_limits.exchange()


def _has_rule(context: NodeContext) -> bool:
    try:
        rule = node_rule(context)
    except CorralError:  # the attempt reports it
        return False
    return rule is not None and rule.on_limit != "fail"


def join(database: Database) -> None:
    """Share the limits of this process with all others that use this database, until the executor
    of this process is closed."""
    global _joined  # noqa: PLW0603
    if _joined is not None and _joined.database == database:
        return
    _joined = DatabaseLimits(database)
    rate_limits.share(_joined)
    here = executor.running()
    if here is not None:
        here.on_close.append(leave)


def leave() -> None:
    """Share them no longer."""
    global _joined  # noqa: PLW0603
    _joined = None
    rate_limits.share(None)
