"""Start threads and event loops. If the machine has no threads or descriptors left, a clear error
is raised."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import select
import socket
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

from corral.errors import ProcessFailed

P = ParamSpec("P")
T = TypeVar("T")

_REFUSED = "can't start new thread"
"""The message of Python's ``RuntimeError``."""


class NoThread(ProcessFailed):
    """No more threads can be started."""


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``asyncio.to_thread``. Raises ``NoThread`` if no thread can be started."""
    try:
        return await asyncio.to_thread(function, *args, **kwargs)
    except RuntimeError as error:
        if not is_thread_limit(error):
            raise
        raise no_thread_error(error) from error


async def in_own_thread(function: Callable[[], T]) -> T:
    """The result of the function, called in a new thread that is not waited for once this call is
    cancelled.

    The threads of the loop's own pool are waited for when the loop ends: one function that hangs
    would hang the program. Raises ``NoThread``.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def succeed(value: T) -> None:
        if not future.done():
            future.set_result(value)

    def fail(error: BaseException) -> None:
        if not future.done():
            future.set_exception(error)

    def body() -> None:
        try:
            deliver = partial(succeed, context.run(function))
        except BaseException as error:
            # A StopIteration cannot pass through a future.
            odd = isinstance(error, StopIteration | KeyboardInterrupt)
            deliver = partial(fail, RuntimeError(repr(error)) if odd else error)
        with contextlib.suppress(RuntimeError):  # the loop was closed, and with it the caller
            loop.call_soon_threadsafe(deliver)

    start(threading.Thread(target=body, name="corral-tool", daemon=True))
    return await future


def start(thread: threading.Thread) -> None:
    """``thread.start()``. Raises ``NoThread``."""
    try:
        thread.start()
    except RuntimeError as error:
        if not is_thread_limit(error):
            raise
        raise no_thread_error(error) from error


def is_thread_limit(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and _REFUSED in str(error)


def no_thread_error(error: BaseException) -> NoThread:
    return NoThread(
        f"cannot start a thread: {error}",
        hint="too many processes or too little memory: raise `ulimit -u` or run fewer at a time",
        phase="spawn",
        retryable=True,
    )


def run_event_loop(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``. Raises ``ProcessFailed`` if there are too few descriptors for a loop."""
    try:
        check_descriptors()
    except BaseException:
        work.close()
        raise
    return asyncio.run(work)


def check_descriptors() -> None:
    """Raise ``ProcessFailed`` if an event loop cannot get its descriptors.

    Python does not clean up a loop that gets only some of them: it prints tracebacks when such a
    loop is collected. So they are opened here once before.
    """
    try:
        ends = socket.socketpair()
        try:
            if hasattr(select, "epoll"):
                select.epoll().close()
        finally:
            for end in ends:
                end.close()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise ProcessFailed(
            f"cannot start an event loop: {error.strerror}",
            hint="too many open files: raise `ulimit -n` or run fewer at a time",
            phase="spawn",
            retryable=True,
        ) from error
