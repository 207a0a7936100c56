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
from typing import TypeVar

from corral.durable import query
from corral.durable.agent_host import client as agent_host_client
from corral.durable.dbos import adapter, queues
from corral.durable.dbos.client import Client, Submission, open_client, with_client
from corral.durable.dbos.database import Database, find, prepare, storage_errors
from corral.durable.dbos.leases import ExecutorLiveness
from corral.durable.payloads import (
    OwnTree,
    RunConfig,
    RunInput,
    RunOutput,
    answer_key,
    pack,
    unpack,
)
from corral.durable.worker import executor, run_workflow
from corral.durable.worker.executor import Executor
from corral.durable.workspace import artifacts as leaving
from corral.durable.workspace import run_worktree
from corral.errors import ConfigError
from corral.events import Json
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import Answer, Answered, Cancelled, Message, Question
from corral.slug import slug
from corral.system import paths
from corral.system.process.registry import ProcessRegistry

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
        here = Executor(database, run_workflow.all_workflows(), limits=limits, poll=poll)
        with storage_errors(database):
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
    plain = slug(name.lower(), limit=30, default="run")
    return f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


async def start(
    graph: Graph,
    *,
    folder: Path,
    workspace: Path,
    db: str | None = None,
    queue: str | None = None,
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
    ``tree``: it works there (``run_worktree.choose``, while it is ``reserved``), instead of in the
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
    if queue is None:
        queue = (await asyncio.to_thread(local, database, limits=limits)).own or queues.DEFAULT
    begun = RunInput(
        run_id=name,
        graph=graph,
        setting=setting,
        queue=queue,
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


def _begin(client: Client, begun: RunInput) -> bool:
    """Whether there was one already."""
    if client.list_workflows(ids=[begun.run_id]):
        return True
    client.ensure_queue(begun.queue)
    labels: dict[str, Json] = {
        "pipeline": begun.graph.name,
        "goal": begun.graph.goal[:GOAL],
        "folder": begun.setting.folder,
    }
    client.submit(
        Submission(
            name=run_workflow.NAME,
            id=begun.run_id,
            queue=begun.queue,
            payload=pack(begun),
            labels=labels,
        )
    )
    return False


async def wait(run: str, *, db: str | None = None, timeout: float | None = None) -> RunOutput:
    """What the run came to. Raises ``TimeoutError``."""
    async with open_client(find(db)) as client, asyncio.timeout(timeout):
        pause = 0.02
        while True:
            closed = await asyncio.to_thread(query.run_output, client, run)
            if closed is not None:
                return closed
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.5)


class NotAsked(ConfigError):
    """No such question is open, or more than one."""

    code = "not_asked"


async def questions(run: str, *, db: str | None = None) -> list[Question]:
    """Those that wait for a person."""
    raw = await with_client(find(db), lambda client: client.get_event(run, run_workflow.QUESTIONS))
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
    key = answer_key(chosen[0].id)
    if not await with_client(database, lambda client: client.send(run, message, key=key)):
        raise NotAsked(
            f"{chosen[0].node} of {run} has been answered already",
            hint="The first answer counts, once somebody is at the run: corral pipeline resume.",
        )


async def cancel(run: str, *, reason: str = "", db: str | None = None) -> None:
    """End it, with all its agents. Where nothing runs it, at once; else its engine does."""
    database = find(db)
    message = pack(Cancelled(reason=reason))

    def end(client: Client) -> RunConfig | None:
        found = client.list_workflows(ids=[run])
        if not found:
            raise query.run_not_found(run)
        status = found[0]
        if status.has_ended:
            return None
        with closing(ExecutorLiveness(database, is_strict=True)) as lives:
            if status.state == "PENDING" and lives.is_alive(status.executor):
                client.send(run, message)
                return None
        client.set_labels(run, {"reason": reason})
        client.cancel([run], children=True)
        agent_host_client.close(run, cancel=True)
        ProcessRegistry(paths.ledger()).reap()  # what its engine left, when it was killed
        return _setting(client, run)

    setting = await with_client(database, end)
    if setting is not None:
        await run_worktree.close(setting, run)


async def resume(run: str, *, db: str | None = None, limits: Sequence[queues.Limit] = ()) -> str:
    """Take a run up again in this process, where nobody runs it. One that some worker runs,
    or has ended, is left as it is."""
    database = find(db)
    await asyncio.to_thread(prepare, database)
    here = await asyncio.to_thread(local, database, limits=limits)

    def move(client: Client) -> None:
        found = client.list_workflows(ids=[run])
        if not found:
            raise query.run_not_found(run)
        left = client.list_workflows(ids=[run], states=adapter.OPEN)
        left += client.list_workflows(prefix=f"{run}/", states=adapter.OPEN)
        with closing(ExecutorLiveness(database, is_strict=True)) as lives:
            for each in left:
                executor_id = queues.responsible(each)
                if executor_id is None or lives.is_alive(executor_id):
                    continue
                target = queues.moved(each.queue, here.queue_names[0], here.all_queues)
                client.resume([each.id], target)

    await with_client(database, move)
    return run


def _setting(client: Client, run: str) -> RunConfig | None:
    row = client.get_workflow(run)
    if row is None or row.name != run_workflow.NAME or row.input is None:
        return None
    return unpack(row.input, RunInput).setting


follow = query.follow
list_runs = query.list_runs
show = query.show
