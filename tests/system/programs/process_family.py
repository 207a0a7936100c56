"""A program with relatives: ``process_family.py KIND TOKEN``.

Every relative keeps TOKEN in its command line, says nothing after ``ready``, and goes
by itself after a minute. ``ready`` comes when all of them are there.
"""

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

there, here = os.pipe()


def arrive() -> None:
    signal.alarm(60)
    os.write(here, b".")


def rest() -> None:
    arrive()
    while True:
        time.sleep(60)


def born(live: Callable[[], None]) -> None:
    if os.fork() == 0:
        live()
        os._exit(0)


def in_own_session() -> None:
    os.setsid()
    rest()


def daemon() -> None:
    os.setsid()
    born(rest)


def become_bare() -> None:
    arrive()
    os.execve(sys.executable, [sys.executable, "-IS", *sys.argv, "rest"], {})


def bare_daemon() -> None:
    os.setsid()
    born(become_bare)


def become_unmarked() -> None:
    """No session, environment or limit by which it was known."""
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    resource.setrlimit(resource.RLIMIT_RTTIME, (hard // 3, hard // 3))
    os.setsid()
    become_bare()


def unmarked_daemon() -> None:
    os.setsid()
    born(become_unmarked)


def become_unlimited() -> None:
    """As ``become_unmarked``, but root raises the limit again instead of lowering it."""
    with contextlib.suppress(OSError, ValueError):
        unlimited = resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_RTTIME, (unlimited, unlimited))
    os.setsid()
    become_bare()


def unlimited_daemon() -> None:
    os.setsid()
    born(become_unlimited)


def forker() -> None:
    arrive()
    while True:
        born(in_own_session)
        time.sleep(0.02)


def flood() -> None:
    signal.alarm(60)
    while True:
        os.write(1, b"x" * 65_536)


kind = sys.argv[1]
if sys.argv[-1] == "rest":
    rest()
if kind.startswith("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
relatives: dict[str, list[Callable[[], None]]] = {
    "alone": [],
    "plain": [rest, rest],
    "flood": [],
    "session": [in_own_session],
    "daemon": [daemon],
    "bare-daemon": [bare_daemon],
    "unmarked-daemon": [unmarked_daemon],
    "unlimited-daemon": [unlimited_daemon],
    "deaf": [rest],
    "deaf-daemon": [daemon],
    "holder": [rest],
    "forker": [forker],
}
for relative in relatives[kind.removesuffix("-left")]:
    born(relative)
    os.read(there, 1)
os.write(1, b"ready\n")
if kind.endswith("-left") or kind == "holder":
    os._exit(7)
if kind == "flood":
    flood()
rest()
