"""The list of runs. It reads no input, output or journal, and loads nothing that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from corral._core.lookup import run_of
from corral._core.spending import Spent
from corral._engine.dbos.client import WorkflowInfo, list_nested, list_top, queue_owner
from corral._engine.dbos.database import Database, find, is_there, storage_errors
from corral._engine.dbos.leases import ExecutorLiveness
from corral._engine.payloads import BEGAN, RUN_WORKFLOW, TRIES
from corral._metering.budget_stores import StoredBudget
from corral._system import paths
from corral.values import as_text, int_or_none, number_or_none

Status: TypeAlias = Literal[
    "queued", "running", "paused", "interrupted", "success", "fail", "cancelled"
]
"""``paused``: it goes on when its budget is raised. ``interrupted``: no executor runs it;
``resume`` or a worker of its queue continues it."""


class RunOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list. Its input and output are not read."""

    id: str
    status: Status
    kind: str = "pipeline"
    """``pipeline`` or ``workflow``."""
    pipeline: str = ""
    """Its name."""
    goal: str = ""
    folder: str = ""
    asks: int = 0
    """Number of open questions."""
    queue: str = ""
    created: float = 0.0
    """Seconds since the epoch."""
    ended: float | None = None
    executor: str = ""
    workspace: str = ""
    started_in: str = ""
    """The repository or folder in which a person has started it."""
    reason: str = ""
    """Why it is no success."""
    code: str = ""
    label: str = ""
    scripted: bool = False
    tries: int = 1
    """How often it was started: more than once if it was resumed."""
    cost_usd: float | None = None
    """Known at its end; before that what is counted by its budget."""
    tokens: int | None = None


async def list_runs(*, db: str | None = None, limit: int | None = 50) -> list[RunOverview]:
    """The runs of a database, newest first, without nested runs."""
    database = find(db)
    if not await asyncio.to_thread(is_there, database):
        return []

    def read() -> list[RunOverview]:
        with storage_errors(database), closing(ExecutorLiveness(database)) as liveness:
            rows = list_top(database, RUN_WORKFLOW, limit)
            rows = [*{run_of(row.id): row for row in reversed(rows)}.values()][::-1]  # last tries
            budgets = open_budgets(database, [row.id for row in rows if not row.has_ended])
            return [
                RunOverview(
                    id=run_of(row.id),
                    status=run_status(row, liveness, budgets.get(row.id)),
                    kind=_kind(row),
                    pipeline=str(row.labels.get("pipeline", "")),
                    goal=str(row.labels.get("goal", "")),
                    folder=paths.local_run_folder(str(row.labels.get("folder", ""))),
                    asks=int_or_none(row.labels.get("asks")) or 0 if not row.has_ended else 0,
                    queue=row.queue,
                    created=began(row),
                    ended=row.ended,
                    tries=tries(row),
                    executor=row.executor,
                    workspace=str(row.labels.get("workspace", "")),
                    started_in=as_text(row.labels.get("started_in")),
                    reason=as_text(row.labels.get("reason")),
                    code=as_text(row.labels.get("code")),
                    label=as_text(row.labels.get("label")),
                    scripted=row.labels.get("scripted") is True,
                    cost_usd=_spent(row, budgets.get(row.id)).cost or None,
                    tokens=_spent(row, budgets.get(row.id)).tokens or None,
                )
                for row in rows
            ]

    return await asyncio.to_thread(read)


def tries(row: WorkflowInfo) -> int:
    """The number of the try that a workflow is."""
    return int_or_none(row.labels.get(TRIES)) or 1


def began(row: WorkflowInfo) -> float:
    """When the first try of a run began."""
    return number_or_none(row.labels.get(BEGAN)) or row.created


def _kind(row: WorkflowInfo) -> str:
    return str(row.labels.get("kind") or "pipeline")


class OpenBudget(NamedTuple):
    """The budget of a run that has not ended."""

    owner: str
    """The run that has the limits: the run itself, or one nested in it."""
    state: StoredBudget


def open_budgets(database: Database, runs: Sequence[str]) -> dict[str, OpenBudget]:
    """The budgets of those of these workflows of runs that have one: the one that the run waits
    for, which may be that of a run nested in it, else its own. Blocking. Raises
    ``StorageFailed``."""
    if not runs:
        return {}
    from corral._engine import limits

    nested = list_nested(database, RUN_WORKFLOW)
    owners = {
        run: [run_of(each) for each in (run, *nested) if each == run or each.startswith(f"{run}/")]
        for run in runs
    }
    stores = limits.read_stores(database, [each for names in owners.values() for each in names])
    budgets: dict[str, OpenBudget] = {}
    for run, names in owners.items():
        known = [OpenBudget(name, stores[name]) for name in names if name in stores]
        waiting = [budget for budget in known if budget.state.is_paused()]
        if waiting or run_of(run) in stores:
            budgets[run] = (waiting or known)[0]
    return budgets


def _spent(row: WorkflowInfo, budget: OpenBudget | None) -> Spent:
    if budget is not None and budget.owner == run_of(row.id):
        return budget.state.spent
    cost, tokens = row.labels.get("cost_usd"), int_or_none(row.labels.get("tokens"))
    return Spent(float(cost) if isinstance(cost, int | float) else 0.0, tokens or 0)


def run_status(row: WorkflowInfo, liveness: ExecutorLiveness, budget: OpenBudget | None) -> Status:
    """What a list shows of a run."""
    if budget is not None and budget.state.is_paused() and not row.has_ended:
        return "paused"
    match row.state:
        case "running":
            return "running" if liveness.is_alive(row.executor) else "interrupted"
        case "cancelled":
            return "cancelled"
        case "succeeded":
            match row.labels.get("status"):
                case "cancelled":
                    return "cancelled"
                case "fail":
                    return "fail"
                case _:
                    return "success"
        case "queued" | "delayed":
            owner = queue_owner(row.queue)
            return "queued" if owner is None or liveness.is_alive(owner) else "interrupted"
        case _:
            return "fail"
