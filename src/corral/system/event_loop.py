"""Start an event loop. Without descriptors for it, a clear error is raised."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

from corral.errors import ProcessFailed

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
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
