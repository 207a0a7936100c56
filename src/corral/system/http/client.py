"""The one HTTP client: pooled, bounded by deadlines, HTTP/1.1.

Written by hand on asyncio and llhttp: a small request costs a quarter of what it costs aiohttp.
A redirect is not followed: the key would go with it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from corral.errors import StreamBroken
from corral.system.http.connect import connect
from corral.system.http.connection import READ, Connection, broken
from corral.system.http.encoding import Unpacking, unpacking
from corral.system.http.request import Origin, Target, head_of, target_of

LARGEST_ANSWER = 256 * 1024 * 1024
"""Bytes of an answer that comes whole. Images come in it."""
LARGEST_ERROR = 64 * 1024
CONNECTIONS = 1000
"""At once; the operating system's limit on open files comes before it on most machines."""
IDLE = 30.0
"""Seconds that a connection is kept for another request. Most servers wait longer."""
TURNS = 100
"""Of the loop, in which every transport has closed."""
ADDRESSES = 1000
"""Addresses whose parts are remembered."""
_ENCODING = b"content-encoding"


class Http:
    """Connections for one event loop. ``close`` it, or use it as ``async with``."""

    def __init__(self, *, connect_timeout: float = 15.0, read_timeout: float = 300.0) -> None:
        """``connect_timeout`` is for reaching the server, ``read_timeout`` for each silence of
        it; a deadline over the whole is the caller's ``asyncio.timeout``."""
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._targets: dict[str, Target] = {}
        self._begin()

    def _begin(self) -> None:
        self._buffer = memoryview(b"")
        self._open: set[Connection] = set()
        self._connecting = 0
        self._idle: dict[Origin, list[Connection]] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweeping: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Every connection, those of answers under way too."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._loop is not asyncio.get_running_loop():
            self._begin()  # of a loop that is over
            return
        self._sweeping = None
        self._idle.clear()
        for _ in range(TURNS):
            for connection in tuple(self._open):
                connection.abort()
            if not self._open:
                return
            await asyncio.sleep(0)  # a transport closes its socket in the next turns of the loop

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> HttpResponse:
        """The answer, its body not yet read. Raises ``NetworkFailed``, ``IdleTimeout`` and
        ``ConfigError``."""
        target = self._target(url)
        sent = {"Content-Type": "application/json", **headers}
        return await self._ask(target, head_of("POST", target, sent, len(body)), body)

    async def get(self, url: str, headers: Mapping[str, str]) -> HttpResponse:
        """As ``post``."""
        target = self._target(url)
        return await self._ask(target, head_of("GET", target, headers), b"")

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str]
    ) -> HttpResponse:
        """Any method but ``HEAD``, whose answer has no body where its head promises one."""
        target = self._target(url)
        length = len(body) if body or method != "GET" else None
        return await self._ask(target, head_of(method, target, headers, length), body)

    async def _ask(self, target: Target, head: bytes, body: bytes) -> HttpResponse:
        origin = target.origin
        connection = await self._connection(origin)
        connection.ask(head, body)
        await connection.begun()
        return HttpResponse(connection, origin, self._give_back)

    def _target(self, url: str) -> Target:
        target = self._targets.get(url)
        if target is None:
            target = target_of(url)
            if len(self._targets) >= ADDRESSES:
                self._targets.clear()
            self._targets[url] = target
        return target

    async def _connection(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._begin()  # those of another loop are of no use here
            self._loop = loop
            self._buffer = memoryview(bytearray(READ))
        while True:
            idle = self._idle.get(origin)
            while idle:
                connection = idle.pop()
                if connection.is_open():
                    return connection
            if len(self._open) + self._connecting < CONNECTIONS:
                return await self._connect(origin, loop)
            await self._turn(loop)

    async def _connect(self, origin: Origin, loop: asyncio.AbstractEventLoop) -> Connection:
        def made() -> Connection:
            return Connection(loop, self._buffer, origin.said, self._read_timeout, self._on_lost)

        self._connecting += 1
        try:
            connection = await connect(origin, made, self._connect_timeout)
        except BaseException:
            self._next()
            raise
        finally:
            self._connecting -= 1
        if not connection.lost:
            self._open.add(connection)
        return connection

    async def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until there may be room for one more, made at the cost of one that nobody uses."""
        unused = next((idle.pop(0) for idle in self._idle.values() if idle), None)
        if unused is not None:
            unused.abort()
        waiter = loop.create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._next()
            raise

    def _next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _on_lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._next()

    def _give_back(self, connection: Connection, origin: Origin) -> None:
        if not connection.release(IDLE):
            return
        idle = self._idle.get(origin)
        if idle is None:
            idle = self._idle[origin] = []
        idle.append(connection)
        if self._waiting:
            self._next()
        if self._sweeping is None and self._loop is not None:
            self._sweeping = self._loop.call_later(IDLE / 2, self._sweep)

    def _sweep(self) -> None:
        """Close what was not used for long."""
        self._sweeping = None
        for origin, idle in tuple(self._idle.items()):
            kept = [connection for connection in idle if connection.is_open()]
            if kept:
                self._idle[origin] = kept
            else:
                del self._idle[origin]
        if self._idle and self._loop is not None:
            self._sweeping = self._loop.call_later(IDLE / 2, self._sweep)


class Headers(Mapping[str, str]):
    """Names in any case; one that came twice holds both values, with a comma in between."""

    __slots__ = ("_held",)

    def __init__(self, held: dict[bytes, bytes]) -> None:
        self._held = held

    def __getitem__(self, name: str) -> str:
        return self._held[name.lower().encode("latin-1")].decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower().encode("latin-1") in self._held

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._held)

    def __len__(self) -> int:
        return len(self._held)


class HttpResponse:
    """What a server answered. Read it to its end or ``close`` it."""

    __slots__ = (
        "_connection",
        "_give_back",
        "_is_whole",
        "_origin",
        "_packed",
        "headers",
        "status",
    )

    def __init__(
        self,
        connection: Connection,
        origin: Origin,
        give_back: Callable[[Connection, Origin], None],
    ) -> None:
        self._connection: Connection | None = connection
        self._origin = origin
        self._give_back = give_back
        self._is_whole = False
        self.status = connection.status
        fields = connection.fields
        self.headers = Headers(fields)
        self._packed = self._unpacking(fields[_ENCODING]) if _ENCODING in fields else None

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def chunk(self) -> bytes:
        """What has arrived, at least a byte; empty at the end. Raises ``StreamBroken`` and
        ``IdleTimeout``."""
        if self._packed is not None:
            return await self._unpacked(self._packed)
        return await self._arrived()

    async def _arrived(self) -> bytes:
        connection = self._connection
        if connection is None:
            if not self._is_whole:
                raise self._broken("it was closed before its end")
            return b""
        data = await connection.piece()
        if connection.ended:
            self._is_whole = True
            self._connection = None
            self._give_back(connection, self._origin)
        return data

    async def _unpacked(self, packed: Unpacking) -> bytes:
        try:
            while not (data := packed.take()):
                arrived = await self._arrived()
                if not arrived:
                    if not packed.is_whole:
                        raise self._broken("what was compressed is cut short")
                    return b""
                packed.give(arrived)
            return data
        except zlib.error as error:
            self.close()
            raise self._broken(f"it cannot be unpacked: {error}") from error

    async def body(self) -> bytes:
        """All of it; ``StreamBroken`` for one that is too large or cut short."""
        whole = await self.head(LARGEST_ANSWER + 1)
        if len(whole) > LARGEST_ANSWER:
            raise StreamBroken(
                f"the answer of {self._origin.said} is over {LARGEST_ANSWER:,} bytes",
                retryable=False,
            )
        return whole

    async def head(self, most: int) -> bytes:
        """Its first bytes; where there are more the connection is given up."""
        first = await self.chunk()
        if self._is_whole and self._packed is None:
            return first[:most]
        pieces = [first]
        size = len(first)
        while size < most and (piece := await self.chunk()):
            pieces.append(piece)
            size += len(piece)
        self.close()
        return b"".join(pieces)[:most]

    def close(self) -> None:
        """Give the connection up, or back where the answer has arrived whole."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.ended:  # nobody took what is left, but it is there
            self._give_back(connection, self._origin)
        else:
            connection.abort()

    def _unpacking(self, coding: bytes) -> Unpacking | None:
        try:
            return unpacking(coding.decode("latin-1"))
        except ValueError as error:
            self.close()
            raise StreamBroken(
                f"{self._origin.said} answers compressed as {error}, which nobody asked for",
                hint="A proxy in between may do that: have it leave answers as they are.",
                retryable=False,
            ) from error

    def _broken(self, why: str) -> StreamBroken:
        return broken(self._origin.said, why)
