"""A process in which only a few more descriptors can be opened."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Generator


@contextlib.contextmanager
def free_descriptors(count: int) -> Generator[None]:
    """Within the block this process can open only so many more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    fillers: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        with contextlib.suppress(OSError):
            while True:  # gaps below the limit
                fillers.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + count, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in fillers:
            os.close(each)
