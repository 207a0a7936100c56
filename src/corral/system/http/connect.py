"""Reaching a server: names, TCP, a proxy in between, TLS; all of it within one deadline."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import cast

from corral.errors import CorralError, NetworkFailed
from corral.system.http.connection import LARGEST_HEAD, Connection, said_of
from corral.system.http.proxy import Proxy
from corral.system.http.request import Origin

NEXT_ADDRESS = 0.25
"""Seconds after which another address of a host is tried beside the first."""


async def connect(origin: Origin, make: Callable[[], Connection], seconds: float) -> Connection:
    """Raises ``NetworkFailed``."""
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            if origin.proxy is not None:
                return await _through(origin, origin.proxy, make)
            return await _directly(origin, make)
    except (OSError, ValueError) as error:
        raise _failed(error, origin, seconds if scope.expired() else None) from error


async def _directly(origin: Origin, make: Callable[[], Connection]) -> Connection:
    loop = asyncio.get_running_loop()
    host = origin.host
    trusted = _context() if origin.secure else None
    delay = None if ":" in host or host.replace(".", "").isdigit() else NEXT_ADDRESS
    _, connection = await loop.create_connection(
        make, host, origin.port, ssl=trusted, happy_eyeballs_delay=delay
    )
    return connection


async def _through(origin: Origin, proxy: Proxy, make: Callable[[], Connection]) -> Connection:
    loop = asyncio.get_running_loop()
    try:
        if not origin.secure:
            return (await loop.create_connection(make, proxy.host, proxy.port))[1]
        transport, tunnel = await loop.create_connection(
            _Tunnel, proxy.host, proxy.port, happy_eyeballs_delay=NEXT_ADDRESS
        )
    except OSError as error:
        raise _no_proxy(f"cannot be reached: {said_of(error)}") from error
    try:
        await tunnel.dug(origin, proxy)
        connection = make()
        secure = await loop.start_tls(
            transport, connection, _context(), server_hostname=origin.host
        )
    except BaseException:
        transport.abort()
        raise
    if secure is None:
        raise ConnectionResetError("the proxy closed the connection")
    connection.connection_made(secure)
    return connection


class _Tunnel(asyncio.Protocol):
    """What a proxy answers to ``CONNECT``."""

    def __init__(self) -> None:
        self._heard = bytearray()
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if b"\r\n\r\n" in self._heard or len(self._heard) > LARGEST_HEAD:
            self._done()

    def connection_lost(self, exc: Exception | None) -> None:
        self._done()

    def _done(self) -> None:
        if not self._answered.done():
            self._answered.set_result(None)

    async def dug(self, origin: Origin, proxy: Proxy) -> None:
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        where = f"{host}:{origin.port}"
        said = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n"
        if proxy.authorization:
            said += f"Proxy-Authorization: {proxy.authorization}\r\n"
        if self._transport is not None:
            self._transport.write(f"{said}\r\n".encode("latin-1"))
        await self._answered
        head, blank, more = bytes(self._heard).partition(b"\r\n\r\n")
        line = head.partition(b"\r\n")[0].decode("latin-1")
        version, _, rest = line.partition(" ")
        if not blank or not version.startswith("HTTP/1."):
            raise _no_proxy("closed the connection" if not blank else "does not speak HTTP")
        if rest[:1] != "2" or more:
            raise _no_proxy(
                f"refuses to lead to {origin.said}: {rest[:100]}",
                retryable=rest[:1] == "5",
            )


@lru_cache(4)
def _trusting(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _context() -> ssl.SSLContext:
    """One for all: to read the machine's certificates takes long."""
    return _trusting(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


def _failed(error: Exception, origin: Origin, late: float | None) -> CorralError:
    host = origin.said
    if late is not None:
        return NetworkFailed(
            f"{host} did not take the connection in {late:g} s",
            hint="Is the base URL right, and a proxy needed?",
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return NetworkFailed(
            f"{host} cannot be trusted: {said_of(error)}",
            hint="Behind a proxy of your own, point SSL_CERT_FILE to its certificate.",
            retryable=False,
        )
    if isinstance(error, ssl.SSLError):
        return NetworkFailed(
            f"{host} does not speak TLS as we do: {said_of(error)}",
            hint="Is it https:// that it speaks, at this port?",
            retryable=False,
        )
    return NetworkFailed(
        f"{host} cannot be reached: {said_of(error)}",
        hint="Is the base URL right, is the network up, is a proxy needed?",
    )


def _no_proxy(why: str, *, retryable: bool = True) -> NetworkFailed:
    return NetworkFailed(
        f"the proxy {why}", hint="See HTTPS_PROXY and NO_PROXY.", retryable=retryable
    )
