"""The HTTP client: HTTP/1.1, pooled connections, deadlines.

It is written on asyncio and llhttp: aiohttp takes six times the CPU time for a small request and
httpcore more (``benchmarks/programs/http_clients.py``).
Redirects are not followed: the API key would be sent along. Bodies that a server compressed without
being asked are decompressed, in pieces of bounded size.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import lru_cache
from typing import Any

from corral._system.http.connect import connect
from corral._system.http.connection import READ, HttpConnection, broken_stream
from corral._system.http.request import Origin, Target, encode_head, parse_url
from corral.errors import StreamBroken

PIECE = 256 * 1024
"""Largest chunk of output in bytes: a few bytes can decompress to very many."""


class Decompressor:
    """Call ``feed`` with what arrived, then ``read`` until it returns nothing. Raises
    ``zlib.error``."""

    def __init__(self, coding: str) -> None:
        self._is_deflate = coding == "deflate"
        self._left = b""
        self._restart()

    def _restart(self) -> None:
        self._decompress = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._is_new = True

    def feed(self, data: bytes) -> None:
        self._left += data

    def read(self) -> bytes:
        while True:
            if self._is_new:
                if len(self._left) < 2:
                    return b""
                if self._is_deflate:
                    first, second = self._left[:2]
                    # Some servers omit the two bytes of the header.
                    framed = first & 15 == 8 and (first * 256 + second) % 31 == 0
                    window = zlib.MAX_WBITS if framed else -zlib.MAX_WBITS
                    self._decompress = zlib.decompressobj(window)
                self._is_new = False
            out = self._decompress.decompress(self._left, PIECE)
            self._left = self._decompress.unconsumed_tail
            if self._decompress.eof:
                self._left = self._decompress.unused_data
                self._restart()  # another compressed stream may follow
            if out or not self._left:
                return out

    @property
    def is_complete(self) -> bool:
        return self._is_new and not self._left


def decompressor_for(encoding: str) -> Decompressor | None:
    """Return a decompressor for a ``Content-Encoding``, or None if the body is not compressed.
    Raises ``ValueError`` for an unknown encoding."""
    coding = encoding.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding in ("gzip", "x-gzip", "deflate"):
        return Decompressor(coding)
    raise ValueError(coding)


_log = logging.getLogger("corral.http")

LARGEST_ANSWER = 256 * 1024 * 1024
"""Bytes of a response that is read completely. It may contain images."""
LARGEST_ERROR = 64 * 1024
CONNECTIONS = 1000
"""Open at the same time. On most machines the limit on open files is lower."""
IDLE = 30.0
"""Seconds that an unused connection stays open. Most servers wait longer."""
TURNS = 100
"""Iterations of the event loop after which every transport has closed."""
ADDRESSES = 1000
"""URLs whose parts are cached."""
_ENCODING = b"content-encoding"


class Http:
    """A pool of connections for one event loop. ``close`` it, or use it as ``async with``."""

    def __init__(self, *, connect_timeout: float = 15.0, read_timeout: float = 300.0) -> None:
        """``connect_timeout`` limits the seconds to connect, ``read_timeout`` the seconds in which
        the server sends nothing. For a limit on a complete request use ``asyncio.timeout``."""
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        # Not shared by all pools: the proxies of the environment are read here.
        self._target = lru_cache(ADDRESSES)(parse_url)
        self._post_head = lru_cache(ADDRESSES)(self._encode_post_head)
        self._reset()

    def _reset(self) -> None:
        self._buffer = memoryview(b"")
        self._open: set[HttpConnection] = set()
        self._connecting = 0
        self._idle: dict[Origin, list[HttpConnection]] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweeping: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection, also those whose response is being read."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._loop is not asyncio.get_running_loop():
            self._reset()  # its loop has ended
            return
        self._sweeping = None
        self._idle.clear()
        for _ in range(TURNS):
            for connection in tuple(self._open):
                connection.abort()
            if not self._open:
                return
            await asyncio.sleep(0)  # a transport closes its socket in the next turns of the loop

    def post(
        self, url: str, body: bytes, headers: Mapping[str, str]
    ) -> Coroutine[Any, Any, HttpResponse]:
        """Send a POST request. Return the response; its body is not read yet. Raises
        ``NetworkFailed``, ``IdleTimeout`` and ``ConfigError``."""
        target, start = self._post_head(url, *headers.items())
        return self._send(target, b"%bcontent-length: %d\r\n\r\n" % (start, len(body)), body)

    def _encode_post_head(self, url: str, *headers: tuple[str, str]) -> tuple[Target, bytes]:
        """The head of a request up to the length of its body: most requests to a URL differ only in
        their bodies."""
        target = self._target(url)
        sent = {"Content-Type": "application/json", **dict(headers)}
        return target, encode_head("POST", target, sent)[:-2]

    def get(self, url: str, headers: Mapping[str, str]) -> Coroutine[Any, Any, HttpResponse]:
        """Send a GET request, like ``post``."""
        target = self._target(url)
        return self._send(target, encode_head("GET", target, headers), b"")

    def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str]
    ) -> Coroutine[Any, Any, HttpResponse]:
        """Send a request with any method except ``HEAD``, whose response has no body although its
        head gives a length."""
        target = self._target(url)
        length = len(body) if body or method != "GET" else None
        return self._send(target, encode_head(method, target, headers, length), body)

    async def _send(self, target: Target, head: bytes, body: bytes) -> HttpResponse:
        origin = target.origin
        connection = self._idle_connection(origin) or await self._new_connection(origin)
        connection.send_request(head, body)
        while not connection.began:
            await connection.wait()
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("request to %s: status %s", origin.authority, connection.status)
        return HttpResponse(connection, origin, self._return)

    def _idle_connection(self, origin: Origin) -> HttpConnection | None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._reset()  # connections of another loop cannot be used
            self._loop = loop
            self._buffer = memoryview(bytearray(READ))
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_open():
                return connection
        return None

    async def _new_connection(self, origin: Origin) -> HttpConnection:
        """A new connection. At the limit, the next one that is free."""
        loop = asyncio.get_running_loop()
        while len(self._open) + self._connecting >= CONNECTIONS:
            # Wait until another connection may be opened. An unused one is closed to make room.
            unused = next((idle.pop(0) for idle in self._idle.values() if idle), None)
            if unused is not None:
                unused.abort()
            waiter = loop.create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_next()
                raise
            if (connection := self._idle_connection(origin)) is not None:
                return connection

        def make_connection() -> HttpConnection:
            return HttpConnection(
                loop, self._buffer, origin.authority, self._read_timeout, self._on_lost
            )

        self._connecting += 1
        try:
            connection = await connect(origin, make_connection, self._connect_timeout)
        except BaseException:
            self._wake_next()
            raise
        finally:
            self._connecting -= 1
        if not connection.lost:
            self._open.add(connection)
        return connection

    def _wake_next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _on_lost(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        self._wake_next()

    def _return(self, connection: HttpConnection, origin: Origin) -> None:
        if not connection.release(IDLE):
            return
        idle = self._idle.get(origin)
        if idle is None:
            idle = self._idle[origin] = []
        idle.append(connection)
        if self._waiting:
            self._wake_next()
        if self._sweeping is None and self._loop is not None:
            self._sweeping = self._loop.call_later(IDLE / 2, self._sweep)

    def _sweep(self) -> None:
        """Close connections that were not used for some time."""
        self._sweeping = None
        for origin, idle in tuple(self._idle.items()):
            open_connections = [connection for connection in idle if connection.is_open()]
            if open_connections:
                self._idle[origin] = open_connections
            else:
                del self._idle[origin]
        if self._idle and self._loop is not None:
            self._sweeping = self._loop.call_later(IDLE / 2, self._sweep)


def wire_names(names: Iterable[str]) -> frozenset[bytes]:
    """Names of headers for ``HttpResponse.has_any``."""
    return frozenset(name.lower().encode("latin-1") for name in names)


class HttpResponse:
    """The response of a server. Read it to its end or ``close`` it."""

    def __init__(
        self,
        connection: HttpConnection,
        origin: Origin,
        return_connection: Callable[[HttpConnection, Origin], None],
    ) -> None:
        self._connection: HttpConnection | None = connection
        self._origin = origin
        self._return = return_connection
        self._is_complete = False
        self.status: int = connection.status
        fields = connection.fields
        self._fields = fields
        self._decompressor: Decompressor | None = None
        if _ENCODING in fields:
            try:
                self._decompressor = decompressor_for(fields[_ENCODING].decode("latin-1"))
            except ValueError as error:
                self.close()
                raise StreamBroken(
                    f"{origin.authority} sent a response compressed as {error},"
                    " which was not requested",
                    hint="A proxy may do that: configure it not to change responses.",
                    retryable=False,
                ) from error

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def headers(self) -> dict[str, str]:
        """Names are in lower case; the values of a repeated header are joined with a comma."""
        return {
            name.decode("latin-1"): value.decode("latin-1") for name, value in self._fields.items()
        }

    def has_any(self, names: frozenset[bytes]) -> bool:
        """Whether one of these headers is there. ``wire_names`` makes the names."""
        return not names.isdisjoint(self._fields)

    @property
    def media_type(self) -> str:
        content_type = self._fields.get(b"content-type", b"")
        return content_type.partition(b";")[0].strip().lower().decode("latin-1")

    async def chunk(self) -> bytes:
        """Return what has arrived, at least one byte; empty at the end. Raises ``StreamBroken`` and
        ``IdleTimeout``."""
        decompressor = self._decompressor
        if decompressor is None:
            return await self._arrived()
        try:
            while not (data := decompressor.read()):
                arrived = await self._arrived()
                if not arrived:
                    if not decompressor.is_complete:
                        raise self._broken("the compressed data is cut short")
                    return b""
                decompressor.feed(arrived)
            return data
        except zlib.error as error:
            self.close()
            raise self._broken(f"it cannot be decompressed: {error}") from error

    async def _arrived(self) -> bytes:
        connection = self._connection
        if connection is None:
            if not self._is_complete:
                raise self._broken("it was closed too early")
            return b""
        data = await connection.next_chunk()
        if connection.ended:
            self._is_complete = True
            self._connection = None
            self._return(connection, self._origin)
        return data

    def arrived_body(self) -> bytes | None:
        """Return the complete body if it has arrived already, as a small one has, and is not
        compressed; else None. Raises ``StreamBroken`` if it is too large."""
        connection = self._connection
        if connection is None or not connection.ended or self._decompressor is not None:
            return None
        data = connection.take_unread()
        self._connection = None
        self._return(connection, self._origin)
        return self._checked(data)

    async def body(self) -> bytes:
        """Return the complete body. Raises ``StreamBroken`` if it is too large or cut short."""
        data = self.arrived_body()
        return self._checked(await self.head(LARGEST_ANSWER + 1)) if data is None else data

    def _checked(self, data: bytes) -> bytes:
        if len(data) > LARGEST_ANSWER:
            raise StreamBroken(
                f"the response of {self._origin.authority} is larger than {LARGEST_ANSWER:,} bytes",
                retryable=False,
            )
        return data

    async def head(self, most: int) -> bytes:
        """Return the first ``most`` bytes. If there are more, the connection is closed."""
        first = await self.chunk()
        if self._is_complete and self._decompressor is None:
            return first[:most]
        pieces = [first]
        size = len(first)
        while size < most and (piece := await self.chunk()):
            pieces.append(piece)
            size += len(piece)
        self.close()
        return b"".join(pieces)[:most]

    def close(self) -> None:
        """Close the connection, or return it to the pool if the response is complete."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.ended:  # the rest was not read, but it has arrived
            self._return(connection, self._origin)
        else:
            connection.abort()

    def _broken(self, why: str) -> StreamBroken:
        return broken_stream(self._origin.authority, why)
