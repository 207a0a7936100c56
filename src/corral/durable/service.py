"""Operations on durable runs: start, wait, cancel, resume.

A run without a queue runs in this process, in a thread of the engine; if the process ends first,
the run waits to be resumed. A run on a queue is executed by the workers of that queue
(``corral worker``); then this process runs nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from corral.durable import query
from corral.durable.agent_host import client as agent_host_client
from corral.durable.dbos.client import (
    DEFAULT_QUEUE,
    Client,
    Limit,
    Submission,
    moved_queue,
    open_client,
    responsible_executor,
    with_client,
)
from corral.durable.dbos.database import OPEN_STATES, Database, find, prepare, storage_errors
from corral.durable.dbos.leases import ExecutorLiveness
from corral.durable.payloads import (
    RUN_WORKFLOW,
    RunConfig,
    RunInput,
    RunOutput,
    RunWorktree,
    pack,
    unpack,
)
from corral.durable.worker import executor, run_workflow
from corral.durable.worker.executor import Executor
from corral.durable.workspace import artifacts, run_worktree
from corral.errors import ConfigError
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import Cancelled, Message
from corral.slug import slug
from corral.system import paths
from corral.system.process.registry import ProcessRegistry
from corral.values import Json

T = TypeVar("T")

POLL = 0.1
"""Seconds between two checks for work, in the engine of a process that waits for its run."""
GOAL = 200
"""Characters of a goal that are stored for lists."""


def local(database: Database, *, limits: Sequence[Limit] = (), poll: float = POLL) -> Executor:
    """The engine of this process, started if there is none. Blocking."""
    here = executor.running()
    if here is None:
        here = Executor(database, run_workflow.all_workflows(), limits=limits, poll=poll)
        with storage_errors(database):
            here.start()
    elif here.database != database:
        raise ConfigError(f"this process already runs an engine, on {here.database.shown}")
    return here


def close(drain: float = 0.0) -> None:
    """Stop the engine of this process. Runs that have not ended can be resumed. Blocking."""
    here = executor.running()
    if here is not None:
        here.stop(drain)


def new_id(name: str) -> str:
    plain = slug(name.lower(), limit=30, default="run")
    return f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What to run besides the graph, where and how."""

    folder: Path
    """The run directory."""
    workspace: Path
    run_id: str = ""
    """Empty: a new id is made."""
    values: Mapping[str, Json] = field(default_factory=dict[str, Json])
    simulate: bool = False
    agent: str = ""
    model: str = ""
    options: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Options of ``corral.run`` for the agents of all nodes."""
    detached: bool | None = None
    """Whether agents outlive the process that runs them. None: yes with a database file; no with a
    server, where other machines may take the run over."""
    imports: Sequence[str] = ()
    """Modules that register node kinds."""
    source: str = ""
    """The pipeline's file, if it came from one."""
    goal: str = ""
    """The goal that replaced the one of the file."""
    tree: RunWorktree | None = None
    """The worktree to work in, instead of the workspace. The caller has reserved it
    (``run_worktree.reserved``)."""
    artifacts_url: str = ""
    """The URL that the artifacts are uploaded to."""
    known: Mapping[str, Message] = field(default_factory=dict[str, Message])
    """Results of the run that this one continues (``forked_from``)."""
    forked_from: str = ""

    def config(self, database: Database) -> RunConfig:
        tree, detached = self.tree, self.detached
        return RunConfig(
            folder=_folder_to_record(self.folder, tree),
            workspace=_absolute(self.workspace) if tree is None else tree.within,
            tree=tree,
            artifacts_url=self.artifacts_url,
            simulate=self.simulate,
            agent=self.agent,
            model=self.model,
            options=dict(self.options),
            detached=database.path is not None if detached is None else detached,
            imports=tuple(self.imports),
            source=self.source,
            goal=self.goal,
        )


async def start(
    graph: Graph,
    request: RunRequest,
    *,
    db: str | None = None,
    queue: str | None = None,
    limits: Sequence[Limit] = (),
) -> str:
    """Start a run; returns its id. ``queue``: its workers execute the run; None: this process does,
    with these ``limits``."""
    database = find(db)
    await asyncio.to_thread(prepare, database)
    name = request.run_id or new_id(graph.name)
    if request.artifacts_url:
        await asyncio.to_thread(artifacts.check, request.artifacts_url)
    config = request.config(database)
    if queue is None:
        queue = (await asyncio.to_thread(local, database, limits=limits)).own or DEFAULT_QUEUE
    run_input = RunInput(
        run_id=name,
        graph=graph,
        config=config,
        queue=queue,
        at=time.time(),
        values=dict(request.values),
        known=dict(request.known),
        forked_from=request.forked_from,
    )
    exists = await with_client(database, lambda client: _submit(client, run_input))
    if exists:
        raise ConfigError(
            f"the run {name!r} already exists", hint="Choose another id, or resume it."
        )
    return name


def _absolute(path: Path) -> str:
    """The current directory is read only if it matters: it may have been deleted."""
    return str(path.absolute())


def _folder_to_record(folder: Path, tree: RunWorktree | None) -> str:
    """Relative if each machine has a run directory of its own: machines that share only a
    repository do, unless the caller named a directory."""
    runs_here = paths.home() / "runs"
    if tree is not None and tree.is_remote and folder.is_relative_to(runs_here):
        return str(folder.relative_to(runs_here))
    return _absolute(folder)


def _submit(client: Client, run_input: RunInput) -> bool:
    """Submit the run; returns whether it existed already."""
    if client.list_workflows(ids=[run_input.run_id]):
        return True
    client.ensure_queue(run_input.queue)
    labels: dict[str, Json] = {
        "pipeline": run_input.graph.name,
        "goal": run_input.graph.goal[:GOAL],
        "folder": run_input.config.folder,
    }
    client.submit(
        Submission(
            name=RUN_WORKFLOW,
            id=run_input.run_id,
            queue=run_input.queue,
            payload=pack(run_input),
            labels=labels,
        )
    )
    return False


async def wait(run: str, *, db: str | None = None, timeout: float | None = None) -> RunOutput:
    """The output of the run, when it has ended. Raises ``TimeoutError``."""
    async with open_client(find(db)) as client, asyncio.timeout(timeout):
        pause = 0.02
        while True:
            closed = await asyncio.to_thread(query.run_output, client, run)
            if closed is not None:
                return closed
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.5)


async def cancel(run: str, *, reason: str = "", db: str | None = None) -> None:
    """Cancel a run with all its agents: at once if nobody runs it, otherwise its engine does."""
    database = find(db)
    message = pack(Cancelled(reason=reason))

    def end(client: Client) -> RunConfig | None:
        found = client.list_workflows(ids=[run])
        if not found:
            raise query.run_not_found(run)
        status = found[0]
        if status.has_ended:
            return None
        with closing(ExecutorLiveness(database, is_strict=True)) as liveness:
            if status.state == "PENDING" and liveness.is_alive(status.executor):
                client.send(run, message)
                return None
        client.set_labels(run, {"reason": reason})
        client.cancel([run], children=True)
        agent_host_client.close(run, cancel=True)
        ProcessRegistry(paths.process_registry()).reap()  # processes of an engine that was killed
        return _config_of(client, run)

    config = await with_client(database, end)
    if config is not None:
        await run_worktree.close(config, run)


async def resume(run: str, *, db: str | None = None, limits: Sequence[Limit] = ()) -> str:
    """Continue a run in this process if nobody runs it. A run that a worker executes, or that has
    ended, stays as it is."""
    database = find(db)
    await asyncio.to_thread(prepare, database)
    here = await asyncio.to_thread(local, database, limits=limits)

    def move(client: Client) -> None:
        found = client.list_workflows(ids=[run])
        if not found:
            raise query.run_not_found(run)
        left = client.list_workflows(ids=[run], states=OPEN_STATES)
        left += client.list_workflows(prefix=f"{run}/", states=OPEN_STATES)
        with closing(ExecutorLiveness(database, is_strict=True)) as liveness:
            for each in left:
                executor_id = responsible_executor(each)
                if executor_id is None or liveness.is_alive(executor_id):
                    continue
                target = moved_queue(each.queue, here.queue_names[0], here.all_queues)
                client.resume([each.id], target)

    await with_client(database, move)
    return run


def _config_of(client: Client, run: str) -> RunConfig | None:
    row = client.get_workflow(run)
    if row is None or row.name != RUN_WORKFLOW or row.input is None:
        return None
    return unpack(row.input, RunInput).config
