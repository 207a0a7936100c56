"""One connection to a server: what arrives is parsed by llhttp and held until it is taken.

One request at a time: ``ask``, ``begun``, then ``piece`` until it is empty. Whatever goes
wrong on the way, a cancellation too, closes the connection; what came before is still handed
out. State changes in the callbacks of the transport, without a task of its own.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Callable
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from corral.errors import CorralError, IdleTimeout, NetworkFailed, StreamBroken

READ = 64 * 1024
"""Bytes that are read at once."""
MOST_UNREAD = 256 * 1024
"""Bytes that wait to be taken before the server has to wait too."""
LARGEST_HEAD = 64 * 1024
"""Bytes without any body among them: headers, trailers, interim answers."""
LARGE = 64 * 1024
"""A body of this size is not copied behind its head."""
_TOLD = re.compile(rb"timeout *= *(\d{1,6})")


class Connection(asyncio.BufferedProtocol):
    """``said`` names the server in errors; ``buffer`` may be shared by all connections of a
    loop, for it is empty between two callbacks."""

    __slots__ = (
        "_buffer", "_busy", "_deadline", "_fault", "_feed", "_held", "_idle_until", "_loop",
        "_on_lost", "_overhead", "_parser", "_paused", "_pieces", "_poll", "_read_timeout", "_said",
        "_timer", "_transport", "_unsent", "_until_close", "_waiter", "began", "ended",
        "fields", "keeps", "lost", "on_body", "status",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        buffer: memoryview,
        said: str,
        read_timeout: float,
        on_lost: Callable[[Connection], None],
    ) -> None:
        self._loop = loop
        self._buffer = buffer
        self._said = said
        self._read_timeout = read_timeout
        self._on_lost = on_lost
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # for the parser: no Python in between
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._paused = False
        self._busy = False
        self.lost = False
        self._idle_until = 0.0
        self._reset()

    def _reset(self) -> None:
        self.began = self.ended = self.keeps = self._until_close = False
        self.status = 0
        self.fields: dict[bytes, bytes] = {}
        """Headers of the answer, names in lower case."""
        self._fault: CorralError | None = None
        self._held = self._overhead = self._unsent = 0

    # What the client calls.

    def ask(self, head: bytes, body: bytes = b"") -> None:
        """Write a request."""
        self._reset()
        self._busy = True
        transport = self._transport
        if transport is None or self.lost:
            self._fault = self._cut(None)
            return
        if len(body) < LARGE:
            transport.write(head + body)
            return
        transport.write(head)
        transport.write(body)
        self._unsent = transport.get_write_buffer_size()

    async def begun(self) -> None:
        """Until the head of the answer is there. Raises ``NetworkFailed``, ``IdleTimeout``."""
        while not self.began:
            if self._fault is not None:
                raise self._fault
            await self._wait()

    async def piece(self) -> bytes:
        """All that has arrived, at least a byte; empty at the end. Raises ``StreamBroken``,
        ``IdleTimeout``."""
        pieces = self._pieces
        while not pieces:
            if self.ended:
                return b""
            if self._fault is not None:
                raise self._fault
            await self._wait()
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._held = 0
        if self._paused:
            self._paused = False
            if self._transport is not None and not self.lost:
                self._transport.resume_reading()
        return data

    def release(self, seconds: float) -> bool:
        """The answer was taken to its end: whether another request may be written, in as many
        seconds at most or as many as the server says."""
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
        if b"keep-alive" in self.fields and (told := _TOLD.search(self.fields[b"keep-alive"])):
            seconds = min(seconds, int(told[1]) - 1)
        self._idle_until = self._loop.time() + seconds
        return True

    def is_open(self) -> bool:
        """Whether the server still is there, also where the loop has not heard of it yet, and
        has said nothing that nobody asked for."""
        if self.lost or self._transport is None or self._transport.is_closing():
            return False
        if self._loop.time() > self._idle_until or self._poll.poll(0):
            self.abort()
            return False
        return True

    def abort(self) -> None:
        """Close at once; the system's handle goes with the next turn of the loop."""
        if self.lost:
            return
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fault is None and not self.ended:
            self._fault = self._broken("it was closed here")
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._busy or self.lost:
            self.abort()  # nobody asked
            return
        try:
            self._feed(self._buffer[:nbytes])
        except (HttpParserError, HttpParserUpgrade) as error:
            self._garbled(error)
            return
        if self._pieces:
            self._overhead = 0
            self._held += nbytes
            if self._held > MOST_UNREAD and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        elif not self.ended:
            self._overhead += nbytes
            self._deadline = self._loop.time() + self._read_timeout
            if self._overhead > LARGEST_HEAD:
                self._fail(self._broken(f"over {LARGEST_HEAD:,} bytes of headers"))
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
                self._fault = self._cut(exc)
        self.lost = True
        self.keeps = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()
        self._parser = None  # it and we hold each other
        self._feed = _deaf
        self._on_lost(self)

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.ended:
            raise ValueError("a second answer to one request")  # ends the parser's work

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.began:
            return  # a trailer
        name = name.lower()
        held = self.fields.get(name)
        self.fields[name] = value if held is None else b"%b, %b" % (held, value)

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
            self.ended = True  # whatever length it names
        elif b"content-length" not in fields:
            coding = fields.get(b"transfer-encoding", b"")
            self._until_close = not coding.lower().endswith(b"chunked")

    def on_message_complete(self) -> None:
        if self.began and not self.ended and self._parser is not None:
            self.ended = True
            self.keeps = self._parser.should_keep_alive()

    # Waiting, and what goes wrong.

    async def _wait(self) -> None:
        loop = self._loop
        waiter = self._waiter = loop.create_future()
        self._deadline = deadline = loop.time() + self._read_timeout
        if self._timer is None:  # else it looks at the deadline when it is due
            self._timer = loop.call_at(deadline, self._on_time)
        try:
            await waiter
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiter = None

    def _on_time(self) -> None:
        self._timer = None
        if self._waiter is None or self._transport is None:
            return  # nobody waits for the server
        if self._loop.time() + 0.001 < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._on_time)
            return
        unsent = self._transport.get_write_buffer_size()
        if 0 < unsent < self._unsent or (self._unsent and not unsent):
            # The server listens: its silence counts from the last byte of the request.
            self._unsent = unsent
            self._deadline = self._loop.time() + self._read_timeout
            self._timer = self._loop.call_at(self._deadline, self._on_time)
            return
        self._fail(
            IdleTimeout(
                f"{self._said} said nothing for {self._read_timeout:g} s",
                hint="Give it longer with read_timeout, or ask for less.",
            )
        )

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, fault: CorralError) -> None:
        if not self.ended:
            self._fault = fault
        self.abort()

    def _garbled(self, error: Exception) -> None:
        self.keeps = False
        if self.began:
            self._fail(self._broken(f"it is no HTTP any more: {error}"))
            return
        self._fail(
            NetworkFailed(
                f"{self._said} does not answer in HTTP: {error}",
                hint="Is the base URL right, and its port?",
                retryable=False,
            )
        )

    def _cut(self, error: Exception | None) -> CorralError:
        if self.began:
            why = "it was closed before its end" if error is None else said_of(error)
            return self._broken(why)
        why = "" if error is None else f": {said_of(error)}"
        return NetworkFailed(
            f"{self._said} closed the connection without an answer{why}",
            hint="Try again; a proxy in between may have given up.",
        )

    def _broken(self, why: str) -> CorralError:
        if not self.began:
            return NetworkFailed(
                f"the request to {self._said} failed: {why}", hint="Is the network up? Try again."
            )
        return broken(self._said, why)


def broken(said: str, why: str) -> StreamBroken:
    return StreamBroken(
        f"the connection to {said} broke in the middle of the answer: {why}",
        hint="Try again; a proxy in between may cut long answers.",
    )


def _deaf(data: object) -> None:
    """For a parser that is gone."""


def said_of(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return text or type(error).__name__
