"""stdout that a reader may stop reading: the deadlines and signals of a run still count."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable
from types import TracebackType

from corral.terminal_text import Cleaner, json_line

LOOK = 0.25
"""Seconds between two looks whether the run was given up while nobody reads."""


class Out:
    """``with out:`` spans the run. ``given_up`` says that waiting makes no sense any more."""

    def __init__(self, given_up: Callable[[], bool]) -> None:
        self._given_up = given_up
        self._fd = sys.stdout.fileno()
        kind = os.fstat(self._fd).st_mode
        self._is_terminal = os.isatty(self._fd)
        self._cleaner = Cleaner()
        self._may_block = (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)) and os.name == "posix"

    def __enter__(self) -> Out:
        sys.stdout.flush()
        if self._may_block:
            os.set_blocking(self._fd, False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._may_block:
            os.set_blocking(self._fd, True)

    async def write(self, text: str | bytes) -> None:
        """Until it is written, or the run was given up and nobody reads. A text is an answer,
        bytes are lines of JSON: at a terminal both are made safe, elsewhere they are data and
        stay as they are. Raises ``OSError``."""
        if self._is_terminal and isinstance(text, str):
            text = self._cleaner.add(text)
        elif self._is_terminal and isinstance(text, bytes):
            text = json_line(text.decode("utf-8", "replace"))
        data = memoryview(text.encode("utf-8", "replace") if isinstance(text, str) else text)
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                if self._given_up():
                    return
                await self._room()

    async def _room(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._fd, ready.set)
        try:
            async with asyncio.timeout(LOOK):
                await ready.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_writer(self._fd)
