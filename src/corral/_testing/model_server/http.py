"""A small HTTP/1.1 server that can send any fault.

It is written by hand: the servers of libraries cannot cut, stall or corrupt a response, and
``corral agents doctor`` must run without an extra package.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from socket import socket
from urllib.parse import parse_qsl, unquote

import msgspec

from corral._testing.model_server.request import RequestHeaders

MAX_BODY = 64 * 1024 * 1024
"""More than any vendor takes (Gemini: 20 MB inline)."""
MAX_HEAD = 1024 * 1024
"""Also the read buffer: a larger one does not make big bodies faster."""

BACKLOG = 1024
"""A burst of clients waits here; the default of 100 costs the rest a second each."""


class Incoming(msgspec.Struct, frozen=True):
    verb: str
    target: str
    """As written in the request line."""
    path: str
    """Decoded, without the query."""
    query: dict[str, str]
    headers: RequestHeaders
    body: bytes
    version: str = "HTTP/1.1"

    @property
    def keeps_alive(self) -> bool:
        asked = self.headers.get("connection", "").lower()
        return "close" not in asked if self.version == "HTTP/1.1" else "keep-alive" in asked


class ServerResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response, and the faults to make when sending it."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    streamed: bool = False
    """A separate chunk for each piece, instead of a length for all."""
    delay: float = 0.0
    gap: float = 0.0
    """Seconds between pieces."""
    stall: int | None = None
    """Silence after this many pieces, until the client leaves; 0: no head either."""
    cut: int | None = None
    """Close after this many pieces, without an end; 0: no head either."""
    cut_bytes: int | None = None


class RequestRefused(Exception):
    """An invalid HTTP request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.answer: ServerResponse = ServerResponse(
            status=status,
            headers=(("Content-Type", "application/json"),),
            pieces=[msgspec.json.encode({"error": {"code": status, "message": message}})],
        )


async def serve(listener: socket, handle: Callable[[Incoming], ServerResponse]) -> None:
    """Answer every connection until cancelled; then close them all, in any state.

    ``handle`` is called for one request at a time, in the order of arrival.
    """
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[None] = loop.create_future()
    listener.setblocking(False)
    async with asyncio.TaskGroup() as connections:
        # Not asyncio's own server: a client that it accepts while it closes is never closed.
        def accept() -> None:
            try:
                for _ in range(BACKLOG):
                    client, _address = listener.accept()
                    task = connections.create_task(_converse(client, handle))
                    # A task that is cancelled before it starts would never close its socket.
                    task.add_done_callback(partial(_close_client, client))
            except (BlockingIOError, ConnectionAbortedError):
                pass
            except OSError as error:  # out of descriptors: end instead of a busy loop
                broken.set_exception(error)

        loop.add_reader(listener, accept)
        try:
            await broken
        finally:
            loop.remove_reader(listener)


def _close_client(client: socket, _: asyncio.Task[None]) -> None:
    client.close()


async def _converse(client: socket, handle: Callable[[Incoming], ServerResponse]) -> None:
    reader, writer = await asyncio.open_connection(sock=client, limit=MAX_HEAD)
    closed = False
    try:
        try:
            while (incoming := await _receive(reader, writer)) is not None:
                is_complete = await _send(reader, writer, handle(incoming), incoming)
                if not is_complete or not incoming.keeps_alive:
                    break
        except RequestRefused as refused:
            await _send(reader, writer, refused.answer, None)
        writer.close()
        await writer.wait_closed()
        closed = True
    except (OSError, asyncio.IncompleteReadError):
        pass  # the client left: its own business
    finally:
        if not closed:
            writer.transport.abort()  # what a client does not read must not hold up the end
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Incoming | None:
    """The next request; ``None`` when the client has closed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise RequestRefused(431, f"the head is larger than {MAX_HEAD} bytes") from error
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise
        return None
    first, *lines = head.decode("latin-1").strip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in {"HTTP/1.1", "HTTP/1.0"}:
        raise RequestRefused(400, "the request line is not that of HTTP/1.1")
    headers = RequestHeaders()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise RequestRefused(400, "a header without a colon")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    path, _, query = words[1].partition("?")
    return Incoming(
        words[0],
        words[1],
        unquote(path),
        dict(parse_qsl(query, keep_blank_values=True)),
        headers,
        await _body(reader, headers),
        words[2],
    )


async def _body(reader: asyncio.StreamReader, headers: RequestHeaders) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return await _chunks(reader)
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise RequestRefused(400, "Content-Length is not a number")
    if int(length) > MAX_BODY:
        raise RequestRefused(413, f"the body is larger than {MAX_BODY} bytes")
    return await reader.readexactly(int(length))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        line = (await reader.readuntil(b"\n")).partition(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError as error:
            raise RequestRefused(400, "the size of a chunk is not a number") from error
        if size < 0 or len(body) + size > MAX_BODY:
            raise RequestRefused(413, f"the body is larger than {MAX_BODY} bytes")
        if size == 0:
            break
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while (await reader.readuntil(b"\n")).strip():
        pass  # trailers
    return bytes(body)


async def _send(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: ServerResponse,
    incoming: Incoming | None,
) -> bool:
    """Send ``answer`` with its scripted faults. True if it was sent completely and the connection
    can be used again."""
    if answer.delay:
        await asyncio.sleep(answer.delay)
    if answer.stall == 0 and answer.cut != 0:
        await _wait_closed(reader)
    if 0 in (answer.cut, answer.stall):
        return False
    is_head = incoming is not None and incoming.verb == "HEAD"
    chunked = answer.streamed and incoming is not None and incoming.version == "HTTP/1.1"
    writer.write(_response_head(answer, incoming, chunked=chunked))
    if not is_head:
        if not await _send_pieces(writer, answer, chunked=chunked):
            return False
        if answer.stall is not None:
            await _wait_closed(reader)
        if answer.stall is not None or answer.cut is not None:
            return False
        if chunked:
            writer.write(b"0\r\n\r\n")
    await writer.drain()
    return is_head or chunked or not answer.streamed


def _response_head(answer: ServerResponse, incoming: Incoming | None, *, chunked: bool) -> bytes:
    keeps_alive = incoming is not None and incoming.keeps_alive
    headers = [*answer.headers, ("Connection", "keep-alive" if keeps_alive else "close")]
    if chunked:
        headers.append(("Transfer-Encoding", "chunked"))
    elif not answer.streamed:  # else HTTP/1.0: the end of the connection is the end of the body
        headers.append(("Content-Length", str(sum(map(len, answer.pieces)))))
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "Scripted"
    lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{name}: {text}" for name, text in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _send_pieces(
    writer: asyncio.StreamWriter, answer: ServerResponse, *, chunked: bool
) -> bool:
    """Send the body up to a scripted stall. False: it was cut, and the connection must close."""
    left = answer.cut_bytes
    for n, piece in enumerate(answer.pieces):
        if n and answer.gap:
            await writer.drain()
            await asyncio.sleep(answer.gap)
        if n == answer.stall:
            return True
        if n == answer.cut:
            return False
        part = piece if left is None else piece[:left]
        # The size is that of the uncut piece, so that the client detects a cut inside it.
        # An empty chunk would be read as the end of the response.
        frame = (b"%x\r\n" % len(piece), part, b"\r\n") if chunked and piece else (part,)
        if left is not None:
            left -= len(part)
            if left == 0:
                writer.write(b"".join(frame[:2]))
                return False
        writer.write(b"".join(frame))
        await writer.drain()
    return True


async def _wait_closed(reader: asyncio.StreamReader) -> None:
    while await reader.read(MAX_HEAD):
        pass
