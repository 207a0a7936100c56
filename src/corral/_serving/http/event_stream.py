"""The events of a run as server-sent events, as they are stored; the ``id`` is the place after one.

A client that comes back with that id (``Last-Event-ID``, or ``after`` in the address) gets the
events after it: nothing is lost, nothing is sent twice, also after the server was started again.
The stream ends with ``end``, which has the run with its outcome. If the server stops or the token
is revoked, it ends without: a client that reconnects goes on, or learns why it may not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from corral._runs.log_windows import Line, read_tail
from corral._serving.caller_runs import CallerRuns
from corral._view.stream import BUSY, IDLE, Pauses, message

_MOST_TYPE = 100
"""Bytes in which the type of an event is."""


async def follow_events(
    runs: CallerRuns, run: str, log: Path, after: int, closing: asyncio.Event
) -> AsyncGenerator[bytes]:
    """The events of a session of the caller from a place in its log on."""
    pauses, pause, position = Pauses(closing), BUSY, after
    yield b"retry: 1000\n\n"
    while not pauses.is_over:
        # The state first: what is written before a run has ended is read after it.
        view = await runs.view(run)
        try:
            tail = await asyncio.to_thread(read_tail, log, position)
        except FileNotFoundError:  # nothing is stored yet
            tail = None
        except ValueError:  # the id of another log
            position = 0
            continue
        if tail is not None and tail.lines:
            position, pause = tail.end, BUSY
            pauses.sent()
            yield b"".join(map(_message, tail.lines))
            continue
        if view.state == "ended":
            yield message("end", view)
            return
        pause = min(pause * 1.3, IDLE)
        yield await pauses.wait(pause)


def _message(line: Line) -> bytes:
    """A stored event. Its type is its first field."""
    head = line.data[:_MOST_TYPE].split(b'"', 4)
    name = head[3] if len(head) > 4 else b"message"
    if line.is_cut:  # longer than any event that corral writes
        return b'event: cut\ndata: {"type":"cut"}\n\n'
    return b"event: %b\nid: %d\ndata: %b\n\n" % (name, line.end, line.data)
