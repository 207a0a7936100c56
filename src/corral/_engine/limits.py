"""What durable runs and batches may use: their budgets, and the rate limits that were met.

Budgets
-------
A budget of a run is in a store: a file beside a database file, or a row of a database on a server
(``budget_stores`` explains it). Its *name* says which: a path, or the id of the run. The
configuration of a run has the names of all stores that apply to its nodes: its own, and those of
the runs around it.

Rate limits
-----------
All processes that work for the runs of a database have one state of each rate limit.
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
import hashlib
import logging
import math
import os
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from corral._core.lookup import run_of
from corral._core.spending import BudgetLimits, Raise, Spent
from corral._engine.dbos import own_tables
from corral._engine.dbos.database import Database
from corral._engine.dbos.own_tables import ServerBudgetStore
from corral._engine.worker import executor
from corral._metering import budget_stores, rate_limits
from corral._metering.budget import Budget
from corral._metering.budget_stores import NOTHING, BudgetStore, FileBudgetStore, StoredBudget
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.node_options import node_rule
from corral._system import clock
from corral.errors import ConfigError, CorralError, StorageFailed
from corral.values import slug

FRESH = 1.0
"""Seconds for which what was read counts."""

_log = logging.getLogger("corral.engine")
_joined: DatabaseLimits | None = None


def store_name(database: Database, run: str) -> str:
    """The name of the store of a run, which all its tries have."""
    run = run_of(run)
    if database.path is None:
        return run
    folder = database.path.with_name(database.path.name + ".budgets")
    return str(folder / _file_name(run))


def _file_name(run: str) -> str:
    digest = hashlib.blake2b(run.encode(), digest_size=6).hexdigest()
    return f"{slug(run, limit=60)}-{digest}.json"


def open_store(name: str, database: Database | None) -> BudgetStore:
    """``database``: that of this process. Raises ``ConfigError`` if it is needed and not known."""
    if os.path.isabs(name):
        return FileBudgetStore(Path(name))
    if database is None:
        raise ConfigError(
            "an agent host cannot use the budget of a run on a database server",
            hint="Remove detached=true from the node.",
        )
    return ServerBudgetStore(database.url, name)


def create_budget(
    database: Database,
    run: str,
    limits: BudgetLimits,
    spent: Spent = NOTHING,
) -> tuple[str, ...]:
    """Create the store of a run, or set the limits of one that exists; returns its name, or
    nothing if the run has no limits. ``spent`` counts for a new one. Blocking. Raises
    ``StorageFailed``."""
    if not limits.exist:
        return ()
    name = store_name(database, run)
    store = open_store(name, database)
    if database.path is None:
        ServerBudgetStore(database.url, name).create()
    budget_stores.set_limits(store, limits, spent)
    return (name,)


def open_budget(names: Sequence[str], holder: str, database: Database | None) -> Budget | None:
    """The budget of one visit: a part of all these. Blocking. Raises ``ConfigError`` and
    ``StorageFailed``."""
    budget: Budget | None = None
    for name in names:
        budget = Budget.shared(open_store(name, database), holder, parent=budget)
    return budget


def find_owner(name: str, run: str) -> str:
    """The id of the run or batch that has the store ``name``: this run, or one around it."""
    run = run_of(run)
    while "/" in run and not _is_store_of(name, run):
        run = run.rpartition("/")[0]
    return run


def _is_store_of(name: str, run: str) -> bool:
    return (os.path.basename(name) if os.path.isabs(name) else name) in (run, _file_name(run))


def settle_all(name: str, database: Database) -> None:
    """The run has ended: all that is reserved counts as spent. Blocking. Raises
    ``StorageFailed``."""
    store = open_store(name, database)
    with store.change() as state:
        holders = {*state.reserved, *state.next_calls, *state.waiting}
    for holder in holders:
        budget_stores.settle_holder(store, holder)


def settle_budget(names: Sequence[str], holder: str, database: Database | None) -> None:
    """The visit has ended: what its processes left reserved counts as spent. Blocking. Raises
    ``StorageFailed``."""
    for name in names:
        budget_stores.settle_holder(open_store(name, database), holder)


def raise_budget(database: Database, run: str, more: Raise, key: str = "") -> None:
    """Raise the limits of a run; with a ``key`` only once. Blocking. Raises ``ConfigError`` and
    ``StorageFailed``."""
    budget_stores.raise_limits(open_store(store_name(database, run), database), more, key)


def read_budget(database: Database, run: str) -> Budget:
    """The limits of a run, and what it has spent, as they are now. Blocking. Raises
    ``StorageFailed``."""
    return Budget.read(open_store(store_name(database, run), database))


def read_stores(database: Database, runs: Sequence[str]) -> dict[str, StoredBudget]:
    """What the stores of those runs that have one contain. Blocking. Raises ``StorageFailed``."""
    if database.path is None:
        return own_tables.read_budgets(database.url, runs)
    stores = ((run, FileBudgetStore(Path(store_name(database, run))).read()) for run in runs)
    return {run: state for run, state in stores if state is not None}


def remove_budget(database: Database, run: str) -> None:
    """Remove the store of a run, if it has one. Blocking. Raises ``StorageFailed``."""
    name = store_name(database, run)
    if database.path is not None:
        FileBudgetStore(Path(name)).remove()
    else:
        ServerBudgetStore(database.url, name).remove()


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
                limits = own_tables.exchange_limits(self.database, self._to_store())
            except StorageFailed as error:
                _log.warning("rate limits are not shared: %s", error.message)
                return
            self._stored = {key: each.until for key, each in limits.items()}
            for key, each in limits.items():
                rate_limits.report(key, each)


@asynccontextmanager
async def shared_limits(context: NodeContext, database: Database) -> AsyncGenerator[None]:
    """Within the block the agent of the node knows the limits that others have met, and they know
    its own, unless the node fails at a limit."""
    try:
        rule = node_rule(context)
    except CorralError:  # the attempt reports it
        rule = None
    if rule is None or rule.on_limit == "fail":
        yield
        return
    join_limits(database)
    await rate_limits.exchange()
    yield
    await rate_limits.exchange()


def join_limits(database: Database) -> None:
    """Share the limits of this process with all others that use this database, until the executor
    of this process is closed."""
    global _joined  # noqa: PLW0603
    if _joined is not None and _joined.database == database:
        return
    _joined = DatabaseLimits(database)
    rate_limits.share(_joined.exchange)
    here = executor.running()
    if here is not None:
        here.on_close.append(leave_limits)


def leave_limits() -> None:
    """Share them no longer."""
    global _joined  # noqa: PLW0603
    _joined = None
    rate_limits.share(None)
