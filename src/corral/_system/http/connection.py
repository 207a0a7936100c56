"""One HTTP/1.1 connection: bytes are parsed by llhttp and kept until they are taken.

Theory of operation
-------------------
A connection carries one request at a time. There is no task: state changes happen in callbacks of
the transport and of the parser, and in the calls of the one reader.

States:

1. idle: connected, no request. Bytes from the server close the connection: nothing was requested.
2. waiting: ``send_request`` was called. The client calls ``wait`` until the head of the response
   is there (``began``). Interim responses (1xx) are skipped.
3. reading: ``next_chunk`` returns what has arrived. If more than ``MOST_UNREAD`` bytes are waiting,
   the socket is not read until the reader has taken them.
4. complete: the response has ended. ``release`` makes the connection idle again if both sides
   allow that, else it closes it.
5. lost: closed. Data that arrived before is still returned, then the error is raised.

Who calls: ``client.Http`` owns the connection and calls it from one task at a time. The transport
calls ``buffer_updated``, ``eof_received`` and ``connection_lost``. The parser calls ``on_*``.

Guaranteed:

- A response is complete, or an error is raised: ``NetworkFailed`` before the head,
  ``StreamBroken`` afterwards, ``IdleTimeout`` if the server sends nothing for ``read_timeout``
  seconds. A response without a length ends with the connection, as HTTP says.
- A connection is used again only after a complete response, with nothing unread or unsent. So no
  byte of one response can become part of another.
- Memory is bounded: unread data by ``MOST_UNREAD``, headers by ``LARGEST_HEAD``.
- A server that is still reading a large request is not taken for a silent one.

Failures: every error and every cancellation closes the connection. The client then opens another
one for the next request. Nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
from collections.abc import Callable
from time import monotonic
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from corral.errors import CorralError, IdleTimeout, NetworkFailed, StreamBroken

READ = 64 * 1024
"""Bytes that are read at once."""
MOST_UNREAD = 256 * 1024
"""Bytes that wait for the reader before the socket is no longer read."""
LARGEST_HEAD = 64 * 1024
"""Bytes in a row without a body: headers, trailers, interim responses."""
LARGE = 64 * 1024
"""A body of at least this size is not copied into one buffer with its head."""
_KEEP_ALIVE = re.compile(rb"timeout *= *(\d{1,6})")


class HttpConnection(asyncio.BufferedProtocol):
    """One connection. ``server`` names the server in errors. ``buffer`` may be shared by all
    connections of a loop: it is empty between two callbacks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        buffer: memoryview,
        server: str,
        read_timeout: float,
        on_lost: Callable[[HttpConnection], None],
    ) -> None:
        self._loop = loop
        self._buffer = buffer
        self._server = server
        self._read_timeout = read_timeout
        self._on_lost = on_lost
        self._pieces: list[bytes] = []
        # Called by the parser, without Python code in between.
        self.on_body: Callable[[bytes], None] = self._pieces.append
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._paused = False
        self._busy = False
        self.lost: bool = False
        self._idle_until = 0.0
        self._reset()

    def _reset(self) -> None:
        self.began: bool = False
        self.ended: bool = False
        self.keeps: bool = False
        self._until_close = False
        self.status: int = 0
        self.fields: dict[bytes, bytes] = {}
        """Headers of the response, names in lower case."""
        self._fault: CorralError | None = None
        self._buffered = self._overhead = self._unsent = 0

    # Called by the client.

    def send_request(self, head: bytes, body: bytes = b"") -> None:
        """Write a request. A lost connection is reported by ``wait``."""
        self._reset()
        self._busy = True
        transport = self._transport
        if transport is None or self.lost:
            self._fault = self._closed_error(None)
            return
        if len(body) < LARGE:
            transport.write(head + body)
            return
        transport.write(head)
        transport.write(body)
        self._unsent = transport.get_write_buffer_size()

    async def next_chunk(self) -> bytes:
        """Return all that has arrived, at least one byte; empty at the end. Raises ``StreamBroken``
        and ``IdleTimeout``."""
        pieces = self._pieces
        while not pieces:
            if self.ended:
                return b""
            await self.wait()
        return self.take_unread()

    def take_unread(self) -> bytes:
        """Return what has arrived, which may be nothing."""
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._buffered = 0
        if self._paused:
            self._paused = False
            if self._transport is not None and not self.lost:
                self._transport.resume_reading()
        return data

    def release(self, seconds: float) -> bool:
        """Make the connection idle after a complete response. Return False, and close it, if it
        cannot be used again. It may be used for ``seconds``, or less if the server says so."""
        transport = self._transport
        if (
            not self.keeps
            or not self._busy
            or self._paused
            or transport is None
            or transport.is_closing()
            or transport.get_write_buffer_size()
        ):
            self.abort()
            return False
        self._busy = False
        self._pieces.clear()
        if b"keep-alive" in self.fields and (
            announced := _KEEP_ALIVE.search(self.fields[b"keep-alive"])
        ):
            seconds = min(seconds, int(announced[1]) - 1)
        self._idle_until = monotonic() + seconds
        return True

    def is_open(self) -> bool:
        """Whether an idle connection can be used: the server has neither closed it, also if the
        loop does not know yet, nor sent anything."""
        if self.lost or self._transport is None or self._transport.is_closing():
            return False
        if monotonic() > self._idle_until or self._poll.poll(0):
            self.abort()
            return False
        return True

    def abort(self) -> None:
        """Close at once. The socket is closed in the next iteration of the loop."""
        if self.lost:
            return
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fault is None and not self.ended:
            self._fault = self._broken_error("corral closed the connection")
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._transport.abort()
        self._wake()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._busy or self.lost:
            self.abort()  # nothing was requested
            return
        try:
            self._feed(self._buffer[:nbytes])
        except (HttpParserError, HttpParserUpgrade) as error:
            self.keeps = False
            self._fail(
                self._broken_error(f"it is not valid HTTP: {error}")
                if self.began
                else NetworkFailed(
                    f"{self._server} did not respond with HTTP: {error}",
                    hint="Check the base URL and its port.",
                    retryable=False,
                )
            )
            return
        if self._pieces:
            self._overhead = 0
            self._buffered += nbytes
            if self._buffered > MOST_UNREAD and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        elif not self.ended:
            self._overhead += nbytes
            self._deadline = self._loop.time() + self._read_timeout
            if self._overhead > LARGEST_HEAD:
                self._fail(
                    self._broken_error(f"the headers are larger than {LARGEST_HEAD:,} bytes")
                )
                return
        if self.began:
            if self.ended and not self.keeps:
                self.abort()
            self._wake()

    def eof_received(self) -> None:
        self.keeps = False  # the transport closes itself next

    def connection_lost(self, exc: Exception | None) -> None:
        if self._busy and not self.ended and self._fault is None:
            if self.began and self._until_close and exc is None:
                self.ended = True
            else:
                self._fault = self._closed_error(exc)
        self.lost = True
        self.keeps = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()
        self._parser = None  # the parser and this object reference each other
        del self._feed
        self._on_lost(self)

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.ended:
            raise ValueError("a second answer to one request")  # stops the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.began:
            return  # a trailer
        name = name.lower()
        earlier = self.fields.get(name)
        self.fields[name] = value if earlier is None else b"%b, %b" % (earlier, value)

    def on_headers_complete(self) -> None:
        if self._parser is None or self.ended:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self.fields.clear()
            return
        fields = self.fields
        self.status = status
        self.began = True
        if status in (204, 304):
            self.ended = True  # whatever length the header gives
        elif b"content-length" not in fields:
            coding = fields.get(b"transfer-encoding", b"")
            self._until_close = not coding.lower().endswith(b"chunked")

    def on_message_complete(self) -> None:
        if self.began and not self.ended and self._parser is not None:
            self.ended = True
            self.keeps = self._parser.should_keep_alive()

    # Waiting and errors.

    async def wait(self) -> None:
        """Wait until something arrives or fails. Raises ``NetworkFailed``, ``StreamBroken`` and
        ``IdleTimeout``."""
        if self._fault is not None:
            raise self._fault
        loop = self._loop
        waiter = self._waiter = loop.create_future()
        self._deadline = deadline = loop.time() + self._read_timeout
        if self._timer is None:  # else the running timer checks the new deadline
            self._timer = loop.call_at(deadline, self._on_timeout)
        try:
            await waiter
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiter = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self._waiter is None or self._transport is None:
            return  # no request waits for the server
        if self._loop.time() + 0.001 < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._on_timeout)
            return
        unsent = self._transport.get_write_buffer_size()
        if 0 < unsent < self._unsent or (self._unsent and not unsent):
            # The server is still reading: its silence counts from the last byte of the request.
            self._unsent = unsent
            self._deadline = self._loop.time() + self._read_timeout
            self._timer = self._loop.call_at(self._deadline, self._on_timeout)
            return
        self._fail(
            IdleTimeout(
                f"{self._server} sent nothing for {self._read_timeout:g} s",
                hint="Increase read_timeout, or ask for less.",
            )
        )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and not self._loop.is_closed():
            self._waiter.set_result(None)

    def _fail(self, fault: CorralError) -> None:
        if not self.ended:
            self._fault = fault
        self.abort()

    def _closed_error(self, error: Exception | None) -> CorralError:
        if self.began:
            why = "it was closed too early" if error is None else error_text(error)
            return self._broken_error(why)
        why = "" if error is None else f": {error_text(error)}"
        return NetworkFailed(
            f"{self._server} closed the connection without a response{why}",
            hint="Try again; a proxy may have closed the connection.",
        )

    def _broken_error(self, why: str) -> CorralError:
        if not self.began:
            return NetworkFailed(
                f"the request to {self._server} failed: {why}",
                hint="Check the network and try again.",
            )
        return broken_stream(self._server, why)


def broken_stream(server: str, why: str) -> StreamBroken:
    return StreamBroken(
        f"the connection to {server} broke in the middle of the response: {why}",
        hint="Try again; a proxy may cut long responses.",
    )


def error_text(error: BaseException) -> str:
    """The reason in one line, such as ``Connection refused``."""
    if isinstance(error, ConnectionError) and error.errno is not None:
        return os.strerror(error.errno)
    text = " ".join(str(error).split())[:200]
    return text or type(error).__name__
