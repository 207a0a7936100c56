"""The DBOS library, as workflows and executors use it: pinned, in its own thread and event loop.

Rules, each learned from an experiment:

* Every process is an executor with its own id; with the library's default id a process would
  start again what another process still runs.
* The application version is the number of our format, never a hash of the source: editing a
  comment must not abandon runs. The library takes and recovers only workflows of its version, so
  workers of several formats share a queue.
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
from json import JSONDecodeError
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from corral._core import stored_formats
from corral._engine.dbos import connections, database, private_calls
from corral._engine.dbos.database import State, from_library
from corral._system import clock, threads
from corral.errors import ConfigError, ReplayMismatch, lacks_descriptors
from corral.values import Json

if TYPE_CHECKING:
    from dbos import DBOS
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

_workflows: dict[str, Workflow] = {}
_engines: list[Engine] = []
_is_closing = threading.Event()


# For executors.


def _is_news(record: logging.LogRecord) -> bool:
    """Whether to log it. These errors need no traceback: a cancelled workflow; a database that
    cannot be used, which the executor itself reports; a failed start, which is raised; a workflow
    that started while the library was being closed, which stays pending. Missing descriptors and
    threads, records that cannot be read, and workflow files that cannot be imported here, are one
    line: they are not a defect, and the workflow has recorded them."""
    error = record.exc_info[1] if record.exc_info else None
    text = record.getMessage()
    unusable = connections.is_unusable(error) or any(each in text for each in connections.UNUSABLE)
    if error is not None and (
        lacks_descriptors(error) or threads.is_thread_limit(error) or _is_of_a_run(error)
    ):
        record.msg, record.args, record.exc_info = f"{text} {error}", (), None
    closing = isinstance(error, RuntimeError) and "after shutdown" in str(error)
    raised = "failed to launch" in text or "Error connecting to" in text
    return "Cancelled" not in type(error).__name__ and not (unusable or closing or raised)


def _is_of_a_run(error: BaseException) -> bool:
    """Whether a record could not be read, by corral or by the library, or a program not be run."""
    from dbos import error as errors

    kinds = (
        ConfigError,
        ReplayMismatch,
        JSONDecodeError,
        RecursionError,
        UnicodeError,
        errors.DBOSUnexpectedStepError,
    )
    return isinstance(error, kinds)


def set_up_log() -> None:
    """Of the library's messages only errors are logged, unless corral reports them itself."""
    logger = logging.getLogger("dbos")
    logger.setLevel("ERROR")
    logger.addFilter(_is_news)


def is_cancellation(error: BaseException) -> bool:
    """Whether the error says that the workflow was cancelled from outside."""
    from dbos import error as errors

    return isinstance(error, errors.DBOSWorkflowCancelledError)


def launch(
    url: str,
    *,
    executor: str,
    workflows: Mapping[str, tuple[Workflow, int]],
    queues: Sequence[str],
    poll: float,
    on_unusable: Callable[[BaseException], None] | None = None,
) -> None:
    """Start to run workflows of these queues, in the running loop. ``workflows``: name ->
    (function, how often it is started again after a crash). ``on_unusable`` is called when
    the database cannot be written or opened any more. If it fails, ``close`` is still needed: the
    library's one instance, half started, would refuse every other launch."""
    database.require()
    _is_closing.clear()
    from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer

    config: DBOSConfig = {
        "name": database.APPLICATION,
        "system_database_url": url,
        "application_version": stored_formats.journal_name(),
        "executor_id": executor,
        "serializer": DBOSPortableJSONSerializer(),
        "log_level": "ERROR",
        "notification_listener_polling_interval_sec": poll,
        "scheduler_polling_interval_sec": 3600.0,  # corral has no schedules
    }
    engine = config["system_database_engine"] = connections.open_engine(url, _POOL, on_unusable)
    _engines.append(engine)
    DBOS(config=config)
    set_up_log()
    for name, (function, recoveries) in workflows.items():
        _workflows[name] = DBOS.workflow(name=name, max_recovery_attempts=recoveries)(function)
    DBOS.listen_queues(queues)
    # The library starts a second event loop, for workflows that are started outside of this one.
    # Without descriptors for it the launch would not end.
    threads.check_descriptors()
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
    DBOS.destroy(destroy_registry=True)
    _workflows.clear()
    while _engines:
        connections.close_engine(_engines.pop())


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


def _library() -> type[DBOS]:
    """It is imported when the first workflow runs: it takes longer than everything else."""
    from dbos import DBOS

    return DBOS


def workflow_id() -> str:
    """The id of the workflow that calls this."""
    return str(_library().workflow_id)


@_unless_closing
async def enqueue(name: str, workflow_id: str, queue: str, payload: dict[str, Json]) -> None:
    from dbos import SetWorkflowID

    watch(f"before enqueue {workflow_id}")
    with SetWorkflowID(workflow_id):
        handle = await _library().enqueue_workflow_async(queue, _workflows[name], payload)
    if handle.get_workflow_id() != workflow_id:
        # The journal has another call at this position: results would be mixed up.
        raise RuntimeError(
            f"replay started {workflow_id}, but the journal has {handle.get_workflow_id()}"
        )
    watch(f"after enqueue {workflow_id}")


@_unless_closing
async def step(
    name: str, function: Callable[[], Awaitable[Json]], *, preemptible: bool = False
) -> Json:
    """The recorded result of the function. ``preemptible``: it is cancelled within about a second
    after its workflow is."""

    async def run() -> Json:
        result = await function()
        watch(f"before step {name}")
        return result

    result: Json = await _library().run_step_async({"name": name, "preemptible": preemptible}, run)
    watch(f"after step {name}")
    return result


@_unless_closing
async def sleep(seconds: float) -> None:
    """Sleep until a time that is recorded, so a restart does not extend it."""
    watch("before sleep")
    await _library().sleep_async(seconds)
    watch("after sleep")


@_unless_closing
async def leave_until(until: float) -> None:
    """Return if this time, in seconds since the epoch, has come. Else leave the workflow to the
    executor that takes it then (``put_back``): it replays the workflow up to this call. Not
    recorded."""
    from sqlalchemy.exc import DBAPIError

    while (left := until - clock.now()) > 0:
        watch("before leaving")
        put_back = functools.partial(
            private_calls.put_back,
            _engines[-1],
            str(_library().workflow_id),
            _library().executor_id,
            until,
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
    watch(f"before send {key}")
    await _library().send_async(workflow_id, message, INBOX, idempotency_key=key)
    watch(f"after send {key}")


@_unless_closing
async def receive(timeout: float) -> Json:
    """The next message of this workflow's inbox; None after the timeout."""
    watch("before recv")
    message: Json = await _library().recv_async(INBOX, timeout)
    watch("after recv")
    return message


@_unless_closing
async def has_mail(workflow_id: str) -> bool:
    """Whether a message waits in the workflow's inbox. Only within a step."""
    find = functools.partial(private_calls.has_unread_message, _engines[-1], workflow_id, INBOX)
    return await asyncio.to_thread(find)


@_unless_closing
async def publish(key: str, value: Json) -> None:
    """Publish a value for readers outside this workflow."""
    watch(f"before publish {key}")
    await _library().set_event_async(key, value)
    watch(f"after publish {key}")


@_unless_closing
async def label(workflow_id: str, labels: dict[str, Json]) -> None:
    """Set labels of a workflow, for lists: they are read without decoding inputs or outputs."""
    watch("before label")
    await _library().update_workflow_attributes_async(workflow_id, labels, merge=True)
    watch("after label")


@_unless_closing
async def cancel(workflow_ids: list[str]) -> None:
    """Cancel workflows with all that they started."""
    watch("before cancel")
    await _library().cancel_workflows_async(workflow_ids, cancel_children=True)
    watch("after cancel")


@_unless_closing
async def states(workflow_ids: list[str]) -> dict[str, State]:
    """Only within a step: the result is not JSON and cannot be recorded itself."""
    found = await _library().list_workflows_async(
        workflow_ids=workflow_ids, load_input=False, load_output=False
    )
    return {status.workflow_id: from_library(status.status) for status in found}


@_unless_closing
async def input_of(workflow_id: str) -> Json:
    """The input of another workflow. Only within a step."""
    found = await _library().list_workflows_async(workflow_ids=[workflow_id], load_output=False)
    if not found or not found[0].input:
        raise database.UnreadableRecord(f"the run {workflow_id!r} was deleted")
    with database.reading(workflow_id):
        first: Json = found[0].input["args"][0]
    return first


@_unless_closing
async def published(workflow_id: str, key: str) -> Json:
    """The value that another workflow published last, or None. Only within a step."""
    value: Json = await _library().get_event_async(workflow_id, key, 0)
    return value
