"""The budgets of durable runs and batches: their stores, by run.

A store is a file beside a database file, or a row of a database on a server (``budget_stores``
explains it). Its *name* says which: a path, or the id of the run. The configuration of a run has
the names of all stores that apply to its nodes: its own, and those of the runs around it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from corral.core.spending import BudgetLimits, Raise, Spent
from corral.engine.dbos.database import Database
from corral.errors import ConfigError
from corral.metering import budget_stores
from corral.metering.budget import Budget
from corral.metering.budget_stores import BudgetStore, FileBudgetStore
from corral.values import slug


def store_name(database: Database, run: str) -> str:
    """The name of the store of a run."""
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
    from corral.engine.dbos.server_budgets import ServerBudgetStore

    return ServerBudgetStore(database.url, name)


def create(
    database: Database, run: str, limits: BudgetLimits, spent: Spent | None = None
) -> tuple[str, ...]:
    """Create the store of a run, or set the limits of one that exists; returns its name, or
    nothing if the run has no limits. ``spent`` counts for a new one. Blocking. Raises
    ``StorageFailed``."""
    if not limits.exist:
        return ()
    name = store_name(database, run)
    store = open_store(name, database)
    if database.path is None:
        from corral.engine.dbos.server_budgets import ServerBudgetStore

        ServerBudgetStore(database.url, name).create()
    budget_stores.set_limits(store, limits, spent)
    return (name,)


def budget_of(names: Sequence[str], holder: str, database: Database | None) -> Budget | None:
    """The budget of one visit: a part of all these. Blocking. Raises ``ConfigError`` and
    ``StorageFailed``."""
    budget: Budget | None = None
    for name in names:
        budget = Budget.shared(open_store(name, database), holder, parent=budget)
    return budget


def owner_of(name: str, run: str) -> str:
    """The id of the run or batch that has the store ``name``: this run, or one around it."""
    while "/" in run and not _is_store_of(name, run):
        run = run.rpartition("/")[0]
    return run if _is_store_of(name, run) else run.partition("#")[0]  # a later round of a batch


def _is_store_of(name: str, run: str) -> bool:
    return (os.path.basename(name) if os.path.isabs(name) else name) in (run, _file_name(run))


def settle(names: Sequence[str], holder: str, database: Database | None) -> None:
    """The visit has ended: what its processes left reserved counts as spent. Blocking. Raises
    ``StorageFailed``."""
    for name in names:
        budget_stores.settle_holder(open_store(name, database), holder)


def add(database: Database, run: str, more: Raise, key: str = "") -> None:
    """Raise the limits of a run; with a ``key`` only once. Blocking. Raises ``ConfigError`` and
    ``StorageFailed``."""
    budget_stores.raise_limits(open_store(store_name(database, run), database), more, key)


def read(database: Database, run: str) -> Budget:
    """The limits of a run, and what it has spent, as they are now. Blocking. Raises
    ``StorageFailed``."""
    return Budget.read(open_store(store_name(database, run), database))


def remove(database: Database, run: str) -> None:
    """Remove the store of a run, if it has one. Blocking. Raises ``StorageFailed``."""
    name = store_name(database, run)
    if database.path is not None:
        FileBudgetStore(Path(name)).remove()
        return
    from corral.engine.dbos.server_budgets import ServerBudgetStore

    ServerBudgetStore(database.url, name).remove()


def holder_of(run: str, visit: str) -> str:
    """Who reserves: one visit of one run."""
    return f"{run}/{visit}"
