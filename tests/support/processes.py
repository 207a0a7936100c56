"""Which processes are running, and signals from them: for tests of what a run leaves behind."""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def processes_matching(sign: str) -> list[int]:
    """Processes with ``sign`` in their command line; zombies have no command line."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                line = Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
            if sign.encode() in line:
                found.append(int(entry))
    return found


def processes_using(folder: Path) -> dict[int, str]:
    """Process → its command line, for processes that have ``folder`` as working directory, in their
    environment or in their command line."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line, env = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                found_in = b"\0".join([line, env, os.fsencode((entry / "cwd").readlink())])
            except OSError:
                continue
            if os.fsencode(folder) in found_in:
                found[int(entry.name)] = line.replace(b"\0", b" ").decode()
    return found


@contextmanager
def exclusive_machine(tmp_path: Path) -> Generator[None, None, None]:
    """Tests that use this do not run at the same time, in any worker of this test run: tests with
    short deadlines, and tests that use all processors."""
    with (tmp_path.parents[1] / "machine.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class FifoSignal:
    """A FIFO: a process under test signals by writing a line into it."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def wait(self, seconds: float = 60.0) -> None:
        """Block until the signal; call it in a thread."""
        ready, _, _ = select.select([self._fd], [], [], seconds)
        if not ready:
            raise TimeoutError(f"no signal within {seconds:g} s")
        os.read(self._fd, 4096)


@contextmanager
def fifo_signal(path: Path) -> Generator[FifoSignal, None, None]:
    os.mkfifo(path)
    # Open for writing as well, so that the other side never finds a FIFO without a reader.
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield FifoSignal(path, fd)
    finally:
        os.close(fd)
