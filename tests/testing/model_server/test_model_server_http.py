"""The bytes that the model server sends, read with a plain socket."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

import pytest

from corral.testing import Expect, ModelServer, Turn, fail, hang, say

STREAM = "/v1beta/models/m:streamGenerateContent?alt=sse"
COMPLETE = "/v1beta/models/m:generateContent"
BODY = b'{"contents": [{"parts": [{"text": "hi"}]}]}'


def connect(server: ModelServer) -> socket.socket:
    url = urlsplit(server.url)
    assert url.port
    return socket.create_connection(("127.0.0.1", url.port), timeout=60)


def request(path: str = STREAM, body: bytes = BODY, *headers: str, verb: str = "POST") -> bytes:
    lines = [f"{verb} {path} HTTP/1.1", "Host: x", "X-Goog-Api-Key: k", *headers]
    if not any(header.startswith("Transfer-Encoding") for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_all(client: socket.socket) -> bytes:
    """Until the server closes, or resets."""
    got = bytearray()
    try:
        while data := client.recv(1 << 20):
            got += data
    except ConnectionResetError:
        pass
    return bytes(got)


def read_until(client: socket.socket, mark: bytes) -> bytes:
    got = b""
    while mark not in got:
        data = client.recv(65536)
        assert data, got
        got += data
    return got


def exchange(server: ModelServer, *sent: bytes) -> bytes:
    with connect(server) as client:
        for data in sent:
            client.sendall(data)
        return read_all(client)


def unchunked(body: bytes) -> bytes:
    complete = bytearray()
    at = 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        if size == 0:
            assert body[end:] == b"\r\n\r\n"
            return bytes(complete)
        complete += body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2


def test_a_stream_is_chunked_events_and_ends_with_a_terminator() -> None:
    with ModelServer([say("Do", "ne.")]) as server:
        head, _, body = exchange(server, request(STREAM, BODY, "Connection: close")).partition(
            b"\r\n\r\n"
        )
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/event-stream" in head
    assert b"Transfer-Encoding: chunked" in head
    events = unchunked(body).split(b"\r\n\r\n")
    assert events.pop() == b""
    texts = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert [t["candidates"][0]["content"]["parts"][0]["text"] for t in texts] == ["Do", "ne."]


def test_a_connection_is_reused_for_the_next_request() -> None:
    with ModelServer([say("one"), fail(429), say("two")]) as server, connect(server) as client:
        client.sendall(request())
        assert b'"one"' in read_until(client, b"0\r\n\r\n")
        client.sendall(request())
        assert b"RESOURCE_EXHAUSTED" in read_until(client, b"}}")
        client.sendall(request(COMPLETE, BODY, "Connection: close"))
        assert b'"two"' in read_all(client)


def test_http_1_0_gets_a_stream_that_ends_with_the_connection() -> None:
    with ModelServer([say("old")]) as server:
        got = exchange(server, request().replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert b"chunked" not in got
    assert b'"old"' in got


def test_a_chunked_request_body_is_joined() -> None:
    chunks = [b"%x;x=1\r\n%s\r\n" % (len(c), c) for c in (BODY[:7], BODY[7:])]
    body = b"".join(chunks) + b"0\r\nTrailer: x\r\n\r\n"
    with ModelServer([Turn(text="ok", expect=Expect(text="hi"))]) as server:
        sent = request(COMPLETE, body, "Transfer-Encoding: chunked", "Connection: close")
        assert b'"ok"' in exchange(server, sent)
        assert server.failures == []


def test_a_client_that_expects_100_continue_gets_it() -> None:
    head, _, _ = request(COMPLETE, BODY, "Expect: 100-continue").partition(b"\r\n\r\n")
    with ModelServer([say("ok")]) as server, connect(server) as client:
        client.sendall(head + b"\r\n\r\n")
        assert read_until(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(BODY)
        assert b'"ok"' in read_until(client, b"totalTokenCount")


@pytest.mark.parametrize(
    ("sent", "status", "word"),
    [
        (request("/favicon.ico", b"", "Connection: close", verb="GET"), b"404", b"NOT_FOUND"),
        (request("/v1beta/models/m:embed", b"{}", "Connection: close"), b"404", b"NOT_FOUND"),
        (request(COMPLETE, b"{oops", "Connection: close"), b"400", b"Invalid JSON payload"),
        (request(COMPLETE, b"[]", "Connection: close"), b"400", b"not an object"),
        (request(COMPLETE, b"[" * 9**6, "Connection: close"), b"400", b"Invalid JSON payload"),
        (b"what?\r\n\r\n", b"400", b"request line"),
        (b"GET / HTTP/1.1\r\nnocolon\r\n\r\n", b"400", b"colon"),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400", b"Content-Length"),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413", b"larger"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400", b"chunk"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", b"413", b"larger"),
    ],
)
def test_unknown_requests_are_refused_in_json(sent: bytes, status: bytes, word: bytes) -> None:
    with ModelServer([say("x")]) as server:
        got = exchange(server, sent)
        assert len(server.failures) == (b"Invalid JSON" in got)
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.split()[1] == status
    assert word in body
    assert json.loads(body)["error"]["code"] == int(status)


def test_a_request_head_without_an_end_is_refused() -> None:
    with ModelServer() as server, connect(server) as client:
        try:
            client.sendall(b"GET / HTTP/1.1\r\nx: " + b"x" * 3_000_000)
        except (ConnectionResetError, BrokenPipeError):
            return
        got = read_all(client)
        assert not got or b"431" in got


def test_head_gets_a_404_without_a_body() -> None:
    with ModelServer() as server:
        got = exchange(server, request("/", b"", "Connection: close", verb="HEAD"))
    assert got.startswith(b"HTTP/1.1 404 ")
    assert got.endswith(b"\r\n\r\n")


def test_no_key_is_a_401_and_a_key_in_the_query_is_accepted() -> None:
    bare = request(COMPLETE, BODY, "Connection: close").replace(b"X-Goog-Api-Key: k\r\n", b"")
    with ModelServer([say("in")]) as server:
        refused = exchange(server, bare)
        listed = exchange(
            server,
            request("/v1beta/models", b"", verb="GET").split(b"X-Goog")[0]
            + b"Connection: close\r\n\r\n",
        )
        taken = exchange(server, bare.replace(b"generateContent ", b"generateContent?key=q "))
    for answer in (refused, listed):
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"UNAUTHENTICATED" in answer
    assert b'"in"' in taken


@pytest.mark.parametrize(
    ("turn", "there", "missing", "end"),
    [
        (Turn(text=["a", "b"], cut=1), [b'"a"'], [b'"b"', b"finishReason"], b"\r\n\r\n\r\n"),
        (Turn(text=["a", "b"], cut=2), [b'"b"'], [b"finishReason"], b"}\r\n\r\n\r\n"),
        (Turn(text=["a", "b"], cut=9), [b"finishReason"], [], b"}\r\n\r\n\r\n"),
        (Turn(text="a", cut_bytes=0), [b"200 OK"], [b"data"], b"\r\n"),
        (Turn(text="a", cut_bytes=9), [b"200 OK"], [], b'\r\ndata: {"c'),
        (
            Turn(text="a", malformed="html"),
            [b"text/html", b"<!DOCTYPE"],
            [b"data:"],
            b"</html>\n",
        ),
        (Turn(malformed="json"), [b"event-stream"], [], b'[{"te\r\n\r\n\r\n0\r\n\r\n'),
        (
            Turn(text="good", malformed=b"data: \xff\r\n\r\n"),
            [b'"good"'],
            [b"finishReason"],
            b"data: \xff\r\n\r\n\r\n0\r\n\r\n",
        ),
    ],
)
def test_unusable_answers_are_errors(
    turn: Turn, there: list[bytes], missing: list[bytes], end: bytes
) -> None:
    with ModelServer([turn]) as server:
        got = exchange(server, request(STREAM, BODY, "Connection: close"))
    assert [mark for mark in there if mark not in got] == []
    assert [mark for mark in missing if mark in got] == []
    assert got.endswith(end)


def test_a_cut_before_the_first_piece_closes_the_connection_without_a_response() -> None:
    with ModelServer([Turn(text="a", cut=0)]) as server:
        assert exchange(server, request()) == b""


def test_an_answer_in_one_piece_can_be_cut_short_of_its_length() -> None:
    with ModelServer([Turn(text="a", cut_bytes=5), Turn(malformed="json")]) as server:
        head, _, body = exchange(server, request(COMPLETE)).partition(b"\r\n\r\n")
        assert b"Content-Length: " in head
        assert body == b'{"can'
        assert b"data: " not in exchange(server, request(COMPLETE, BODY, "Connection: close"))


def test_a_hang_from_the_start_lasts_until_the_client_leaves() -> None:
    with ModelServer([hang(), say("next")]) as server:
        with connect(server) as client:
            client.sendall(request())
            server.wait_for_requests_sync(1)
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
        assert b'"next"' in exchange(server, request(STREAM, BODY, "Connection: close"))


def test_a_hang_after_the_first_chunk() -> None:
    with ModelServer([hang("Well")]) as server, connect(server) as client:
        client.sendall(request())
        got = read_until(client, b"}\r\n\r\n\r\n")
        assert b'"Well"' in got
        assert b"finishReason" not in got
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_an_answer_in_one_piece_can_stop_in_the_middle() -> None:
    turns = [Turn(text="y" * 1000, hang="after"), Turn(text="y" * 1000, cut=1)]
    with ModelServer(turns) as server:
        with connect(server) as client:
            client.sendall(request(COMPLETE))
            got = read_until(client, b"yyy")
            assert not got.endswith(b"}")
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
        assert exchange(server, request(COMPLETE)).endswith(b"yyy")


def test_delays_before_the_first_byte_and_between_chunks() -> None:
    with ModelServer([Turn(text=["a", "b"], delay=0.2, chunk_delay=0.2)]) as server:
        began = time.monotonic()
        with connect(server) as client:
            client.sendall(request())
            first = read_until(client, b'"a"')
            at_first = time.monotonic() - began
            assert b'"b"' not in first
            read_until(client, b'"b"')
            at_second = time.monotonic() - began
    assert at_first >= 0.2
    assert at_second >= 0.4


@pytest.mark.deep
def test_twenty_megabytes_each_way() -> None:
    text = "x" * 20_000_000
    body = json.dumps({"contents": [{"parts": [{"text": text}]}]}).encode()
    with ModelServer([Turn(text=text, repeat=2)]) as server:
        began = time.monotonic()
        for path in (STREAM, COMPLETE):
            got = exchange(server, request(path, body, "Connection: close"))
            assert len(got) > 20_000_000
        taken = time.monotonic() - began
        assert server.requests[0].last_text == text
    assert taken < 60  # a quarter of a second on an idle machine; quadratic work takes minutes


def test_a_body_over_the_limit_is_refused_while_it_arrives() -> None:
    def chunks() -> Iterable[bytes]:
        piece = b"x" * (8 << 20)
        for _ in range(9):
            yield b"%x\r\n%s\r\n" % (len(piece), piece)

    with ModelServer() as server, connect(server) as client:
        client.sendall(request(COMPLETE, b"", "Transfer-Encoding: chunked"))
        try:
            for chunk in chunks():
                client.sendall(chunk)
        except (ConnectionResetError, BrokenPipeError):
            pass
        got = read_all(client)
        assert not got or got.startswith(b"HTTP/1.1 413 ")
        assert server.requests == []


def test_an_empty_piece_does_not_end_the_stream() -> None:
    closing = request(STREAM, BODY, "Connection: close")
    with ModelServer([Turn(text="one", malformed=b""), say("two")]) as server:
        reported = exchange(server, request(), closing)
    assert reported.count(b"\r\n0\r\n\r\n") == 2
    assert b"0\r\n\r\n0\r\n\r\n" not in reported
