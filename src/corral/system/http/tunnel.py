"""A connection through a proxy: the request ``CONNECT``, and its response."""

from __future__ import annotations

import asyncio

from corral.errors import NetworkFailed
from corral.system.http.connection import LARGEST_HEAD, error_text
from corral.system.http.proxy import Proxy, authority


def connect_request(proxy: Proxy, host: str, port: int) -> bytes:
    where = authority(host, port)
    request = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n"
    if proxy.authorization:
        request += f"Proxy-Authorization: {proxy.authorization}\r\n"
    return f"{request}\r\n".encode("latin-1")


def check_response(received: bytes, where: str) -> None:
    """Raises ``NetworkFailed`` unless the proxy has connected to ``where``."""
    head, blank, more = received.partition(b"\r\n\r\n")
    line = head.partition(b"\r\n")[0].decode("latin-1")
    version, _, rest = line.partition(" ")
    if not blank or not version.startswith("HTTP/1."):
        raise proxy_error("closed the connection" if not blank else "does not speak HTTP")
    if rest[:1] != "2" or more:
        raise proxy_error(f"refuses to connect to {where}: {rest[:100]}", retryable=rest[:1] == "5")


async def open_tunnel(
    proxy: Proxy, host: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a host through a proxy. Raises ``NetworkFailed``."""
    try:
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port, limit=LARGEST_HEAD)
    except OSError as error:
        raise proxy_error(f"cannot be reached: {error_text(error)}") from error
    try:
        writer.write(connect_request(proxy, host, port))
        head = await reader.readuntil(b"\r\n\r\n")
        check_response(head, authority(host, port))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
        writer.transport.abort()
        raise proxy_error("closed the connection") from error
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


def proxy_error(why: str, *, retryable: bool = True) -> NetworkFailed:
    return NetworkFailed(
        f"the proxy {why}", hint="Check HTTPS_PROXY and NO_PROXY.", retryable=retryable
    )
