"""Signal handling of commands: cancel cleanly, even if the event loop is blocked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, TypeVar

from corral._cli.command_types import enable_gc
from corral._cli.ui.terminal import echo_err
from corral._system import threads

T = TypeVar("T")

BLOCKED = 5.0
"""Seconds in which the loop must react to a signal. After that, what blocks it is interrupted."""
INTERRUPTED = 130

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextlib.contextmanager
def signals(
    cancel: Callable[[], object], running: Callable[[], str] | None = None
) -> Generator[None]:
    """Call ``cancel`` in the event loop on Ctrl-C, TERM, HUP and QUIT; the loop then ends by
    itself. ``running`` names what may block the loop: see ``_Watchdog``."""
    loop = asyncio.get_running_loop()
    watchdog = _Watchdog(cancel, running)
    try:
        for number in _ENDING:
            loop.add_signal_handler(number, watchdog.on_loop_signal)
            if running is not None:
                # In addition to the loop's own handler, which only a loop that runs calls.
                signal.signal(number, watchdog.on_signal)
    except RuntimeError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        watchdog.handled.set()
        for number in _ENDING:
            loop.remove_signal_handler(number)


def run_cancellable(
    work: Coroutine[Any, Any, T], shown: AbstractContextManager[object] | None = None
) -> T | None:
    """Run the work of a command in an event loop, with this progress; None if the user ended it."""

    async def run() -> T:
        task = asyncio.ensure_future(work)
        with signals(task.cancel), shown or contextlib.nullcontext():
            return await task

    enable_gc()
    try:
        return threads.run_event_loop(run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return None


class _Watchdog:
    """Ends a command whose event loop is blocked.

    Theory of operation. A signal sets off two handlers. ``on_loop_signal`` is called by the event
    loop: it sets ``handled`` and cancels the command. ``on_signal`` is called by the interpreter
    in the main thread, also when a node's Python code blocks the loop: it starts a thread that
    waits ``BLOCKED`` seconds for ``handled``. If the loop has not reacted by then, the thread sends
    SIGINT to the main thread, and ``on_signal`` raises ``KeyboardInterrupt`` there, inside the
    blocking code. If that code swallows the exception, the thread ends the process after
    another ``BLOCKED`` seconds with exit code 130.
    """

    def __init__(self, cancel: Callable[[], object], running: Callable[[], str] | None) -> None:
        self._cancel = cancel
        self._running = running
        self._is_blocked = False
        self.handled = threading.Event()

    def on_loop_signal(self) -> None:
        self.handled.set()
        self._cancel()

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_blocked:
            raise KeyboardInterrupt
        if not self.handled.is_set():
            # Without a free thread there is no watchdog; the loop's handler still works.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._watch, name="corral-signals", daemon=True).start()

    def _watch(self) -> None:
        if self.handled.wait(BLOCKED) or self._running is None:
            return
        self._is_blocked = True
        echo_err(f"corral: {self._running() or 'something'} blocks and did not stop; interrupted")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if not self.handled.wait(BLOCKED):
            os._exit(INTERRUPTED)
