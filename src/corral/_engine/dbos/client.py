"""A connection to the database that runs no workflows: it submits, reads and changes them.

``DatabaseClient`` is the only class outside the workflows that calls the DBOS library. It takes and
returns this package's own types, so that no other package depends on the library's. All its
methods block; ``with_client`` and ``open_client`` are for async callers.

Queues
------
Runs are put on a named *queue*, and workers listen to queues. A queue itself has no limits: it
holds the runs, timers, and nodes that use no limited resource. For each limited resource it has
a *subqueue* (``default/gemini-acp@team``): an agent, or an agent with a credential. A run and
its nodes are never on the same limited subqueue: the run would wait for a node that waits for
the run's place.

An executor that was started without a queue has one of its own (``own-EXECUTOR``): it takes
only what was started through it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from corral._core import stored_formats
from corral._core.stored_formats import JOURNAL
from corral._engine.dbos import adapter, private_calls
from corral._engine.dbos.connections import close_engine, open_engine
from corral._engine.dbos.database import (
    APPLICATION,
    ENDED_STATES,
    OPEN_STATES,
    Database,
    State,
    UnreadableRecord,
    WorkflowSubmission,
    from_library,
    reading,
    require,
    storage_errors,
    to_library,
)
from corral._pipelines import node_kinds
from corral._pipelines.graph import Node
from corral._system import clock, config
from corral.errors import ConfigError, CorralError, StorageFailed
from corral.values import Json, as_object, as_text, int_or_none, number_or_none

if TYPE_CHECKING:
    from dbos import DBOSClient, EnqueueOptions, WorkflowStatus
    from sqlalchemy import Engine

T = TypeVar("T")

SERVER_AWAY = 60.0
"""Seconds that a database server may be away while a run is followed or waited for."""
LAST_POLL = 0.5
"""Seconds between two reads of what is followed or waited for, at most."""

_log = logging.getLogger("corral.engine")

DEFAULT_QUEUE = "default"
"""The queue of workers that were started without ``--queue``."""
ANY_NODE = "*"
"""The resource of each node that does real work and has no limited resource of its own."""
_OWN_QUEUE = "own-"
NO_WORKERS = _OWN_QUEUE + "none"
"""A queue without a worker; its owner is never alive."""

CONNECTIONS = 4
"""Maximum number of connections of one client."""
CHUNK = 400
"""Maximum number of ids in one statement: SQLite limits the number of parameters."""


class WorkflowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One workflow. ``input``, ``output`` and ``error`` are set only where they were read."""

    id: str
    name: str
    state: State
    queue: str
    executor: str
    """The executor that runs it, or ran it last."""
    labels: dict[str, Json]
    created: float
    """Seconds since the epoch."""
    ended: float | None
    recoveries: int
    """How often it was started again after a crash."""
    format: int = JOURNAL
    """Of its input, output and journal."""
    input: Json = None
    output: Json = None
    error: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED_STATES

    def check_format(self) -> None:
        """Raises ``FormatUnsupported`` unless this corral can continue it."""
        if self.format != JOURNAL:
            more = f", which may refuse this database while runs of format {JOURNAL} are open in it"
            raise stored_formats.unsupported(repr(self.id), self.format, JOURNAL, more)


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded step of a workflow."""

    number: int
    name: str
    output: Json
    at: float
    """Seconds since the epoch; 0 while it has not completed."""


class QueueLimit(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a resource may be in use, within one queue. None: no limit."""

    resource: str
    everywhere: int | None = None
    """Workflows that run at once, in all workers of the queue together."""
    each: int | None = None
    """Workflows that run at once in one worker."""
    starts: int | None = None
    """Workflows that start within ``per`` seconds."""
    per: float = 60.0

    def __post_init__(self) -> None:
        if not self.resource or "/" in self.resource:
            raise ConfigError(f"{self.resource!r} is not a valid resource name")
        for count in (self.everywhere, self.each, self.starts):
            if count is not None and count < 1:
                raise ConfigError(f"a limit of {self.resource} must be at least 1, got {count}")


class DatabaseClient:
    """Opened when it is created; ``close`` it."""

    def __init__(self, url: str) -> None:
        require()
        from dbos import DBOSClient, DBOSPortableJSONSerializer

        adapter.set_up_log()
        self._engine: Engine = open_engine(url, CONNECTIONS)
        try:
            self._client: DBOSClient = DBOSClient(
                system_database_engine=self._engine,
                serializer=DBOSPortableJSONSerializer(),
                application_name=APPLICATION,
            )
        except BaseException:
            self._engine.dispose()
            raise

    def close(self) -> None:
        self._client.destroy()
        close_engine(self._engine)

    # Workflows.

    def submit(self, submission: WorkflowSubmission) -> None:
        """Enqueue a workflow. If one with this id exists, it stays as it is."""
        self._client.enqueue(_options(submission), submission.payload)

    def list_workflows(
        self,
        *,
        ids: list[str] | None = None,
        prefix: str | None = None,
        name: str | None = None,
        states: Sequence[State] | None = None,
        queues: Sequence[str] | None = None,
        labels: dict[str, Json] | None = None,
        limit: int | None = None,
        top: bool = False,
    ) -> list[WorkflowInfo]:
        """Newest first; ``top``: only those that no other workflow started. ``labels``: only those
        that have these; not with a database file (``list_labelled``). Inputs and outputs
        are not decoded, so rows that another program wrote can do no harm. A row that cannot be
        read is left out and logged; if it is the only one of ``ids``, it raises
        ``UnreadableRecord``."""

        def read(some: list[str] | None) -> list[WorkflowInfo]:
            found = self._client.list_workflows(
                workflow_ids=some,
                workflow_id_prefix=prefix,
                name=name,
                status=to_library(states) if states is not None else None,
                queue_name=list(queues) if queues is not None else None,
                attributes=labels,
                limit=limit,
                sort_desc=True,
                has_parent=False if top else None,
                load_input=False,
                load_output=False,
            )
            return [_info(row) for row in found]

        try:
            return read(ids)
        except _UNDECODABLE:  # the library decodes some columns of all rows
            if ids is not None and len(ids) == 1:
                with reading(ids[0]):
                    raise
            rows = _read_in_parts(read, ids or private_calls.all_workflow_ids(self._engine))
            return sorted(rows, key=lambda row: row.created, reverse=True)[:limit]

    def state(self, workflow_id: str) -> State | None:
        """The state of a workflow; None if there is no such workflow."""
        rows = self.list_workflows(ids=[workflow_id])
        return rows[0].state if rows else None

    def get_workflow(self, workflow_id: str) -> WorkflowInfo | None:
        """With its input and output. Raises ``ConfigError`` if corral did not write the row."""
        with _decoding(workflow_id):
            found = self._client.list_workflows(workflow_ids=[workflow_id])
            return _info(found[0]) if found else None

    def journal(
        self, workflow_id: str, *, offset: int = 0, limit: int | None = None
    ) -> list[JournalEntry]:
        """The steps it has recorded, in order. Raises ``UnreadableRecord``."""
        with _decoding(workflow_id):
            steps = self._client.list_workflow_steps(workflow_id, offset=offset, limit=limit)
            return [
                JournalEntry(
                    number=step["function_id"],
                    name=str(step["function_name"]),
                    output=step["output"],
                    at=_seconds(step["completed_at_epoch_ms"]) or 0.0,
                )
                for step in steps
            ]

    def set_labels(self, workflow_id: str, labels: dict[str, Json]) -> None:
        """Merge these labels into those of the workflow."""
        self._client.update_workflow_attributes(workflow_id, labels, merge=True)

    def cancel(self, workflow_ids: Sequence[str], *, children: bool = False) -> None:
        for chunk in chunks(workflow_ids):
            self._client.cancel_workflows(chunk, cancel_children=children)

    def resume(self, workflow_ids: Sequence[str], queue: str) -> None:
        """Put workflows that no executor runs any more on this queue."""
        for chunk in chunks(workflow_ids):
            self._client.resume_workflows(chunk, queue_name=queue)

    def delete(self, workflow_ids: Sequence[str]) -> None:
        """The last ones first: if it is interrupted, the first ones are still there."""
        for chunk in chunks(workflow_ids[::-1]):
            self._client.delete_workflows(chunk)

    # Messages and events.

    def send(self, workflow_id: str, message: Json, *, key: str | None = None) -> bool:
        """Send a message to a workflow's inbox. Of several messages with one key only the
        first is sent; returns whether this one was."""
        if key is not None and self.find_message(workflow_id, key) is not None:
            return False
        self._client.send(workflow_id, message, adapter.INBOX, key)
        return True

    def find_message(self, workflow_id: str, key: str) -> Json:
        """The message sent with this key, received or not; None if there is none."""
        raw = private_calls.find_message(self._engine, workflow_id, key)
        with _decoding(workflow_id):
            return None if raw is None else json.loads(raw)

    def get_event(self, workflow_id: str, key: str) -> Json:
        """The value that the workflow published last under this key; None if there is none."""
        with _decoding(workflow_id):
            value: Json = self._client.get_event(workflow_id, key, 0)
        return value

    # Queues.

    def register_queue(
        self, name: str, limit: QueueLimit | None = None, *, poll: float = 1.0
    ) -> None:
        """Create a queue or change its limit. ``poll``: seconds between two checks for work."""
        self._client.register_queue(
            name,
            global_concurrency=limit.everywhere if limit else None,
            worker_concurrency=limit.each if limit else None,
            limiter={"limit": limit.starts, "period": limit.per}
            if limit and limit.starts
            else None,
            polling_interval_sec=poll,
        )

    def ensure_queue(self, name: str) -> None:
        """Create the queue unless it exists."""
        if self._client.retrieve_queue(name) is None:
            self._client.register_queue(name)

    def queue_names(self) -> list[str]:
        return sorted(queue.name for queue in self._client.list_queues())

    def delete_queue(self, name: str) -> None:
        self._client.delete_queue(name)


def chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    """Parts that fit into one statement each."""
    for at in range(0, len(ids), CHUNK):
        yield list(ids[at : at + CHUNK])


def list_top(database: Database, name: str, limit: int | None) -> list[WorkflowInfo]:
    """The workflows with this name that no other workflow started, newest first. Blocking. A
    database file is read without the library, whose import takes longer than everything else."""
    if database.path is None:
        with connect(database) as client:
            return client.list_workflows(name=name, limit=limit, top=True)
    columns = "workflow_uuid, status, queue_name, executor_id, attributes, created_at,"
    columns += " completed_at, recovery_attempts, application_version"
    rows = private_calls.read_top_rows(database.path, columns, name, limit)
    return [
        WorkflowInfo(
            id=row[0],
            name=name,
            state=from_library(row[1]),
            queue=as_text(row[2]),
            executor=as_text(row[3]),
            labels=_labels(row[4]),
            created=_seconds(row[5]) or 0.0,
            ended=_seconds(row[6]),
            recoveries=int_or_none(row[7]) or 0,
            format=stored_formats.journal_format(str(row[8])),
        )
        for row in rows
    ]


def list_nested(database: Database, name: str) -> list[str]:
    """The ids of the workflows with this name that other workflows started and that have not ended.
    Blocking, as ``list_top``."""
    if database.path is None:
        with connect(database) as client:
            rows = client.list_workflows(name=name, states=OPEN_STATES)
            return sorted(row.id for row in rows if "/" in row.id)
    return private_calls.read_nested_ids(database.path, name, to_library(OPEN_STATES))


def list_labelled(database: Database, name: str, label: str, value: str) -> list[str]:
    """The ids of the workflows with this name whose label has this value, newest first. Blocking,
    as ``list_top``."""
    if database.path is None:
        with connect(database) as client:
            return [row.id for row in client.list_workflows(name=name, labels={label: value})]
    return private_calls.read_labelled_ids(database.path, name, label, value)


def _labels(stored: object) -> dict[str, Json]:
    """Those of a row that was read without the library. What is no object counts as none."""
    if not isinstance(stored, str | bytes):
        return {}
    try:
        return as_object(json.loads(stored))
    except _UNDECODABLE:
        return {}


def _seconds(stored: object) -> float | None:
    """Of a column in milliseconds. In a database file a column can contain any type."""
    number = number_or_none(stored)
    return number / 1000 if number else None


_reported: set[str] = set()
"""Unreadable records that this process has logged."""
_UNDECODABLE = (ValueError, TypeError, RecursionError)
"""What ``json.loads`` raises."""


@contextmanager
def _decoding(workflow_id: str) -> Generator[None]:
    """Errors of the library when it decodes a row become ``UnreadableRecord``. Those of the
    database stay as they are."""
    try:
        yield
    except (*_UNDECODABLE, UnreadableRecord):
        with reading(workflow_id):
            raise


def _read_in_parts(
    read: Callable[[list[str]], list[WorkflowInfo]], ids: Sequence[str]
) -> list[WorkflowInfo]:
    """All rows with these ids that can be read. The library reads all or none, so the ids are
    divided until those that cannot be read are alone."""
    rows: list[WorkflowInfo] = []
    parts = [*chunks(ids)]
    while parts:
        part = parts.pop()
        try:
            rows += read(part)
        except _UNDECODABLE as error:
            if len(part) == 1:
                if part[0] not in _reported:
                    _reported.add(part[0])
                    _log.warning("the record of %r cannot be read: %s", part[0], error)
            else:
                half = len(part) // 2
                parts += [part[:half], part[half:]]
    return rows


def _options(submission: WorkflowSubmission) -> EnqueueOptions:
    return {
        "workflow_name": submission.name,
        "workflow_id": submission.id,
        "queue_name": submission.queue,
        "app_version": stored_formats.journal_name(),
        "attributes": submission.labels,
    }


def _info(row: WorkflowStatus) -> WorkflowInfo:
    return WorkflowInfo(
        id=row.workflow_id,
        name=row.name or "",
        state=from_library(row.status),
        queue=as_text(row.queue_name),
        executor=as_text(row.executor_id),
        labels=as_object(row.attributes),
        created=_seconds(row.created_at) or 0.0,
        ended=_seconds(row.completed_at),
        recoveries=int_or_none(row.recovery_attempts) or 0,
        format=stored_formats.journal_format(str(row.app_version)),
        input=_first_argument(row.input),
        output=row.output,
        error=str(row.error) if row.error is not None else "",
    )


def _first_argument(stored: object) -> Json:
    """The input of a workflow. The library returns the text of one that it cannot decode."""
    if stored is None:
        return None
    arguments = as_object(stored).get("args")
    if not isinstance(arguments, list | tuple):
        raise UnreadableRecord("its input is damaged")
    return arguments[0] if arguments else None


@contextmanager
def connect(database: Database) -> Generator[DatabaseClient]:
    """A client for the length of a block. Blocking. Raises ``StorageFailed`` or ``ConfigError``
    where the database fails."""
    with storage_errors(database), closing(DatabaseClient(database.url)) as client:
        yield client


async def with_client(database: Database, call: Callable[[DatabaseClient], T]) -> T:
    """Run one call with a client, in a thread. Raises ``StorageFailed`` or ``ConfigError``
    where the database fails."""

    def run() -> T:
        with connect(database) as client:
            return call(client)

    return await asyncio.to_thread(run)


@asynccontextmanager
async def open_client(database: Database) -> AsyncGenerator[DatabaseClient]:
    """A client for many calls, opened as ``read_patiently`` reads. A thread opens it. If the caller
    is cancelled meanwhile, that thread runs on, and closes the client when it is open."""
    opened: list[DatabaseClient] = []
    is_over = threading.Event()

    def enter() -> DatabaseClient:
        client = DatabaseClient(database.url)
        opened.append(client)
        if is_over.is_set():
            leave()
        return client

    def leave() -> None:
        with suppress(IndexError):  # another thread has closed it
            opened.pop().close()

    try:
        yield await read_patiently(database, enter)
    finally:
        is_over.set()
        if opened:
            await asyncio.to_thread(leave)


async def read_patiently(database: Database, read: Callable[[], T]) -> T:
    """Run a call that only reads, in a thread. A database server may be away for ``SERVER_AWAY``
    seconds. Raises ``StorageFailed`` or ``ConfigError``."""
    away = clock.Stopwatch()
    while True:
        try:
            with storage_errors(database):
                return await asyncio.to_thread(read)
        except StorageFailed as error:
            if not error.retryable or away.seconds > SERVER_AWAY:
                raise
        await asyncio.sleep(LAST_POLL)


# Names of queues.


def own_queue(executor: str) -> str:
    """The queue of an executor that takes only what was started through it."""
    return _OWN_QUEUE + executor


def queue_owner(queue: str) -> str | None:
    """The executor whose own queue this is; None for a queue of workers."""
    name = queue.partition("/")[0]
    return name.removeprefix(_OWN_QUEUE) if name.startswith(_OWN_QUEUE) else None


def responsible_executor(workflow: WorkflowInfo) -> str | None:
    """The executor that runs a workflow or has it on its own queue; None if it waits on a queue
    of workers: any of them will take it."""
    return workflow.executor if workflow.state == "running" else queue_owner(workflow.queue)


def resource_name(name: str) -> str:
    """The name of a limited resource: an agent by its own name, not by an alias. Others, such as a
    vendor or the ``queue`` of nodes, are as they were given."""
    agent, at, credential = name.partition("@")
    with suppress(CorralError):
        agent = config.find_agent(agent).name
    return f"{agent}{at}{credential}"


def queue_for_node(queue: str, node: Node, names: Sequence[str], default_agent: str) -> str:
    """Where a node of a run on this queue waits: the first subqueue among ``names`` for its
    ``queue`` attribute, its agent with its credential, its agent, or any node that does real
    work; else the queue itself. ``default_agent``: that of nodes which name neither an agent nor a
    vendor."""
    vendor, has_vendor, _ = node.text("model").partition(":")
    agent = node.text("agent") or node.text("llm_provider") or (vendor if has_vendor else "")
    agent = agent or default_agent
    resources = [node.text("queue")]
    for name in (agent, resource_name(agent)):
        resources += [f"{name}@{node.text('credential')}", name]
    if not node_kinds.find(node.kind).cheap:
        resources.append(ANY_NODE)
    candidates = [subqueue(queue, each) for each in resources]
    return next((each for each in candidates if each in names), queue)


def moved_queue(name: str, queue: str, names: Sequence[str]) -> str:
    """Where a task that waited in the queue or subqueue ``name`` waits on another queue."""
    target = subqueue(queue, name.partition("/")[2])
    return target if target in names else queue


def register_queues(
    database: Database, queues: Sequence[str], limits: Sequence[QueueLimit], poll: float
) -> list[str]:
    """Create these queues and their subqueues; returns the names of all, subqueues that were
    created before included. Blocking."""
    with connect(database) as client:
        for queue in queues:
            client.register_queue(queue, poll=poll)
            for limit in limits:
                client.register_queue(subqueue(queue, limit.resource), limit, poll=poll)
        names = [name for queue in queues for name in [queue, *subqueues(client, queue)]]
        _report_other_formats(client, [name for name in names if queue_owner(name) is None])
        return names


def _report_other_formats(client: DatabaseClient, queues: Sequence[str]) -> None:
    """Log what waits on these queues of workers for a worker of another format."""
    if queues:
        waiting = client.list_workflows(queues=queues, states=("queued", "delayed"), limit=1000)
        left = Counter(row.format for row in waiting if row.format != JOURNAL)
        for format, count in sorted(left.items()):
            _log.warning(
                "%d tasks on the queues of this worker are stored in format %d, and this corral"
                " uses format %d: they are left for a worker of that format",
                count, format, JOURNAL,
            )  # fmt: skip


def remove_queue(database: Database, queue: str) -> None:
    """Delete an executor's own queue with its subqueues, unless something waits there.
    Blocking."""
    with connect(database) as client:
        names = [queue, *subqueues(client, queue)]
        if not client.list_workflows(queues=names, states=OPEN_STATES, limit=1):
            for name in names:
                client.delete_queue(name)


def subqueue(queue: str, resource: str) -> str:
    """The name of the subqueue for a limited resource."""
    return f"{queue}/{resource}"


def subqueues(client: DatabaseClient, queue: str) -> list[str]:
    """The names of the queue's subqueues."""
    return [name for name in client.queue_names() if name.startswith(queue + "/")]
