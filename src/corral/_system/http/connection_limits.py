"""Limits of the connections of a server, against clients that send half a request, or nothing.

uvicorn closes a connection that is idle after a response. It waits for ever for the first request,
for the rest of one, and for a client that reads nothing. With a token or without, a few hundred
such connections are all that a process may have.

Theory of operation
-------------------
A connection *waits* (it was opened, or its last response has ended, and no request is complete up
to its body), or it *works* (the application has a request of it, and the response has not ended).

- One that waits is closed after ``HEAD_SECONDS``, whatever it has sent meanwhile.
- One that works is closed if the body of its request is not there after ``BODY_SECONDS``, or if
  its client has read nothing for ``READ_SECONDS`` while there is something to read.
- There are at most ``ConnectionLimits.most`` connections, three quarters of them of one address.
  A new one beyond that closes the one that has waited longest, of the same address or of all: a
  client that sends its request at once is served while others hold connections open. The
  application works on fewer requests than that (``asgi_server``), so there is one that waits.
- What is wrong with requests is logged once a minute for each kind, with a count.

This module imports uvicorn, which is an extra: it is imported when a server starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
BODY_SECONDS = 60.0
READ_SECONDS = 30.0
LOG_SECONDS = 60.0
"""Between two messages of one kind."""
MOST_KINDS = 100
"""Kinds of messages that are remembered."""
_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class OneOfEachKind(logging.Filter):
    """Lets a message pass if none of its kind has passed in the last ``LOG_SECONDS``."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = str(record.msg), time.monotonic()
        if kind in self._last and now - self._last[kind] < LOG_SECONDS:
            self._left_out[kind] += 1
            return False
        if len(self._last) >= MOST_KINDS:
            self._last.clear()
        self._last[kind] = now
        if more := self._left_out.pop(kind, 0):
            record.msg = f"{kind.rstrip()} (and {more} more since the last message of this kind)"
        return True


log = logging.getLogger("corral.http")
log.addFilter(OneOfEachKind())


class ConnectionLimits:
    """The connections of one server."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[LimitedProtocol, str] = {}
        """With the address of each."""
        self._of_address: Counter[str] = Counter()
        self._waiting: dict[LimitedProtocol, None] = {}
        """The one that has waited longest is the first."""

    def add(self, connection: LimitedProtocol, address: str) -> None:
        self._open[connection] = address
        self._of_address[address] += 1
        if self._of_address[address] > self.most * 3 // 4:
            self._close_oldest(connection, address)
        elif len(self._open) > self.most:
            self._close_oldest(connection, None)

    def remove(self, connection: LimitedProtocol) -> None:
        self._waiting.pop(connection, None)
        address = self._open.pop(connection, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def waits(self, connection: LimitedProtocol, waits: bool) -> None:
        """From now on it waits, or works."""
        self._waiting.pop(connection, None)
        if waits and connection in self._open:
            self._waiting[connection] = None

    def _close_oldest(self, new: LimitedProtocol, address: str | None) -> None:
        log.warning("there are too many connections: those that wait longest are closed")
        candidates = (each for each in self._waiting if address in (None, self._open[each]))
        oldest = next(candidates, new)
        self.remove(oldest)
        oldest.transport.abort()


class LimitedProtocol(H11Protocol):
    """One connection."""

    def __init__(self, *args: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = log
        self._limits = limits
        self._request: object = None
        """That the application works on."""
        self._has_started = False
        """Whether something was sent since it waits."""
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limits.add(self, self.client[0] if self.client else "")
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.remove(self)
        for timer in (self._deadline, self._reading):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_started = True
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        self._request = None
        self._wait()
        super().on_response_complete()  # the next request may be there already
        self._look()

    def _look(self) -> None:
        """Whether a new request has started."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle is self._request:
            return
        self._request = cycle
        self._limits.waits(self, False)
        self._set_deadline(BODY_SECONDS)

    def _wait(self) -> None:
        self._has_started = False
        self._limits.waits(self, True)
        self._set_deadline(HEAD_SECONDS)

    def _set_deadline(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _on_deadline(self) -> None:
        cycle = self.cycle
        if self._request is not None and cycle is not None and not cycle.more_body:
            return  # the request is complete: the application may take its time
        if self._has_started:  # else it is idle, or a browser has opened it in advance
            log.warning("requests did not arrive in time: their connections are closed")
            if self._request is None or (cycle is not None and not cycle.response_started):
                self.transport.write(_TIMEOUT)
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # its client does not read: to close would wait for it
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(READ_SECONDS, self._on_full)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()

    def _on_full(self) -> None:
        log.warning("responses are not read: their connections are closed")
        self.transport.abort()
