"""Send requests to the scripted server with one HTTP client, without reading JSON:
``http_clients.py CLIENT PORT REQUESTS EVENTS``.

The figures are CPU seconds of this process, after a first small request: for one small response
(``request``, 100 at a time on open connections) and for one event of a stream whose events arrive
each in one chunk (``event``).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, TypeAlias

AT_ONCE = 100
HEADERS = {"content-type": "application/json"}
Send: TypeAlias = Callable[[bytes], Awaitable[int]]
"""From the body of a request to the number of bytes received."""


async def corral(url: str, use: Callable[[Send], Awaitable[None]]) -> None:
    from corral._system.http.client import Http

    async with Http() as client:

        async def send(body: bytes) -> int:
            response = await client.post(url, body, HEADERS)
            size = 0
            while chunk := await response.chunk():
                size += len(chunk)
            return size

        await use(send)


async def aiohttp(url: str, use: Callable[[Send], Awaitable[None]]) -> None:
    library: Any = import_module("aiohttp")
    connector = library.TCPConnector(limit=AT_ONCE)
    async with library.ClientSession(connector=connector) as session:

        async def send(body: bytes) -> int:
            async with session.post(url, data=body, headers=HEADERS) as response:
                return sum([len(chunk) async for chunk in response.content.iter_any()])

        await use(send)


async def httpcore(url: str, use: Callable[[Send], Awaitable[None]]) -> None:
    library: Any = import_module("httpcore")
    async with library.AsyncConnectionPool(
        max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE
    ) as pool:

        async def send(body: bytes) -> int:
            async with pool.stream("POST", url, headers=HEADERS, content=body) as response:
                return sum([len(chunk) async for chunk in response.aiter_stream()])

        await use(send)


def written(prompt: str, *, stream: bool) -> bytes:
    messages = [{"role": "user", "content": prompt}]
    return json.dumps({"model": "none", "messages": messages, "stream": stream}).encode()


def main(client: str, port: int, requests: int, events: int) -> None:
    async def use(send: Send) -> None:
        small = written("events=20 packed", stream=False)
        await asyncio.gather(*(send(small) for _ in range(AT_ONCE)))
        started = time.process_time()
        for _ in range(requests // AT_ONCE):
            await asyncio.gather(*(send(small) for _ in range(AT_ONCE)))
        request = (time.process_time() - started) / requests
        started = time.process_time()
        received = await send(written(f"events={events} framed", stream=True))
        event = (time.process_time() - started) / events
        if received < events:
            raise ValueError(f"only {received} bytes were received")
        print(json.dumps({"request": request, "event": event}))

    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    clients = {"corral": corral, "aiohttp": aiohttp, "httpcore": httpcore}
    asyncio.run(clients[client](url, use))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
