"""One attempt of a node: its handler, its time, its files, and always an outcome.

Whatever a handler does, ``attempt`` returns an ``Outcome`` that is JSON all through; only a
cancellation of the attempt itself passes. Whether there is another attempt is not decided
here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, cast

import msgspec

from corral.errors import CorralError
from corral.events import Json
from corral.io.environment import Eraser
from corral.pipelines import desk as desks
from corral.pipelines import handlers, stage
from corral.pipelines.desk import Desk
from corral.pipelines.failures import outcome_of
from corral.pipelines.handlers import Handler, Work
from corral.pipelines.json_values import not_json
from corral.pipelines.outcome import Outcome, failed

ENDING = 10.0
"""Seconds that a handler has to end once it is cancelled. What is still at work then is broken
off: nobody waits for it."""
LARGEST = 1024 * 1024
"""Bytes of an outcome: it is journalled, and goes along with every later node."""
AUTO_STATUS = "auto-status: handler completed without writing status"

_NO_SECRETS = Eraser({})


async def attempt(work: Work) -> Outcome:
    """Run the node once. See the module for what is promised."""
    eraser = work.desk.eraser if isinstance(work.desk, Desk) else _NO_SECRETS
    try:
        handler = handlers.find(work.node.kind)
        limit = work.node.seconds("timeout")
        if work.keeps:
            stage.clear(work.folder)
    except CorralError as error:
        return outcome_of(error)
    except ValueError as error:
        return failed(f"timeout: {error}", retryable=False)
    except OSError as error:
        return failed(f"the node's folder cannot be written: {error}")
    if not work.keeps:
        told = await _told(handler, work, limit)
        return _small(work, _checked(told, work.node.kind), eraser)
    diary = stage.Diary(work.folder, eraser, work.emit)
    try:
        told = await _told(handler, dataclasses.replace(work, emit=diary.emit), limit)
    finally:
        diary.close()
    outcome = _checked(told, work.node.kind)
    if outcome.ok:
        outcome = _with_its_own_status(work, outcome)
    return _written(work, _small(work, outcome, eraser))


async def _told(handler: Handler, work: Work, limit: float | None) -> object:
    """What the handler returns, and what it raises as an outcome."""
    try:
        if limit is None:
            return await _called(handler, work)
        return await _in_time(_called(handler, work), limit, work)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return failed(f"the handler of {work.node.kind!r} cancelled itself")


async def _called(handler: Handler, work: Work) -> object:
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
        with suppress(OSError):  # the reason is in the outcome all the same
            desks.keep(work, "error.txt", traceback.format_exc())
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        return failed(f"the handler of {work.node.kind!r} raised {said}")


async def _in_time(running: Coroutine[Any, Any, object], limit: float, work: Work) -> object:
    """A task of its own: a handler that will not be cancelled must not hold the run."""
    spare = OWN_CLOCK.get(work.node.kind, 0.0)
    task = asyncio.ensure_future(running)
    try:
        done, _ = await asyncio.wait({task}, timeout=limit + spare)
    except asyncio.CancelledError:
        await _ended(task, running)
        raise
    if done:
        return task.result()
    ended = await _ended(task, running)
    left = "" if ended else "; it would not end, and was broken off"
    return failed(f"{work.node.id} did not end within its timeout of {limit:g}s{left}")


OWN_CLOCK = {
    "codergen": 60.0,
    "prompt": 10.0,
    "tool": 15.0,
    "parallel.fan_in": 60.0,
    "batch.item": 120.0,
}
"""Types that keep the node's timeout themselves, to end in order and tell what they came to:
seconds beyond it after which they are cancelled all the same."""


async def _ended(task: asyncio.Future[Any], running: Coroutine[Any, Any, object]) -> bool:
    """Whether it has ended, cancelled, within a bounded time. One that has not is broken off
    where it waits: a loop that is to end would wait for it for ever."""
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=ENDING)
    if done:
        _seen(task)
        return True
    task.add_done_callback(_seen)
    with suppress(RuntimeError):  # it will not hear of that either
        running.close()
    task.cancel()
    return False


def _seen(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()  # nobody else will ask, and the loop would complain


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


def _with_its_own_status(work: Work, outcome: Outcome) -> Outcome:
    """What the node's agent or command wrote as ``status.json`` is its word on how it went."""
    try:
        told = stage.read_status(work.folder)
    except ValueError as error:
        return failed(f"{work.node.id} wrote no valid status: {error}")
    if told is None:
        if work.node.is_true("auto_status") and not outcome.notes:
            return msgspec.structs.replace(outcome, notes=AUTO_STATUS)
        return outcome
    for key, value in told.context_updates.items():
        if wrong := not_json(value):
            return failed(f"status.json: {key!r} {wrong}")
    reason = told.failure_reason
    if not told.ok and not reason:
        reason = told.notes or f"{work.node.id} wrote outcome={told.status} into its status.json"
    return msgspec.structs.replace(
        outcome,
        status=told.status,
        preferred_label=told.preferred_label or outcome.preferred_label,
        suggested_next_ids=told.suggested_next_ids or outcome.suggested_next_ids,
        context_updates={**outcome.context_updates, **told.context_updates},
        notes=told.notes or outcome.notes,
        failure_reason=reason,
    )


def _small(work: Work, outcome: Outcome, eraser: Eraser) -> Outcome:
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


def _written(work: Work, outcome: Outcome) -> Outcome:
    """The outcome, and beside it ``status.json``."""
    try:
        data = msgspec.json.format(msgspec.json.encode(stage.status_of(outcome)), indent=2)
        stage.put(f"{work.folder}{os.sep}{stage.STATUS}", data)
    except OSError as error:
        # What the node did is done, and paid for: a full disk must not undo it.
        said = f"status.json could not be written: {error.strerror}"
        notes = f"{outcome.notes}; {said}" if outcome.notes else said
        return msgspec.structs.replace(outcome, notes=notes)
    return outcome
