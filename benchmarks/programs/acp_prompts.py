"""Send prompts to the real Gemini CLI in one way: ``acp_prompts.py WAY COUNT PROGRAM``.

The CPU time of this process and of all its descendants is counted: ``cpu`` from before the first
prompt, with the start and the end of the agent; ``warm`` from the end of the first prompt to the
end of the last. ``first`` is the median of the times to the first text.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

import corral
from corral.events import Event, Text
from corral.run_kwargs import RunKwargs

COUNT = int(sys.argv[2])
OPTIONS: RunKwargs = {"program": sys.argv[3], "model": "gemini-2.5-flash", "keep": False}
TICK = os.sysconf("SC_CLK_TCK")

waits: list[float] = []
marks: list[float] = []
"""CPU seconds spent by the end of each prompt."""


class Watch:
    """Seconds from a prompt to its first text."""

    def __init__(self) -> None:
        self._started: float | None = time.monotonic()

    def on_event(self, event: Event) -> None:
        if isinstance(event, Text) and self._started is not None:
            waits.append(time.monotonic() - self._started)
            self._started = None


async def by_process() -> None:
    for _ in range(COUNT):
        on_event = Watch().on_event
        await corral.run("gemini-cli", "go", check=True, on_event=on_event, **OPTIONS)
        marks.append(spent())


async def by_pool() -> None:
    """Two concurrent prompts, each in its own session."""

    async def client(count: int) -> None:
        for _ in range(count):
            await pool.run("go", check=True, on_event=Watch().on_event)
            marks.append(spent())

    async with corral.pool("gemini-acp", size=1, prompts_at_once=2, **OPTIONS) as pool:
        await asyncio.gather(client(COUNT // 2), client(COUNT - COUNT // 2))


async def by_session() -> None:
    async with corral.session("gemini-acp", **OPTIONS) as session:
        for _ in range(COUNT):
            on_event, last = Watch().on_event, None
            async for event in session.prompt("go"):
                on_event(event)
                last = event
            if last is None or getattr(last, "status", None) != "success":
                raise RuntimeError(f"the prompt failed: {last}")
            marks.append(spent())


WAYS: dict[str, Callable[[], Awaitable[None]]] = {
    "process": by_process,
    "pool": by_pool,
    "session": by_session,
}


def spent() -> float:
    """CPU seconds of this process, of those it waited for, and of its running descendants."""
    own = sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    return own + sum(map(_living, _children(os.getpid())))


def _children(pid: int) -> list[int]:
    """All descendants."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, task.read_text().split()):
                found += [child, *_children(child)]
    return found


def _living(pid: int) -> float:
    """Nothing for a process that has ended since: its parent counts it, now or the next time."""
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICK
    return 0.0


async def main() -> None:
    for name in ("gemini-cli", "gemini-acp"):  # not part of a prompt: it is loaded once
        corral.is_installed(name)
    before = spent()
    await WAYS[sys.argv[1]]()
    cpu = spent() - before
    warm = (marks[-1] - marks[0]) / (COUNT - 1) if COUNT > 1 else cpu
    if len(waits) != COUNT:
        raise RuntimeError(f"{len(waits)} of {COUNT} prompts had a text")
    print(json.dumps({"cpu": cpu / COUNT, "warm": warm, "first": median(waits)}))


asyncio.run(main())
