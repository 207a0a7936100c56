"""Exchanges of a client with a hostile vendor, through the real model proxy with a judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple

from support.model_calls import FORMATS, request_bytes
from support.proxy_kit.agent_parsers import ReadCall, made
from support.proxy_kit.hostile_vendor import REFUSED, HostileResponse, hostile_response
from support.raw_server import RawConnection, raw_server

from corral._metering.proxy.proxy import ModelProxy, ProxySettings
from corral._models.registry import find_provider
from corral._models.tool_gate import WireCall

MOST_RESPONSES = 4
"""To one request: the proxy sends another one after a refusal."""


class Received(NamedTuple):
    """What the client got."""

    is_error: bool
    """No program looks for calls in an error."""
    body: bytes
    rest: bytes
    """What comes after the end of the response."""


class Exchange(NamedTuple):
    number: int
    responses: list[HostileResponse]
    received: Received
    allowed: set[ReadCall]
    """The calls that the judge allowed."""
    is_failed: bool
    """Whether the run would end."""


class NotingJudge:
    """Refuses some calls by their name, and remembers those that it allowed."""

    def __init__(self) -> None:
        self.allowed: set[ReadCall] = set()
        self.is_failed = False

    def refuse_tools(self, names: Sequence[str]) -> str | None:
        return None

    async def decide(self, calls: Sequence[WireCall]) -> list[str] | None:
        if any(call.problem or call.name.startswith(REFUSED) for call in calls):
            return ["refused" for _ in calls]
        self.allowed |= {made(call.name, call.arguments) for call in calls}
        return None

    def fail(self, text: str) -> None:
        self.is_failed = True

    def fail_unreadable(self, text: str) -> None:
        self.is_failed = True


class Vendor:
    """Sends the responses of the current exchange, each of them once."""

    def __init__(self) -> None:
        self.responses: list[HostileResponse] = []

    async def talk(self, connection: RawConnection) -> None:
        """With one request: a response may be shorter than it says."""
        if await connection.request() and self.responses:
            response = self.responses.pop(0)
            half = len(response.data) // 2
            await connection.send(response.data[:half], response.data[half:])


async def exchanges(wire: str, count: int, seed: int) -> AsyncGenerator[Exchange]:
    vendor, judge = Vendor(), NotingJudge()
    async with raw_server(vendor.talk) as server, _proxy(wire, server.url, judge) as proxy:
        for number in range(count):
            random = Random(f"{wire} {seed} {number}")
            responses = [hostile_response(wire, random) for _ in range(MOST_RESPONSES)]
            vendor.responses = [*responses]
            judge.allowed, judge.is_failed = set(), False
            received = await _receive(wire, proxy)
            yield Exchange(number, responses, received, judge.allowed, judge.is_failed)


@asynccontextmanager
async def _proxy(wire: str, url: str, judge: NotingJudge) -> AsyncGenerator[ModelProxy]:
    provider = find_provider(wire)
    settings = ProxySettings(
        upstream=url, providers=lambda: [provider], keys={"KEY": "real-key-of-vendor"}
    )
    proxy = ModelProxy(settings, lambda _call: None, judge=judge)
    await proxy.open()
    try:
        yield proxy
    finally:
        proxy.close()
        await proxy.wait_closed()


async def _receive(wire: str, proxy: ModelProxy) -> Received:
    key = proxy.dummy_keys["KEY"]
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(request_bytes(FORMATS[wire], proxy.port, f"Authorization: Bearer {key}"))
    writer.write_eof()
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    fields = [line.partition(b":")[::2] for line in head.lower().split(b"\r\n")[1:]]
    found = {name: value.strip() for name, value in fields}
    assert len(found) == len(fields), head  # no header twice
    status = int(head.split()[1])
    assert status == 200 or 400 <= status < 600, head
    is_error = status >= 400
    if found.get(b"transfer-encoding") == b"chunked":
        assert b"content-length" not in found
        return Received(is_error, *_unchunked(rest))
    length = int(found[b"content-length"])
    return Received(is_error, rest[:length], rest[length:])


def _unchunked(data: bytes) -> tuple[bytes, bytes]:
    """The body, and what comes after it."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, end, data = body + data[:length], data[length : length + 2], data[length + 2 :]
        assert end == b"\r\n"
        if not length:
            return body, data
    return body, b""  # it was broken off
