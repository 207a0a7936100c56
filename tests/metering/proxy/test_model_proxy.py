"""The model proxy passes bytes through unchanged, counts model calls, and keeps the key."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_calls import EXPECTED, FORMATS, recorded_streams, request_bytes
from support.raw_server import ConnectionHandler, RawConnection, RawServer, raw_server, respond_with

from corral._metering.budget import Budget
from corral._metering.budget_gate import BudgetGate, BudgetTicket
from corral._metering.calls import MeteredCall, ModelRequest, read_request
from corral._metering.proxy import client_requests
from corral._metering.proxy import upstream as upstream_module
from corral._metering.proxy.open_calls import OpenModelCall
from corral._metering.proxy.proxy import ModelProxy, ProxySettings
from corral._metering.proxy.upstream import ResponseFailed, SearchedKey, VendorResponse
from corral._models.registry import find_provider
from corral.values import Usage

DUMMY, REAL = "dummy-key-of-this-run", "real-key-of-the-user-0123456789"
VENDORS = sorted(FORMATS)
AUTHORIZED = f"Authorization: Bearer {DUMMY}"
GEMINI = FORMATS["gemini"]


class Exchange:
    """A proxy between a client and a scripted vendor."""

    def __init__(
        self,
        proxy: ModelProxy,
        server: RawServer,
        calls: list[MeteredCall],
        owners_of_keys: list[object],
    ) -> None:
        self.proxy = proxy
        self.server = server
        self.calls = calls
        self.owners_of_keys = owners_of_keys
        """Of the calls whose responses contained the real key."""

    def with_key(self, request: bytes) -> bytes:
        """The request with the dummy key that the agent gets."""
        return request.replace(DUMMY.encode(), self.proxy.dummy_keys["KEY"].encode())

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.proxy.port)

    async def send(self, request: bytes) -> bytes:
        """The response, up to the end of the connection."""
        reader, writer = await self.connect()
        writer.write(self.with_key(request))
        writer.write_eof()
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        return answer


@asynccontextmanager
async def exchange(
    talk: ConnectionHandler, vendor: str = "gemini", gate: BudgetGate | None = None
) -> AsyncGenerator[Exchange]:
    received: list[bytes] = []

    async def listen(line: RawConnection) -> None:
        request = line.request

        async def noted() -> bytes:
            found = await request()
            if found:
                received.append(found)
            return found

        line.request = noted  # type: ignore[method-assign]
        await talk(line)

    async with raw_server(listen) as server:
        server.requests = received
        calls: list[MeteredCall] = []
        owners: list[object] = []
        keys = {"KEY": REAL}
        made = ProxySettings(
            upstream=server.url, providers=lambda: [find_provider(vendor)], keys=keys
        )
        proxy = ModelProxy(made, calls.append, gate, on_key=owners.append)
        await proxy.open()
        try:
            yield Exchange(proxy, server, calls, owners)
        finally:
            proxy.close()
            await proxy.wait_closed()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def event_stream(body: bytes) -> bytes:
    return answer(body, "content-type: text/event-stream", "X-Request-Id: 1")


def chunked(pieces: list[bytes]) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    return head + b"\r\n" + body + b"0\r\n\r\n"


@pytest.mark.both_loops
async def test_only_authentication_host_and_encoding_of_a_request_are_changed() -> None:
    stream = recorded_streams("gemini")[0]
    async with exchange(respond_with(event_stream(stream))) as line:
        request = request_bytes(
            GEMINI,
            line.proxy.port,
            "x-Custom: 1",
            f"x-goog-api-key: {DUMMY}",
            "Accept-Encoding: gzip, br",
            "X-Other: 2",
        )
        got = await line.send(request)
        assert got == event_stream(stream)
        [sent] = line.server.requests
        expected = request.replace(DUMMY.encode(), REAL.encode())
        expected = expected.replace(b"gzip, br", b"identity")
        expected = expected.replace(b"%d" % line.proxy.port, b"%d" % line.server.port)
        assert sent == expected
        [call] = line.calls
        assert (call.model, call.status, call.is_partial) == ("gemini-2.5-flash", 200, False)
        assert call.usage.total == EXPECTED.total
        assert call.cost.usd
        assert call.first_byte is not None


async def test_a_key_in_the_query_is_replaced() -> None:
    async with exchange(respond_with(answer(b"{}"))) as line:
        made = GEMINI._replace(path=f"{GEMINI.path}&key={DUMMY}")
        await line.send(request_bytes(made, 1))
        assert f"&key={REAL} HTTP/1.1\r\n".encode() in line.server.requests[0]


async def echo(line: RawConnection) -> None:
    """Repeats the first line and a header of each request, as an error of a service may."""
    while request := await line.request():
        body = b"\n".join(
            row
            for row in request.split(b"\r\n")
            if row.startswith((b"GET ", b"POST ")) or row.lower().startswith(b"anthropic-beta")
        )
        await line.send(answer(body, status="404 Not Found"))


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/v1/models/DUMMY", "x: 1", 400),
        ("/v1/models/a?user=DUMMY", "x: 1", 404),
        ("/v1/models/a", "anthropic-beta: DUMMY", 404),
        ("/v1/models/a", "anthropic-beta: key=DUMMY, other", 404),
        ("/v1/models/a?key=DUMMY", "x: 1", 404),
    ],
)
async def test_a_service_that_repeats_a_request_does_not_have_the_key_to_repeat(
    path: str, header: str, status: int
) -> None:
    async with exchange(echo, "anthropic") as line:
        request = f"GET {path} HTTP/1.1\r\n{header}\r\nx-api-key: DUMMY\r\n\r\n"
        got = await line.send(request.replace("DUMMY", DUMMY).encode())
        assert got.startswith(f"HTTP/1.1 {status} ".encode())
        assert REAL.encode() not in got
        assert line.proxy.dummy_keys["KEY"].encode() not in got
        for sent in line.server.requests:
            assert sent.count(REAL.encode()) == 1
            assert f"\r\nx-api-key: {REAL}\r\n".encode() in sent


async def test_a_request_without_the_key_of_the_run_is_refused() -> None:
    async with exchange(respond_with(answer(b"{}"))) as line:
        got = await line.send(request_bytes(GEMINI, 1, "x-goog-api-key: another"))
        assert got.startswith(b"HTTP/1.1 401 ")
        assert b"UNAUTHENTICATED" in got
        assert line.server.requests == []
        assert line.calls == []


@pytest.mark.parametrize("path", ["/v1beta/files", "/v1/messages", "/v1beta/models/x:predict"])
async def test_an_unknown_path_is_refused_in_the_vendors_format(path: str) -> None:
    async with exchange(respond_with(answer(b"{}"))) as line:
        got = await line.send(request_bytes(GEMINI._replace(path=path), 1, AUTHORIZED))
        assert got.startswith(b"HTTP/1.1 403 Forbidden\r\n")
        assert msgspec.json.decode(got.partition(b"\r\n\r\n")[2])["error"]["code"] == 403
        assert line.server.requests == []


async def test_calls_that_cost_nothing_are_passed_on_and_not_counted() -> None:
    async with exchange(respond_with(answer(b"{}"))) as line:
        made = GEMINI._replace(path="/v1beta/models/gemini-2.5-flash:countTokens")
        assert await line.send(request_bytes(made, 1, AUTHORIZED)) == answer(b"{}")
        assert line.calls == []


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % len(data) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


class Sink:
    def __init__(self) -> None:
        self.body = b""

    def on_head(self, response: VendorResponse) -> None:
        assert self.body == b""

    def on_body(self, data: bytes) -> None:
        self.body += data


def check_pass_through(
    vendor: str, number: int, frames: list[int], places: list[int], framing: str
) -> None:
    """All bytes of a response come out as they went in, and its end is found."""
    stream = recorded_streams(vendor)[number]
    open_end = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + stream
    made = {
        "chunked": chunked(cut(stream, frames)),
        "length": event_stream(stream),
        "close": open_end,
    }[framing]
    sink = Sink()
    response = VendorResponse(sink)
    out = b"".join(response.receive(piece) for piece in cut(made, places) if piece)
    assert response.is_complete == (framing != "close")
    response.end()
    response.close()
    assert response.head + out == made
    assert sink.body == stream


def test_a_body_that_ends_as_a_key_begins_is_read_to_its_end() -> None:
    body = b"the key is sk-12"
    for made in (event_stream(body), b"HTTP/1.1 200 OK\r\n\r\n" + body):
        sink = Sink()
        response = VendorResponse(sink)
        response.refuse_keys((SearchedKey("sk-1234"),))
        out = response.receive(made)
        out += b"" if response.is_complete else response.end()
        response.close()
        assert (response.head + out, sink.body) == (made, body)


cut_responses = given(
    number=st.integers(0, 1),
    frames=st.lists(st.integers(0, 100_000), max_size=6),
    places=st.lists(st.integers(0, 100_000), max_size=10),
    framing=st.sampled_from(["chunked", "length", "close"]),
)


@pytest.mark.parametrize("vendor", VENDORS)
@settings(max_examples=40)
@cut_responses
def test_responses_that_are_cut_anywhere_pass_unchanged(
    vendor: str, number: int, frames: list[int], places: list[int], framing: str
) -> None:
    check_pass_through(vendor, number, frames, places, framing)


def variant(vendor: str, chance: Random) -> bytes:
    """A recorded stream with other text, and with comments and line ends as other servers send
    them."""
    stream = chance.choice(recorded_streams(vendor))
    words = "".join(
        chance.choices(["token ", "ü", "日本", "a", "\\n", "data: "], k=chance.randrange(60))
    )
    stream = stream.replace(b"hel", words.encode()).replace(b"I look", words.encode())
    blank = b"\r\n\r\n" if b"\r\n\r\n" in stream else b"\n\n"
    events = stream.split(blank)
    for _ in range(chance.randrange(3)):
        events.insert(chance.randrange(len(events)), b": ping")
    stream = blank.join(events)
    if blank == b"\n\n" and chance.random() < 0.3:
        stream = stream.replace(b"\n", b"\r\n")
    return stream


def framed(stream: bytes, chance: Random) -> bytes:
    """A response with this body, of a length that is known, in chunks or open to the end."""
    places = [chance.randrange(100_000) for _ in range(chance.randrange(8))]
    match chance.randrange(3):
        case 0:
            return chunked(cut(stream, places))
        case 1:
            return event_stream(stream)
        case _:
            return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + stream


@pytest.mark.parametrize("vendor", VENDORS)
async def test_1000_streams_that_are_cut_anywhere_pass_unchanged_and_are_counted(
    vendor: str,
) -> None:
    made = FORMATS[vendor]
    request = read_request(
        [find_provider(vendor)], "POST", made.endpoint, msgspec.json.encode(made.body)
    )
    assert isinstance(request, ModelRequest)
    chance = Random(vendor)
    for _ in range(1000):
        sent = framed(variant(vendor, chance), chance)
        places = [chance.randrange(100_000) for _ in range(chance.randrange(12))]
        call = OpenModelCall(request, None)
        response = call.response
        pieces = [piece for piece in cut(sent, places) if piece]
        got = b"".join(call.encode(response, response.receive(piece)) for piece in pieces)
        response.end()
        response.close()
        call.is_complete = True
        assert got == sent
        done = call.finish()
        assert (done.usage.total, done.is_partial) == (EXPECTED.total, False), sent


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_stream_in_pieces_arrives_unchanged_over_one_connection(vendor: str) -> None:
    made = [chunked(cut(stream, [50, 99, 400])) for stream in recorded_streams(vendor)]

    async def talk(line: RawConnection) -> None:
        for each in made:
            await line.request()
            await line.send(*cut(each, [1, 20, 90, 150, 151, 300, 301]))

    async with exchange(talk, vendor) as line:
        reader, writer = await line.connect()
        for expected in made:
            writer.write(line.with_key(request_bytes(FORMATS[vendor], 1, AUTHORIZED)))
            async with asyncio.timeout(60):
                assert await reader.readexactly(len(expected)) == expected
        writer.close()
        assert line.server.connections == 1
    assert [call.usage.total for call in line.calls] == [130, 130]


async def test_a_chat_completion_is_counted_without_an_additional_event_for_the_agent() -> None:
    stream = recorded_streams("openai-chat")[0]
    async with exchange(respond_with(chunked(cut(stream, [77]))), "openai-chat") as line:
        made = FORMATS["openai-chat"]
        silent = made._replace(
            body={name: value for name, value in made.body.items() if name != "stream_options"}
        )
        got = await line.send(request_bytes(silent, 1, AUTHORIZED))
        assert b"include_usage" in line.server.requests[0]
        assert b"[DONE]" in got
        assert b'"usage":{' not in got.replace(b" ", b"")
        assert line.calls[0].usage.total == 130


async def test_a_compressed_response_passes_unchanged_and_is_counted() -> None:
    body = gzip.compress(recorded_streams("gemini")[0])
    made = answer(body, "Content-Type: text/event-stream", "Content-Encoding: gzip")
    async with exchange(respond_with(made)) as line:
        assert await line.send(request_bytes(GEMINI, 1, AUTHORIZED)) == made
        assert line.calls[0].usage.total == 130


@pytest.mark.parametrize(("coding", "status"), [("gzip", 200), ("zstd", 415), ("deflate", 400)])
async def test_a_compressed_request_is_read_or_refused(coding: str, status: int) -> None:
    stream = event_stream(recorded_streams("gemini")[0])
    async with exchange(respond_with(stream)) as line:
        plain = request_bytes(GEMINI, 1).partition(b"\r\n\r\n")[2]
        body = gzip.compress(plain)
        head = f"POST {GEMINI.path} HTTP/1.1\r\n{AUTHORIZED}\r\nContent-Encoding: {coding}\r\n"
        got = await line.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert got.startswith(f"HTTP/1.1 {status} ".encode())
        assert len(line.server.requests) == (status == 200)


async def test_other_protocols_are_refused() -> None:
    upgrade = (
        f"GET /v1/responses HTTP/1.1\r\n{AUTHORIZED}\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
    )
    bad = {
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": b"505",
        upgrade.encode(): b"403",
        b"\x16\x03\x01\x02\x00\x01": b"400",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab": b"400",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n": b"400",
        b"GET / HTTP/1.1\r\nX: " + b"a" * (client_requests.LARGEST_HEAD + 10): b"431",
    }
    async with exchange(respond_with(answer(b"{}"))) as line:
        for request, status in bad.items():
            got = await line.send(request)
            assert got[9:12] == status, (request[:40], got)
        assert line.server.requests == []


async def test_a_request_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "LARGEST_BODY", 1000)
    async with exchange(respond_with(answer(b"{}"))) as line:
        got = await line.send(request_bytes(GEMINI, 1, AUTHORIZED, more="x" * 2000))
        assert got.startswith(b"HTTP/1.1 413 ")


async def test_a_request_in_chunks_is_sent_with_its_length() -> None:
    async with exchange(respond_with(answer(b"{}"))) as line:
        head = f"POST {GEMINI.path} HTTP/1.1\r\n{AUTHORIZED}\r\nTransfer-Encoding: chunked\r\n\r\n"
        got = await line.send(head.encode() + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n")
        assert got == answer(b"{}")
        assert line.server.requests[0].endswith(b"content-length: 2\r\n\r\n{}")


async def test_a_vendor_that_cannot_be_reached_is_an_error_502() -> None:
    async with raw_server(respond_with(b"")) as server:
        port = server.port
    made = ProxySettings(
        upstream=f"http://127.0.0.1:{port}",
        providers=lambda: [find_provider("gemini")],
        keys={"KEY": REAL},
    )
    calls: list[MeteredCall] = []
    proxy = ModelProxy(made, calls.append)
    await proxy.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    key = f"x-goog-api-key: {proxy.dummy_keys['KEY']}"
    writer.write(request_bytes(GEMINI, 1, key))
    writer.write_eof()
    got = await reader.read()
    writer.close()
    proxy.close()
    await proxy.wait_closed()
    assert got.startswith(b"HTTP/1.1 502 ")
    [call] = calls
    assert (call.status, call.is_partial, call.usage) == (None, False, Usage())


async def test_a_vendor_that_sends_nothing_is_an_error_504(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "SILENCE_SECONDS", 0.2)

    async def talk(line: RawConnection) -> None:
        await line.request()
        await line.wait_closed()

    async with exchange(talk) as line:
        assert (await line.send(request_bytes(GEMINI, 1, AUTHORIZED)))[9:12] == b"504"
        assert line.calls[0].error == "the vendor sent nothing for 0.2 s"


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(b"", id="no response"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Le", id="half of a head"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", id="an upgrade"),
    ],
)
async def test_a_vendor_without_a_valid_response_is_an_error_502(made: bytes) -> None:
    async with exchange(respond_with(made, keep=False)) as line:
        got = await line.send(request_bytes(GEMINI, 1, AUTHORIZED))
        assert got.startswith(b"HTTP/1.1 502 ")
        assert line.calls[0].error


async def test_a_response_that_is_shorter_than_its_length_is_cut_and_partial() -> None:
    stream = recorded_streams("gemini")[0]
    made = event_stream(stream)[:-40]
    async with exchange(respond_with(made, keep=False)) as line:
        assert await line.send(request_bytes(GEMINI, 1, AUTHORIZED)) == made
        assert line.calls[0].is_partial
        assert "middle" in (line.calls[0].error or "")


async def test_bytes_beyond_the_length_of_a_response_are_not_passed_on() -> None:
    made = event_stream(recorded_streams("gemini")[0])
    async with exchange(respond_with(made + b"HTTP/1.1 200 OK\r\n\r\n")) as line:
        assert await line.send(request_bytes(GEMINI, 1, AUTHORIZED)) == made
        assert not line.calls[0].is_partial


@pytest.mark.parametrize("sends_head", [True, False])
async def test_a_vendor_that_resets_its_connection_is_an_error(*, sends_head: bool) -> None:
    made = event_stream(recorded_streams("gemini")[0])[:-40]

    async def talk(line: RawConnection) -> None:
        await line.request()
        if sends_head:
            await line.send(made)
            await may_reset.wait()
        raw: socket.socket = line.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.writer.transport.abort()

    may_reset = asyncio.Event()
    async with exchange(talk) as line, asyncio.timeout(60):
        reader, writer = await line.connect()
        writer.write(line.with_key(request_bytes(GEMINI, 1, AUTHORIZED)))
        writer.write_eof()
        first = await reader.readexactly(len(made)) if sends_head else b""
        may_reset.set()
        got = first + await reader.read()
        writer.close()
        assert got == made if sends_head else got.startswith(b"HTTP/1.1 502 ")
        assert line.calls[0].is_partial
        assert line.calls[0].usage.coverage == "estimated"
        assert "the connection to the vendor broke" in (line.calls[0].error or "")


async def test_a_vendor_that_closes_only_its_sending_side_does_not_hold_the_agent() -> None:
    made = event_stream(recorded_streams("gemini")[0])[:-40]

    async def talk(line: RawConnection) -> None:
        await line.request()
        await line.send(made)
        line.writer.write_eof()
        await line.wait_closed()

    async with exchange(talk) as line:
        assert await line.send(request_bytes(GEMINI, 1, AUTHORIZED)) == made
        assert line.calls[0].is_partial
        assert "in the middle" in (line.calls[0].error or "")


async def test_a_vendor_that_stops_in_the_middle_is_cut_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_module, "SILENCE_SECONDS", 0.2)
    made = event_stream(recorded_streams("gemini")[0])[:-40]

    async def talk(line: RawConnection) -> None:
        await line.request()
        await line.send(made)
        await line.wait_closed()

    async with exchange(talk) as line:
        assert await line.send(request_bytes(GEMINI, 1, AUTHORIZED)) == made
        assert line.calls[0].is_partial
        assert line.calls[0].error == "the vendor sent nothing for 0.2 s"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(("Content-Length: -5",), id="negative"),
        pytest.param(("Content-Length: 5, 6",), id="two in one"),
        pytest.param(("Content-Length: 5", "Content-Length: 6"), id="two lengths"),
        pytest.param(("Content-Length: 5", "Transfer-Encoding: chunked"), id="length and chunks"),
        pytest.param(("Content-Length: 99999999999999999999999",), id="too large for a number"),
    ],
)
async def test_a_response_with_a_length_that_is_not_valid_is_an_error_502(
    headers: tuple[str, ...],
) -> None:
    made = "\r\n".join(["HTTP/1.1 200 OK", *headers, "", "hello"]).encode()
    async with exchange(respond_with(made, keep=False)) as line:
        got = await line.send(request_bytes(GEMINI, 1, AUTHORIZED))
        assert got.startswith(b"HTTP/1.1 502 ")
        assert "not valid HTTP" in (line.calls[0].error or "")


@pytest.mark.parametrize("rest", [b"", b"zz\r\n", b"5\r\nabc"], ids=["end", "size", "data"])
async def test_a_response_in_chunks_that_breaks_is_cut_and_partial(rest: bytes) -> None:
    made = chunked([recorded_streams("gemini")[0]]).removesuffix(b"0\r\n\r\n")
    async with exchange(respond_with(made + rest, keep=False)) as line:
        got = await line.send(request_bytes(GEMINI, 1, AUTHORIZED))
        assert not got.endswith(b"0\r\n\r\n")
        assert line.calls[0].is_partial
        assert line.calls[0].error


@pytest.mark.parametrize(
    "fields",
    [
        ["Content-Encoding: gzip"],
        ["Content-Encoding: br"],
        ["Content-Encoding: gzip", "Content-Encoding: identity"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"],
    ],
    ids=", ".join,
)
async def test_a_response_whose_compression_cannot_be_read_is_not_passed_on(
    fields: list[str],
) -> None:
    body, is_chunked = recorded_streams("gemini")[0], "chunked" in fields[-1]
    head = "\r\n".join(["HTTP/1.1 200 OK", *fields, "", ""]).encode()
    made = (
        head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else answer(body, *fields)
    )
    async with exchange(respond_with(made)) as line:
        assert (await line.send(request_bytes(GEMINI, 1, AUTHORIZED)))[9:12] == b"502"
        [call] = line.calls
        assert (call.status, call.is_partial) == (200, True)
        assert "compress" in (call.error or "")


async def test_an_agent_that_closes_only_its_sending_side_gets_the_complete_stream() -> None:
    made = event_stream(recorded_streams("gemini")[0])
    is_half_closed = asyncio.Event()

    async def talk(line: RawConnection) -> None:
        await line.request()
        await line.send(made[:100])
        await is_half_closed.wait()
        await line.send(made[100:])
        await line.wait_closed()

    async with exchange(talk) as line, asyncio.timeout(60):
        reader, writer = await line.connect()
        writer.write(line.with_key(request_bytes(GEMINI, 1, AUTHORIZED)))
        first = await reader.readexactly(50)
        writer.write_eof()
        is_half_closed.set()
        assert first + await reader.read() == made
        writer.close()
        assert not line.calls[0].is_partial


async def test_an_agent_that_closes_its_connection_ends_the_call() -> None:
    stream = recorded_streams("anthropic")[0]
    closed = asyncio.Event()

    async def talk(line: RawConnection) -> None:
        await line.request()
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99999\r\n\r\n"
        )
        await line.send(head + stream[: stream.index(b"content_block_start")])
        while not line.reader.at_eof():  # the end is noticed when more is sent
            await line.send(b": more\n\n")
            await asyncio.sleep(0.01)
        closed.set()

    async with exchange(talk, "anthropic") as line:
        reader, writer = await line.connect()
        writer.write(line.with_key(request_bytes(FORMATS["anthropic"], 1, AUTHORIZED)))
        await reader.readuntil(b"message_start")
        writer.transport.abort()
        async with asyncio.timeout(60):
            await closed.wait()
        [call] = line.calls
        assert call.is_partial
        assert call.usage.input == 120
        assert call.error == "the agent closed the connection"


async def test_a_call_is_reported_when_the_proxy_is_closed() -> None:
    async def talk(line: RawConnection) -> None:
        await line.request()
        await line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{")
        await line.wait_closed()

    async with exchange(talk) as line:
        reader, writer = await line.connect()
        writer.write(line.with_key(request_bytes(GEMINI, 1, AUTHORIZED)))
        await reader.readuntil(b"{")
        line.proxy.close()
        await line.proxy.wait_closed()
        assert [call.is_partial for call in line.calls] == [True]
        writer.close()


async def test_a_refused_call_gets_402_and_is_not_sent() -> None:
    gate = BudgetGate(Budget(max_total_tokens=1), lambda _text: None)
    async with exchange(respond_with(answer(b"{}")), gate=gate) as line:
        got = await line.send(request_bytes(GEMINI, 1, AUTHORIZED))
        assert got.startswith(b"HTTP/1.1 402 Payment Required\r\n")
        assert b"does not fit into the budget" in got
        assert line.server.requests == []
        assert line.calls == []


async def test_a_response_that_may_not_continue_is_cut() -> None:
    budget = Budget(max_total_tokens=5_000)
    event = {"candidates": [{"content": {"parts": [{"text": "word " * 10_000}]}}]}

    async def talk(line: RawConnection) -> None:
        await line.request()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99999"
        await line.send(head + b"\r\n\r\ndata: " + json.dumps(event).encode() + b"\n\n")
        await line.wait_closed()

    async with exchange(talk, gate=BudgetGate(budget, lambda _text: None)) as line:
        got = await line.send(request_bytes(GEMINI, 1, AUTHORIZED))
        assert b"word word" in got
        [call] = line.calls
        assert (call.is_partial, call.error) == (True, "the budget is spent")
        assert budget.spent.calls == 1


def key_responses() -> dict[str, bytes]:
    """Responses with the real key."""
    key, stream = REAL.encode(), recorded_streams("gemini")[0]
    middle = len(stream) // 2
    body = stream[:middle] + key + stream[middle:]
    at = middle + 5
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    packed = gzip.compress(body)
    return {
        "body": event_stream(body),
        "split between chunks": chunked([body[:at], body[at : at + 1], body[at + 1 :]]),
        "open end": head + b"\r\n" + body,
        "compressed": answer(packed, "content-type: text/event-stream", "Content-Encoding: gzip"),
        "header": answer(stream, f"X-Echo: {REAL}", "content-type: text/event-stream"),
        "reason": answer(stream, status=f"200 {REAL}"),
        "extension of a chunk": head
        + b"transfer-encoding: chunked\r\n\r\n1;a="
        + key
        + b"\r\nx\r\n0\r\n\r\n",
        "trailer": head
        + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx-echo: "
        + key
        + b"\r\n\r\n",
        "error": answer(b"no such model: " + key, status="404 Not Found"),
    }


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("kind", sorted(key_responses()))
async def test_a_response_with_the_real_key_is_cut_before_it(kind: str, step: int) -> None:
    made = key_responses()[kind]

    async def talk(line: RawConnection) -> None:
        await line.request()
        await line.send(*(made[at : at + step] for at in range(0, len(made), step)))

    async with exchange(talk) as line:
        got = await line.send(request_bytes(GEMINI, 1, AUTHORIZED))
        [call] = line.calls
    _, _, body = got.partition(b"\r\n\r\n")
    if b"Content-Encoding: gzip" in got:
        body = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(body)
    assert REAL[:5].encode() not in got + body
    assert call.error == "the response contains the key of this run, and is not passed on"
    assert line.owners_of_keys == [None]


@pytest.mark.parametrize(
    "failure", [RuntimeError, TypeError, ConnectionResetError, TimeoutError, asyncio.CancelledError]
)
@pytest.mark.both_loops
async def test_a_failure_in_the_proxy_itself_is_an_error_502(
    failure: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class BrokenGate(BudgetGate):
        async def admit(self, request: ModelRequest) -> BudgetTicket | str:
            raise failure(f"the gate failed, with {REAL}")

    gate = BrokenGate(Budget(), lambda _text: None)
    async with exchange(respond_with(answer(b"{}")), gate=gate) as line:
        got = await line.send(request_bytes(GEMINI, 1, AUTHORIZED))
        assert got.startswith(b"HTTP/1.1 502 ")
        assert f"{failure.__name__}: the gate failed, with [REDACTED]".encode() in got
    assert "a request of the agent failed" in caplog.text


def test_a_response_with_a_very_long_head_is_refused() -> None:
    response = VendorResponse(Sink())
    with pytest.raises(ResponseFailed, match="too large"):
        for _ in range(100):
            response.receive(b"x: " + b"a" * 1000)
