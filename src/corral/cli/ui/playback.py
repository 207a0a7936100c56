"""Show the events of a transcript as ``corral run`` shows those of its agent: as they were
recorded, or as another process writes them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from corral.cli.ui.progress import Progress
from corral.cli.ui.stdout import EventPrinter, answer_printer
from corral.cli.ui.turn_output import print_turn
from corral.events import Done, Event, Vendor, from_json
from corral.pipelines import events as run_events

POLL = 0.1
"""Seconds between two looks at a file that is being written."""
CHECK = 1.0
"""Seconds between two checks whether the writer still runs."""
TAIL = 4 << 20
"""Bytes at the end of a transcript in which the start of the current turn is searched."""
_INIT = b'{"type":"init"'


class Pace:
    """Waits between two events as long as the run did. ``speed`` is a factor; None: no waiting."""

    def __init__(self, speed: float | None, longest: float) -> None:
        self._speed, self._longest = speed, longest
        self._last: float | None = None
        self.ended = asyncio.Event()

    async def wait(self, ts: float) -> None:
        last, self._last = self._last, ts or self._last
        if self._speed is None or last is None or not ts:
            return
        pause = min((ts - last) / self._speed, self._longest)
        if pause > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.ended.wait()


class Playback:
    """The turns of a transcript. Each iteration gives the events of the next turn."""

    def __init__(self, events: AsyncIterator[Event], on_prompt: Callable[[str], None]) -> None:
        self._events = events
        self._on_prompt = on_prompt
        self.failed = False
        self.is_over = False
        self.in_turn = False
        """A turn has started and has not ended."""
        self.notes: tuple[str, ...] = ()
        self.ended = asyncio.Event()

    def cancel(self) -> None:
        """Stop to show it. A run that is watched goes on."""
        self.failed = self.is_over = True
        self.ended.set()

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for event in self._events:
            if self.failed:
                return
            self.in_turn = not isinstance(event, Done)
            if isinstance(event, Vendor) and event.name == "prompt":
                self._on_prompt(str(event.data))
            else:
                yield event
            if isinstance(event, Done):
                return
        self.is_over = True


async def show(
    playback: Playback, *, as_json: bool, quiet: bool, answer_with: str = ""
) -> Done | None:
    """Print all turns; returns the last event, if the last turn has ended."""
    last: Done | None = None
    while not playback.is_over:
        progress = Progress(enabled=not quiet)
        progress.answer_with = answer_with
        printer = EventPrinter() if as_json else answer_printer(progress=not quiet)
        done = await print_turn(playback, printer, progress)
        if done is not None:
            progress.summary(done, resume=False)
            last = done
    return None if playback.in_turn else last


async def recorded(path: Path, pace: Pace) -> AsyncIterator[Event]:
    """The events of a file, at the pace of the run."""
    with path.open("rb") as file:
        for line in file:
            event = _event(line)
            if event is not None:
                await pace.wait(event.ts)
                yield event


async def followed(path: Path, is_running: Callable[[], bool]) -> AsyncIterator[Event]:
    """The events of a session from its current turn on, while another process writes them. Ends
    after a turn if the session does nothing more, or if its process has ended."""
    at, checked, running, between = _current_turn(path), 0.0, True, False
    while True:
        lines, at = _complete_lines(path, at)
        for event in map(_event, lines):
            if event is not None:
                between = isinstance(event, Done)
                yield event
        if not lines:
            if not running:
                return
            await asyncio.sleep(POLL)
            checked += POLL
            if checked >= (POLL * 3 if between else CHECK):
                checked, running = 0.0, is_running()


async def followed_run(
    path: Path, is_running: Callable[[], bool]
) -> AsyncIterator[run_events.RunEvent]:
    """The events of a pipeline in its run folder, while another process writes them."""
    at, running = 0, True
    while True:
        lines, at = _complete_lines(path, at)
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):
                yield run_events.from_json(line)
        if not lines:
            if not running:
                return
            await asyncio.sleep(POLL)
            running = await asyncio.to_thread(is_running)


def _complete_lines(path: Path, at: int) -> tuple[list[bytes], int]:
    """The complete lines after a position, and the position after them."""
    try:
        with path.open("rb") as file:
            file.seek(at)
            data = file.read(TAIL)
    except OSError:
        return [], at
    end = data.rfind(b"\n") + 1
    if not end and len(data) == TAIL:  # one line is longer: read it completely
        with path.open("rb") as file:
            file.seek(at)
            line = file.readline()
        return ([line], at + len(line)) if line.endswith(b"\n") else ([], at)
    return data[:end].splitlines(), at + end


def _current_turn(path: Path) -> int:
    """Where the last turn starts, if it is near the end; else a line near the end."""
    try:
        size = os.path.getsize(path)
        with path.open("rb") as file:
            file.seek(max(0, size - TAIL))
            data = file.read(TAIL)
    except OSError:
        return 0
    start = max(0, size - TAIL)
    if data.startswith(_INIT) and b"\n" + _INIT not in data:
        return start
    found = data.rfind(b"\n" + _INIT)
    if found >= 0:
        return start + found + 1
    return 0 if not start else start + data.find(b"\n") + 1


def _event(line: bytes) -> Event | None:
    try:
        return from_json(line)
    except msgspec.MsgspecError:
        return None  # cut off, or of another version


async def recorded_run(path: Path) -> AsyncIterator[run_events.RunEvent]:
    """The events of a pipeline's run folder."""
    with path.open("rb") as file:
        for line in file:
            with contextlib.suppress(msgspec.MsgspecError):
                yield run_events.from_json(line)
