"""What each server of corral does with hostile connections and requests."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from corral._system.http import asgi_server, connection_limits
from corral._system.http.asgi_server import Message, Receive, Send
from corral._system.http.connection_limits import OneOfEachKind

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def application(scope: Message, receive: Receive, send: Send) -> None:
    if scope["path"] == "/wait":
        await asyncio.sleep(3600)
    if scope["path"] == "/fail":
        raise ZeroDivisionError
    if scope["path"] == "/much":
        await asgi_server.respond(send, 200, b"x" * 20_000_000, b"text/plain")
    body = await asgi_server.read_body(receive, 100)
    await asgi_server.respond(send, 200, body or b"empty", b"text/plain")


class Connection:
    """A connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> bytes:
        """What comes until the server closes the connection."""
        try:
            return await self.reader.read(-1)
        except ConnectionResetError:
            return b"reset"


@asynccontextmanager
async def serving() -> AsyncGenerator[Callable[[], Any]]:
    """A server; the function opens a connection."""
    listener, stop, ready = asgi_server.bind("127.0.0.1", 0), asyncio.Event(), asyncio.Event()
    port = listener.getsockname()[1]
    task = asyncio.create_task(
        asgi_server.serve(application, listener, on_ready=ready.set, stop=stop)
    )
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        return Connection(reader, writer)

    try:
        await ready.wait()
        yield connect
    finally:
        stop.set()
        for writer in writers:
            writer.close()
        await task


async def ask(connect: Callable[[], Any], path: str = "/health") -> bytes:
    connection = await connect()
    await connection.send(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer: bytes = await connection.answer()
    return answer


async def test_a_request_with_two_lengths_is_refused_and_nothing_after_it_is_read() -> None:
    async with serving() as connect:
        connection = await connect()
        lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        await connection.send(REQUEST + lengths + REQUEST + b"\r\n")
        answer = await connection.answer()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("sent", [b"", b"GET / HT", REQUEST + b"X: y"])
async def test_a_connection_without_a_request_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.1)
    async with serving() as connect:
        connection = await connect()
        await connection.send(sent)
        answer = await connection.answer()
        assert answer.startswith(b"HTTP/1.1 408 ") if sent else answer == b""


async def test_bytes_that_trickle_in_do_not_keep_a_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.3)
    async with serving() as connect:
        connection = await connect()
        await connection.send(REQUEST)

        async def trickle() -> None:
            while True:
                await connection.send(b"a")
                await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        assert b" 408 " in await connection.answer()
        trickling.cancel()
        await asyncio.wait([trickling])


@pytest.mark.parametrize("path", ["/", "/wait"])
@pytest.mark.deep_but_first
async def test_a_body_that_does_not_arrive_ends_the_connection(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "BODY_SECONDS", 0.1)
    async with serving() as connect:
        connection = await connect()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
        await connection.send(head.encode())
        assert b" 408 " in await connection.answer()


async def test_a_complete_request_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "BODY_SECONDS", 0.05)
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.05)
    async with serving() as connect:
        connection = await connect()
        await connection.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await connection.answer()


async def test_a_client_that_reads_nothing_is_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_limits, "READ_SECONDS", 0.1)
    monkeypatch.setattr(connection_limits, "log", logging.getLogger("corral.test"))
    async with serving() as connect:
        connection = await connect()
        connection.writer.transport.pause_reading()
        await connection.send(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
        while "are not read" not in caplog.text:
            await asyncio.sleep(0.02)


async def test_one_that_waits_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_server, "MOST_CONNECTIONS", 16)
    async with serving() as connect:
        half = [await connect() for _ in range(100)]
        for connection in half:
            connection.writer.write(b"GET / HT")
        assert (await ask(connect)).startswith(b"HTTP/1.1 200 ")
        await half[0].answer()  # it was closed


async def test_requests_at_work_are_not_closed_and_leave_room_for_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asgi_server, "MOST_CONNECTIONS", 16)
    async with serving() as connect:
        working = [await connect() for _ in range(8)]
        for connection in working:
            await connection.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        while b" 503 " not in await ask(connect, "/"):
            await asyncio.sleep(0.02)
        for _ in range(40):
            await connect()
        assert b"\r\n\r\nok\n" in await ask(connect)
        assert not any(connection.reader.at_eof() for connection in working)


async def test_failures_of_one_kind_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "log", log := logging.Logger("corral.test"))
    log.addHandler(caplog.handler)
    log.addFilter(OneOfEachKind())
    async with serving() as connect:
        for _ in range(20):
            assert b" 500 " in await ask(connect, "/fail")
            connection = await connect()
            await connection.send(b"\x16\x03\x01\r\n\r\n")
            await connection.answer()
    assert caplog.text.count("Traceback") == 1
    assert caplog.text.count("Invalid HTTP request") == 1


def test_a_message_says_how_many_of_its_kind_were_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, record = OneOfEachKind(), logging.makeLogRecord
    assert kind.filter(record({"msg": "one"}))
    assert kind.filter(record({"msg": "other"}))
    assert not any(kind.filter(record({"msg": "one"})) for _ in range(3))
    monkeypatch.setattr(connection_limits, "LOG_SECONDS", 0.0)
    last = record({"msg": "one"})
    assert kind.filter(last)
    assert last.getMessage() == "one (and 3 more since the last message of this kind)"


def test_a_body_of_too_many_lists_is_refused_before_it_is_decoded() -> None:
    text = b'"' + b"[{" * 200_000 + b'\\""'
    assert len(str(asyncio.run(asgi_server.decode_body(text)))) == 400_001
    with pytest.raises(ValueError, match="lists and objects"):
        asyncio.run(asgi_server.decode_body(b"[" + b"[]," * 200_000 + b"1]"))


def test_the_socket_is_closed_at_the_end() -> None:
    async def run() -> socket.socket:
        listener, stop = asgi_server.bind("127.0.0.1", 0), asyncio.Event()
        await asgi_server.serve(application, listener, on_ready=stop.set, stop=stop)
        return listener

    assert asyncio.run(run()).fileno() == -1
