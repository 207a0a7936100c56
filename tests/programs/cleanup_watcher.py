"""Ends what a pytest has left, when that has ended, however: ``cleanup_watcher.py MARK``.

Its stdin is a pipe that only that pytest can write to. What bears the mark in its
environment is ended, and what was started by such a one and bears no mark any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

POLITE = 10
"""Rounds in which a Postgres may still put its shared memory away."""


def main(mark: bytes) -> None:
    if os.fork():
        os._exit(0)  # it has no parent here: some tests count child processes
    os.setsid()
    while os.read(0, 4096):
        pass
    quiet = 0
    for number in range(100):
        left = marked(mark)
        quiet = 0 if left else quiet + 1
        if quiet == 3:
            return
        for pid, name in left.items():
            is_polite = name == "postgres" and number < POLITE
            end(pid, signal.SIGQUIT if is_polite else signal.SIGKILL)
        time.sleep(0.2)


def marked(mark: bytes) -> dict[int, str]:
    """Pid → name, of the marked and all below them."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    found: set[int] = set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/stat") as file:
                start, _, rest = file.read().rpartition(")")
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read().split(b"\0")
        except OSError:
            continue
        if rest.split()[0] == "Z":
            continue
        parents[pid], names[pid] = int(rest.split()[1]), start.partition("(")[2]
        if mark in environ:
            found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid] for pid in found - {os.getpid()}}


def end(pid: int, sig: int) -> None:
    with contextlib.suppress(OSError):  # it has gone
        os.kill(pid, sig)


if __name__ == "__main__":
    main(sys.argv[1].encode())
