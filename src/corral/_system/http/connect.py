"""Connect to a server: DNS, TCP, a proxy, TLS, all within one deadline."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar, cast

from corral._system.http.connection import LARGEST_HEAD, error_text
from corral._system.http.request import Origin, Proxy, authority
from corral.errors import NetworkFailed


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


NEXT_ADDRESS = 0.25
"""Seconds after which another address of the host is tried at the same time."""

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def connect(origin: Origin, make: Callable[[], P], seconds: float) -> P:
    """Connect to the origin within ``seconds``, with the protocol that ``make`` returns. Raises
    ``NetworkFailed``."""
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            if origin.proxy is not None:
                return await _connect_through_proxy(origin, origin.proxy, make)
            context = _tls_context() if origin.secure else None
            return (await _connect_to(origin.host, origin.port, make, context))[1]
    except (OSError, ValueError) as error:
        why, hint = error_text(error), "Check that the server uses https on this port."
        if scope.expired():
            message = f"{origin.authority} did not accept the connection within {seconds:g} s"
            hint = "Check the base URL, and whether a proxy is needed."
        elif isinstance(error, ssl.SSLCertVerificationError):
            message = f"{origin.authority} has no trusted certificate: {why}"
            hint = "Behind your own proxy, set SSL_CERT_FILE to its certificate."
        elif isinstance(error, ssl.SSLError):
            message = f"the TLS handshake with {origin.authority} failed: {why}"
        else:
            message = f"{origin.authority} cannot be reached: {why}"
            hint = "Check the base URL, the network, and whether a proxy is needed."
        retryable = scope.expired() or not isinstance(error, ssl.SSLError)
        raise NetworkFailed(message, hint=hint, retryable=retryable) from error


async def _connect_to(
    host: str, port: int, make: Callable[[], P], context: ssl.SSLContext | None = None
) -> tuple[asyncio.Transport, P]:
    """``loop.create_connection`` that does not wait for an address that hangs if the name has
    others. asyncio's own loop has an option for that (``happy_eyeballs_delay``), uvloop has not."""
    loop = asyncio.get_running_loop()
    if ":" in host or host.replace(".", "").isdigit():  # an address: no lookup, nothing to choose
        return await loop.create_connection(make, host, port, ssl=context)
    opened = await connect_first(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    try:
        name = None if context is None else host
        return await loop.create_connection(make, sock=opened, ssl=context, server_hostname=name)
    except BaseException:
        opened.close()
        raise


_AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[Any, ...]]
"""Of ``getaddrinfo``: family, type, protocol, name, address."""


async def connect_first(found: Iterable[_AddressInfo]) -> socket.socket:
    """A socket that is connected to the first address that accepts it. Another one is tried when
    one fails, and beside one that has not answered after ``NEXT_ADDRESS`` (RFC 8305). Raises the
    ``OSError`` of the last one if all fail."""
    families: dict[int, list[_AddressInfo]] = {}
    for address in found:
        families.setdefault(address[0], []).append(address)
    # IPv6 and IPv4 in turns: often one of them does not work at all.
    left = [row for rows in zip_longest(*families.values()) for row in rows if row is not None]
    attempts: set[asyncio.Task[socket.socket]] = set()
    failure: BaseException | None = None
    try:
        while left or attempts:
            if left:
                attempts.add(asyncio.create_task(_open_socket(left.pop(0))))
            seconds = NEXT_ADDRESS if left else None
            done, _ = await asyncio.wait(
                attempts, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                attempts.discard(attempt)
                failure = attempt.exception()
                if failure is None:
                    return attempt.result()
        raise failure or OSError("the name has no address")
    finally:
        for attempt in attempts:
            attempt.cancel()
        for outcome in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(outcome, socket.socket):
                outcome.close()


async def _open_socket(address: _AddressInfo) -> socket.socket:
    family, kind, protocol, _, where = address
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, where)
    except BaseException:
        opened.close()
        raise
    return opened


async def _connect_through_proxy(origin: Origin, proxy: Proxy, make: Callable[[], P]) -> P:
    loop = asyncio.get_running_loop()
    try:
        if not origin.secure:
            return (await _connect_to(proxy.host, proxy.port, make))[1]
        transport, tunnel = await _connect_to(proxy.host, proxy.port, _Tunnel)
    except OSError as error:
        raise proxy_error(f"cannot be reached: {error_text(error)}") from error
    try:
        await tunnel.open(origin, proxy)
        connection = make()
        secure = await loop.start_tls(
            transport, connection, _tls_context(), server_hostname=origin.host
        )
    except BaseException:
        transport.abort()
        raise
    if secure is None:
        raise ConnectionResetError("the proxy closed the connection")
    connection.connection_made(secure)
    return connection


class _Tunnel(asyncio.Protocol):
    """The response of a proxy to ``CONNECT``."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received or len(self._received) > LARGEST_HEAD:
            self._done()

    def connection_lost(self, exc: Exception | None) -> None:
        self._done()

    def _done(self) -> None:
        if not self._answered.done():
            self._answered.set_result(None)

    async def open(self, origin: Origin, proxy: Proxy) -> None:
        if self._transport is not None:
            self._transport.write(connect_request(proxy, origin.host, origin.port))
        await self._answered
        check_response(bytes(self._received), origin.authority)


@lru_cache(4)
def _tls_context_for(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _tls_context() -> ssl.SSLContext:
    """The shared TLS context: reading the machine's certificates takes long."""
    return _tls_context_for(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
