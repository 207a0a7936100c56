"""End process trees and count the survivors: ``process_trees.py WAY KIND COUNT``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from corral._system.process.process import Process, ProcessSpec

TREE = Path(__file__).with_name("process_tree.sh")
GRACE = 0.1
"""Seconds, for processes that ignore SIGTERM; the same in every way."""
SETTLING = 0.03
"""Not every way waits until SIGKILL has worked, and a process has no command line while it
executes a program; so the survivors are counted this many seconds later."""


async def with_corral(kind: str, token: str) -> float:
    process = await Process.start(ProcessSpec([str(TREE), kind, token], cwd="/", env=os.environ))
    await process.read()
    started = time.monotonic()
    await process.end(GRACE)
    return time.monotonic() - started


async def with_asyncio(kind: str, token: str) -> float:
    return await _ended(kind, token, group=False)


async def with_killpg(kind: str, token: str) -> float:
    return await _ended(kind, token, group=True)


async def _ended(kind: str, token: str, *, group: bool) -> float:
    # Not asyncio's pipe: wait() would last as long as a survivor has it open.
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        TREE, kind, token, stdout=writer, start_new_session=group
    )
    os.close(writer)
    await asyncio.to_thread(os.read, reader, 16)
    os.close(reader)
    started = time.monotonic()
    _send(process, signal.SIGTERM, group=group)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), GRACE)
    if group or process.returncode is None:
        _send(process, signal.SIGKILL, group=group)
    await process.wait()
    return time.monotonic() - started


def _send(process: asyncio.subprocess.Process, number: signal.Signals, *, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


def descendants(token: str) -> list[int]:
    """Processes with the token in their command line. None of the ways finds them like this."""
    found: list[int] = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if token.encode() in Path("/proc", pid, "cmdline").read_bytes():
                found.append(int(pid))
    return found


WAYS: dict[str, Callable[[str, str], Awaitable[float]]] = {
    "corral": with_corral,
    "asyncio": with_asyncio,
    "killpg": with_killpg,
}


async def main() -> None:
    way, kind, count = WAYS[sys.argv[1]], sys.argv[2], int(sys.argv[3])
    times: list[float] = []
    survived = 0
    for _ in range(count):
        # A fraction of a second that the sleeping processes have in their command line.
        token = f"0.000{int.from_bytes(os.urandom(6)):015}"
        times.append(await way(kind, token))
        await asyncio.sleep(SETTLING)
        left = descendants(token)
        survived += bool(left)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    print(json.dumps({"times": times, "survived": survived}))


asyncio.run(main())
