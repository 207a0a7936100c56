"""The HTTP client with correct and with faulty servers."""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
import socket
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from support.raw_server import (
    ConnectionHandler,
    RawConnection,
    RawServer,
    plain,
    raw_server,
    respond_with,
)

from corral._system.http import client
from corral._system.http.client import Http
from corral.errors import CorralError, IdleTimeout, NetworkFailed, StreamBroken

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG = b"hel\r\n0123456789"


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No socket that only the garbage collector closes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        yield
        gc.collect()


async def asked(http: Http, server: RawServer, **options: Any) -> bytes:
    async with asyncio.timeout(60):
        return await (await http.post(f"{server.url}/v1", b"{}", options)).body()


async def failure(talk: ConnectionHandler, read_timeout: float = 5.0) -> CorralError:
    async with raw_server(talk) as server, Http(read_timeout=read_timeout) as http:
        with pytest.raises(CorralError) as caught:
            await asked(http, server)
    assert caught.value.hint
    assert f"127.0.0.1:{server.port}" in caught.value.message
    return caught.value


async def test_one_request_with_its_length_is_sent() -> None:
    seen: list[bytes] = []

    async def talk(line: RawConnection) -> None:
        seen.append(await line.request())
        await line.send(plain())

    async with raw_server(talk) as server, Http() as http:
        answer = await http.post(f"{server.url}/a?b=c#d", b'{"x":1}', {"X-Key": "k"})
        assert (answer.status, answer.is_success, await answer.body()) == (200, True, b"ok")
    head, _, body = seen[0].partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first == "POST /a?b=c HTTP/1.1"
    assert body == b'{"x":1}'
    assert sorted(lines) == sorted(
        [
            f"Host: 127.0.0.1:{server.port}",
            "Content-Type: application/json",
            "X-Key: k",
            "user-agent: corral",
            "accept: */*",
            "accept-encoding: identity",
            "content-length: 7",
        ]
    )


async def test_requests_that_differ_in_one_header_or_in_the_credentials_of_the_url() -> None:
    seen: list[str] = []

    async def talk(line: RawConnection) -> None:
        while request := await line.request():
            seen.append(request.decode())
            await line.send(plain())

    async with raw_server(talk) as server, Http() as http:
        signed_in = server.url.replace("//", "//ada:secret@")
        for url, headers, body in (
            (server.url, {"X-Key": "a"}, b"1"),
            (server.url, {"X-Key": "a"}, b"12345"),
            (server.url, {"X-Key": "b"}, b"1"),
            (signed_in, {"X-Key": "a"}, b"1"),
        ):
            await (await http.post(url, body, headers)).body()
    assert [("X-Key: a\r\n" in text, "authorization:" in text) for text in seen] == [
        (True, False),
        (True, False),
        (False, False),
        (True, True),
    ]
    assert [text.count("content-length: ") for text in seen] == [1, 1, 1, 1]
    assert [text.endswith("content-length: 5\r\n\r\n12345") for text in seen][1]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (plain(b"hello"), b"hello"),
        (plain(b""), b""),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (CHUNKED + b"5;a=b\r\nhel\r\n\r\nA\r\n0123456789\r\n0\r\nX: y\r\n\r\n", LONG),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nold", b"old"),
        (b"HTTP/1.1 100 X\r\n\r\nHTTP/1.1 103 X\r\nA: b\r\n\r\n" + plain(b"last"), b"last"),
        (b"HTTP/1.1 204 No\r\n\r\n", b""),
        (b"HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n", b""),
        (plain(packed(b"small"), "Content-Encoding: gzip"), b"small"),
        (plain(zlib.compress(b"small"), "Content-Encoding: deflate"), b"small"),
        (plain(zlib.compress(b"small")[2:-4], "Content-Encoding: deflate"), b"small"),
        (plain(packed(b"a") + packed(b"b"), "Content-Encoding: x-gzip"), b"ab"),
        (plain(b"", "Content-Encoding: gzip"), b""),
        (plain(b"same", "Content-Encoding: identity"), b"same"),
    ],
)
@pytest.mark.parametrize("complete", [True, False], ids=["whole", "bytewise"])
async def test_every_way_to_frame_a_body(answer: bytes, body: bytes, complete: bool) -> None:
    async def talk(line: RawConnection) -> None:
        await line.request()
        await line.send(*([answer] if complete else [bytes([byte]) for byte in answer]))

    async with raw_server(talk) as server, Http() as http:
        assert await asked(http, server) == body


@pytest.mark.parametrize(
    ("output", "kind", "words"),
    [
        (b"", NetworkFailed, "without a response"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", NetworkFailed, "without a response"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", NetworkFailed, "without a response"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", NetworkFailed, "did not respond with HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            NetworkFailed,
            "did not respond with HTTP",
        ),
        (b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", NetworkFailed, "HTTP"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"a" * 200_000, NetworkFailed, "larger than 65,536 bytes"),
        (b"HTTP/1.1 102 X\r\n\r\n" * 20_000, NetworkFailed, "larger than 65,536 bytes"),
        (plain(b"x" * 10)[:-3], StreamBroken, "closed too early"),
        (CHUNKED + b"5\r\nhel", StreamBroken, "closed too early"),
        (CHUNKED + b"5\r\nhello\r\n", StreamBroken, "closed too early"),
        (CHUNKED + b"5\r\nhello\r\nnonsense\r\n", StreamBroken, "not valid HTTP"),
        (CHUNKED + b"0\r\nA: " + b"a" * 200_000, StreamBroken, "larger than 65,536 bytes"),
        (plain(packed(b"a" * 99)[:20], "Content-Encoding: gzip"), StreamBroken, "cut short"),
        (plain(b"no gzip", "Content-Encoding: gzip"), StreamBroken, "cannot be decompressed"),
        (plain(b"x", "Content-Encoding: br"), StreamBroken, "compressed as br"),
    ],
)
async def test_an_invalid_response_is_its_own_error(
    output: bytes, kind: type[CorralError], words: str
) -> None:
    error = await failure(respond_with(output, keep=False))
    assert type(error) is kind
    assert words in error.message


async def test_data_before_a_broken_connection_is_returned_first() -> None:
    async with (
        raw_server(respond_with(CHUNKED + b"3\r\none\r\n3\r\ntw", keep=False)) as server,
        Http() as http,
    ):
        answer = await http.post(server.url, b"", {})
        received = b""
        with pytest.raises(StreamBroken):
            while True:
                received += await answer.chunk()
    assert received == b"onetw"


async def test_headers_have_names_in_any_case_and_both_values() -> None:
    output = plain(
        b"", "X-One: 1", "set-cookie: a", "Set-Cookie: b", "CONTENT-TYPE: Text/HTML; x=y"
    )
    async with raw_server(respond_with(output)) as server, Http() as http:
        answer = await http.post(server.url, b"", {})
        answer.close()
    assert (answer.headers["x-one"], answer.headers["set-cookie"]) == ("1", "a, b")
    assert "nothing" not in answer.headers
    assert answer.media_type == "text/html"


async def test_a_connection_is_used_again_once_its_answer_is_read() -> None:
    output = [plain(b"1"), CHUNKED + b"1\r\n2\r\n0\r\nTrailer: t\r\n\r\n", plain(b"3", "A: b")]
    async with raw_server(respond_with(*output)) as server, Http() as http:
        assert [await asked(http, server) for _ in output] == [b"1", b"2", b"3"]
        answer = await http.post(server.url, b"", {})
        answer.close()  # it had arrived
        await asked(http, server)
        assert server.connections == 1


async def test_data_after_a_body_is_not_part_of_any_response() -> None:
    output = [CHUNKED + b"1\r\n2\r\n0\r\nContent-Type: evil\r\n\r\n", plain(b"3")]
    async with raw_server(respond_with(*output)) as server, Http() as http:
        for body in (b"2", b"3"):
            answer = await http.post(server.url, b"", {})
            assert await answer.body() == body
            assert answer.media_type == ""


@pytest.mark.parametrize(
    "output",
    [
        plain(b"x", "Connection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        plain(b"x") + b"stray",
        plain(b"x") + plain(b"another"),
        plain(b"x", "Keep-Alive: timeout=1"),
    ],
    ids=["close", "old", "stray", "second", "short"],
)
async def test_a_connection_that_is_not_clean_is_not_used_again(output: bytes) -> None:
    async with raw_server(respond_with(output)) as server, Http() as http:
        assert [await asked(http, server) for _ in range(3)] == [b"x"] * 3
        assert server.connections == 3


async def test_a_response_that_is_not_read_closes_its_connection() -> None:
    async def endless(line: RawConnection) -> None:
        await line.request()
        await line.send(CHUNKED + b"1\r\nx\r\n")
        await line.wait_closed()

    async with raw_server(endless) as server, Http() as http, asyncio.timeout(60):
        answer = await http.post(server.url, b"", {})
        assert await answer.chunk() == b"x"
        answer.close()
        await server.quiet.wait()
        with pytest.raises(StreamBroken):
            await answer.chunk()


async def test_a_connection_that_the_server_closed_loses_no_request() -> None:
    """Each answer is followed by the end of its connection, which no header told of."""
    async with raw_server(respond_with(plain(b"x"), keep=False)) as server, Http() as http:
        for _ in range(20):
            assert await asked(http, server) == b"x"
            async with asyncio.timeout(60):
                await server.quiet.wait()
        assert server.connections == 20


async def test_a_closed_connection_is_detected_before_a_request_is_sent() -> None:
    closed: list[asyncio.StreamWriter] = []

    async def talk(line: RawConnection) -> None:
        closed.append(line.writer)
        await line.request()
        await line.send(plain(b"x"))
        await line.request()

    async with raw_server(talk) as server, Http() as http:
        await asked(http, server)
        # Straight to the system, and no turn of the loop before the next request.
        with socket.socket(fileno=os.dup(closed[0].get_extra_info("socket").fileno())) as direct:
            direct.shutdown(socket.SHUT_RDWR)
        assert await asked(http, server) == b"x"
        assert server.connections == 2


async def test_idle_connections_are_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "IDLE", 0.2)
    async with raw_server(respond_with(plain())) as server, Http() as http, asyncio.timeout(60):
        await asked(http, server)
        await server.quiet.wait()
        await asked(http, server)
        assert server.connections == 2


async def test_requests_over_the_connection_limit_wait_and_idle_connections_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "CONNECTIONS", 3)
    most = 0

    async def talk(line: RawConnection) -> None:
        nonlocal most
        while await line.request():
            most = max(most, first.open + second.open)
            await asyncio.sleep(0.01)
            await line.send(plain(b"x"))

    async with raw_server(talk) as first, raw_server(talk) as second, Http() as http:
        calls = [asked(http, server) for server in (first, second) * 10]
        assert await asyncio.gather(*calls) == [b"x"] * 20
        assert most <= 3


async def test_a_cancelled_request_that_waits_frees_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "CONNECTIONS", 1)
    async with raw_server(respond_with(plain(b"x"))) as server, Http() as http:
        answer = await http.post(server.url, b"", {})
        waiting = [asyncio.create_task(asked(http, server)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        answer.close()
        waiting[1].cancel()
        async with asyncio.timeout(60):
            assert await waiting[2] == b"x"
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("output", [b"", b"HTTP/1.1 200 OK\r\n", CHUNKED + b"1\r\nx\r\n"])
async def test_each_kind_of_silence_has_its_deadline(output: bytes) -> None:
    async def talk(line: RawConnection) -> None:
        await line.request()
        await line.send(output)
        await line.wait_closed()

    error = await failure(talk, read_timeout=0.1)
    assert type(error) is IdleTimeout
    assert "0.1 s" in error.message


async def test_a_slow_server_that_keeps_sending_is_not_silent() -> None:
    async def talk(line: RawConnection) -> None:
        while await line.request():
            for byte in CHUNKED + b"1\r\nx\r\n0\r\n\r\n":
                await line.send(bytes([byte]))
                await asyncio.sleep(0.02)

    async with raw_server(talk) as server, Http(read_timeout=0.5) as http:
        assert [await asked(http, server) for _ in range(2)] == [b"x"] * 2
        assert server.connections == 1


async def test_a_long_upload_does_not_count_as_silence() -> None:
    size = 64 * 1024 * 1024

    async def talk(line: RawConnection) -> None:
        await line.reader.readuntil(b"\r\n\r\n")
        for _ in range(8):
            await line.reader.readexactly(size // 16)
            await asyncio.sleep(0.2)
        await line.reader.readexactly(size // 2)
        await line.send(plain(b"all"))

    async with raw_server(talk) as server, Http(read_timeout=1.0) as http, asyncio.timeout(60):
        assert await (await http.post(server.url, bytes(size), {})).body() == b"all"


async def test_a_large_body_arrives_complete() -> None:
    sent = bytes(range(256)) * 40_000

    async def talk(line: RawConnection) -> None:
        request = await line.request()
        await line.send(plain(request.partition(b"\r\n\r\n")[2]))

    async with raw_server(talk) as server, Http() as http, asyncio.timeout(30):
        assert await (await http.post(server.url, sent, {})).body() == sent


async def test_a_response_before_the_end_of_the_upload_is_read() -> None:
    async def talk(line: RawConnection) -> None:
        await line.reader.readuntil(b"\r\n\r\n")
        await line.send(plain(b"too large", status=413))
        await line.wait_closed()

    async with raw_server(talk) as server, Http() as http, asyncio.timeout(30):
        answer = await http.post(server.url, bytes(64 * 1024 * 1024), {})
        assert (answer.status, await answer.body()) == (413, b"too large")
        # The rest of the first would be read as the head of a second.
        assert (await http.post(server.url, b"", {})).status == 413
        assert server.connections == 2


@pytest.mark.parametrize("output", [b"", CHUNKED + b"1\r\nx\r\n"], ids=["head", "body"])
async def test_a_cancellation_closes_the_connection_at_once(output: bytes) -> None:
    received = asyncio.Event()

    async def talk(line: RawConnection) -> None:
        await line.request()
        await line.send(output)
        received.set()
        await line.wait_closed()

    async with raw_server(talk) as server, Http() as http, asyncio.timeout(60):
        task = asyncio.create_task(asked(http, server))
        await received.wait()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.quiet.wait()


async def test_a_slow_reader_makes_the_server_wait() -> None:
    sent = 0

    async def talk(line: RawConnection) -> None:
        nonlocal sent
        await line.request()
        await line.send(CHUNKED)
        for _ in range(200):
            await line.send(b"20000\r\n" + bytes(0x20000) + b"\r\n")
            sent += 0x20000
        await line.send(b"0\r\n\r\n")

    async with raw_server(talk) as server, Http() as http, asyncio.timeout(60):
        answer = await http.post(server.url, b"", {})
        before = -1
        while before != sent:  # until the server stands still
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 20 * 1024 * 1024
        largest = size = len(await answer.chunk())
        while piece := await answer.chunk():
            size += len(piece)
            largest = max(largest, len(piece))
        assert size == 200 * 0x20000
        assert largest < 512 * 1024


async def test_a_small_body_that_decompresses_to_much_arrives_in_pieces() -> None:
    output = plain(packed(bytes(30_000_000)), "Content-Encoding: gzip")
    async with (
        raw_server(respond_with(output)) as server,
        Http() as http,
    ):
        answer = await http.post(server.url, b"", {})
        size = 0
        while piece := await answer.chunk():
            assert len(piece) <= 256 * 1024
            size += len(piece)
        assert size == 30_000_000
        answer = await http.post(server.url, b"", {})
        assert len(await answer.head(1000)) == 1000


async def test_a_response_over_the_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LARGEST_ANSWER", 10)
    async with raw_server(respond_with(plain(b"x" * 11))) as server, Http() as http:
        with pytest.raises(StreamBroken, match="larger than 10 bytes"):
            await asked(http, server)


async def test_close_ends_running_requests_and_a_later_request_opens_a_new_connection() -> None:
    came = asyncio.Event()

    async def talk(line: RawConnection) -> None:
        if b"wait" in await line.request():
            came.set()
            await line.wait_closed()
        else:
            await line.send(plain())

    async with raw_server(talk) as server, asyncio.timeout(60):
        http = Http()
        waiting = asyncio.create_task(asked(http, server, wait="1"))
        await came.wait()
        await http.close()
        with pytest.raises(NetworkFailed):
            await waiting
        await server.quiet.wait()
        assert await asked(http, server) == b"ok"
        await http.close()
        await http.close()


def test_a_client_outlives_a_loop() -> None:
    http = Http()

    async def once() -> bytes:
        async with raw_server(respond_with(plain(b"x"))) as server:
            output = await asked(http, server)
            await http.close()
            return output

    assert [asyncio.run(once()), asyncio.run(once())] == [b"x", b"x"]


async def test_a_hundred_concurrent_processes_share_nothing() -> None:
    async def talk(line: RawConnection) -> None:
        while request := await line.request():
            await line.send(plain(request.partition(b"\r\n\r\n")[2]))

    async with raw_server(talk) as server, Http() as http:

        async def echo(number: int) -> None:
            body = str(number).encode() * 100
            assert await (await http.post(server.url, body, {})).body() == body

        for _ in range(3):
            async with asyncio.TaskGroup() as group:
                for number in range(100):
                    group.create_task(echo(number))
        assert server.connections <= 100


async def test_a_request_starts_no_task_of_its_own() -> None:
    tasks: list[int] = []

    async def talk(line: RawConnection) -> None:
        while await line.request():
            tasks.append(len(asyncio.all_tasks()))
            await line.send(plain())

    async with raw_server(talk) as server, Http() as http:
        await asked(http, server)
        await asked(http, server)
    assert tasks == [2, 2]  # the test's and the server's
