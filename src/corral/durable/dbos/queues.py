"""Queues: which workers take a task, and how many tasks run at once.

Runs are put on a named *queue*, and workers listen to queues. A queue itself has no limits: it
holds the runs, timers, and nodes that use no limited resource. For each limited resource it has
a *subqueue* (``default/gemini-acp@team``): an agent, or an agent with a credential. A run and
its nodes are never on the same limited subqueue: the run would wait for a node that waits for
the run's place.

An executor that was started without a queue has one of its own (``own-EXECUTOR``): it takes
only what was started through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.durable.dbos import adapter
from corral.durable.dbos.client import Client, QueueLimits, WorkflowInfo, connect
from corral.durable.dbos.database import Database
from corral.errors import ConfigError
from corral.pipelines import node_kinds
from corral.pipelines.graph import Node

DEFAULT = "default"
"""The queue of workers that were started without ``--queue``."""
ANY = "*"
"""The resource of each node that does real work and has no limited resource of its own."""
_OWN = "own-"
NOBODY = _OWN + "nobody"
"""A queue that nobody listens to; its owner is never alive."""


@dataclass(frozen=True, kw_only=True)
class Limit(QueueLimits):
    """How much of a resource may be in use. It holds within one queue, over all its workers."""

    resource: str

    def __post_init__(self) -> None:
        if not self.resource or "/" in self.resource:
            raise ConfigError(f"{self.resource!r} is not a valid resource name")
        for count in (self.everywhere, self.each, self.starts):
            if count is not None and count < 1:
                raise ConfigError(f"a limit of {self.resource} must be at least 1, got {count}")


def own(executor: str) -> str:
    """The queue of an executor that takes only what was started through it."""
    return _OWN + executor


def owner(queue: str) -> str | None:
    """The executor whose own queue this is; None for a queue of workers."""
    name = queue.partition("/")[0]
    return name.removeprefix(_OWN) if name.startswith(_OWN) else None


def responsible(workflow: WorkflowInfo) -> str | None:
    """The executor that runs a workflow or has it on its own queue; None if it waits on a queue
    of workers: any of them will take it."""
    return workflow.executor if workflow.state == "PENDING" else owner(workflow.queue)


def queue_for_node(queue: str, node: Node, names: Sequence[str]) -> str:
    """Where a node of a run on this queue waits: the first subqueue among ``names`` for its
    ``queue`` attribute, its agent with its credential, its agent, or any node that does real
    work; else the queue itself."""
    agent = node.text("agent") or node.text("llm_provider") or node.text("model").partition(":")[0]
    resources = [node.text("queue"), f"{agent}@{node.text('credential')}", agent]
    if not node_kinds.find(node.kind).cheap:
        resources.append(ANY)
    candidates = [subqueue(queue, each) for each in resources]
    return next((each for each in candidates if each in names), queue)


def moved(name: str, queue: str, names: Sequence[str]) -> str:
    """Where a task that waited in the queue or subqueue ``name`` waits on another queue."""
    target = subqueue(queue, name.partition("/")[2])
    return target if target in names else queue


def register(
    database: Database, queues: Sequence[str], limits: Sequence[Limit], poll: float
) -> list[str]:
    """Create these queues and their subqueues; returns the names of all, subqueues that were
    created before included. Blocking."""
    with connect(database) as client:
        for queue in queues:
            client.register_queue(queue, poll=poll)
            for limit in limits:
                client.register_queue(subqueue(queue, limit.resource), limit, poll=poll)
        return [name for queue in queues for name in [queue, *subqueues(client, queue)]]


def remove(database: Database, queue: str) -> None:
    """Delete an executor's own queue with its subqueues, unless something waits there.
    Blocking."""
    with connect(database) as client:
        names = [queue, *subqueues(client, queue)]
        if not client.list_workflows(queues=names, states=adapter.OPEN, limit=1):
            for name in names:
                client.delete_queue(name)


def subqueue(queue: str, resource: str) -> str:
    """The name of the subqueue for a limited resource."""
    return f"{queue}/{resource}"


def subqueues(client: Client, queue: str) -> list[str]:
    """The names of the queue's subqueues."""
    return [name for name in client.queue_names() if name.startswith(queue + "/")]
