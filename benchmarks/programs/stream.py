"""Read a stream of lines in one way and print the cost: ``stream.py WAY FILE``.

The cost is this process's own: the program that writes the lines is another. ``reading`` is the
part after the first line, without the start of the session and of that program.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Work: TypeAlias = Callable[[Callable[[], None]], int]
"""Reads all lines and counts them. Calls its argument when it has the first."""

AGENT = Path(__file__).with_name("gemini_agent.sh")


def through_corral(file: str, *, keep: bool = False) -> Work:
    from corral import events, session
    from corral._agents import registry

    registry.find("gemini-cli")  # not part of the stream: it is loaded once

    async def main(on_first: Callable[[], None]) -> int:
        count, last = 0, None
        async with session(
            "gemini-cli", program=AGENT, env={"FAKE_OUTPUT": file}, track_files=False, keep=keep
        ) as opened:
            async for event in opened.prompt("go"):
                if not count:
                    on_first()
                count += 1
                last = event
        if not isinstance(last, events.Done) or last.status != "success":
            raise RuntimeError(f"the run failed: {last}")
        return count

    return lambda on_first: asyncio.run(main(on_first))


def recorded(file: str) -> Work:
    return through_corral(file, keep=True)


def through_readline(file: str) -> Work:
    async def main(on_first: Callable[[], None]) -> int:
        count = 0
        process = await asyncio.create_subprocess_exec(
            AGENT, env={**os.environ, "FAKE_OUTPUT": file}, stdout=asyncio.subprocess.PIPE
        )
        if process.stdout is None:
            raise RuntimeError("no stdout")
        while line := await process.stdout.readline():
            if not count:
                on_first()
            json.loads(line)
            count += 1
        await process.wait()
        return count

    return lambda on_first: asyncio.run(main(on_first))


def from_memory(file: str) -> Work:
    import msgspec

    from corral._agents.gemini.stream import Frames

    data = Path(file).read_bytes()
    decode = msgspec.json.Decoder(Frames).decode

    def work(on_first: Callable[[], None]) -> int:
        on_first()
        count = 0
        for line in data.splitlines():
            decode(line)
            count += 1
        return count

    return work


def from_ready_lines(file: str) -> Work:
    import msgspec

    from corral._agents.gemini.stream import Frames

    lines = Path(file).read_bytes().splitlines()
    decode = msgspec.json.Decoder(Frames).decode

    def work(on_first: Callable[[], None]) -> int:
        on_first()
        count = 0
        for line in lines:
            decode(line)
            count += 1
        return count

    return work


WAYS: dict[str, Callable[[str], Work]] = {
    "corral": through_corral,
    "recorded": recorded,
    "readline": through_readline,
    "memory": from_memory,
    "ready-lines": from_ready_lines,
}


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak() -> int:
    """Bytes, of this program alone; ru_maxrss starts with the size of its parent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def main() -> None:
    work = WAYS[sys.argv[1]](sys.argv[2])
    started = spent()
    first: list[float] = []
    try:
        count = work(lambda: first.append(spent()))
    except ValueError as error:  # what readline raises for a line over its limit
        print(json.dumps({"error": str(error)}))
        return
    end = spent()
    figures = {"cpu": end - started, "reading": end - first[0], "count": count, "peak": peak()}
    print(json.dumps(figures))


main()
