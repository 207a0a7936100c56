"""Permission questions, put to the person at the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from corral.events import Decision, PermissionRequest

_ANSWERS: dict[str, Decision] = {
    "y": "allow_once",
    "yes": "allow_once",
    "a": "allow_session",
    "n": "deny",
    "no": "deny",
    "c": "cancel",
}


def somebody_is_there() -> bool:
    """Whether a question could be read and answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Terminal:
    """An ``ask`` for sessions. ``pause`` stops what moves on the screen."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause

    async def __call__(self, request: PermissionRequest) -> Decision:
        self._pause()
        sys.stderr.write(f"? {request.kind}: {request.title or 'something'}\n")
        while True:
            sys.stderr.write("  allow once (y), for this session (a), no (n), stop (c)? ")
            sys.stderr.flush()
            answer = _ANSWERS.get((await _line()).strip().lower())
            if answer is not None:
                return answer


async def _line() -> str:
    """A line from the terminal, without a thread: a thread that reads could not be stopped."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    descriptor = sys.stdin.fileno()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    line = sys.stdin.readline()
    return line if line else "n"  # the end of the input is no
