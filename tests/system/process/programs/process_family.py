"""A program that starts a tree of processes: ``process_family.py KIND TOKEN``.

Every process has TOKEN in its command line, writes nothing after ``ready``, and exits by itself
after ten minutes. ``ready`` is written when all of them run.
"""

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

readable, writable = os.pipe()


def report_ready() -> None:
    signal.alarm(600)
    os.write(writable, b".")


def sleep_forever() -> None:
    report_ready()
    while True:
        time.sleep(60)


def fork(run: Callable[[], None]) -> None:
    if os.fork() == 0:
        run()
        os._exit(0)


def in_own_session() -> None:
    os.setsid()
    sleep_forever()


def daemon() -> None:
    os.setsid()
    fork(sleep_forever)


def become_bare() -> None:
    report_ready()
    os.execve(sys.executable, [sys.executable, "-IS", *sys.argv, "rest"], {})


def bare_daemon() -> None:
    os.setsid()
    fork(become_bare)


def become_unmarked() -> None:
    """Remove the session, the environment and the limit that identify it."""
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    resource.setrlimit(resource.RLIMIT_RTTIME, (hard // 3, hard // 3))
    os.setsid()
    become_bare()


def unmarked_daemon() -> None:
    os.setsid()
    fork(become_unmarked)


def become_unlimited() -> None:
    """As ``become_unmarked``, but root raises the limit again instead of lowering it."""
    with contextlib.suppress(OSError, ValueError):
        unlimited = resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_RTTIME, (unlimited, unlimited))
    os.setsid()
    become_bare()


def unlimited_daemon() -> None:
    os.setsid()
    fork(become_unlimited)


def forker() -> None:
    report_ready()
    while True:
        fork(in_own_session)
        time.sleep(0.02)


def flood() -> None:
    signal.alarm(600)
    while True:
        os.write(1, b"x" * 65_536)


kind = sys.argv[1]
if sys.argv[-1] == "rest":
    sleep_forever()
if kind.startswith("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
descendants: dict[str, list[Callable[[], None]]] = {
    "alone": [],
    "plain": [sleep_forever, sleep_forever],
    "flood": [],
    "session": [in_own_session],
    "daemon": [daemon],
    "bare-daemon": [bare_daemon],
    "unmarked-daemon": [unmarked_daemon],
    "unlimited-daemon": [unlimited_daemon],
    "deaf": [sleep_forever],
    "deaf-daemon": [daemon],
    "holder": [sleep_forever],
    "forker": [forker],
}
for start in descendants[kind.removesuffix("-left")]:
    fork(start)
    os.read(readable, 1)
os.write(1, b"ready\n")
if kind.endswith("-left") or kind == "holder":
    os._exit(7)
if kind == "flood":
    flood()
sleep_forever()
