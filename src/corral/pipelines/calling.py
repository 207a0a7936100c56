"""A handler, called: in its time, and never longer than its run.

Whoever wrote it, it must not hold what runs it. A handler that is cancelled has a while to
end; one that does not is broken off where it waits, and its node is named.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from asyncio import tasks
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from corral.errors import CorralError, StorageFailed
from corral.pipelines import desk as desks
from corral.pipelines.failures import outcome_of
from corral.pipelines.handlers import Handler, Work
from corral.pipelines.outcome import failed

ENDING = 10.0
"""Seconds that a handler has to end once it is cancelled. What is still at work then is broken
off: nobody waits for it."""
OWN_CLOCK = {
    "codergen": 60.0,
    "prompt": 10.0,
    "tool": 15.0,
    "parallel.fan_in": 60.0,
    "batch.item": 120.0,
}
"""Types that keep the node's timeout themselves, to end in order and tell what they came to:
seconds beyond it after which they are cancelled all the same."""

T = TypeVar("T")
_log = logging.getLogger("corral.pipelines")


async def told(handler: Handler, work: Work, limit: float | None) -> object:
    """What the handler returns, and what it raises as an outcome. Only a cancellation of ours
    passes."""
    try:
        if limit is None:
            return await _called(handler, work)
        return await _in_time(_called(handler, work), limit, work)
    except asyncio.CancelledError:
        _pass_on()
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
        with suppress(StorageFailed):  # the reason is in the outcome all the same
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
