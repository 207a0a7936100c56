"""The one HTTP client: pooled, bounded by deadlines, imported when first used.

aiohttp, because it costs a quarter of what the others do for a streamed event.
A redirect is not followed: the key would go with it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from corral.errors import (
    ConfigError,
    CorralError,
    IdleTimeout,
    NetworkFailed,
    StreamBroken,
)

if TYPE_CHECKING:
    import aiohttp

LARGEST_ANSWER = 256 * 1024 * 1024
"""Bytes of an answer that comes whole. Images come in it."""
LARGEST_ERROR = 64 * 1024
CONNECTIONS = 1000
"""At once; the operating system's limit on open files comes before it on most machines."""


class Http:
    """Connections for one event loop. ``close`` it, or use it as ``async with``."""

    def __init__(self, *, connect_timeout: float = 15.0, read_timeout: float = 300.0) -> None:
        """``connect_timeout`` is for reaching the server, ``read_timeout`` for each silence of
        it; a deadline over the whole is the caller's ``asyncio.timeout``."""
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._session: aiohttp.ClientSession | None = None
        self._proxies: dict[str, str | None] = {}

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, streamed: bool = False
    ) -> Answer:
        """The answer, its body not yet read. Raises ``NetworkFailed``, ``IdleTimeout`` and
        ``ConfigError``."""
        import aiohttp

        if self._session is None:
            self._session = self._open()
        proxy = self._proxy(url)
        sent = {"Content-Type": "application/json", **headers}
        if streamed:
            sent["Accept-Encoding"] = "identity"  # a compressor would hold events back
        try:
            response = await self._session.post(
                url, data=body, headers=sent, allow_redirects=False, proxy=proxy
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _failed(error, url, self._connect_timeout, self._read_timeout) from error
        return Answer(response, url, self._read_timeout)

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._connect_timeout, sock_read=self._read_timeout
        )
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ttl_dns_cache=300)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "corral"},
            max_line_size=64 * 1024,
            max_field_size=64 * 1024,
        )

    def _proxy(self, url: str) -> str | None:
        """As the environment has it. Not aiohttp's own reading of it, which also opens
        ``.netrc`` for every request."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise _no_url(url) from error
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._proxies:
            self._proxies[origin] = _proxy_of(parts.scheme, parts.hostname or "")
        return self._proxies[origin]


def _proxy_of(scheme: str, host: str) -> str | None:
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    if proxy_bypass(host):
        return None
    return proxies.get(scheme) or proxies.get("all")


class Answer:
    """What a server answered. Read it to its end or ``close`` it."""

    __slots__ = ("_content", "_read_timeout", "_response", "_url", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, url: str, read_timeout: float) -> None:
        self._response = response
        self._content = response.content
        self._url = url
        self._read_timeout = read_timeout
        self.status = response.status
        self.headers = response.headers
        """Names in any case."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def chunk(self) -> bytes:
        """What has arrived, at least a byte; empty at the end."""
        try:
            return await self._content.readany()
        except (asyncio.CancelledError, CorralError):
            raise
        except Exception as error:
            raise self._broken(error) from error

    async def body(self) -> bytes:
        """All of it; ``StreamBroken`` for one that is too large or cut short."""
        held = self._response.content_length
        if held is not None and held <= LARGEST_ANSWER:
            try:
                return await self._response.read()
            except Exception as error:
                raise self._broken(error) from error
        whole = await self.head(LARGEST_ANSWER + 1)
        if len(whole) > LARGEST_ANSWER:
            raise StreamBroken(
                f"the answer of {_host(self._url)} is over {LARGEST_ANSWER:,} bytes",
                retryable=False,
            )
        return whole

    async def head(self, most: int) -> bytes:
        """Its first bytes; where there are more the connection is given up."""
        pieces: list[bytes] = []
        size = 0
        while piece := await self.chunk():
            pieces.append(piece)
            size += len(piece)
            if size >= most:
                self.close()
                break
        return b"".join(pieces)[:most]

    def close(self) -> None:
        """Give the connection up, or back where the answer was read whole."""
        if self._content.at_eof():
            self._response.release()
        else:
            self._response.close()

    def _broken(self, error: Exception) -> CorralError:
        if isinstance(error, TimeoutError):
            return _silent(self._url, self._read_timeout)
        return StreamBroken(
            f"the connection to {_host(self._url)} broke in the middle of the answer: "
            f"{_said(error)}",
            hint="Try again; a proxy in between may cut long answers.",
        )


def _failed(error: Exception, url: str, connect: float, read: float) -> CorralError:
    import aiohttp

    host = _host(url)
    if isinstance(error, aiohttp.InvalidURL):
        return _no_url(url)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return NetworkFailed(
            f"{host} did not take the connection in {connect:g} s",
            hint="Is the base URL right, and a proxy needed?",
        )
    if isinstance(error, TimeoutError):
        return _silent(url, read)
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
        return NetworkFailed(
            f"{host} cannot be trusted: {_said(error)}",
            hint="Behind a proxy of your own, point SSL_CERT_FILE to its certificate.",
            retryable=False,
        )
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return NetworkFailed(
            f"the proxy cannot be reached: {_said(error)}", hint="See HTTPS_PROXY and NO_PROXY."
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return NetworkFailed(
            f"{host} cannot be reached: {_said(error)}",
            hint="Is the base URL right, is the network up, is a proxy needed?",
        )
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return NetworkFailed(
            f"{host} closed the connection without an answer",
            hint="Try again; a proxy in between may have given up.",
        )
    if isinstance(error, ValueError) and not isinstance(error, aiohttp.ClientError):
        return ConfigError(f"the request to {host} cannot be written: {error}")
    return NetworkFailed(
        f"the request to {host} failed: {_said(error)}", hint="Is the network up? Try again."
    )


def _no_url(url: str) -> ConfigError:
    return ConfigError(f"not a URL: {url}", hint="A base URL reads https://host/path.")


def _silent(url: str, seconds: float) -> IdleTimeout:
    return IdleTimeout(
        f"{_host(url)} said nothing for {seconds:g} s",
        hint="Give it longer with read_timeout, or ask for less.",
    )


def _host(url: str) -> str:
    """Host and port alone: a URL may carry what nobody should read."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    except ValueError:
        return "the server"


def _said(error: BaseException) -> str:
    inner: Any = getattr(error, "os_error", None) or error
    text = " ".join(str(inner).split())[:200]
    return text or type(inner).__name__
