"""The signals that end a command, also where its loop does not come to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType

from corral.cli.ui.terminal import complain

BLOCKED = 5.0
"""Seconds in which the loop must have heard of a signal: else something in it blocks, and is
broken off."""
INTERRUPTED = 130

_ENDING = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)
]


@contextlib.contextmanager
def signals(
    cancel: Callable[[], None], at_work: Callable[[], str] | None = None
) -> Generator[None]:
    """Ctrl-C and TERM end what runs; the loop then ends by itself. ``at_work`` names what may
    block the loop: that is broken off with a ``KeyboardInterrupt``, and where even that is
    swallowed, the process ends."""
    loop = asyncio.get_running_loop()
    heard = threading.Event()
    is_blocked = False

    def hear() -> None:
        heard.set()
        cancel()

    def watch() -> None:
        nonlocal is_blocked
        if heard.wait(BLOCKED) or at_work is None:
            return
        is_blocked = True
        said = f"corral: {at_work() or 'something'} blocks, and is broken off: it did not stop"
        complain(said)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if not heard.wait(BLOCKED):
            os._exit(INTERRUPTED)

    def begin(_number: int, _frame: FrameType | None) -> None:
        if is_blocked:
            raise KeyboardInterrupt
        if not heard.is_set():
            with contextlib.suppress(RuntimeError):  # no thread to be had: it is only a watch
                threading.Thread(target=watch, name="corral-signals", daemon=True).start()

    try:
        for number in _ENDING:
            loop.add_signal_handler(number, hear)
            if at_work is not None:
                signal.signal(number, begin)  # beside the loop's own, which needs a turn of it
    except (NotImplementedError, RuntimeError):  # Windows, or not the main thread
        yield
        return
    try:
        yield
    finally:
        heard.set()
        for number in _ENDING:
            loop.remove_signal_handler(number)
