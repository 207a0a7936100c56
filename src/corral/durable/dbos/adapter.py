"""The one module that knows the engine below: DBOS, pinned, in its own thread and loop.

Rules, each learnt from an experiment:

* Every process is an executor with an id of its own; the library's default would run again
  what another process still runs.
* The version of the application is our protocol's number, never a hash of source: a comment
  must not leave a run behind for ever.
* A workflow's calls are matched on replay by their position: nothing here is ever gathered.
* All that is journalled is JSON. Rows of another kind are never written, nor decoded.
* The library replaces the default executor of the loop that it runs in: so it gets a loop
  of ours, and never sees the user's.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from corral.durable.dbos import sql
from corral.errors import ConfigError
from corral.events import Json

if TYPE_CHECKING:
    from sqlalchemy import Engine

PROTOCOL = 1
"""Of the journal: raised only when runs begun by an older corral cannot go on in this one."""
APPLICATION = "corral"
INBOX = "inbox"
"""The one topic of a run: outcomes, answers and cancellations, in the order they are taken."""
INSTALL = "pip install 'corral[engine]'"
RECEIVED = "DBOS.recv"
"""The name of the journal entry of a message that a workflow received."""

State: TypeAlias = Literal[
    "DELAYED",
    "ENQUEUED",
    "PENDING",
    "SUCCESS",
    "ERROR",
    "CANCELLED",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED",
]
OPEN: tuple[State, ...] = ("DELAYED", "ENQUEUED", "PENDING")
"""Of workflows that have not ended."""

ENDED = {"SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"}

Workflow: TypeAlias = Callable[[dict[str, Json]], Awaitable[Json]]

_POOL = 10
"""Connections of a worker; the library's 20 would leave a small Postgres room for four."""


def _quiet(_moment: str) -> None:
    """Nobody listens."""


watch: Callable[[str], None] = _quiet
"""Told before and after every write to a workflow's journal; for tests that kill there."""

_workflows: dict[str, Any] = {}
_engines: list[Engine] = []


def require() -> None:
    """Raises ``ConfigError`` where the engine is not installed."""
    if importlib.util.find_spec("dbos") is None:
        raise ConfigError(
            "a durable run needs the engine, which is not installed",
            hint=f"{INSTALL}; or run once, in memory, with --no-durable.",
        )


# A worker: the process that runs workflows.


def _is_news(record: logging.LogRecord) -> bool:
    """A workflow that is cancelled was to end, and of a full disk the executor tells: nobody
    needs the trace of either."""
    error = record.exc_info[1] if record.exc_info else None
    text = record.getMessage()
    full = sql.is_full(error) or "disk is full" in text or "disk I/O error" in text
    return "Cancelled" not in type(error).__name__ and not full


class Foreign(Exception):
    """A row that corral did not write."""


def refuse_pickles() -> None:
    """The library decodes a row as the row itself says, and one that says it is a pickle runs
    whatever is in it. All our rows are JSON: in this process no pickle is decoded."""
    from dbos._serialization import DefaultSerializer

    def refuse(_self: object, _text: str) -> Any:
        raise Foreign("a row of the database was not written by corral: it is a pickle")

    setattr(DefaultSerializer, "deserialize", refuse)  # noqa: B010 (a checker would complain)


def launch(
    url: str,
    *,
    executor: str,
    workflows: Mapping[str, tuple[Workflow, int]],
    queues: Sequence[str],
    poll: float,
    on_full: Callable[[BaseException], None] | None = None,
) -> None:
    """Begin to run workflows from these queues, in the running loop. ``workflows``: name →
    (function, how often it may be taken up again after a crash). ``on_full`` is told when the
    database cannot write any more."""
    require()
    refuse_pickles()
    from dbos import DBOS, DBOSConfig
    from dbos._serialization import DBOSPortableJSON

    config: DBOSConfig = {
        "name": APPLICATION,
        "system_database_url": url,
        "application_version": str(PROTOCOL),
        "executor_id": executor,
        "serializer": DBOSPortableJSON,
        "log_level": "ERROR",
        "notification_listener_polling_interval_sec": poll,
    }
    engine = config["system_database_engine"] = sql.open_engine(url, _POOL, on_full)
    _engines.append(engine)
    DBOS(config=config)
    logging.getLogger("dbos").addFilter(_is_news)
    for name, (function, recoveries) in workflows.items():
        _workflows[name] = DBOS.workflow(name=name, max_recovery_attempts=recoveries)(function)
    DBOS.listen_queues(queues)
    DBOS.launch()


def close() -> None:
    """Blocking, about a second. What still ran stays pending, and somebody recovers it."""
    from dbos import DBOS

    DBOS.destroy(destroy_registry=True)
    _workflows.clear()
    while _engines:
        sql.close_engine(_engines.pop())


def recover(executor: str) -> int:
    """Put what a dead executor was running back on its queues, where the attempts are
    counted on. The caller holds the executor's lease. A private call of the library, the
    only one: its public substitute would set the count back, and poison would loop."""
    from dbos import DBOS

    recover_pending = DBOS._recover_pending_workflows  # pyright: ignore[reportPrivateUsage]
    return len(recover_pending([executor]))


# Inside a workflow. Each of these is journalled once, and replayed by its position.


async def enqueue(name: str, workflow_id: str, queue: str, payload: dict[str, Json]) -> None:
    from dbos import DBOS, SetWorkflowID

    watch(f"before enqueue {workflow_id}")
    with SetWorkflowID(workflow_id):
        handle = await DBOS.enqueue_workflow_async(queue, _workflows[name], payload)
    if handle.get_workflow_id() != workflow_id:
        # The journal holds another order at this position: going on would mix up results.
        raise RuntimeError(f"{workflow_id} was ordered where {handle.get_workflow_id()} had been")
    watch(f"after enqueue {workflow_id}")


async def step(
    name: str, function: Callable[[], Awaitable[Json]], *, preemptible: bool = False
) -> Json:
    """What the function returned, the first time it came to its end. ``preemptible``: it is
    cancelled within about a second of its workflow."""
    from dbos import DBOS

    async def run() -> Json:
        result = await function()
        watch(f"before step {name}")
        return result

    result: Json = await DBOS.run_step_async({"name": name, "preemptible": preemptible}, run)
    watch(f"after step {name}")
    return result


async def sleep(seconds: float) -> None:
    """Until a moment that is kept over restarts."""
    from dbos import DBOS

    watch("before sleep")
    await DBOS.sleep_async(seconds)
    watch("after sleep")


async def send(workflow_id: str, message: Json, *, key: str) -> None:
    """To its inbox, once for a key."""
    from dbos import DBOS

    watch(f"before send {key}")
    await DBOS.send_async(workflow_id, message, INBOX, idempotency_key=key)
    watch(f"after send {key}")


async def receive(timeout: float) -> Json:
    """The next message of this workflow's inbox; None when none came in time."""
    from dbos import DBOS

    watch("before recv")
    message: Json = await DBOS.recv_async(INBOX, timeout)
    watch("after recv")
    return message


async def publish(key: str, value: Json) -> None:
    """For whoever looks at this workflow from outside."""
    from dbos import DBOS

    watch(f"before publish {key}")
    await DBOS.set_event_async(key, value)
    watch(f"after publish {key}")


async def label(workflow_id: str, labels: dict[str, Json]) -> None:
    """Words beside the workflow, for lists: they can be read without decoding anything."""
    from dbos import DBOS

    watch("before label")
    await DBOS.update_workflow_attributes_async(workflow_id, labels, merge=True)
    watch("after label")


async def cancel(workflow_ids: list[str]) -> None:
    """With all that they started."""
    from dbos import DBOS

    watch("before cancel")
    await DBOS.cancel_workflows_async(workflow_ids, cancel_children=True)
    watch("after cancel")


async def states(workflow_ids: list[str]) -> dict[str, State]:
    """Only within a step: called by a workflow, its answer would be journalled, and is no JSON."""
    from dbos import DBOS

    found = await DBOS.list_workflows_async(
        workflow_ids=workflow_ids, load_input=False, load_output=False
    )
    return {status.workflow_id: status.status for status in found}


async def input_of(workflow_id: str) -> Json:
    """Of another workflow. Only within a step."""
    from dbos import DBOS

    found = await DBOS.list_workflows_async(workflow_ids=[workflow_id], load_output=False)
    if not found or not found[0].input:
        raise LookupError(f"the run {workflow_id} is gone")
    whole: Json = found[0].input["args"][0]
    return whole


async def published(workflow_id: str, key: str) -> Json:
    """What another workflow has published last; None: nothing. Only within a step."""
    from dbos import DBOS

    value: Json = await DBOS.get_event_async(workflow_id, key, 0)
    return value


# Outside: everybody who runs nothing.


def migrate(url: str) -> None:
    """Make or renew the tables. Blocking."""
    require()
    from dbos import DBOS

    logging.getLogger("dbos").setLevel("ERROR")
    DBOS.migrate(url)
