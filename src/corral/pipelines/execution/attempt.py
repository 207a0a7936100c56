"""One attempt of a node: call its handler within its time limit, and write its files.

Whatever a handler does, ``attempt`` returns an ``Outcome`` of JSON values. It raises only if the
attempt itself is cancelled. ``scheduler.retry`` decides whether there is another attempt.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import threading
import traceback
from asyncio import tasks
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast

import msgspec

from corral.errors import CorralError, StorageFailed
from corral.events import Error, Event, from_json, to_json
from corral.pipelines import node_kinds
from corral.pipelines.execution import handlers, node_dir, verdict
from corral.pipelines.execution import resources as node_resources
from corral.pipelines.execution.error_mapping import outcome_of_error
from corral.pipelines.execution.handlers import Handler, NodeContext
from corral.pipelines.execution.resources import NodeResources
from corral.pipelines.scheduler.outcome import Outcome, failed, not_json
from corral.system import fs
from corral.system.environment import SecretRedactor
from corral.values import Json

ENDING = 10.0
"""Seconds that a cancelled handler has to end. After that it is abandoned."""

T = TypeVar("T")
_log = logging.getLogger("corral.pipelines")


async def invoke_handler(handler: Handler, work: NodeContext, limit: float | None) -> object:
    """What the handler returns; what it raises becomes an outcome. Raises only ``CancelledError``,
    if this attempt was cancelled."""
    try:
        if limit is None:
            return await _call_handler(handler, work)
        return await _call_with_timeout(_call_handler(handler, work), limit, work)
    except asyncio.CancelledError:
        _raise_if_cancelled()
        return failed(f"the handler of {work.node.kind!r} cancelled itself")


async def _call_handler(handler: Handler, work: NodeContext) -> object:
    """Catches everything: ``SystemExit`` in a task would end the loop and all other runs. Only
    ``KeyboardInterrupt`` in the main thread passes: that is the user's Ctrl-C."""
    try:
        return await handler(work)
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except CorralError as error:
        return outcome_of_error(error)
    except BaseException as error:
        in_main = threading.current_thread() is threading.main_thread()
        if isinstance(error, KeyboardInterrupt) and in_main:
            raise
        with suppress(StorageFailed):  # the reason is in the outcome all the same
            node_resources.write_node_file(work, "error.txt", traceback.format_exc())
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        return failed(f"the handler of {work.node.kind!r} raised {said}")


async def _call_with_timeout(
    running: Coroutine[Any, Any, object], limit: float, work: NodeContext
) -> object:
    """Run it as its own task: a handler that ignores cancellation must not block the run."""
    spare = node_kinds.find(work.node.kind).timeout_margin
    task = asyncio.ensure_future(running)
    try:
        done, _ = await asyncio.wait({task}, timeout=limit + spare)
    except asyncio.CancelledError:
        task.cancel()
        await end(task, work.node.id, work.run_id)
        raise
    if done:
        return task.result()
    task.cancel()
    ended = await _wait_cancelled(task, ENDING)
    _raise_if_cancelled()
    left = "" if ended else "; it did not stop and was abandoned"
    return failed(
        f"{work.node.id} did not end within its timeout of {limit:g}s{left}",
        failure_class="timeout",
    )


async def bounded(running: Coroutine[Any, Any, T], node: str, run_id: str) -> T:
    """Run as its own task, so that this call returns after a cancellation in any case."""
    task = asyncio.ensure_future(running)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            if not task.cancelling():  # twice would break off what it does to end in order
                task.cancel()
            await end(task, node, run_id)
        raise


async def end(task: asyncio.Task[Any], node: str, run_id: str, seconds: float | None = None) -> str:
    """Wait for a cancelled task. One that does not end is abandoned; returns a message that says
    whose it was."""
    seconds = ENDING if seconds is None else seconds
    if await _wait_cancelled(task, seconds):
        return ""
    said = (
        f"node {node!r} of {run_id} did not stop within {seconds:g} s of being cancelled and was"
        " abandoned: its code must let CancelledError pass"
    )
    _log.warning(said)
    return said


async def _wait_cancelled(task: asyncio.Task[Any], seconds: float) -> bool:
    """Whether a cancelled task ends in time. One that does not is closed where it waits, because a
    closing loop would wait for it forever."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not task.done() and (left := until - loop.time()) > 0:
        with suppress(asyncio.CancelledError):  # told twice: then too it has this time
            await asyncio.wait({task}, timeout=left)
    if task.done():
        _retrieve_exception(task)
        return True
    task.add_done_callback(_retrieve_exception)
    with suppress(RuntimeError):  # it will not hear of that either
        task.get_coro().close()
    task.cancel()
    for _ in range(3):  # it takes the loop a few rounds to see that
        await asyncio.sleep(0)
    if not task.done():
        tasks._unregister_task(task)
    return False


def _raise_if_cancelled() -> None:
    """Raises ``CancelledError`` if the current task was cancelled."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # nobody else will ask, and the loop would complain


LARGEST = 1024 * 1024
"""Bytes of an outcome: it is written to the journal and passed to every later node."""
AUTO_STATUS = "auto-status: handler completed without writing status"

_NO_SECRETS = SecretRedactor({})


async def attempt(work: NodeContext) -> Outcome:
    """Run the node once."""
    redactor = _NO_SECRETS
    if isinstance(work.resources, NodeResources):
        work.resources.add_secrets_of(work.graph)
        redactor = work.resources.redactor
    work = dataclasses.replace(work, emit=_redacting(work.emit, redactor))
    try:
        handler = handlers.for_node(work.node)
        limit = work.node.seconds("timeout")
        if work.keeps:
            node_dir.clear(work.folder)
    except CorralError as error:
        return outcome_of_error(error)
    except ValueError as error:
        return failed(f"timeout: {error}", retryable=False)
    except OSError as error:
        return failed(f"the node's folder cannot be written: {error}")
    if not work.keeps:
        told = await invoke_handler(handler, work, limit)
        outcome = _with_label_checked(work, _validate_outcome(told, work.node.kind))
        return _check_size(work, outcome, redactor)
    diary = node_dir.AgentEventLog(work.folder, redactor, work.emit)
    try:
        told = await invoke_handler(handler, dataclasses.replace(work, emit=diary.emit), limit)
    finally:
        diary.close()
    outcome = _validate_outcome(told, work.node.kind)
    if outcome.ok or outcome.verdict_by:
        outcome = _with_label_checked(work, _with_its_own_status(work, outcome))
    return _write_status(work, _check_size(work, outcome, redactor))


def _redacting(emit: Callable[[Event], None], redactor: SecretRedactor) -> Callable[[Event], None]:
    """``emit``, with secrets redacted from each event."""

    def redacted(event: Event) -> None:
        line = to_json(event)
        clean = redactor.clean(line)
        emit(event if clean is line or clean == line else from_json(clean))

    return redacted


def _validate_outcome(told: object, kind: str) -> Outcome:
    """The outcome if its types are right, else a failed one that says what is wrong."""
    if told is None:
        return Outcome()
    if not isinstance(told, Outcome):
        return failed(
            f"the handler of {kind!r} returned a {type(told).__name__}, not an Outcome",
            retryable=False,
        )
    updates = cast("object", told.context_updates)
    if not isinstance(updates, dict):
        return failed(
            f"the handler of {kind!r}: context_updates is a {type(updates).__name__}, no dict",
            retryable=False,
        )
    for key, value in cast("dict[object, object]", updates).items():
        if not isinstance(key, str):
            return failed(f"the handler of {kind!r}: a context key is no text: {key!r}")
        if wrong := not_json(value):
            return failed(
                f"the handler of {kind!r} put into the context what is no JSON: {key!r} {wrong}",
                retryable=False,
            )
    try:
        return msgspec.convert(msgspec.to_builtins(told), Outcome)
    except (msgspec.ValidationError, TypeError) as error:
        return failed(f"the handler of {kind!r} returned no outcome: {error}", retryable=False)


def _with_its_own_status(work: NodeContext, outcome: Outcome) -> Outcome:
    """What the node's agent or command wrote into ``status.json`` is its report, unless it made
    one by the tool."""
    if outcome.verdict_by == "tool":
        return outcome
    try:
        reported = node_dir.read_status(work.folder)
    except ValueError as error:
        return failed(f"{work.node.id} wrote no valid status: {error}")
    if reported is None:
        if work.node.is_true("auto_status") and not outcome.notes:
            return msgspec.structs.replace(outcome, notes=AUTO_STATUS)
        return outcome
    return verdict.apply_verdict(outcome, reported, work.node.id, "file")


def _with_label_checked(work: NodeContext, outcome: Outcome) -> Outcome:
    """A label that no edge has is a warning in the events and the notes: it must not pass for a
    choice that was made."""
    wrong = outcome.verdict_by and verdict.unknown_label(
        work.graph, work.node, outcome.preferred_label
    )
    if not wrong:
        return outcome
    work.emit(Error("unknown_label", f"{work.node.id}: {wrong}", recoverable=True, level="warning"))
    notes = f"{outcome.notes}; {wrong}" if outcome.notes else wrong
    return msgspec.structs.replace(outcome, notes=notes)


def _check_size(work: NodeContext, outcome: Outcome, redactor: SecretRedactor) -> Outcome:
    """The outcome, cleaned of secrets; a failed one in place of one that is too large."""
    whole = msgspec.json.encode(outcome)
    if len(whole) > LARGEST:
        sizes: dict[str, Json] = outcome.context_updates
        most = max(sizes, key=lambda key: len(msgspec.json.encode(sizes[key])), default="notes")
        return failed(
            f"the outcome of {work.node.id} has {len(whole):,} bytes, over {LARGEST:,}:"
            f" most of it in {most!r}; put it into a file and its name into the context",
            retryable=False,
        )
    clean = redactor.clean(whole)
    return outcome if clean == whole else msgspec.json.decode(clean, type=Outcome)


def _write_status(work: NodeContext, outcome: Outcome) -> Outcome:
    """The outcome, and beside it ``status.json``."""
    try:
        data = msgspec.json.format(msgspec.json.encode(node_dir.status_json(outcome)), indent=2)
        fs.write_atomically(f"{work.folder}{os.sep}{node_dir.STATUS}", data, mode=0o666)
    except OSError as error:
        # What the node did is done, and paid for: a full disk must not undo it.
        said = f"status.json could not be written: {error.strerror}"
        notes = f"{outcome.notes}; {said}" if outcome.notes else said
        return msgspec.structs.replace(outcome, notes=notes)
    return outcome
