"""The doors to durable runs: begin, watch, answer, cancel, take up again, look.

A run without a pool runs in this process, in a thread of the engine's own, and waits to be
resumed where the process ends before it does. A run in a pool is taken up by the workers
of that pool (``corral worker``); then this process needs to run nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from corral.durable import query
from corral.durable.agent_host import client as agent_host_client
from corral.durable.dbos import adapter, queues
from corral.durable.dbos import client as dbos_client
from corral.durable.dbos.client import with_client
from corral.durable.dbos.database import Database, find, prepare, spoken_of
from corral.durable.payloads import OwnTree, RunConfig, RunInput, RunOutput, pack, unpack
from corral.durable.worker import executor, run_workflow, workflows
from corral.durable.worker.executor import Executor
from corral.durable.workspace import artifacts as leaving
from corral.durable.workspace import workspaces
from corral.errors import ConfigError
from corral.events import Json
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import Answer, Answered, Cancelled, Message, Question
from corral.system import paths
from corral.system.process.registry import ProcessRegistry

if TYPE_CHECKING:
    from dbos import DBOSClient

T = TypeVar("T")

POLL = 0.1
"""Seconds, of an engine that runs for somebody who waits."""
GOAL = 200
"""Characters of a goal in a list."""


def local(
    database: Database, *, limits: Sequence[queues.Limit] = (), poll: float = POLL
) -> Executor:
    """The engine in this process; begun where there is none. Blocking."""
    here = executor.running()
    if here is None:
        here = Executor(database, workflows.all_workflows(), limits=limits, poll=poll)
        with spoken_of(database):
            here.start()
    elif here.database != database:
        raise ConfigError(f"this process already runs an engine, on {here.database.shown}")
    return here


def close(drain: float = 0.0) -> None:
    """End the engine in this process. What it ran waits to be resumed. Blocking."""
    here = executor.running()
    if here is not None:
        here.stop(drain)


def new_id(name: str) -> str:
    plain = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")[:30] or "run"
    return f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


async def start(
    graph: Graph,
    *,
    folder: Path,
    workspace: Path,
    db: str | None = None,
    pool: str | None = None,
    run_id: str | None = None,
    values: Mapping[str, Json] | None = None,
    simulate: bool = False,
    agent: str = "",
    model: str = "",
    options: Mapping[str, Json] | None = None,
    detached: bool | None = None,
    imports: Sequence[str] = (),
    source: str = "",
    goal: str = "",
    limits: Sequence[queues.Limit] = (),
    tree: OwnTree | None = None,
    artefacts: str = "",
    known: Mapping[str, Message] | None = None,
    forked_from: str = "",
) -> str:
    """Begin a run; returns its id. ``detached``: whether agents outlive this process; by
    default on one machine (a file), not where others might take a run over (a server).
    ``tree``: it works there (``workspaces.choose``, while it is ``reserved``), instead of in the
    ``workspace``; ``artefacts``: the URL that its artefacts are put to."""
    database = find(db)
    await asyncio.to_thread(prepare, database)
    name = run_id or new_id(graph.name)
    if artefacts:
        await asyncio.to_thread(leaving.check, artefacts)
    setting = RunConfig(
        folder=_kept_folder(folder, tree),
        workspace=_whole(workspace) if tree is None else tree.within,
        tree=tree,
        artefacts=artefacts,
        simulate=simulate,
        agent=agent,
        model=model,
        options=dict(options or {}),
        detached=database.path is not None if detached is None else detached,
        imports=tuple(imports),
        source=source,
        goal=goal,
    )
    where = pool
    if where is None:
        where = (await asyncio.to_thread(local, database, limits=limits)).own or queues.DEFAULT
    begun = RunInput(
        run_id=name,
        graph=graph,
        setting=setting,
        pool=where,
        at=time.time(),
        values=dict(values or {}),
        known=dict(known or {}),
        forked_from=forked_from,
    )
    taken = await with_client(database, lambda client: _begin(client, begun))
    if taken:
        raise ConfigError(f"there is a run {name!r} already", hint="Name another, or resume it.")
    return name


def _whole(path: Path) -> str:
    """Where we are is asked only where it matters: that folder may be gone."""
    return str(path.absolute())


def _kept_folder(folder: Path, tree: OwnTree | None) -> str:
    """Where machines share nothing but a repository, each has its own, unless one is named."""
    runs_here = paths.home() / "runs"
    if tree is not None and tree.is_elsewhere and folder.is_relative_to(runs_here):
        return str(folder.relative_to(runs_here))
    return _whole(folder)


def _begin(client: DBOSClient, begun: RunInput) -> bool:
    """Whether there was one already."""
    if adapter.list_workflows(client, ids=[begun.run_id]):
        return True
    if client.retrieve_queue(begun.pool) is None:
        client.register_queue(begun.pool)
    labels: dict[str, Json] = {
        "pipeline": begun.graph.name,
        "goal": begun.graph.goal[:GOAL],
        "folder": begun.setting.folder,
    }
    adapter.submit(client, run_workflow.NAME, begun.run_id, begun.pool, pack(begun), labels=labels)
    return False


async def wait(run: str, *, db: str | None = None, timeout: float | None = None) -> RunOutput:
    """What the run came to. Raises ``TimeoutError``."""
    async with dbos_client.open_client(find(db)) as client, asyncio.timeout(timeout):
        pause = 0.02
        while True:
            closed = await asyncio.to_thread(dbos_client.closed, client, run)
            if closed is not None:
                return closed
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.5)


class NotAsked(ConfigError):
    """No such question is open, or more than one."""

    code = "not_asked"


async def questions(run: str, *, db: str | None = None) -> list[Question]:
    """Those that wait for a person."""
    raw = await with_client(
        find(db), lambda client: adapter.get_event(client, run, run_workflow.QUESTIONS)
    )
    return [unpack(each, Question) for each in raw.values()] if isinstance(raw, dict) else []


async def answer(
    run: str,
    said: Answer | str,
    *,
    question: str | None = None,
    by: str = "",
    db: str | None = None,
) -> None:
    """Answer an open question; it need not run. Only the first answer counts: another one is
    ``NotAsked``, also where the first waits for somebody to go on with the run."""
    database = find(db)
    asked = await questions(run, db=db)
    chosen = [each for each in asked if question in (None, each.id, each.node)]
    if len(chosen) != 1:
        names = ", ".join(each.id for each in asked) or "none"
        raise NotAsked(f"which question of {run}? Open: {names}")
    words = said if isinstance(said, Answer) else Answer(value=said)
    message = pack(Answered(id=chosen[0].id, answer=words, by=by))
    key = dbos_client.answer_key(chosen[0].id)
    if not await with_client(
        database, lambda client: adapter.send_message(client, run, message, key=key)
    ):
        raise NotAsked(
            f"{chosen[0].node} of {run} has been answered already",
            hint="The first answer counts, once somebody is at the run: corral pipeline resume.",
        )


async def cancel(run: str, *, reason: str = "", db: str | None = None) -> None:
    """End it, with all its agents. Where nothing runs it, at once; else its engine does."""
    database = find(db)
    message = pack(Cancelled(reason=reason))

    def end(client: DBOSClient) -> RunConfig | None:
        found = adapter.list_workflows(client, ids=[run])
        if not found:
            raise dbos_client.missing(run)
        status = found[0]
        if status.status in adapter.ENDED:
            return None
        with closing(dbos_client.ExecutorLiveness(database, surely=True)) as lives:
            if status.status == "PENDING" and lives(status.executor_id):
                adapter.send_message(client, run, message)
                return None
        client.update_workflow_attributes(run, {"reason": reason}, merge=True)
        client.cancel_workflow(run, cancel_children=True)
        agent_host_client.close(run, cancel=True)
        ProcessRegistry(paths.ledger()).reap()  # what its engine left, when it was killed
        return _setting(client, run)

    setting = await with_client(database, end)
    if setting is not None:
        await workspaces.close(setting, run)


async def resume(run: str, *, db: str | None = None, limits: Sequence[queues.Limit] = ()) -> str:
    """Take a run up again in this process, where nobody runs it. One that some worker runs,
    or has ended, is left as it is."""
    database = find(db)
    await asyncio.to_thread(prepare, database)
    here = await asyncio.to_thread(local, database, limits=limits)

    def move(client: DBOSClient) -> None:
        found = adapter.list_workflows(client, ids=[run])
        if not found:
            raise dbos_client.missing(run)
        left = adapter.list_workflows(client, ids=[run], states=adapter.OPEN)
        left += adapter.list_workflows(client, prefix=f"{run}/", states=adapter.OPEN)
        with closing(dbos_client.ExecutorLiveness(database, surely=True)) as lives:
            for each in left:
                # Where it waits in the queue of an executor that lives, or of a pool, it is that
                # one's to run.
                named = each.executor_id
                if each.status != "PENDING":
                    named = queues.owner(each.queue_name or "")
                    if named is None:
                        continue
                if lives(named):
                    continue
                queue = queues.moved(each.queue_name or "", here.pools[0], here.queues)
                client.resume_workflow(each.workflow_id, queue_name=queue)

    await with_client(database, move)
    return run


def _setting(client: DBOSClient, run: str) -> RunConfig | None:
    row = adapter.get_workflow(client, run)
    if row is None or row.name != run_workflow.NAME or row.input is None:
        return None
    return unpack(row.input["args"][0], RunInput).setting


follow = query.follow
list_runs = query.list_runs
show = query.show
