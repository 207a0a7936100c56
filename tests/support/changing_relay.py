"""A server between an agent and the scripted model, which changes the bytes of the responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

from support.raw_server import RawConnection, plain, raw_server


@asynccontextmanager
async def changing_relay(url: str, change: Callable[[bytes], bytes]) -> AsyncGenerator[str]:
    """The URL of a server that sends requests to ``url`` and returns the changed bodies."""
    target = urlsplit(url)

    def forward(request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        method, path, _ = first.split(" ")
        connection = HTTPConnection(target.netloc, timeout=60)
        try:
            connection.request(method, target.path + path, body, headers)
            response = connection.getresponse()
            kind = f"Content-Type: {response.headers['Content-Type']}"
            return plain(change(response.read()), kind, status=response.status)
        finally:
            connection.close()

    async def talk(connection: RawConnection) -> None:
        while request := await connection.request():
            await connection.send(await asyncio.to_thread(forward, request))

    async with raw_server(talk) as server:
        yield server.url
