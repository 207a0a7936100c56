"""Queues: who may take a task up, and how many at a time.

A *pool* is a name that runs are put under and workers listen to. Each has a queue without
limits, for the runs themselves, timers, and nodes of no limited resource; and one for each
resource that somebody limited: an agent, or an agent with a credential
(``gemini-acp@team``). A run and its nodes are never on one limited queue, where the run
would wait for a node that waits for the run's place.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corral.durable.dbos import adapter
from corral.durable.dbos.database import Database
from corral.errors import ConfigError
from corral.pipelines import node_kinds
from corral.pipelines.graph import Node

if TYPE_CHECKING:
    from dbos import DBOSClient

DEFAULT = "default"
"""The pool of workers that were told none."""
ANY = "*"
"""The resource of every node that does real work and has no limited one of its own."""
_OWN = "own-"


@dataclass(frozen=True, kw_only=True)
class Limit:
    """How much of a resource may be in use. It holds within a pool, over all its workers."""

    resource: str
    everywhere: int | None = None
    """At once, in all workers together."""
    each: int | None = None
    """At once in one worker."""
    starts: int | None = None
    """In ``per`` seconds."""
    per: float = 60.0

    def __post_init__(self) -> None:
        if not self.resource or "/" in self.resource:
            raise ConfigError(f"{self.resource!r} names no resource")
        for count in (self.everywhere, self.each, self.starts):
            if count is not None and count < 1:
                raise ConfigError(f"a limit of {count} for {self.resource} would let nothing run")


def own(executor: str) -> str:
    """The pool of an executor that takes up only what was begun through it."""
    return _OWN + executor


def owner(pool: str) -> str | None:
    """The executor whose own pool this is."""
    name = pool.partition("/")[0]
    return name.removeprefix(_OWN) if name.startswith(_OWN) else None


def queue_of(pool: str, node: Node, limited: Sequence[str]) -> str:
    """Where a node waits: the first limited queue that is for it. Its ``queue``, where it
    names one; its agent with its credential; its agent; any node that does real work."""
    agent = node.text("agent") or node.text("llm_provider") or node.text("model").partition(":")[0]
    names = [node.text("queue"), f"{agent}@{node.text('credential')}", agent]
    if not node_kinds.find(node.kind).cheap:
        names.append(ANY)
    return next((f"{pool}/{each}" for each in names if f"{pool}/{each}" in limited), pool)


def moved(queue: str, pool: str, queues: Sequence[str]) -> str:
    """The queue of this pool for what waited in that one."""
    name = f"{pool}/{queue.partition('/')[2]}"
    return name if name in queues else pool


def register(
    database: Database, pools: Sequence[str], limits: Sequence[Limit], poll: float
) -> list[str]:
    """Make these pools' queues known; returns all their names, those limited before included.
    Blocking."""
    with queue_client(database) as client:
        for pool in pools:
            client.register_queue(pool, polling_interval_sec=poll)
            for limit in limits:
                client.register_queue(
                    f"{pool}/{limit.resource}",
                    global_concurrency=limit.everywhere,
                    worker_concurrency=limit.each,
                    limiter=(
                        {"limit": limit.starts, "period": limit.per} if limit.starts else None
                    ),
                    polling_interval_sec=poll,
                )
        return [name for pool in pools for name in [pool, *limited(client, pool)]]


def forget(database: Database, pool: str) -> None:
    """Remove the queues of an executor's own pool, unless something waits there. Blocking."""
    with queue_client(database) as client:
        names = [pool, *limited(client, pool)]
        if not adapter.list_workflows(client, queues=names, states=adapter.OPEN, limit=1):
            for name in names:
                client.delete_queue(name)


def limited(client: DBOSClient, pool: str) -> list[str]:
    """The pool's queues that have limits."""
    return sorted(q.name for q in client.list_queues() if q.name.startswith(pool + "/"))


@contextmanager
def queue_client(database: Database) -> Generator[DBOSClient]:
    """To the database, for the length of a block."""
    client = adapter.connect(database.url)
    try:
        yield client
    finally:
        adapter.disconnect(client)
