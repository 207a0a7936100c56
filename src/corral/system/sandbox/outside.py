"""Connections from corral to the world, on behalf of a program in the sandbox.

If the user's environment names a proxy for a host (``HTTPS_PROXY``, ``NO_PROXY``), the connection
goes through it. The program inside knows nothing of that proxy, and does not see its credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TypeAlias

from corral.system.http.proxy import Proxy, authority, proxy_for
from corral.system.sandbox.box import Endpoint

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CHUNK = 1 << 16
_HTTP = 80


def proxy_of(endpoint: Endpoint) -> Proxy | None:
    """The user's proxy for an endpoint. Raises ``ConfigError`` for a kind that is not supported."""
    if endpoint.is_local:
        return None
    scheme = "http" if endpoint.port == _HTTP else "https"
    return proxy_for(f"{scheme}://{authority(endpoint.host, endpoint.port)}")


async def open_outside(endpoint: Endpoint) -> Streams:
    """Connect to an endpoint, through the user's proxy if there is one. Raises ``OSError``,
    ``NetworkFailed`` or ``ConfigError``."""
    proxy = proxy_of(endpoint)
    if proxy is None:
        return await asyncio.open_connection(endpoint.host, endpoint.port)
    return await open_through(proxy, endpoint)


async def open_through(proxy: Proxy, endpoint: Endpoint) -> Streams:
    from corral.system.http.tunnel import open_tunnel

    return await open_tunnel(proxy, endpoint.host, endpoint.port)


async def open_first(addresses: Sequence[str], port: int) -> Streams:
    """Connect to the first of these addresses that accepts it. Raises ``OSError``."""
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(address, port)
    return await asyncio.open_connection(addresses[-1], port)


async def relay(inside: Streams, outside: Streams) -> None:
    """Copy bytes both ways until both sides have ended. Closes both."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(inside[0], outside[1]))
            group.create_task(_copy(outside[0], inside[1]))
    finally:
        # What is buffered is still sent.
        outside[1].close()
        inside[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of input, then pass the end on."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
