"""Raise the budget of a durable run or batch while it runs, from any process with its database."""

from __future__ import annotations

from corral.core.spending import Raise
from corral.engine import budgets, query
from corral.engine.batch.queue import CLOSED
from corral.engine.dbos.client import Client, WorkflowInfo, with_client
from corral.engine.dbos.database import Database, find
from corral.engine.payloads import BATCH_WORKFLOW, RUN_WORKFLOW, pack
from corral.errors import ConfigError
from corral.metering.budget import Budget
from corral.pipelines.scheduler.commands import Raised


async def add_budget(
    run: str, amounts: Raise, *, is_total: bool = False, db: str | None = None
) -> Budget:
    """Raise the limits by these amounts, or with ``is_total`` to these amounts. Returns a copy of
    the budget as it is then. Raises ``ConfigError``."""
    database = find(db)
    return await with_client(
        database, lambda client: _add(client, database, run, amounts, is_total)
    )


async def exists(run: str, *, db: str | None = None) -> bool:
    """Whether the database has such a run or batch."""
    found = await with_client(find(db), lambda client: client.list_workflows(ids=[run]))
    return bool(found) and found[0].name in (RUN_WORKFLOW, BATCH_WORKFLOW)


def _add(client: Client, database: Database, run: str, amounts: Raise, is_total: bool) -> Budget:
    found = client.list_workflows(ids=[run])
    if not found or found[0].name not in (RUN_WORKFLOW, BATCH_WORKFLOW):
        raise query.run_not_found(run)
    if _has_ended(client, found[0]):
        raise ConfigError(f"{run} has ended: its budget cannot be raised")
    budget = budgets.read(database, run)
    if not budget.has_limits:
        raise ConfigError(f"{run} has no budget that could be raised")
    more = budget.missing(amounts) if is_total else amounts
    budget.raise_limits(more)  # the copy: an amount that is refused changes nothing
    if found[0].name == RUN_WORKFLOW:
        # Before the limit is raised: the run must know it when a node has spent more.
        client.send(run, pack(Raised(amounts=more)))
    budgets.add(database, run, more)
    return budget


def _has_ended(client: Client, found: WorkflowInfo) -> bool:
    if found.name == RUN_WORKFLOW:
        return found.has_ended
    # The workflow of a batch does nothing. Its last round says whether the batch has ended.
    rounds = [found, *client.list_workflows(prefix=f"{found.id}#", name=BATCH_WORKFLOW)]
    return rounds[-1].labels.get(CLOSED) is not None
