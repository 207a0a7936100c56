"""Agents that all run at the same moment: ``many_agents.py COUNT FILE CWD``.

Every agent writes its first line and then waits at a named pipe until all have started.
The figures are those of this process at that moment: its threads, and its memory for each agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

import corral
from corral import events

AGENT = Path(__file__).with_name("gemini_agent.sh")


def status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"no {name} in /proc/self/status")


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def agents(count: int, file: str, cwd: str, gate: str) -> dict[str, float]:
    started, all_started, failed = 0, asyncio.Event(), 0

    async def one() -> None:
        nonlocal started, failed
        last: events.Event | None = None
        env = {"FAKE_OUTPUT": file, "FAKE_GATE": gate}
        async with corral.session(
            "gemini-cli", program=AGENT, cwd=cwd, env=env, keep=False, track_files=False
        ) as session:
            async for event in session.prompt("go"):
                last = event
                if isinstance(event, events.Init):
                    started += 1
                    if started == count:
                        all_started.set()
        failed += not isinstance(last, events.Done) or last.status != "success"

    before, cpu = status("VmRSS"), spent()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())
        await all_started.wait()
        figures = {
            "memory": (status("VmRSS") - before) * 1024 / count,
            "threads": status("Threads"),
        }
        # All who wait have opened it by now, or will while it is open here.
        writer = os.open(gate, os.O_RDWR)
        os.write(writer, b"\n" * count)
    os.close(writer)
    if failed:
        raise RuntimeError(f"{failed} agents failed")
    return {**figures, "cpu": (spent() - cpu) / count}


async def main() -> None:
    count, file, cwd = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    with tempfile.TemporaryDirectory() as folder:
        gate = str(Path(folder) / "gate")
        os.mkfifo(gate)
        await agents(1, file, cwd, gate)  # not part of a run: it is loaded once
        print(json.dumps(await agents(count, file, cwd, gate)))


asyncio.run(main())
