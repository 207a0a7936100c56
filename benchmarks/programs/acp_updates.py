"""Read many updates in one way and print the cost: ``acp_updates.py WAY FILE``.

``corral`` and ``wire``: all of the file in one turn. ``session`` and ``pool``, with the
number of prompts: as many turns, in one session or each in its own. The figures are the
CPU time of this process, from the first update (``session`` and ``pool``: from the start of the
agent) to the end of the agent, and its resident memory.
``quiet_period=0``: this agent sends nothing after the end of a turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import corral
from corral._protocol.acp.client import AcpClient, Emit
from corral.events import Done, Text

AGENT = Path(__file__).with_name("acp_file_agent.py")
CHUNK = 1 << 16
"""The capacity of a pipe."""


def agent(file: str) -> str:
    return shlex.join([sys.executable, "-S", "-E", str(AGENT), "--acp", file])


def through_corral(file: str) -> None:
    """Resident memory too, after each tenth of the updates."""
    tenth = Path(file).read_bytes().count(b"\n") // 10

    async def main() -> tuple[float, int, list[int]]:
        begin, count, last, sizes = 0.0, 0, None, list[int]()
        async with corral.session(agent(file), track_files=False, keep=False) as opened:
            async for event in opened.prompt("go"):
                if isinstance(event, Text):
                    begin = begin or spent()
                    count += 1
                    if count % tenth == 0:
                        sizes.append(resident())
                last = event
        if not isinstance(last, Done) or last.status != "success":
            raise RuntimeError(f"the run failed: {last}")
        return begin, count, sizes

    report(*asyncio.run(main()))


def through_wire(file: str) -> None:
    data = Path(file).read_bytes()
    acp, count = AcpClient(), 0
    before = spent()
    for start in range(0, len(data), CHUNK):
        for command in acp.receive(data[start : start + CHUNK]):
            if isinstance(command, Emit):
                count += len(command.events)
    report(before, count, [])


def many_in_a_session(file: str) -> None:
    async def main() -> tuple[int, list[int]]:
        prompts, sizes = int(sys.argv[3]), list[int]()
        async with corral.session(agent(file), keep=False, quiet_period=0) as opened:
            for number in range(1, prompts + 1):
                (await opened.run("go")).raise_for_status()
                if number % (prompts // 10) == 0:
                    sizes.append(resident())
        return prompts, sizes

    before = spent()
    report(before, *asyncio.run(main()))


def many_in_a_pool(file: str) -> None:
    async def main() -> tuple[int, list[int]]:
        prompts, sizes = int(sys.argv[3]), list[int]()
        async with corral.pool(agent(file), quiet_period=0) as pool:
            for number in range(1, prompts + 1):
                await pool.run("go", check=True)
                if number % (prompts // 10) == 0:
                    sizes.append(resident())
        return prompts, sizes

    before = spent()
    report(before, *asyncio.run(main()))


WAYS: dict[str, Callable[[str], None]] = {
    "corral": through_corral,
    "wire": through_wire,
    "session": many_in_a_session,
    "pool": many_in_a_pool,
}


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident() -> int:
    """Bytes."""
    pages = Path("/proc/self/statm").read_bytes().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def report(before: float, count: int, sizes: list[int]) -> None:
    print(json.dumps({"cpu": spent() - before, "count": count, "resident": sizes}))


WAYS[sys.argv[1]](sys.argv[2])
