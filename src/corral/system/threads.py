"""Start threads. If the machine has none left, a clear error is raised."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from corral.errors import ProcessFailed

P = ParamSpec("P")
T = TypeVar("T")

_REFUSED = "can't start new thread"
"""What Python says, in a plain ``RuntimeError``."""


class NoThread(ProcessFailed):
    """The machine gives no more threads."""


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``asyncio.to_thread``. Raises ``NoThread`` where no thread can be started."""
    try:
        return await asyncio.to_thread(function, *args, **kwargs)
    except RuntimeError as error:
        if not is_thread_limit(error):
            raise
        raise no_thread_error(error) from error


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
