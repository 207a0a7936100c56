"""The requests that an agent sends to the model proxy: read from its connection, and checked.

The target of a request is read once (``parse_target``): what is checked is what is sent. Servers
read the same target in different ways: ``/v1/messages#/count_tokens`` is ``/v1/messages`` for one
and an unknown path for another, and so it is with ``models/../files``, ``%2e%2e``, ``//`` and
``;a=b``. A target that could have more than one meaning is refused. All others are sent in one
form: the decoded path, which needs no escapes, and the query, encoded again.

The agent has a dummy key. In the places where the vendor's API expects a key (``KeyPlace``: a
header, a parameter of the query), a dummy key that is the complete value is replaced by the real
one, once. Nothing else with a dummy key is sent: a vendor that repeats a part of a request in its
response would hand the key to the agent. What else stands in such a place is not sent either.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote_plus, unquote_to_bytes

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from corral._models.spec import Provider
from corral._system.http.client import decompressor_for

LARGEST_TARGET = 16 * 1024
"""Characters."""
_SEGMENT = re.compile(r"[A-Za-z0-9._~!$&'()*+,=:@-]+")
"""A decoded segment: what RFC 3986 allows without escapes, but no ``;``, which begins parameters of
the segment for some servers."""
_QUERY = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%/?\[\]|-]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_UNESCAPED = "!'()*,:@~/$"
"""Characters of a query that are not escaped."""


class BadTarget(ValueError):
    """A target that could be read in more than one way."""


class RequestTarget(msgspec.Struct, frozen=True):
    path: str
    """Below the path of the base URL, decoded."""
    query: tuple[tuple[str, str], ...] = ()
    """Decoded, in order."""

    def encode(self) -> str:
        """As it is sent, without the path of the base URL."""
        parameters = [
            f"{quote(name, safe=_UNESCAPED)}={quote(value, safe=_UNESCAPED)}"
            for name, value in self.query
        ]
        return f"{self.path}?{'&'.join(parameters)}" if parameters else self.path


def parse_target(target: str, base: str) -> RequestTarget:
    """The path below ``base``, and the query. ``base`` is the path of the vendor's base URL,
    without a slash at its end; the target must begin with it literally. Raises ``BadTarget``."""
    if len(target) > LARGEST_TARGET:
        raise BadTarget(f"it has more than {LARGEST_TARGET:,} characters")
    if not target.startswith(f"{base}/"):
        raise BadTarget(f"it is not below {base or '/'}")
    if _BAD_ESCAPE.search(target):
        raise BadTarget("a % is not followed by two hexadecimal digits")
    path, _, query = target[len(base) + 1 :].partition("?")
    try:
        segments = [unquote_to_bytes(part).decode() for part in path.split("/")]
        if not all(map(_SEGMENT.fullmatch, segments)):
            raise BadTarget(
                "a segment of its path is empty, or has a character such as # ; \\ or %2F"
            )
        if any(part in (".", "..") for part in segments):
            raise BadTarget("its path has a dot segment")
        return RequestTarget(f"/{'/'.join(segments)}", _read_query(query))
    except UnicodeDecodeError:
        raise BadTarget("it is not UTF-8") from None


def _read_query(query: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in query.split("&") if part]
    read = tuple(
        (unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict"))
        for name, _, value in pairs
    )
    if not _QUERY.fullmatch(query) or any(_CONTROL.search(text) for pair in read for text in pair):
        raise BadTarget("its query has a character that must be escaped, or a control character")
    return read


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


_OTHER_REQUEST = ("$", "_method")
"""How parameters begin that turn a request into another one: ``$httpMethod`` of Google's APIs,
``_method`` of web frameworks."""


class RequestCheck:
    """Checks the requests of one run."""

    def __init__(self, keys: Mapping[str, str], providers: Sequence[Provider]) -> None:
        """``keys``: dummy → real."""
        self._keys = keys
        self._headers: dict[str, list[str]] = {}
        """Name in lower case → what may stand before a key."""
        self._parameters: dict[str, list[str]] = {}
        for place in (place for provider in providers for place in provider.key_places):
            names = self._headers if place.header else self._parameters
            name = place.header.lower() or place.parameter
            names.setdefault(name, []).append(place.prefix)

    def check(self, received: ReceivedRequest, base: str) -> AgentRequest:
        """The request that is judged and sent, with the real key. ``base`` is the path of the
        vendor's base URL. Raises ``BadRequest``."""
        try:
            target = parse_target(received.target, base)
        except BadTarget as bad:
            raise BadRequest(400, f"the target of the request is refused: {bad}") from bad
        if self._has_dummy(target.path):
            raise BadRequest(400, "the path of the request contains the key of this run")
        if any(name.lower().startswith(_OTHER_REQUEST) for name, _ in target.query):
            raise BadRequest(400, "a parameter of the request would make another request of it")
        unused = dict(self._keys)
        headers: list[Header] = []
        for field, content in received.headers:
            lower, text = field.decode("latin-1").lower(), content.decode("latin-1").strip()
            sent = self._sent(self._headers.get(lower), text, unused)
            if sent is not None and not self._has_dummy(lower):
                headers.append((field, content if sent == text else sent.encode("latin-1")))
        query: list[tuple[str, str]] = []
        for name, value in target.query:
            sent = self._sent(self._parameters.get(name), value, unused)
            if sent is not None and not self._has_dummy(name):
                query.append((name, sent))
        real = next((key for dummy, key in self._keys.items() if dummy not in unused), None)
        if real is None:
            raise BadRequest(401, "the request does not have the key of this run")
        return AgentRequest(
            method=received.method,
            target=RequestTarget(target.path, tuple(query)),
            headers=tuple(headers),
            body=received.plain_body(),
            keeps_open=received.keeps_open,
            key=real,
        )

    def _sent(self, prefixes: list[str] | None, text: str, unused: dict[str, str]) -> str | None:
        """What is sent of a header or parameter; None if it is left out. ``prefixes`` are those of
        a key, if it is a place for keys; ``unused`` are the keys that have no place yet."""
        if prefixes is None:
            return None if self._has_dummy(text) else text
        for prefix in prefixes:
            before, dummy = text[: len(prefix)], text[len(prefix) :]
            if before.lower() == prefix.lower() and dummy in unused:
                return prefix + unused.pop(dummy)
        return None

    def _has_dummy(self, text: str) -> bool:
        return any(dummy in text for dummy in self._keys)
