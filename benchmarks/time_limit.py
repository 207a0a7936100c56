"""A limit on the time of a benchmark, which holds wherever it waits."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def time_limit(seconds: float) -> Generator[None]:
    """Raise ``TimeoutError`` in the block if it takes longer. For the main thread."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not finished after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def no_time_limit() -> Generator[None]:
    """What happens in the block does not count: an installation, which happens once."""
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
