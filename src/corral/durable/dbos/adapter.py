"""The DBOS library, as workflows and executors use it: pinned, in its own thread and event loop.

Rules, each learned from an experiment:

* Every process is an executor with its own id; with the library's default id a process would
  start again what another process still runs.
* The application version is our protocol's number, never a hash of the source: editing a comment
  must not abandon runs.
* A workflow's calls are matched by position on replay: they are never run concurrently.
* Everything in the journal is JSON. Rows of another kind are neither written nor decoded.
* The library replaces the default executor of the loop that it runs in, so it gets its
  own loop and never uses the caller's.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeAlias, TypeVar
from uuid import uuid4

from corral.durable.dbos import database
from corral.errors import lacks_descriptors
from corral.system import clock, threads
from corral.values import Json

if TYPE_CHECKING:
    from sqlalchemy import Engine

INBOX = "inbox"
"""The topic of all messages to a run: outcomes, answers and cancellations, in order."""
RECEIVED = "DBOS.recv"
"""The name of the journal entry of a message that a workflow received."""

Workflow: TypeAlias = Callable[[dict[str, Json]], Coroutine[object, None, Json]]

UNREACHABLE = 5.0
"""Seconds until a database that was not reachable is tried again."""
_POOL = 10
"""Connections of a worker; with the library's 20 a small Postgres has room for four workers."""


def _quiet(_moment: str) -> None:
    """The default: does nothing."""


watch: Callable[[str], None] = _quiet
"""Called before and after each write to a journal; for tests that kill the process there."""
_enqueued: Callable[[str], None] = _quiet
"""Called with the queue of each workflow that was enqueued here."""

_workflows: dict[str, Workflow] = {}
_engines: list[Engine] = []
_is_closing = threading.Event()


# For executors.


def _is_news(record: logging.LogRecord) -> bool:
    """Whether to log it. These errors need no traceback: a cancelled workflow; a database that
    cannot be used, which the executor itself reports; a failed start, which is raised; a workflow
    that started while the library was being closed, which stays pending. Missing descriptors and
    threads are one line: they are not a defect, and the workflow has recorded them."""
    error = record.exc_info[1] if record.exc_info else None
    text = record.getMessage()
    unusable = database.is_unusable(error) or any(each in text for each in database.UNUSABLE)
    if error is not None and (lacks_descriptors(error) or threads.is_thread_limit(error)):
        record.msg, record.args, record.exc_info = f"{text} {error}", (), None
    closing = isinstance(error, RuntimeError) and "after shutdown" in str(error)
    raised = "failed to launch" in text
    return "Cancelled" not in type(error).__name__ and not (unusable or closing or raised)


def is_cancellation(error: BaseException) -> bool:
    """Whether the error says that the workflow was cancelled from outside."""
    from dbos import error as errors

    return isinstance(error, errors.DBOSWorkflowCancelledError)


class ForeignRow(Exception):
    """A row that corral did not write."""


def refuse_pickles() -> None:
    """The library decodes each row by the format that the row names, and decoding a pickle executes
    its content. All rows of corral are JSON, so in this process no pickle is decoded."""
    from dbos._serialization import DefaultSerializer

    def refuse(_self: object, _text: str) -> NoReturn:
        raise ForeignRow("a row of the database was not written by corral: it is a pickle")

    setattr(DefaultSerializer, "deserialize", refuse)  # noqa: B010 (a checker would complain)


def _use_one_loop() -> None:
    """The library starts a second event loop, for programs that launch it outside of one, and waits
    for ever for a loop that gets no descriptors. It is launched in a loop here (``launch``)."""
    from dbos._event_loop import BackgroundEventLoop

    setattr(BackgroundEventLoop, "start", BackgroundEventLoop.set_main_loop)  # noqa: B010


def _leave_out_unused_loops() -> None:
    """The library looks every second for schedules, and for workflows whose time is over; the
    latter locks a database file for other writers. corral has neither."""
    from dbos import _dbos  # pyright: ignore[reportPrivateUsage]

    def end(*_given: object) -> None:
        """In place of the loop of a thread."""

    for loop in ("dynamic_scheduler_loop", "workflow_timeout_thread"):
        setattr(_dbos, loop, end)


def launch(
    url: str,
    *,
    executor: str,
    workflows: Mapping[str, tuple[Workflow, int]],
    queues: Sequence[str],
    poll: float,
    on_unusable: Callable[[BaseException], None] | None = None,
    shared: Sequence[str] | None = None,
) -> None:
    """Start to run workflows of these queues, in the running loop. ``workflows``: name ->
    (function, how often it is started again after a crash). ``on_unusable`` is called when
    the database cannot be written or opened any more. ``shared``: those queues with a limit for all
    workers together; None if no other process uses the queues."""
    global _enqueued  # noqa: PLW0603
    database.require()
    refuse_pickles()
    _use_one_loop()
    _leave_out_unused_loops()
    _is_closing.clear()
    from dbos import DBOS, DBOSConfig
    from dbos._serialization import DBOSPortableJSON

    config: DBOSConfig = {
        "name": database.APPLICATION,
        "system_database_url": url,
        "application_version": str(database.PROTOCOL),
        "executor_id": executor,
        "serializer": DBOSPortableJSON,
        "log_level": "ERROR",
        "notification_listener_polling_interval_sec": poll,
    }
    engine = config["system_database_engine"] = database.open_engine(url, _POOL, on_unusable)
    _engines.append(engine)
    instance = DBOS(config=config)
    _enqueued = _quiet
    if shared is not None:
        from corral.durable.dbos import queue_wakeups

        queue_wakeups.install(instance, shared=shared)
        _enqueued = queue_wakeups.enqueued
    logging.getLogger("dbos").addFilter(_is_news)
    for name, (function, recoveries) in workflows.items():
        _workflows[name] = DBOS.workflow(name=name, max_recovery_attempts=recoveries)(function)
    DBOS.listen_queues(queues)
    DBOS.launch()


def stop_workflows() -> None:
    """From now on each call of a workflow raises ``CancelledError``, so the workflow stays pending.
    An ordinary error, such as the library's own about its missing thread pool, would be recorded
    as the result of the workflow."""
    _is_closing.set()


def close() -> None:
    """Blocking, about a second. Workflows that still run stay pending until they are recovered."""
    from dbos import DBOS

    stop_workflows()
    if _enqueued is not _quiet:
        from corral.durable.dbos import queue_wakeups

        queue_wakeups.close()
    DBOS.destroy(destroy_registry=True)
    _workflows.clear()
    while _engines:
        database.close_engine(_engines.pop())


def recover(executor: str) -> int:
    """Put the workflows of a dead executor back on their queues; their recoveries are counted. The
    caller holds the executor's lease. This is the only private call of the library: its public
    substitute resets the count, and a workflow that kills its worker would loop for ever."""
    from dbos import DBOS

    recover_pending = DBOS._recover_pending_workflows  # pyright: ignore[reportPrivateUsage]
    recovered = len(recover_pending([executor]))
    if recovered and _enqueued is not _quiet:
        from corral.durable.dbos import queue_wakeups

        queue_wakeups.recovered()
    return recovered


# For workflows. Each call is recorded once, and replayed by its position.


P = ParamSpec("P")
T = TypeVar("T")


def _unless_closing(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[None, None, T]]:
    """See ``stop_workflows``."""

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if _is_closing.is_set():
            raise asyncio.CancelledError
        try:
            return await function(*args, **kwargs)
        except Exception:
            if _is_closing.is_set():
                raise asyncio.CancelledError from None
            raise

    return call


@_unless_closing
async def enqueue(name: str, workflow_id: str, queue: str, payload: dict[str, Json]) -> None:
    from dbos import DBOS, SetWorkflowID

    watch(f"before enqueue {workflow_id}")
    with SetWorkflowID(workflow_id):
        handle = await DBOS.enqueue_workflow_async(queue, _workflows[name], payload)
    if handle.get_workflow_id() != workflow_id:
        # The journal has another call at this position: results would be mixed up.
        raise RuntimeError(
            f"replay started {workflow_id}, but the journal has {handle.get_workflow_id()}"
        )
    watch(f"after enqueue {workflow_id}")
    _enqueued(queue)


async def enqueue_all(
    name: str, parent: str, workflows: Mapping[str, tuple[str, dict[str, Json]]]
) -> None:
    """Enqueue workflows of the workflow ``parent`` in one transaction and one step. ``workflows``:
    id -> (queue, payload). Those that exist stay as they are."""
    ids: list[Json] = [*workflows]

    async def insert() -> Json:
        await asyncio.to_thread(_insert, name, parent, workflows)
        return ids

    recorded = await step("enqueue", insert)
    if recorded != ids:
        # The journal has another call at this position: results would be mixed up.
        raise RuntimeError(f"replay started {ids}, but the journal has {recorded}")
    for queue in dict.fromkeys(queue for queue, _ in workflows.values()):
        _enqueued(queue)


def _insert(name: str, parent: str, workflows: Mapping[str, tuple[str, dict[str, Json]]]) -> None:
    """The library has no call that enqueues several workflows of a parent."""
    from dbos._dbos import _get_dbos_instance  # pyright: ignore[reportPrivateUsage]
    from dbos._enqueue_options import EnqueueOptions, build_enqueue_status
    from dbos._serialization import DBOSPortableJSON

    library = _get_dbos_instance()._sys_db  # pyright: ignore[reportPrivateUsage]
    with _engines[-1].begin() as transaction:
        for workflow_id, (queue, payload) in workflows.items():
            options: EnqueueOptions = {
                "workflow_name": name,
                "workflow_id": workflow_id,
                "queue_name": queue,
                "app_version": str(database.PROTOCOL),
            }
            _, status = build_enqueue_status(options, DBOSPortableJSON, (payload,), {})
            status["parent_workflow_id"] = parent
            status["application_name"] = database.APPLICATION
            library.init_workflow_with_connection(status, transaction, creator_xid=uuid4().hex)


@_unless_closing
async def step(
    name: str, function: Callable[[], Awaitable[Json]], *, preemptible: bool = False
) -> Json:
    """The recorded result of the function. ``preemptible``: it is cancelled within about a second
    after its workflow is."""
    from dbos import DBOS

    async def run() -> Json:
        result = await function()
        watch(f"before step {name}")
        return result

    result: Json = await DBOS.run_step_async({"name": name, "preemptible": preemptible}, run)
    watch(f"after step {name}")
    return result


@_unless_closing
async def sleep(seconds: float) -> None:
    """Sleep until a time that is recorded, so a restart does not extend it."""
    from dbos import DBOS

    watch("before sleep")
    await DBOS.sleep_async(seconds)
    watch("after sleep")


@_unless_closing
async def leave_until(until: float) -> None:
    """Return if this time, in seconds since the epoch, has come. Else leave the workflow to the
    executor that takes it then (``delays``): it replays the workflow up to this call. Not
    recorded."""
    from dbos import DBOS
    from sqlalchemy.exc import DBAPIError

    from corral.durable.dbos import delays

    while (left := until - clock.now()) > 0:
        watch("before leaving")
        put_back = functools.partial(
            delays.put_back, _engines[-1], str(DBOS.workflow_id), DBOS.executor_id, until
        )
        try:
            await asyncio.to_thread(put_back)
        except DBAPIError:  # it is not reachable: the workflow waits here
            await asyncio.sleep(min(left, UNREACHABLE))
            continue
        watch("after leaving")
        raise asyncio.CancelledError


@_unless_closing
async def send(workflow_id: str, message: Json, *, key: str) -> None:
    """Send a message to a workflow's inbox, once per key."""
    from dbos import DBOS

    watch(f"before send {key}")
    await DBOS.send_async(workflow_id, message, INBOX, idempotency_key=key)
    watch(f"after send {key}")


@_unless_closing
async def receive(timeout: float) -> Json:
    """The next message of this workflow's inbox; None after the timeout."""
    from dbos import DBOS

    watch("before recv")
    message: Json = await DBOS.recv_async(INBOX, timeout)
    watch("after recv")
    return message


@_unless_closing
async def has_mail(workflow_id: str) -> bool:
    """Whether a message waits in the workflow's inbox. Only within a step."""
    find = functools.partial(database.has_unread_message, _engines[-1], workflow_id, INBOX)
    return await asyncio.to_thread(find)


@_unless_closing
async def publish(key: str, value: Json) -> None:
    """Publish a value for readers outside this workflow."""
    from dbos import DBOS

    watch(f"before publish {key}")
    await DBOS.set_event_async(key, value)
    watch(f"after publish {key}")


@_unless_closing
async def label(workflow_id: str, labels: dict[str, Json]) -> None:
    """Set labels of a workflow, for lists: they are read without decoding inputs or outputs."""
    from dbos import DBOS

    watch("before label")
    await DBOS.update_workflow_attributes_async(workflow_id, labels, merge=True)
    watch("after label")


@_unless_closing
async def cancel(workflow_ids: list[str]) -> None:
    """Cancel workflows with all that they started."""
    from dbos import DBOS

    watch("before cancel")
    await DBOS.cancel_workflows_async(workflow_ids, cancel_children=True)
    watch("after cancel")


@_unless_closing
async def states(workflow_ids: list[str]) -> dict[str, database.State]:
    """Only within a step: the result is not JSON and cannot be recorded itself."""
    from dbos import DBOS

    found = await DBOS.list_workflows_async(
        workflow_ids=workflow_ids, load_input=False, load_output=False
    )
    return {status.workflow_id: status.status for status in found}


@_unless_closing
async def input_of(workflow_id: str) -> Json:
    """The input of another workflow. Only within a step."""
    from dbos import DBOS

    found = await DBOS.list_workflows_async(workflow_ids=[workflow_id], load_output=False)
    if not found or not found[0].input:
        raise LookupError(f"the run {workflow_id} was deleted")
    first: Json = found[0].input["args"][0]
    return first


@_unless_closing
async def published(workflow_id: str, key: str) -> Json:
    """The value that another workflow published last, or None. Only within a step."""
    from dbos import DBOS

    value: Json = await DBOS.get_event_async(workflow_id, key, 0)
    return value
