"""Server-sent events: what changes while a page is open.

Each stream has a cursor, sent as the ``id`` of its events. A client that comes back with it
(``Last-Event-ID``, or ``after`` in the address) goes on there: nothing is lost, nothing is sent
twice. A comment every ``HEARTBEAT`` seconds shows both sides that the connection lives.

Files are looked at a few times a second, less often while nothing happens. A stream ends when its
run has ended or was deleted, and when the server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from corral._runs.log_windows import PAGE, LogFile, read_tail
from corral._sessions.store import EVENTS
from corral._system import clock
from corral._view.catalog import Catalog, RunQuery
from corral._view.items import ItemBuilder, decode
from corral._view.live_runs import ACTIVE
from corral._view.log_pages import RESULT_PAGES, builder_from
from corral._view.records import (
    EndUpdate,
    Item,
    ItemsUpdate,
    MergesUpdate,
    PendingUpdate,
    RunsUpdate,
    StateUpdate,
)
from corral._view.session_view import open_session
from corral.errors import ResumeLost

HEARTBEAT = 15.0
BUSY, IDLE = 0.25, 1.0
"""Seconds between two looks at a log: while it grows, and at most."""
STATE_PAUSE = 1.0
"""Seconds between two looks at the state of a session, unless an item says that it changed."""
NOTABLE = ("init", "permission", "done")
"""Items that change the state of a session."""
STATE_SECONDS = 2.0
"""Seconds between two reports of the time of the last event."""
LIST_PAUSE = 1.0
"""Seconds between two looks at the list of runs."""
LIST_LENGTH = 100
"""Runs at the top of the list whose changes are sent."""
_encoder = msgspec.json.Encoder()


def message(name: str, data: object, cursor: str | int | None = None) -> bytes:
    """One event."""
    mark = "" if cursor is None else f"id: {cursor}\n"
    return f"event: {name}\n{mark}data: ".encode() + _encoder.encode(data) + b"\n\n"


class Pauses:
    """Waits between looks, wakes up when the server stops, and says when to send a heartbeat."""

    def __init__(self, closing: asyncio.Event) -> None:
        self._closing = closing
        self._quiet = 0.0

    async def wait(self, seconds: float) -> bytes:
        """Wait. Returns a comment if one is due, else nothing."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)
        self._quiet += seconds
        if self._quiet < HEARTBEAT:
            return b""
        self._quiet = 0.0
        return b": still here\n\n"

    def sent(self) -> None:
        """Something was sent: no heartbeat is due."""
        self._quiet = 0.0

    @property
    def is_over(self) -> bool:
        return self._closing.is_set()


async def follow_runs(catalog: Catalog, closing: asyncio.Event) -> AsyncGenerator[bytes]:
    """Changes of the list of runs, of what waits for a person, and of the merge queues."""
    pauses = Pauses(closing)
    known: dict[str, bytes] = {}
    waiting = shown_merges = b""
    yield b"retry: 1000\n\n"
    while not pauses.is_over:
        page = await catalog.runs(RunQuery(limit=LIST_LENGTH))
        now = {f"{run.kind}/{run.db or ''}/{run.id}": run for run in page.runs}
        encoded = {key: _encoder.encode(run) for key, run in now.items()}
        changed = [run for key, run in now.items() if known.get(key) != encoded[key]]
        removed = [key.rpartition("/")[2] for key in known.keys() - now.keys()]
        if changed or removed:  # at first all: runs may have changed since the page asked
            pauses.sent()
            yield message("runs", RunsUpdate(runs=changed, removed=removed))
        known = encoded
        pending = await catalog.pending()
        update = message("pending", PendingUpdate(count=len(pending), pending=pending))
        if update != waiting:
            waiting = update
            pauses.sent()
            yield update
        merges = message("merges", MergesUpdate(version=await catalog.merge_version()))
        if merges != shown_merges:
            shown_merges = merges
            pauses.sent()
            yield merges
        yield await pauses.wait(LIST_PAUSE)


class LogFollower:
    """The items of a log that grows."""

    def __init__(self, path: Path, after: int | None) -> None:
        self._path = path
        self._builder = ItemBuilder()
        self.position: int = 0
        self._after = after

    def start(self) -> None:
        """Find the place to begin, and read what the first items need from before it. Blocking.
        Raises ``OSError``."""
        with LogFile(self._path) as log:
            after = log.size if self._after is None else min(self._after, log.size)
            page = after // PAGE
            self._builder = builder_from(log, max(0, page - RESULT_PAGES), page)
            self.position = after
            for line in log.lines(page * PAGE, after):
                self._builder.add(line.offset, decode(line))
                # A cursor inside a line that was not complete: the line is still to come.
                self.position = after if line.is_cut else line.end
            self._builder.take_changed(log.size)

    def read(self) -> list[Item]:
        """The items that changed since the last call. Blocking. Raises ``OSError`` if the log is
        gone, and ``ValueError`` if it was replaced."""
        tail = read_tail(self._path, self.position)
        for line in tail.lines:
            self._builder.add(line.offset, decode(line))
        self.position = tail.end
        return self._builder.take_changed()


async def follow_session(
    catalog: Catalog, id: str, after: int | None, closing: asyncio.Event
) -> AsyncGenerator[bytes]:
    """The items and the state of a session."""
    pauses = Pauses(closing)
    record = await asyncio.to_thread(open_session, id)
    follower = LogFollower(record.folder / EVENTS, after)
    yield b"retry: 1000\n\n"
    shown: StateUpdate | None = None
    pause, checked = BUSY, clock.Stopwatch()
    try:
        await asyncio.to_thread(follower.start)
        while not pauses.is_over:
            items = await asyncio.to_thread(follower.read)
            if items:
                pauses.sent()
                yield message("items", ItemsUpdate(items=items), follower.position)
            is_notable = any(item.kind in NOTABLE for item in items)
            if shown is None or is_notable or checked.seconds >= STATE_PAUSE:
                now, checked = await catalog.session_state(id), clock.Stopwatch()
                if shown is None or _differs(shown, now):
                    shown = now
                    pauses.sent()
                    yield message("state", now)
                if now.summary.state not in ACTIVE and not items:
                    yield message("end", EndUpdate(reason="the session is not running"))
                    return
            pause = BUSY if items else min(pause * 1.3, IDLE)
            yield await pauses.wait(pause)
    except (OSError, ValueError, ResumeLost):
        yield message("end", EndUpdate(reason="the log was deleted or replaced"))


def _differs(shown: StateUpdate, now: StateUpdate) -> bool:
    """Whether a page should show another state. Times alone change with every event."""
    if now.summary.updated - shown.summary.updated >= STATE_SECONDS:
        return True
    times = {"updated": 0.0, "last_event": None}
    one, two = (msgspec.structs.replace(each.summary, **times) for each in (shown, now))
    return one != two or shown.pending != now.pending
