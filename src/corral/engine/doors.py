"""The doors to durable runs: begin, watch, answer, cancel, take up again, look, delete.

A run without a pool runs in this process, in a thread of the engine's own, and waits to be
resumed where the process ends before it does. A run in a pool is taken up by the workers
of that pool (``corral worker``); then this process needs to run nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from corral.engine import adapter, executor, host, queues, runs
from corral.engine.database import Database, find, prepare
from corral.engine.executor import Executor
from corral.engine.journal import Begun, Closed, Setting, pack, unpack
from corral.engine.lease import open_leases
from corral.errors import ConfigError, CorralError
from corral.events import Json
from corral.pipelines.graph import Graph
from corral.pipelines.orders import Answer, Answered, Cancelled, Message, Question

if TYPE_CHECKING:
    from dbos import DBOSClient

T = TypeVar("T")

POLL = 0.1
"""Seconds, of an engine that runs for somebody who waits."""
ENDED = {"SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"}


async def with_client(database: Database, ask: Callable[[DBOSClient], T]) -> T:
    """Ask the database, beside the loop."""

    def whole() -> T:
        with queues.door(database) as client:
            return ask(client)

    return await asyncio.to_thread(whole)


def local(
    database: Database, *, limits: Sequence[queues.Limit] = (), poll: float = POLL
) -> Executor:
    """The engine in this process; begun where there is none. Blocking."""
    here = executor.running()
    if here is None:
        here = Executor(database, limits=limits, poll=poll)
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
    limits: Sequence[queues.Limit] = (),
    known: Mapping[str, Message] | None = None,
    forked_from: str = "",
) -> str:
    """Begin a run; returns its id. ``detached``: whether agents outlive this process; by
    default on one machine (a file), not where others might take a run over (a server)."""
    database = find(db)
    await asyncio.to_thread(prepare, database)
    name = run_id or new_id(graph.name)
    setting = Setting(
        folder=str(Path.cwd() / folder),
        workspace=str(Path.cwd() / workspace),
        simulate=simulate,
        agent=agent,
        model=model,
        options=dict(options or {}),
        detached=database.path is not None if detached is None else detached,
        imports=tuple(imports),
    )
    where = pool
    if where is None:
        where = (await asyncio.to_thread(local, database, limits=limits)).own or queues.DEFAULT
    begun = Begun(
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


def _begin(client: DBOSClient, begun: Begun) -> bool:
    """Whether there was one already."""
    if adapter.listing(client, ids=[begun.run_id]):
        return True
    if client.retrieve_queue(begun.pool) is None:
        client.register_queue(begun.pool)
    adapter.submit(client, runs.NAME, begun.run_id, begun.pool, pack(begun))
    return False


async def wait(run: str, *, db: str | None = None, timeout: float | None = None) -> Closed:
    """What the run came to. Raises ``TimeoutError``."""
    database = find(db)
    async with asyncio.timeout(timeout):
        pause = 0.02
        while True:
            closed = await with_client(database, lambda client: _closed(client, run))
            if closed is not None:
                return closed
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.5)


def _closed(client: DBOSClient, run: str) -> Closed | None:
    states = adapter.listing(client, ids=[run])
    if not states:
        raise ConfigError(f"there is no run {run!r}")
    if states[0].status not in ENDED:
        return None
    if states[0].status == "CANCELLED":
        return Closed(status="cancelled", reason="cancelled")
    whole = adapter.whole(client, run)
    if whole is None or whole.output is None:
        return Closed(status="fail", reason=f"the engine failed: {whole and whole.error}")
    return unpack(whole.output, Closed)


async def questions(run: str, *, db: str | None = None) -> list[Question]:
    """Those that wait for a person."""
    raw = await with_client(find(db), lambda client: client.get_event(run, runs.QUESTIONS, 0))
    return [unpack(each, Question) for each in (raw or {}).values()]


async def answer(
    run: str,
    said: Answer | str,
    *,
    question: str | None = None,
    by: str = "",
    db: str | None = None,
) -> None:
    """Answer an open question; it need not run. Only the first answer counts."""
    database = find(db)
    asked = await questions(run, db=db)
    chosen = [each for each in asked if question in (None, each.id, each.node)]
    if len(chosen) != 1:
        names = ", ".join(each.id for each in asked) or "none"
        raise ConfigError(f"which question of {run}? Open: {names}")
    words = said if isinstance(said, Answer) else Answer(value=said)
    message = pack(Answered(id=chosen[0].id, answer=words, by=by))
    key = f"answered {chosen[0].id}"
    await with_client(database, lambda client: adapter.tell(client, run, message, key=key))


async def cancel(run: str, *, reason: str = "", db: str | None = None) -> None:
    """End it, with all its agents. Where nothing runs it, at once; else its engine does."""
    database = find(db)
    message = pack(Cancelled(reason=reason))

    def ask(client: DBOSClient) -> None:
        found = adapter.listing(client, ids=[run])
        if not found:
            raise ConfigError(f"there is no run {run!r}")
        status = found[0]
        if status.status in ENDED:
            return
        with closing(_Lives(database)) as lives:
            if status.status == "PENDING" and lives(status.executor_id):
                adapter.tell(client, run, message)
                return
        client.cancel_workflow(run, cancel_children=True)
        host.close(run, cancel=True)

    await with_client(database, ask)


class _Lives:
    """Which executors live. A lease that is held may be held by somebody who just takes a
    dead one's work over, and lets it go at once: so it is looked at more than once."""

    def __init__(self, database: Database) -> None:
        self._leases = open_leases(database)
        self._known: dict[str, bool] = {}
        here = executor.running()
        if here is not None:
            self._known[here.id] = True

    def __call__(self, name: str | None) -> bool:
        if not name:
            return False
        if name not in self._known:
            self._known[name] = all(self._is_held(name, pause) for pause in (0, 0.1, 0.3, 0.6))
        return self._known[name]

    def _is_held(self, name: str, pause: float) -> bool:
        time.sleep(pause)
        with self._leases.claim(name) as gone:
            return not gone

    def close(self) -> None:
        self._leases.release()


async def resume(run: str, *, db: str | None = None, limits: Sequence[queues.Limit] = ()) -> str:
    """Take a run up again in this process, where nobody runs it. One that some worker runs,
    or has ended, is left as it is."""
    database = find(db)
    await asyncio.to_thread(prepare, database)
    here = await asyncio.to_thread(local, database, limits=limits)

    def move(client: DBOSClient) -> None:
        found = adapter.listing(client, ids=[run])
        if not found:
            raise ConfigError(f"there is no run {run!r}")
        left = adapter.listing(client, ids=[run], states=adapter.OPEN)
        left += adapter.listing(client, prefix=f"{run}/", states=adapter.OPEN)
        with closing(_Lives(database)) as lives:
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
                _, _, resource = (each.queue_name or "").partition("/")
                queue = queues.queue_for(here.pools[0], resource, here.queues)
                client.resume_workflow(each.workflow_id, queue_name=queue)

    await with_client(database, move)
    return run


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as a list shows it."""

    id: str
    state: str
    """``queued``, ``running``, ``interrupted``, ``done``, ``failed``, ``cancelled``."""
    created: float
    ended: float | None = None
    pool: str = ""


__all__ = ["CorralError", "Overview", "answer", "cancel", "close", "local", "questions", "resume",
           "start", "wait"]  # fmt: skip
