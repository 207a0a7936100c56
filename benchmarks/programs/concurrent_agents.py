"""Many concurrent agents in one process: ``concurrent_agents.py WAY COUNT FILE CWD``."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

import corral
from corral._agents.gemini.stream import Frames

AGENT = Path(__file__).with_name("gemini_agent.sh")
PAUSE = "1"


async def with_corral(file: str, cwd: str) -> None:
    await corral.run(
        "gemini-cli",
        "go",
        program=AGENT,
        cwd=cwd,
        env={"FAKE_OUTPUT": file, "FAKE_PAUSE": PAUSE},
        keep=False,
        check=True,
    )


async def with_asyncio(file: str, cwd: str) -> None:
    decode = msgspec.json.Decoder(Frames).decode
    process = await asyncio.create_subprocess_exec(
        AGENT,
        cwd=cwd,
        env={**os.environ, "FAKE_OUTPUT": file, "FAKE_PAUSE": PAUSE},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    if process.stdout is None:
        raise RuntimeError("no stdout")
    async for line in process.stdout:
        decode(line)
    if await process.wait() != 0:
        raise RuntimeError("the agent failed")


WAYS: dict[str, Callable[[str, str], Awaitable[None]]] = {
    "corral": with_corral,
    "asyncio": with_asyncio,
}


def status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"no {name} in /proc/self/status")


async def main() -> None:
    way, count, file, cwd = WAYS[sys.argv[1]], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    await way(file, cwd)  # not part of a run: it is loaded once
    threads = 0

    async def watch() -> None:
        nonlocal threads
        while True:
            threads = max(threads, status("Threads"))
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    await asyncio.gather(*(way(file, cwd) for _ in range(count)))
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF)
    watching.cancel()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = status("VmHWM") * 1024
    print(json.dumps({"cpu": cpu / count, "wall": wall, "threads": threads, "peak": peak}))


asyncio.run(main())
