"""TCP servers on this machine that send the bytes a test gives them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

ConnectionHandler: TypeAlias = Callable[["RawConnection"], Awaitable[None]]


class RawConnection:
    """One connection, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """The next request, head and body; empty if the client has closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return head + await self.reader.readexactly(int(length or 0))

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def wait_closed(self) -> None:
        """Wait until the client has closed."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


class RawServer:
    def __init__(self) -> None:
        self.port = 0
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.quiet = asyncio.Event()
        """Call it while there is no connection."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def raw_server(
    talk: ConnectionHandler, *, trusted: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncGenerator[RawServer]:
    """``talk`` with each connection; it is closed afterwards."""
    state = RawServer()
    state.quiet.set()
    before = asyncio.all_tasks()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.connections += 1
        state.open += 1
        state.quiet.clear()
        try:
            await talk(RawConnection(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(Exception):
                await writer.wait_closed()
            state.open -= 1
            if not state.open:
                state.quiet.set()

    server = await asyncio.start_server(handle, host, 0, ssl=trusted)
    async with server:
        state.port = server.sockets[0].getsockname()[1]
        yield state
        async with asyncio.timeout(60):
            await state.quiet.wait()
            # A handshake that came to nothing ends in a task of the server's own.
            while left := {task for task in asyncio.all_tasks() - before if _accepts(task)}:
                await asyncio.wait(left)


def _accepts(task: asyncio.Task[object]) -> bool:
    return "_accept_connection" in repr(task.get_coro())


def respond_with(*answers: bytes, keep: bool = True) -> ConnectionHandler:
    """The first answer to the first request of a connection, and so on; the last for the rest."""

    async def talk(line: RawConnection) -> None:
        number = 0
        while await line.request():
            await line.send(answers[min(number, len(answers) - 1)])
            number += 1
            if not keep:
                return

    return talk


def plain(body: bytes = b"ok", *headers: str, status: int = 200) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
