"""Connections from corral to the world, on behalf of a program in the sandbox.

If the user's environment names a proxy for a host (``HTTPS_PROXY``, ``NO_PROXY``), the connection
goes through it. The program inside knows nothing of that proxy, and does not see its credentials.

The proxy for programs in the sandbox
-------------------------------------
The sandbox has no network. ``HostProxy`` connects to the hosts that the policy names. ``gateway``
accepts connections to it from inside, and the variables of ``box.replace_proxy`` make programs use
it. Each connection carries one request:

- ``CONNECT host:port``: after the answer, bytes are copied both ways. TLS is end to end.
- ``GET http://host/path`` (any method): the request is sent on with the path only, the ``Host`` of
  the URL and without the headers that are meant for a proxy. The connection ends with the response.

A host is reached if it is one of the endpoints of the run or if a rule names it, with its port. A
name is resolved once, here, and the connection is made to an address that was checked
(``HostRule.may_lead_to``). If the user's own environment names a proxy for the host, that one is
used and resolves the name; its credentials do not get into the sandbox.

Everything else gets 403, with a text that says why. A program that ignores the variables reaches
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

import msgspec

from corral._core.host_rules import HostRule, find_rule
from corral._system.http.connect import open_tunnel
from corral._system.http.request import Proxy, authority, proxy_for
from corral._system.sandbox.box import SandboxEndpoint
from corral.errors import ConfigError, NetworkFailed

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CHUNK = 1 << 16


def user_proxy(endpoint: SandboxEndpoint, *, secure: bool | None = None) -> Proxy | None:
    """The user's proxy for an endpoint. ``secure``: whether TLS is used; by default the port says
    so. Raises ``ConfigError`` for a kind of proxy that is not supported."""
    if endpoint.is_local:
        return None
    secure = endpoint.port != _HTTP if secure is None else secure
    where = authority(endpoint.host, endpoint.port)
    return proxy_for(f"{'https' if secure else 'http'}://{where}")


async def open_outside(endpoint: SandboxEndpoint) -> Streams:
    """Connect to an endpoint, through the user's proxy if there is one. Raises ``OSError``,
    ``NetworkFailed`` or ``ConfigError``."""
    proxy = user_proxy(endpoint)
    if proxy is None:
        return await asyncio.open_connection(endpoint.host, endpoint.port)
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


_log = logging.getLogger(__name__)

LARGEST_HEAD = 64 * 1024
"""Bytes of a request's line and headers."""
HEAD_SECONDS = 60.0
CONNECT_SECONDS = 30.0
_HTTP = 80
_FOR_PROXIES = ("connection", "host", "keep-alive", "upgrade")
"""Headers that are not sent on, besides those that start with ``proxy-``."""


class TunnelRefused(Exception):
    """The answer to a request that is not served."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ProxyRequest(msgspec.Struct, frozen=True):
    method: str
    host: str
    port: int
    path: str
    """Empty for ``CONNECT``."""
    headers: tuple[str, ...] = ()
    """As they were received."""

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"

    @property
    def endpoint(self) -> SandboxEndpoint:
        return SandboxEndpoint(self.host, self.port)

    @property
    def where(self) -> str:
        return authority(self.host, self.port)

    def head(self, proxy: Proxy | None) -> bytes:
        """The request to send on: to the server, or to the user's proxy."""
        host = authority(self.host, self.port, _HTTP)
        path = f"http://{host}{self.path}" if proxy else self.path
        lines = [f"{self.method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
        if proxy is not None and proxy.authorization:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        for line in self.headers:
            name = line.partition(":")[0].strip().lower()
            if name not in _FOR_PROXIES and not name.startswith("proxy-"):
                lines.append(line)
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def parse_request(head: bytes) -> ProxyRequest:
    """Raises ``TunnelRefused``."""
    first, *headers = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise TunnelRefused("400 Bad Request", "this is a proxy for HTTP")
    method, target = words[:2]
    if any(line[:1] in " \t" or ":" not in line for line in headers):
        raise TunnelRefused("400 Bad Request", "a header is malformed")
    is_tunnel = method == "CONNECT"
    refused = TunnelRefused("400 Bad Request", f"not a request to a proxy: {first[:200]}")
    try:
        url = urlsplit(f"http://{target}" if is_tunnel else target)
        host, port = url.hostname, url.port
    except ValueError:
        raise refused from None
    if not host or url.scheme != "http" or (is_tunnel and port is None):
        raise refused
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return ProxyRequest(method, host, port or _HTTP, "" if is_tunnel else path, tuple(headers))


Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Host and port → its IP addresses. Raises ``OSError``."""


async def resolve(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class HostProxy:
    """Serves the connections of one sandbox."""

    def __init__(
        self,
        rules: Sequence[HostRule],
        endpoints: Sequence[SandboxEndpoint],
        resolve: Resolve = resolve,
    ) -> None:
        self._rules = rules
        self._endpoints = frozenset(endpoints)
        self._resolve = resolve

    async def serve(self, inside: Streams) -> None:
        """One connection, to its end. Closes it."""
        reader, writer = inside
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                request = parse_request(await reader.readuntil(b"\r\n\r\n"))
            outside = await self._connect(request)
        except TunnelRefused as refused:
            body = f"corral: {refused.text}\n".encode()
            head = (
                f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode("latin-1") + body)
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError, OSError):
            pass
        else:
            if request.is_tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await relay(inside, outside)
        finally:
            writer.close()

    async def _connect(self, request: ProxyRequest) -> Streams:
        """The connection outside, on which a plain request was sent already. Raises
        ``TunnelRefused``."""
        addresses = await self._addresses(request)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                proxy = user_proxy(request.endpoint, secure=request.is_tunnel)
                if proxy is not None and request.is_tunnel:
                    return await open_tunnel(proxy, request.host, request.port)
                if proxy is not None:
                    streams = await asyncio.open_connection(proxy.host, proxy.port)
                else:
                    streams = await open_first(addresses, request.port)
                if not request.is_tunnel:
                    streams[1].write(request.head(proxy))
                return streams
        except (OSError, NetworkFailed, ConfigError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise TunnelRefused(
                "502 Bad Gateway", f"{request.where} cannot be reached: {why or 'timeout'}"
            ) from error

    async def _addresses(self, request: ProxyRequest) -> list[str]:
        """Where to connect to. Raises ``TunnelRefused`` for what the policy does not allow."""
        host, port = request.host, request.port
        if request.endpoint in self._endpoints:
            return [host]
        rule = find_rule(self._rules, host, port)
        if rule is None:
            raise self._denied(f"the policy does not allow {request.where}")
        if user_proxy(request.endpoint, secure=request.is_tunnel) is not None:
            with contextlib.suppress(OSError):  # the proxy resolves a name
                socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
                if not rule.may_lead_to(host):
                    raise self._denied(f"{host} is not a public address")
            return [host]
        try:
            found = await self._resolve(host, port)
        except OSError as error:
            raise TunnelRefused("502 Bad Gateway", f"{host} cannot be resolved") from error
        allowed = [address for address in found if rule.may_lead_to(address)]
        if not allowed:
            raise self._denied(
                f"{host} leads to {', '.join(found)}, which is not a public address:"
                " the policy must name that address itself",
            )
        return allowed

    def _denied(self, why: str) -> TunnelRefused:
        _log.warning("a program in the sandbox was refused a connection: %s", why)
        allowed = ", ".join(map(str, self._rules))
        return TunnelRefused("403 Forbidden", f"{why}. It allows: {allowed}")
