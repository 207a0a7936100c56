"""Operations on durable runs: start, wait, cancel, raise limits, resume.

A run without a queue runs in the engine of this process (``process_engine``); if that ends first,
the run waits to be resumed. A run on a queue is executed by the workers of that queue
(``corral worker``); then this process runs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from corral._core.lookup import run_of
from corral._engine import process_engine, query, run_list
from corral._engine.agent_host import client as agent_host_client
from corral._engine.dbos.client import (
    DEFAULT_QUEUE,
    LAST_POLL,
    DatabaseClient,
    moved_queue,
    open_client,
    read_patiently,
    responsible_executor,
    with_client,
)
from corral._engine.dbos.database import (
    OPEN_STATES,
    UnreadableRecord,
    WorkflowSubmission,
    find,
    prepare,
    reading,
)
from corral._engine.dbos.leases import ExecutorLiveness
from corral._engine.payloads import (
    BATCH_WORKFLOW,
    BEGAN,
    RUN_WORKFLOW,
    TRIES,
    PipelineOutput,
    RunConfig,
    RunInput,
    pack,
    unpack,
)
from corral._pipelines.run_limits import run_limits
from corral._pipelines.scheduler.commands import Cancelled
from corral._system import clock, paths
from corral._system.clock import random_hex
from corral._system.process.tree import ProcessRegistry
from corral.errors import ConfigError, FormatUnsupported
from corral.values import Json, slug

if TYPE_CHECKING:
    from corral._core.spending import BudgetState, Raise
    from corral._metering.budget import Budget

GOAL = 200
"""Characters of a goal that are stored for lists."""


def new_id(name: str) -> str:
    """``review-20260131-142501-3f9a``"""
    plain = slug(name.lower(), limit=30, default="run")
    return f"{plain}-{clock.timestamp()}-{random_hex(2)}"


async def start(
    run_input: RunInput,
    *,
    db: str | None = None,
    queue: str | None = None,
    began: float = 0.0,
    labels: Mapping[str, Json] | None = None,
) -> str:
    """Start a run; returns its id, a new one if ``run_input`` has none. ``queue``: its workers
    execute the run; None: this process does. ``began``: when the first of its tries did.
    ``labels``: more than each run has, for lists. Raises ``ConfigError``, also if the run, or this
    try of it, exists."""
    database = find(db)
    await asyncio.to_thread(prepare, database)
    graph, config = run_input.graph, run_input.config
    name = run_input.run_id or new_id(graph.name)
    if config.detached is None:
        config = replace(config, detached=database.path is not None)
    runs_here = paths.home() / "runs"
    if config.tree is not None and config.tree.is_remote:
        # Machines that share only a repository have a run directory each, unless the caller named
        # one.
        with contextlib.suppress(ValueError):
            folder = Path(config.folder).relative_to(runs_here)
            config = replace(config, folder=str(folder))
    if graph.has_limits:
        from corral._engine import limits

        # Before the limits are stored: they would be those of the other run.
        if await with_client(database, lambda client: client.state(name)) is not None:
            raise _exists(name)
        spent = run_input.spent_before
        # The tries of a run have one budget.
        made = await asyncio.to_thread(
            limits.create_budget, database, name, run_limits(graph), spent
        )
        config = replace(config, budgets=made)
    local_nodes = False
    if queue is None:
        here = await process_engine.opened(database)
        queue = here.own or DEFAULT_QUEUE
        local_nodes = here.own is not None and len(here.all_queues) == 1  # no limited resource
    submitted = replace(
        run_input,
        run_id=name,
        config=config,
        queue=queue,
        at=clock.now(),
        local_nodes=local_nodes,
    )
    more = dict(labels or {})
    if run_input.tries > 1:
        more |= {TRIES: run_input.tries, BEGAN: began}
    if not await with_client(database, lambda client: _submit(client, submitted, more)):
        raise _exists(name)
    return name


def _exists(run: str) -> ConfigError:
    if run != run_of(run):
        return ConfigError(
            f"another process has just resumed {run_of(run)}",
            hint=f"`corral runs watch {run_of(run)}` follows it.",
        )
    return ConfigError(f"the run {run!r} already exists", hint="Choose another id, or resume it.")


def _submit(client: DatabaseClient, run_input: RunInput, more: Mapping[str, Json]) -> bool:
    """Submit the run; False: another one has its id."""
    if client.state(run_input.run_id) is not None:
        return False
    client.ensure_queue(run_input.queue)
    labels: dict[str, Json] = {
        "pipeline": run_input.graph.name,
        "kind": "pipeline" if run_input.program is None else "workflow",
        "goal": run_input.graph.goal[:GOAL],
        "folder": run_input.config.folder,
        "workspace": run_input.config.workspace,
        **run_input.config.labels,
        **more,
    }
    client.submit(
        WorkflowSubmission(
            name=run_input.workflow,
            id=run_input.run_id,
            queue=run_input.queue,
            payload=pack(run_input),
            labels=labels,
        )
    )
    # Another process may have submitted one at the same time: then that one is stored.
    stored = client.get_workflow(run_input.run_id)
    return stored is not None and unpack(stored.input, RunInput).at == run_input.at


async def wait(run: str, *, db: str | None = None, timeout: float | None = None) -> PipelineOutput:
    """The output of the run, when it has ended. A database server may be away for a while
    (``read_patiently``). Raises ``TimeoutError`` and ``StorageFailed``."""
    database = find(db)
    async with open_client(database) as client, asyncio.timeout(timeout):
        run = await read_patiently(database, lambda: query.last_try(client, run))
        pause = 0.02
        while True:
            closed = await read_patiently(database, lambda: query.run_output(client, run))
            if closed is not None:
                return closed
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LAST_POLL)


async def cancel(run: str, *, reason: str = "", db: str | None = None) -> None:
    """Cancel a run with all its agents. If no executor runs it, it is cancelled at once; otherwise
    its executor receives a message."""
    database = find(db)
    message = pack(Cancelled(reason=reason))

    def end(client: DatabaseClient) -> RunConfig | None:
        last = query.last_try(client, run)
        found = client.list_workflows(ids=[last])
        if not found:
            raise query.run_not_found(run)
        status = found[0]
        if status.has_ended:
            return None
        with closing(ExecutorLiveness(database, is_strict=True)) as liveness:
            if status.state == "running" and liveness.is_alive(status.executor):
                status.check_format()
                client.send(last, message)
                return None
        client.set_labels(last, {"reason": reason})
        client.cancel([last], children=True)
        agent_host_client.close(last, cancel=True)
        ProcessRegistry(paths.process_registry()).reap()  # processes of an engine that was killed
        # What cannot be read can be cancelled.
        with contextlib.suppress(UnreadableRecord, FormatUnsupported):
            row = client.get_workflow(last)
            is_run = row is not None and row.name in (RUN_WORKFLOW, BATCH_WORKFLOW)
            if row is not None and is_run and row.input is not None:
                with reading(last, row.format):
                    return unpack(row.input, RunInput).config
        return None

    config = await with_client(database, end)
    if config is not None and config.tree is not None:
        from corral._engine.workspace import run_worktree

        await run_worktree.close(config.tree, config.on_this_machine().folder, run)


async def add_budget(
    run: str, amounts: Raise, *, is_total: bool = False, db: str | None = None
) -> Budget | None:
    """Raise the limits of a run or batch by these amounts, or with ``is_total`` to these amounts,
    from any process and in any state; those of a run nested in it, if that is the one that waits.
    Returns a copy of the budget as it is then; None if there is no such run or batch. Raises
    ``ConfigError``."""
    from corral._engine import limits

    database = find(db)

    def add(client: DatabaseClient) -> Budget | None:
        rows = client.list_workflows(ids=[run])
        if not rows or rows[0].name not in (RUN_WORKFLOW, BATCH_WORKFLOW):
            return None
        rows[0].check_format()
        # A run nested in it may be what waits.
        last = query.last_try(client, run)
        waiting = run_list.open_budgets(database, [last]).get(last)
        owner = run if waiting is None else waiting.owner
        budget = limits.read_budget(database, owner)
        if not budget.has_limits:
            raise ConfigError(f"{run} has no budget that could be raised")
        more = budget.missing(amounts) if is_total else amounts
        limits.raise_budget(database, owner, more)
        return limits.read_budget(database, owner)

    return await with_client(database, add)


async def read_budget(run: str, *, db: str | None = None) -> BudgetState | None:
    """The limits of a run or batch, and what it has spent; None if it has none."""
    from corral._engine import limits

    database = find(db)
    stored = await asyncio.to_thread(limits.read_stores, database, [run])
    return stored[run].as_state() if run in stored else None


async def check_not_elsewhere(run: str, *, db: str | None = None) -> None:
    """Raises ``ConfigError`` if another process executes the run."""
    database = find(db)

    def check(client: DatabaseClient) -> bool:
        rows = client.list_workflows(ids=[query.last_try(client, run)])
        with closing(ExecutorLiveness(database, is_strict=True)) as liveness:
            return any(
                row.state == "running" and liveness.is_elsewhere(row.executor) for row in rows
            )

    if await with_client(database, check):
        raise ConfigError(
            f"another process executes {run}", hint=f"`corral runs watch {run}` follows it."
        )


async def resume(
    run: str, *, db: str | None = None, queue: str | None = None, restarts_jobs: bool = False
) -> None:
    """Continue a run if no executor runs it: in this process, or by the workers of ``queue``. A run
    that a worker executes, or that has ended, stays as it is. ``restarts_jobs``: what its agents
    use, such as a scripted model, ended with the process that started them, so what they are doing
    starts again."""
    database = find(db)
    await asyncio.to_thread(prepare, database)

    def check(client: DatabaseClient) -> str:
        last = query.last_try(client, run)
        found = client.list_workflows(ids=[last])
        if not found:
            raise query.run_not_found(run)
        found[0].check_format()
        return last

    last = await with_client(database, check)  # before an executor is recorded
    queues = [queue or DEFAULT_QUEUE]
    if queue is None:
        here = await process_engine.opened(database)
        queues = [here.queue_names[0], *here.all_queues]

    def move(client: DatabaseClient) -> None:
        open_workflows = client.list_workflows(ids=[last], states=OPEN_STATES)
        open_workflows += client.list_workflows(prefix=f"{last}/", states=OPEN_STATES)
        with closing(ExecutorLiveness(database, is_strict=True)) as liveness:
            for each in open_workflows:
                executor_id = responsible_executor(each)
                if executor_id is None or liveness.is_alive(executor_id):
                    continue
                target = moved_queue(each.queue, queues[0], queues)
                agent_host_client.retire(each.id, at_once=restarts_jobs)
                client.resume([each.id], target)

    await with_client(database, move)
