"""The processes below this one, found by their parents: nothing that they do to their
environment, session or command line hides them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

MARK = b"CORRAL_RUN_MARK="


def descendants(pid: int) -> list[int]:
    """Running processes below ``pid``, parents first. Zombies do not run."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            if _is_running(child):
                found.append(child)
            found += descendants(child)
    return found


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def agents_below(pid: int, sign: str) -> list[int]:
    """Processes that corral started as agents and that have ``sign`` in their command line."""
    found: list[int] = []
    for each in descendants(pid):
        try:
            is_marked = MARK in Path(f"/proc/{each}/environ").read_bytes()
        except OSError:
            continue
        if is_marked and sign in command_line(each):
            found.append(each)
    return found


def wait_until_none(pid: int, seconds: float) -> list[int]:
    """What still runs below ``pid`` after at most ``seconds``."""
    until = time.monotonic() + seconds
    while (found := descendants(pid)) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def kill_all(pid: int) -> None:
    """End everything below ``pid``, for the next case."""
    for _ in range(200):
        found = descendants(pid)
        for each in found:
            try:
                os.kill(each, signal.SIGKILL)
            except OSError:
                continue
        if not found:
            return
        time.sleep(0.01)
