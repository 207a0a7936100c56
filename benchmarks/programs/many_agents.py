"""Agents that all run at the same moment: ``many_agents.py WAY COUNT FILE CWD``.

Every agent writes its first line and then waits at a named pipe until all have started.
The figures are those of this process at that moment: its threads, and its memory for each agent;
and its CPU time for each agent, from the first start to the last end.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

import corral
from corral import events
from corral._agents.gemini.stream import Frames

AGENT = Path(__file__).with_name("gemini_agent.sh")


def status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"no {name} in /proc/self/status")


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def with_corral(cwd: str, env: dict[str, str], on_start: Callable[[], None]) -> None:
    last: events.Event | None = None
    async with corral.session(
        "gemini-cli", program=AGENT, cwd=cwd, env=env, keep=False, track_files=False
    ) as session:
        async for event in session.prompt("go"):
            last = event
            if isinstance(event, events.Init):
                on_start()
    if not isinstance(last, events.Done) or last.status != "success":
        raise RuntimeError(f"the agent failed: {last}")


async def with_asyncio(cwd: str, env: dict[str, str], on_start: Callable[[], None]) -> None:
    decode = msgspec.json.Decoder(Frames).decode
    process = await asyncio.create_subprocess_exec(
        AGENT,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    if process.stdout is None:
        raise RuntimeError("no stdout")
    count = 0
    async for line in process.stdout:
        decode(line)
        count += 1
        if count == 1:
            on_start()
    if await process.wait() != 0:
        raise RuntimeError("the agent failed")


Way = Callable[[str, dict[str, str], Callable[[], None]], Awaitable[None]]
WAYS: dict[str, Way] = {"corral": with_corral, "asyncio": with_asyncio}


def watch_without_threads() -> None:
    """Before Python 3.12 asyncio starts a thread for each process that it waits for."""
    if sys.version_info < (3, 12):
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.set_child_watcher(watcher)  # pyright: ignore[reportDeprecated]


async def agents(
    way: Way, count: int, file: str, cwd: str, gate: str, pause: float = 0.0
) -> dict[str, float]:
    """``pause``: seconds between the last start and the first end."""
    started, all_started = 0, asyncio.Event()
    env = {"FAKE_OUTPUT": file, "FAKE_GATE": gate}

    def on_start() -> None:
        nonlocal started
        started += 1
        if started == count:
            all_started.set()

    async def one() -> None:
        await way(cwd, env, on_start)

    before, cpu = status("VmRSS"), spent()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())
        await all_started.wait()
        figures = {
            "memory": (status("VmRSS") - before) * 1024 / count,
            "threads": status("Threads"),
        }
        await asyncio.sleep(pause)
        # All who wait have opened it by now, or will while it is open here.
        writer = os.open(gate, os.O_RDWR)
        os.write(writer, b"\n" * count)
    os.close(writer)
    return {**figures, "cpu": (spent() - cpu) / count}


async def main() -> None:
    way, count, file, cwd = WAYS[sys.argv[1]], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    watch_without_threads()
    with tempfile.TemporaryDirectory() as folder:
        gate = str(Path(folder) / "gate")
        os.mkfifo(gate)
        # Not part of a run: what is loaded once, also for a turn that takes more than a second.
        await agents(way, 1, file, cwd, gate, pause=1.5)
        print(json.dumps(await agents(way, count, file, cwd, gate)))


asyncio.run(main())
