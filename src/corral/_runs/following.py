"""Follows the log of a run while another process writes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from corral._pipelines.events import PipelineCompleted, PipelineFailed, RunEvent, from_json
from corral._runs.log_windows import INIT, LogFile, read_tail
from corral.events import Done

POLL = 0.1
"""Seconds between two looks at a file that is being written."""
CHECK = 1.0
"""Seconds between two checks whether the writer still runs."""
ENDS = Done | PipelineCompleted | PipelineFailed
"""Events after which the writer may have ended."""
TAIL = 4 << 20
"""Bytes at the end of a transcript in which the start of the current turn is searched, and that are
read at once."""


def decode(line: bytes) -> RunEvent | None:
    """The event of a line; None if it cannot be read."""
    try:
        return from_json(line)
    except msgspec.MsgspecError:
        return None  # cut off, or of another version


async def followed(
    path: Path, is_running: Callable[[], bool], start: int = 0
) -> AsyncIterator[RunEvent]:
    """The events of a log from byte ``start`` on, while another process writes them. Ends after a
    turn if the run does nothing more, or if its process has ended."""
    position, unchecked, running, is_between_turns = start, 0.0, True, False
    while True:
        try:
            tail = read_tail(path, position, TAIL)
        except (OSError, ValueError):
            lines = []
        else:
            lines, position = tail.lines, tail.end
        for line in lines:
            event = decode(line.data)
            if event is not None:
                is_between_turns = isinstance(event, ENDS)
                yield event
        if not lines:
            if not running:
                return
            await asyncio.sleep(POLL)
            unchecked += POLL
            if unchecked >= (POLL * 3 if is_between_turns else CHECK):
                unchecked, running = 0.0, await asyncio.to_thread(is_running)


def current_turn(path: Path) -> int:
    """Where the last turn of a transcript starts, if it is near the end; else a line near the
    end."""
    try:
        with LogFile(path) as log:
            start = max(0, log.size - TAIL)
            data = log.read(start, TAIL)
    except OSError:
        return 0
    turn = (b"\n" + data).rfind(INIT)
    if turn >= 0:
        return start + turn
    return 0 if not start else start + data.find(b"\n") + 1
