"""The connection of the model proxy to the vendor, for one connection of the agent.

The bytes of a response are returned as they came. A parser reads the same bytes, to find the end of
the response and its body. A response ends by its length, by its last chunk, or with the connection;
bytes beyond its length are not returned.

The head, the body and the bytes between its chunks are searched for the real key before they are
returned. While the end of what came could be the beginning of a key, it waits for more. A body that
cannot be read, such as one in a compression that was not asked for, is not returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import zlib
from collections.abc import Iterable
from functools import cache
from html.entities import html5
from itertools import chain
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from corral._system.http.client import Decompressor, decompressor_for
from corral._system.http.connect import connect
from corral._system.http.connection import LARGEST_HEAD, READ
from corral._system.http.request import Origin
from corral.errors import NetworkFailed

SHORTEST_KEY = 16
"""Characters of a key that is looked for."""
_DIGIT = re.compile(r"\d")


class KeyFound(Exception):
    """The bytes contain a key."""


class SearchedKey:
    """A key, as a service may write it: plain, or with any of its characters in the code of a URL,
    of JSON or JavaScript, or of HTML, in upper or lower case, and in one of these codes within
    another."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._plain = key.encode()
        # Only a key that is not ASCII, or begins with +, may begin with anything else.
        introducers = rb"%&\\" if key.isascii() else rb"%&\\\x80-\xff"
        introducers += b" " if key[:1] == "+" else b""
        self._codes = re.compile(b"[%b]" % introducers)
        self._first = re.compile(b"[%b]|%b" % (introducers, re.escape(self._plain[:1])))
        first, second = (b"|".join(way.pattern for way in _ways(each)) for each in key[:2])
        begin, end = re.escape(self._plain[:1]), b"(?:%b)" % second
        self._begins = re.compile(
            b"(?=%b%b|(?=[%b])(?:%b)%b)" % (begin, end, introducers, first, end), re.DOTALL
        )

    def find_open(self, data: bytes) -> int:
        """Where the longest end of the data begins that could be the beginning of the key; the
        length of the data if there is none. Raises ``KeyFound`` if the data has the complete
        key."""
        if self._plain in data:
            raise KeyFound
        size = len(data)
        if self._codes.search(data) is None:  # most text: only the plain key
            for found in self._first.finditer(data, max(0, size - len(self._plain) + 1)):
                if self._plain.startswith(data[found.start() :]):
                    return found.start()
            return size
        # A beginning with less than two characters of the key is at the very end.
        begins = chain(
            self._begins.finditer(data),
            self._first.finditer(data, max(0, size - 2 * _LONGEST_CODE)),
        )
        return min((at.start() for at in begins if self._is_open(data, at.start())), default=size)

    def _is_open(self, data: bytes, at: int) -> bool:
        """Whether the data from there on is the beginning of the key. Raises ``KeyFound`` if it
        begins with the complete key."""
        ends, is_open = {at}, False
        for character in self._key:
            rest = {data[end:] for end in ends if len(data) - end <= _LONGEST_CODE}
            is_open = is_open or any(map(_OPEN_CODE.fullmatch, rest))
            is_open = is_open or any(map(character.encode().startswith, rest))
            found = {way.match(data, end) for way in _ways(character) for end in ends}
            ends = {each.end() for each in found if each is not None}
            if not ends:
                return is_open
        raise KeyFound


_LONGEST_CODE = 40
"""Bytes of one byte of a key in a code."""
_OPEN_CODE = re.compile(rb"[%&\\][%&\\#;0-9A-Za-z]*|")
"""What could be the beginning of a code, at the end of the data."""
_PERCENT = rb"(?:%|\\{1,4}u0025|&#37;)(?:25){0,3}"
_BACKSLASH = rb"(?:\\|%5[Cc]|&#92;){1,4}"
_AND = rb"(?:&|\\{1,4}u0026|%26)(?:amp(?:;|%3[Bb]))?"
_NUMBER = rb"(?:#|%23)"
_END = rb"(?:;|%3[Bb])"
"""Parts of codes, also within another code."""


@cache
def _ways(character: str) -> tuple[re.Pattern[bytes], ...]:
    """The ways to write a character of a key."""
    number, plain = ord(character), [character.encode()]
    if 0x80 <= number <= 0xFF:  # headers are sent in Latin-1
        plain.append(bytes([number]))

    def digits(code: str) -> bytes:
        return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in code).encode()

    # JSON may have a backslash before a character that is no letter.
    before = b"" if character.isalnum() else b"(?:%b)?" % _BACKSLASH
    codes = [before + b"".join(_PERCENT + digits(f"{byte:02x}") for byte in raw) for raw in plain]
    codes.append(_BACKSLASH + b"[uU]" + digits(f"{number:04x}"))
    if number <= 0xFF:
        codes.append(_BACKSLASH + b"[xX]" + digits(f"{number:02x}"))
    names = [name for name, text in html5.items() if text == character and name.endswith(";")]
    named = [re.escape(name[:-1]).encode() for name in names]
    numbers = [b"0{0,5}%d" % number, b"[xX]0{0,5}" + digits(f"{number:x}")]
    named += [_NUMBER + each for each in numbers]
    codes.append(before + _AND + b"(?:" + b"|".join(named) + b")" + _END)
    ways = [*codes, *map(re.escape, plain)]
    if before:
        ways.append(_BACKSLASH + re.escape(plain[0]))
    if character == "+":
        ways.append(b" ")
    elif character == "\\":  # what follows it in the key may have some too
        ways += [_BACKSLASH.replace(b"1,4", b"%d" % count) for count in (1, 2, 3)]
    return tuple(map(re.compile, ways))


class KeyScan:
    """Finds the real key in bytes that come in pieces, before they are passed on.

    A key may be split between two pieces. So what could be its beginning is held back until more
    comes. The cost of a piece depends on its length and on the keys, not on what came before.
    """

    def __init__(self, keys: tuple[SearchedKey, ...]) -> None:
        self._keys = keys
        self.held: bytes = b""
        """The end of what came, if it could be the beginning of a key."""

    def receive(self, data: bytes) -> bytes:
        """The bytes that can be passed on now. Raises ``KeyFound``."""
        if self.held:
            data, self.held = self.held + data, b""
        cut = size = len(data)
        for key in self._keys:
            cut = min(cut, key.find_open(data))
        if cut == size:
            return data
        self.held = data[cut:]
        return data[:cut]

    def take_rest(self) -> bytes:
        """What is held at the end."""
        rest, self.held = self.held, b""
        return rest


def searched_keys(keys: Iterable[str]) -> tuple[SearchedKey, ...]:
    """The keys that are looked for. Local servers take any word as a key: one that is short or has
    no digit may stand in ordinary text, and is left out."""
    secrets = [key for key in keys if len(key) >= SHORTEST_KEY and _DIGIT.search(key)]
    return tuple(map(SearchedKey, dict.fromkeys(secrets)))


CONNECT_SECONDS = 15.0
SILENCE_SECONDS = 900.0
"""Seconds in which the vendor may send nothing: some models think for minutes."""
KEY_IN_RESPONSE = "the response contains the key of this run, and is not passed on"
_HEAD_END = b"\r\n\r\n"


class ResponseFailed(Exception):
    """The response did not come, or not to its end."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        """The status to answer with, if nothing was passed on yet."""
        self.text = text


class _Streams(asyncio.StreamReaderProtocol):
    """The streams of a connection that ``connect`` makes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reader = asyncio.StreamReader(READ, loop)
        super().__init__(self.reader, loop=loop)
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", transport)


class ResponseSink(Protocol):
    """What reads a response."""

    def on_head(self, response: VendorResponse, /) -> None:
        """The head is complete."""
        ...

    def on_body(self, data: bytes, /) -> None:
        """A piece of the body, decoded and decompressed."""
        ...


class VendorResponse:
    """One response while it is read."""

    def __init__(self, sink: ResponseSink) -> None:
        self._sink = sink
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._head = b""
        self._in_body = False
        self._left: int | None = None
        """Bytes of the body that are still to come, if its length is known."""
        self._ends_with_connection = False
        self._decompressor: Decompressor | None = None
        self._head_scan, self._body_scan, self._raw_scan = (KeyScan(()) for _ in range(3))
        """Of the head, of the decoded body, and of the body as it came: chunks may have extensions
        and trailers."""
        self._held: list[bytes] = []
        """Bytes that are not returned yet: what they contain could be the beginning of a key."""
        self.has_key: bool = False
        """Whether a key was found in it."""
        self.is_unreadable: bool = False
        """Its compression is not supported or wrong, so its body is not read."""
        self.status: int = 0
        self.head: bytes = b""
        """The head as it came, once it is complete."""
        self.fields: dict[bytes, bytes] = {}
        """Headers, names in lower case."""
        self.is_complete: bool = False
        self.keeps_open: bool = False

    def refuse_keys(self, keys: tuple[SearchedKey, ...]) -> None:
        """A response with one of these fails: nothing from the beginning of the key on is returned
        or given to the sink."""
        self._head_scan, self._body_scan, self._raw_scan = (KeyScan(keys) for _ in range(3))

    @property
    def media_type(self) -> str:
        value = self.fields.get(b"content-type", b"").decode("latin-1")
        return value.partition(";")[0].strip().lower()

    def receive(self, data: bytes) -> bytes:
        """The bytes that belong to this response: all, or none while its head is not complete.
        Raises ``ResponseFailed``."""
        if not self._in_body:
            data = self._receive_head(self._head + data)
            if not self._in_body:
                return b""
        if self.is_complete:
            if data:
                self.keeps_open = False  # bytes without a request
            return b""
        if self._left is not None:
            if len(data) > self._left:
                data, self.keeps_open = data[: self._left], False
            self._left -= len(data)
        self._feed(data)
        return self._passed(data)

    def _receive_head(self, data: bytes) -> bytes:
        """The bytes after the head."""
        while _HEAD_END in data and not self._in_body:
            head, _, data = data.partition(_HEAD_END)
            self._feed(head + _HEAD_END)
            if not self._in_body:  # an interim response, such as 103
                self.fields.clear()
                continue
            self.head = head + _HEAD_END
            self._sink.on_head(self)
            try:
                self._head_scan.receive(self.head)
            except KeyFound:
                self.has_key = True
                raise ResponseFailed(502, KEY_IN_RESPONSE) from None
            if self.is_unreadable:
                coding = next(
                    self.fields[name].decode("latin-1")
                    for name in (b"content-encoding", b"transfer-encoding")
                    if name in self.fields
                )
                raise ResponseFailed(
                    502, f"the response is compressed as {coding}, without a request"
                )
        self._head = b"" if self._in_body else data
        if len(self._head) > LARGEST_HEAD:
            raise ResponseFailed(502, "the headers of the response are too large")
        return data

    def _passed(self, data: bytes) -> bytes:
        """The bytes that can be returned after the parser has read ``data``. Raises
        ``ResponseFailed``."""
        try:
            self._raw_scan.receive(data)
        except KeyFound:
            self.has_key = True
        if self.has_key:
            raise ResponseFailed(502, KEY_IN_RESPONSE)
        if self.is_unreadable:
            raise ResponseFailed(502, "the response cannot be decompressed")
        if not self.is_complete and (self._body_scan.held or self._raw_scan.held):
            self._held.append(data)
            return b""
        if self._held:
            data = b"".join([*self._held, data])
            self._held.clear()
        return data

    def _feed(self, data: bytes) -> None:
        if self._parser is None or not data:
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self.is_complete:
                raise ResponseFailed(502, f"the response is not valid HTTP: {error}") from error
            self.keeps_open = False

    @property
    def has_length(self) -> bool:
        """Whether its end can be seen without the end of the connection."""
        return not self._ends_with_connection

    def end(self) -> bytes:
        """The connection has ended: no more bytes. Raises ``ResponseFailed`` if the response is
        not complete."""
        self.keeps_open = False
        if not self.is_complete and not (self._in_body and self._ends_with_connection):
            where = "in the middle of its response" if self._in_body else "without a response"
            raise ResponseFailed(502, f"the vendor closed the connection {where}")
        self._finish_body()
        self.is_complete = True
        return self._passed(b"")

    def _finish_body(self) -> None:
        if rest := self._body_scan.take_rest():
            self._sink.on_body(rest)

    def close(self) -> None:
        self._parser = None  # the parser and this object reference each other

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            earlier = self.fields.get(name.lower())
            # Several fields of one name are one list.
            self.fields[name.lower()] = value if earlier is None else b"%b, %b" % (earlier, value)

    def on_headers_complete(self) -> None:
        if self._parser is None or self.is_complete:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            return
        self.status = status
        self._in_body = True
        coding = self.fields.get(b"transfer-encoding", b"").lower()
        length = self.fields.get(b"content-length", b"")
        if not coding and length.isdigit():
            self._left = int(length)
        self._ends_with_connection = not coding and self._left is None
        if status in (204, 304) or self._left == 0:
            self._left, self.is_complete = 0, True
            self.keeps_open = self._parser.should_keep_alive()
        # A transfer coding beside chunks is a compression that the parser does not remove.
        self.is_unreadable = coding not in (b"", b"chunked")
        try:
            encoding = self.fields.get(b"content-encoding", b"").decode("latin-1")
            self._decompressor = decompressor_for(encoding)
        except ValueError:
            self.is_unreadable = True

    def on_body(self, data: bytes) -> None:
        if self.is_unreadable or self.has_key:
            return
        try:
            if self._decompressor is None:
                self._sink_body(data)
                return
            self._decompressor.feed(data)
            while piece := self._decompressor.read():
                self._sink_body(piece)
        except zlib.error:
            self.is_unreadable = True
        except KeyFound:
            self.has_key = True

    def _sink_body(self, data: bytes) -> None:
        if passed := self._body_scan.receive(data):
            self._sink.on_body(passed)

    def on_message_complete(self) -> None:
        if self._in_body and self._parser is not None and not self.is_complete:
            self._finish_body()
            self.is_complete = True
            self.keeps_open = self._parser.should_keep_alive()


class Upstream:
    """Keeps its connection open between requests."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._streams: _Streams | None = None

    async def send(self, head: bytes, body: bytes) -> None:
        """Send a request. Raises ``ResponseFailed`` if the vendor cannot be reached."""
        streams = self._streams
        if streams is not None and (
            streams.reader.at_eof() or (streams.transport is None or streams.transport.is_closing())
        ):
            self.close()
            streams = None
        if streams is None:
            loop = asyncio.get_running_loop()
            try:
                streams = await connect(self._origin, lambda: _Streams(loop), CONNECT_SECONDS)
            except NetworkFailed as error:
                raise ResponseFailed(502, error.message) from error
            self._streams = streams
        if streams.transport is not None:
            streams.transport.write(head + body)

    async def read(self) -> bytes:
        """What has come; empty at the end of the connection. Raises ``ResponseFailed``."""
        if self._streams is None:
            raise ResponseFailed(502, "the connection to the vendor was closed")
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                return await self._streams.reader.read(READ)
        except TimeoutError:
            text = f"the vendor sent nothing for {SILENCE_SECONDS:g} s"
            raise ResponseFailed(504, text) from None
        except OSError as error:
            text = f"the connection to the vendor broke: {error.strerror or error}"
            raise ResponseFailed(502, text) from error

    def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None and streams.transport is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                streams.transport.abort()
