"""One attempt of a node: its handler, its time, its files, and always an outcome.

Whatever a handler does, ``attempt`` returns an ``Outcome`` that is JSON all through; only a
cancellation of the attempt itself passes. Whether there is another attempt is not decided
here.
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
from corral.events import Error, Event, Json, from_json, to_json
from corral.pipelines import node_kinds
from corral.pipelines.execution import handlers, node_dir, verdict
from corral.pipelines.execution import resources as desks
from corral.pipelines.execution.error_mapping import outcome_of
from corral.pipelines.execution.handlers import Handler, NodeContext
from corral.pipelines.execution.resources import NodeResources
from corral.pipelines.json_values import not_json
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.system import fs
from corral.system.environment import SecretRedactor

ENDING = 10.0
"""Seconds that a handler has to end once it is cancelled. What is still at work then is broken
off: nobody waits for it."""

T = TypeVar("T")
_log = logging.getLogger("corral.pipelines")


async def invoke_handler(handler: Handler, work: NodeContext, limit: float | None) -> object:
    """What the handler returns, and what it raises as an outcome. Only a cancellation of ours
    passes."""
    try:
        if limit is None:
            return await _called(handler, work)
        return await _in_time(_called(handler, work), limit, work)
    except asyncio.CancelledError:
        _pass_on()
        return failed(f"the handler of {work.node.kind!r} cancelled itself")


async def _called(handler: Handler, work: NodeContext) -> object:
    """Whatever it raises: an exit in a task would end the loop, and with it all other runs. Only
    a person's Ctrl-C, which comes to the main thread, is not the handler's."""
    try:
        return await handler(work)
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except CorralError as error:
        return outcome_of(error)
    except BaseException as error:
        in_main = threading.current_thread() is threading.main_thread()
        if isinstance(error, KeyboardInterrupt) and in_main:
            raise
        with suppress(StorageFailed):  # the reason is in the outcome all the same
            desks.keep(work, "error.txt", traceback.format_exc())
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        return failed(f"the handler of {work.node.kind!r} raised {said}")


async def _in_time(running: Coroutine[Any, Any, object], limit: float, work: NodeContext) -> object:
    """A task of its own: a handler that will not be cancelled must not hold the run."""
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
    ended = await _ended(task, ENDING)
    _pass_on()
    left = "" if ended else "; it would not end, and was broken off"
    return failed(
        f"{work.node.id} did not end within its timeout of {limit:g}s{left}",
        failure_class="timeout",
    )


async def bounded(running: Coroutine[Any, Any, T], node: str, run_id: str) -> T:
    """What it returns, in a task of its own: when this is cancelled, it returns in any case."""
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
    """The run will have no more of this, which has been cancelled. What does not end is broken
    off, and in words it is said whose it was: what it does from now on nobody sees."""
    seconds = ENDING if seconds is None else seconds
    if await _ended(task, seconds):
        return ""
    said = (
        f"node {node!r} of {run_id} did not stop within {seconds:g} s of being cancelled, and was"
        " broken off: what works at it must let CancelledError pass"
    )
    _log.warning(said)
    return said


async def _ended(task: asyncio.Task[Any], seconds: float) -> bool:
    """Whether it ends, cancelled, within a bounded time. One that does not is broken off where
    it waits: a loop that is to end would wait for it for ever."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not task.done() and (left := until - loop.time()) > 0:
        with suppress(asyncio.CancelledError):  # told twice: then too it has this time
            await asyncio.wait({task}, timeout=left)
    if task.done():
        _seen(task)
        return True
    task.add_done_callback(_seen)
    with suppress(RuntimeError):  # it will not hear of that either
        task.get_coro().close()
    task.cancel()
    for _ in range(3):  # it takes the loop a few rounds to see that
        await asyncio.sleep(0)
    if not task.done():
        tasks._unregister_task(task)
    return False


def _pass_on() -> None:
    """Raises ``CancelledError`` where it is we who were cancelled."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # nobody else will ask, and the loop would complain


LARGEST = 1024 * 1024
"""Bytes of an outcome: it is journalled, and goes along with every later node."""
AUTO_STATUS = "auto-status: handler completed without writing status"

_NO_SECRETS = SecretRedactor({})


async def attempt(work: NodeContext) -> Outcome:
    """Run the node once. See the module for what is promised."""
    eraser = _NO_SECRETS
    if isinstance(work.desk, NodeResources):
        work.desk.know(work.graph)
        eraser = work.desk.eraser
    work = dataclasses.replace(work, emit=_redacting(work.emit, eraser))
    try:
        handler = handlers.for_node(work.node)
        limit = work.node.seconds("timeout")
        if work.keeps:
            node_dir.clear(work.folder)
    except CorralError as error:
        return outcome_of(error)
    except ValueError as error:
        return failed(f"timeout: {error}", retryable=False)
    except OSError as error:
        return failed(f"the node's folder cannot be written: {error}")
    if not work.keeps:
        told = await invoke_handler(handler, work, limit)
        outcome = _with_label_checked(work, _checked(told, work.node.kind))
        return _small(work, outcome, eraser)
    diary = node_dir.AgentEventLog(work.folder, eraser, work.emit)
    try:
        told = await invoke_handler(handler, dataclasses.replace(work, emit=diary.emit), limit)
    finally:
        diary.close()
    outcome = _checked(told, work.node.kind)
    if outcome.ok or outcome.verdict_by:
        outcome = _with_label_checked(work, _with_its_own_status(work, outcome))
    return _written(work, _small(work, outcome, eraser))


def _redacting(emit: Callable[[Event], None], eraser: SecretRedactor) -> Callable[[Event], None]:
    """``emit``, which never hears of a secret."""

    def redacted(event: Event) -> None:
        line = to_json(event)
        clean = eraser.clean(line)
        emit(event if clean is line or clean == line else from_json(clean))

    return redacted


def _checked(told: object, kind: str) -> Outcome:
    """An outcome of the right types, or a failed one that says what is wrong with it."""
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
    return verdict.applied(outcome, reported, work.node.id, "file")


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


def _small(work: NodeContext, outcome: Outcome, eraser: SecretRedactor) -> Outcome:
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
    clean = eraser.clean(whole)
    return outcome if clean == whole else msgspec.json.decode(clean, type=Outcome)


def _written(work: NodeContext, outcome: Outcome) -> Outcome:
    """The outcome, and beside it ``status.json``."""
    try:
        data = msgspec.json.format(msgspec.json.encode(node_dir.status_of(outcome)), indent=2)
        fs.write_atomically(f"{work.folder}{os.sep}{node_dir.STATUS}", data, mode=0o666)
    except OSError as error:
        # What the node did is done, and paid for: a full disk must not undo it.
        said = f"status.json could not be written: {error.strerror}"
        notes = f"{outcome.notes}; {said}" if outcome.notes else said
        return msgspec.structs.replace(outcome, notes=notes)
    return outcome
