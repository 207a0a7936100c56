"""The requests that an agent sends to the model proxy, read from its connection."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from corral.metering.proxy.request_target import RequestTarget
from corral.system.http.encoding import decompressor_for

LARGEST_BODY = 128 * 1024 * 1024
"""Bytes of a request. It may contain images."""
LARGEST_HEAD = 256 * 1024
"""Bytes of a request's line and headers."""
READ = 64 * 1024
_HTTP2 = b"PRI * HTTP/2.0\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Header = tuple[bytes, bytes]


class BadRequest(Exception):
    """A request that cannot be read. The connection is closed after the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ReceivedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it came."""

    method: str
    target: str
    """As in the first line."""
    headers: tuple[Header, ...]
    """In their order, names as they were written."""
    body: bytes
    keeps_open: bool
    """The connection may carry another request."""

    def plain_body(self) -> bytes:
        """The body without compression. Raises ``BadRequest`` if it is invalid or the compression
        is not supported."""
        found = [value for name, value in self.headers if name.lower() == b"content-encoding"]
        coding = b", ".join(found).decode("latin-1")
        try:
            decompressor = decompressor_for(coding)
            if decompressor is None:
                return self.body
            decompressor.feed(self.body)
            pieces: list[bytes] = []
            size = 0
            while piece := decompressor.read():
                pieces.append(piece)
                size += len(piece)
                if size > LARGEST_BODY:
                    raise BadRequest(413, "the request is too large when it is decompressed")
        except ValueError:
            raise BadRequest(415, f"the request is compressed as {coding}") from None
        except zlib.error:
            raise BadRequest(400, "the request cannot be decompressed") from None
        return b"".join(pieces)


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was checked (``RequestCheck.check``), as it is judged and sent: with the real
    key, in the place where the vendor expects it."""

    method: str
    target: RequestTarget
    headers: tuple[Header, ...]
    body: bytes
    """Not compressed."""
    keeps_open: bool
    """The agent's connection may carry another request."""
    key: str
    """The real key."""

    def __repr__(self) -> str:
        return f"AgentRequest({self.method} {self.target.path})"

    def with_body(self, body: bytes) -> AgentRequest:
        return msgspec.structs.replace(self, body=body)


class RequestReader:
    """Reads one request after the other from a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._complete: deque[ReceivedRequest] = deque()
        self._is_first = True
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: list[Header] = []
        self._body: list[bytes] = []
        self._size = self._head_size = 0
        self._is_open = self._in_body = False
        self._problem: BadRequest | None = None

    async def next(self) -> ReceivedRequest | None:
        """The next request; None when the agent has closed its side. Raises ``BadRequest``."""
        while not self._complete:
            data = await self._reader.read(READ)
            if not data:
                if self._is_open:
                    raise BadRequest(400, "the request ended before it was complete")
                return None
            self._feed(data)
        return self._complete.popleft()

    def close(self) -> None:
        self._parser = None  # the parser and this object reference each other

    def _feed(self, data: bytes) -> None:
        if self._is_first:
            self._is_first = False
            if data.startswith(_HTTP2):
                raise BadRequest(505, "this is a server for HTTP/1.1, not for HTTP/2")
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as error:
            raise BadRequest(403, "web sockets and other upgrades are not passed on") from error
        except HttpParserError as error:
            raise self._problem or BadRequest(400, f"this is not valid HTTP: {error}") from error
        if not self._in_body and self._is_open:
            self._head_size += len(data)
            if self._head_size > LARGEST_HEAD:
                raise BadRequest(431, "the headers of the request are too large")
        if self._problem is not None:
            raise self._problem

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._begin()
        self._is_open = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # else it is a trailer
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_body = True
        for name, value in self._headers:
            if name.lower() == b"expect" and value.lower() == b"100-continue":
                self._writer.write(_CONTINUE)

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > LARGEST_BODY:
            self._problem = BadRequest(413, f"the request is larger than {LARGEST_BODY:,} bytes")
            raise self._problem
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._parser is None:
            return
        self._complete.append(
            ReceivedRequest(
                method=self._parser.get_method().decode("latin-1"),
                target=self._url.decode("latin-1"),
                headers=tuple(self._headers),
                body=b"".join(self._body),
                keeps_open=self._parser.should_keep_alive(),
            )
        )
        self._is_open = False
