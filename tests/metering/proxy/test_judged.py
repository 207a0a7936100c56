"""The model proxy shows tool calls to a judge before the agent gets them."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
from support.model_calls import FORMATS, recorded_streams, request_bytes
from support.raw_server import ConnectionHandler, RawConnection, raw_server, respond_with

from corral._metering.calls import MeteredCall
from corral._metering.proxy import judged
from corral._metering.proxy.proxy import ModelProxy, ProxySettings
from corral._metering.rate_limits import LimitWaits
from corral._models.registry import find_provider
from corral._models.tool_gate import WireCall
from corral._protocol.response_builder import ResponseBuilder
from corral._protocol.sse import SseDecoder
from corral.model_types import Response
from corral.testing import Call, ModelServer, Turn, fail
from corral.values import Json

VENDORS = [name for name in sorted(FORMATS) if find_provider(name).wire.call_format]
GEMINI = FORMATS["gemini"]


class Judge:
    """Refuses the calls with these names."""

    def __init__(self, *refused: str, tools: bool = True, seconds: float = 0.0) -> None:
        self.calls: list[list[str]] = []
        self.failures: list[str] = []
        self.unreadable: list[str] = []
        self.is_cancelled = asyncio.Event()
        self._refused = refused
        self._takes_tools = tools
        self._seconds = seconds

    def refuse_tools(self, names: Sequence[str]) -> str | None:
        return None if self._takes_tools or not names else f"not {names[0]}"

    async def decide(self, calls: Sequence[WireCall]) -> list[str] | None:
        self.calls.append([call.name for call in calls])
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.is_cancelled.set()
            raise
        is_refused = any(call.name in self._refused for call in calls)
        return [f"refused {call.name}" for call in calls] if is_refused else None

    def fail(self, text: str) -> None:
        self.failures.append(text)

    def fail_unreadable(self, text: str) -> None:
        self.unreadable.append(text)


class Line:
    def __init__(self, proxy: ModelProxy, calls: list[MeteredCall]) -> None:
        self.proxy = proxy
        self.calls = calls

    async def send(self, vendor: str = "gemini", **more: Json) -> tuple[bytes, bytes]:
        """The head of the response and its decoded body."""
        head, _, body = (await self.exchange(vendor, **more)).partition(b"\r\n\r\n")
        return head, _joined(body) if b"transfer-encoding: chunked" in head.lower() else body

    async def exchange(self, vendor: str = "gemini", **more: Json) -> bytes:
        """The response as it came."""
        key = self.proxy.dummy_keys["KEY"]
        request = request_bytes(
            FORMATS[vendor], self.proxy.port, f"Authorization: Bearer {key}", **more
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        writer.write(request)
        writer.write_eof()
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        return answer


def _joined(body: bytes) -> bytes:
    """The data of chunks. Fails if the last one is missing."""
    found = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if int(size, 16) == 0:
            return found
        length = int(size, 16)
        found, body = found + body[:length], body[length + 2 :]


@asynccontextmanager
async def proxy_to(url: str, judge: Judge, vendor: str = "gemini") -> AsyncGenerator[Line]:
    calls: list[MeteredCall] = []
    made = ProxySettings(
        upstream=url, providers=lambda: [find_provider(vendor)], keys={"KEY": "real"}
    )
    proxy = ModelProxy(made, calls.append, judge=judge)
    await proxy.open()
    try:
        yield Line(proxy, calls)
    finally:
        proxy.close()
        await proxy.wait_closed()


@asynccontextmanager
async def proxy_before(talk: ConnectionHandler, judge: Judge) -> AsyncGenerator[Line]:
    async with raw_server(talk) as server, proxy_to(server.url, judge) as line:
        yield line


def read_by_client(vendor: str, stream: bytes) -> Response:
    provider, builder = find_provider(vendor), ResponseBuilder(vendor, "model")
    provider.wire.translator(provider)(SseDecoder().receive(stream), builder)
    return builder.response()


def answer(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def event_stream(body: bytes) -> bytes:
    return answer(body, "content-type: text/event-stream")


@pytest.mark.parametrize("vendor", VENDORS)
async def test_allowed_calls_reach_the_agent(vendor: str) -> None:
    stream, judge = recorded_streams(vendor)[1], Judge()
    async with (
        raw_server(respond_with(event_stream(stream))) as server,
        proxy_to(server.url, judge, vendor) as line,
    ):
        head, body = await line.send(vendor)
        assert head.split(b"\r\n")[0] == b"HTTP/1.1 200 OK"
        assert read_by_client(vendor, body) == read_by_client(vendor, stream)
        assert judge.calls == [["read_file", "ls"]]
        assert len(line.calls) == 1


@pytest.mark.parametrize("vendor", VENDORS)
async def test_after_a_refusal_the_proxy_sends_the_next_request(vendor: str) -> None:
    script = [Turn(calls=[Call("remove_all", {"path": "/"})]), Turn(text="then")]
    judge = Judge("remove_all")
    with ModelServer(script) as server:
        async with proxy_to(server.url, judge, vendor) as line:
            _, body = await line.send(vendor)
            assert b"then" in body
            assert b"remove_all" not in body
            assert [call.status for call in line.calls] == [200, 200]
        [_, replayed] = server.requests
    assert "refused remove_all" in str(replayed.tool_results)


@pytest.mark.parametrize("vendor", VENDORS)
async def test_the_response_ends_after_three_refusals(vendor: str) -> None:
    with ModelServer([Turn(calls=[Call("remove_all", {})], repeat="forever")]) as server:
        async with proxy_to(server.url, Judge("remove_all"), vendor) as line:
            _, body = await line.send(vendor)
            assert b"the policy refused 3 tool calls in a row" in body
            assert b"refused remove_all" in body
            assert len(line.calls) == len(server.requests) == judged.MOST_REFUSALS


async def test_while_a_decision_is_awaited_the_agent_gets_empty_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judged, "KEEP_ALIVE_SECONDS", 0.05)
    stream = recorded_streams("gemini")[1]
    async with proxy_before(respond_with(event_stream(stream)), Judge(seconds=0.4)) as line:
        _, body = await line.send()
        assert read_by_client("gemini", body) == read_by_client("gemini", stream)
        assert b"\n\n\n" in body


async def test_a_request_with_tools_of_the_vendor_is_refused() -> None:
    async with proxy_before(respond_with(answer(b"{}")), Judge(tools=False)) as line:
        head, body = await line.send(tools=[{"googleSearch": {}}])
        assert (head.split()[1], line.calls) == (b"403", [])
        assert b"not googleSearch" in body


async def test_an_error_of_the_vendor_is_passed_on() -> None:
    with ModelServer([Turn(status=429, message="too many")]) as server:
        async with proxy_to(server.url, Judge("remove_all")) as line:
            head, body = await line.send()
            assert head.split()[1] == b"429"
            assert b"too many" in body


async def test_an_error_after_a_refusal_is_passed_on_if_the_agent_has_seen_nothing() -> None:
    script = [Turn(calls=[Call("remove_all", {})]), Turn(status=503, message="busy")]
    with ModelServer(script) as server:
        async with proxy_to(server.url, Judge("remove_all")) as line:
            head, _ = await line.send()
            assert head.split()[1] == b"503"


async def test_an_error_after_a_refusal_breaks_a_response_that_was_started() -> None:
    script = [Turn(text="I try.", calls=[Call("remove_all", {})]), Turn(status=503, message="busy")]
    with ModelServer(script) as server:
        async with proxy_to(server.url, Judge("remove_all")) as line:
            answer = await line.exchange()
            assert b"I try." in answer
            assert b"503" not in answer
            assert not answer.endswith(b"0\r\n\r\n")  # the last chunk is missing
            assert [call.status for call in line.calls] == [200, 503]


async def test_a_compressed_response_is_judged() -> None:
    stream, judge = recorded_streams("gemini")[1], Judge()
    packed = answer(
        gzip.compress(stream), "content-type: text/event-stream", "Content-Encoding: gzip"
    )
    async with proxy_before(respond_with(packed), judge) as line:
        head, body = await line.send()
        assert b"gzip" not in head
        assert read_by_client("gemini", body) == read_by_client("gemini", stream)
        assert judge.calls


@pytest.mark.parametrize(
    "response",
    [
        answer(b"data: nonsense\n\n", "content-type: text/event-stream"),
        answer(b"<p>hi</p>", "content-type: text/html"),
    ],
)
async def test_a_response_that_cannot_be_judged_is_not_passed_on_and_ends_the_run(
    response: bytes,
) -> None:
    judge = Judge()
    async with proxy_before(respond_with(response), judge) as line:
        head, body = await line.send()
        assert head.split()[1] == b"502"
        assert b"cannot be judged" in body
        assert len(judge.unreadable) == 1
        assert line.calls[0].error == judge.unreadable[0]


async def test_a_response_that_becomes_unreadable_is_cut_and_ends_the_run() -> None:
    text = b'data: {"candidates":[{"content":{"parts":[{"text":"I look."}]}}]}\n\n'
    call = b' data: {"candidates":[{"content":{"parts":[{"functionCall":{"name":"ls"}}]}}]}\n\n'
    judge = Judge()

    async def talk(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(event_stream(text + call)[: -len(call)])
        await asyncio.sleep(0.1)
        await connection.send(call)
        await connection.wait_closed()

    async with proxy_before(talk, judge) as line:
        answer = await line.exchange()
        assert b"I look." in answer
        assert b"functionCall" not in answer
        assert not answer.endswith(b"0\r\n\r\n")  # the last chunk is missing
        assert ["unusual line" in text for text in judge.unreadable] == [True]


async def test_a_response_that_is_only_cut_does_not_end_the_run() -> None:
    judge = Judge()
    async with proxy_before(respond_with(event_stream(b'data: {"candidates":[')), judge) as line:
        head, _ = await line.send()
        assert (head.split()[1], judge.unreadable) == (b"502", [])


async def test_a_redirect_is_not_passed_on() -> None:
    elsewhere = b"HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with proxy_before(respond_with(elsewhere), Judge()) as line:
        head, body = await line.send()
        assert head.split()[1] == b"502"
        assert b"127.0.0.1:1/" not in head + body


async def test_the_head_of_a_response_is_made_again() -> None:
    stream = recorded_streams("gemini")[0]
    head = answer(
        gzip.compress(stream),
        "content-type: text/html",
        "Content-Type: Text/Event-Stream; charset=x",
        "Content-Encoding: gzip",
        'Alt-Svc: h2="elsewhere:443"',
        "X-Request-Id: 7",
    )
    async with proxy_before(respond_with(head), Judge()) as line:
        received, _ = await line.send()
    assert received.split(b"\r\n") == [
        b"HTTP/1.1 200 OK",
        b"x-request-id: 7",
        b"content-type: text/event-stream",
        b"transfer-encoding: chunked",
    ]


async def test_an_error_is_framed_again() -> None:
    body = gzip.compress(b'{"error":{"message":"busy"}}')
    head = b"HTTP/1.1 503 X\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\n\r\n"
    async with proxy_before(respond_with(head + body, keep=False), Judge()) as line:
        received, text = await line.send()
        assert received.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert (b"gzip" in received, text) == (False, b'{"error":{"message":"busy"}}')


async def test_a_refusal_that_cannot_be_replayed_fails_the_run() -> None:
    turn = Turn(thoughts="hm", text="I try.", calls=[Call("remove_all", {})])
    judge = Judge("remove_all")
    with ModelServer([turn]) as server:
        async with proxy_to(server.url, judge, "anthropic") as line:
            _, body = await line.send("anthropic")
            assert judge.failures == ["refused remove_all"]
            assert b"tool_use" not in body
            assert b"the run ends" in body


async def test_the_decision_is_cancelled_when_the_agent_goes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judged, "KEEP_ALIVE_SECONDS", 600)  # it is not these that find it out
    stream, judge = recorded_streams("gemini")[1], Judge(seconds=600)
    async with proxy_before(respond_with(event_stream(stream)), judge) as line:
        key = line.proxy.dummy_keys["KEY"]
        _, writer = await asyncio.open_connection("127.0.0.1", line.proxy.port)
        writer.write(request_bytes(GEMINI, line.proxy.port, f"Authorization: Bearer {key}"))
        while not judge.calls:
            await asyncio.sleep(0.01)
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(30):
            await judge.is_cancelled.wait()


class WaitingLine(Line):
    """The line of a run that waits for rate limits."""

    async def exchange(self, vendor: str = "gemini", **more: Json) -> bytes:
        """The response, up to the end of its body. An agent that closed its side would end the
        wait."""
        key = self.proxy.dummy_keys["KEY"]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        header = f"Authorization: Bearer {key}"
        writer.write(request_bytes(FORMATS[vendor], self.proxy.port, header, **more))
        async with asyncio.timeout(60):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"chunked" in head.lower():
                rest = await reader.readuntil(b"\r\n0\r\n\r\n")
            else:
                length = head.lower().partition(b"content-length:")[2].split()[0]
                rest = await reader.readexactly(int(length))
        writer.close()
        return head + rest


@asynccontextmanager
async def waiting_proxy(
    script: Sequence[Turn], judge: Judge, key: str, longest_hold: float = 60.0
) -> AsyncGenerator[tuple[WaitingLine, ModelServer]]:
    calls: list[MeteredCall] = []
    with ModelServer(list(script)) as server:
        made = ProxySettings(
            upstream=server.url,
            providers=lambda: [find_provider("gemini")],
            keys={"KEY": key},
            longest_hold=longest_hold,
        )
        proxy = ModelProxy(made, calls.append, judge=judge, waits=LimitWaits(60.0))
        await proxy.open()
        try:
            yield WaitingLine(proxy, calls), server
        finally:
            proxy.close()
            await proxy.wait_closed()


async def test_a_limited_call_is_made_again_and_then_judged() -> None:
    judge = Judge()
    script = [fail(429, "slow down", retry_after=0.2), Turn(calls=[Call("look", {})])]
    async with waiting_proxy(script, judge, "key-judged-again") as (line, _):
        head, body = await line.send()
        assert (head.split()[1], judge.calls) == (b"200", [["look"]])
        assert b"look" in body
        assert b"slow down" not in body
        assert [call.status for call in line.calls] == [429, 200]


async def test_a_limit_after_a_refusal_is_waited_for_within_the_response() -> None:
    script = [
        Turn(text="I try.", calls=[Call("remove_all", {})]),
        fail(429, "slow down", retry_after=0.2),
        Turn(text="I stop."),
    ]
    async with waiting_proxy(script, Judge("remove_all"), "key-judged-refused") as (line, _):
        _, body = await line.send()
        assert body.index(b"I try.") < body.index(b"I stop.")
        assert [call.status for call in line.calls] == [200, 429, 200]


async def test_a_limit_that_is_too_long_is_passed_on_by_a_judged_run_and_not_met_again() -> None:
    script = [fail(429, "slow down", retry_after=600), Turn(text="never")]
    async with waiting_proxy(script, Judge(), "key-judged-long", 1.0) as (line, server):
        head, body = await line.send()
        assert head.split()[1] == b"429"
        assert b"slow down" in body
        head, _ = await line.send()
        assert head.split()[1] == b"429"
        assert len(server.requests) == 1
