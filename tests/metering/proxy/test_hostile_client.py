"""A hostile agent behind the model proxy gets no key, and no model call that is not counted."""

from __future__ import annotations

import asyncio
import html
from collections import Counter
from itertools import product
from urllib.parse import unquote

import pytest
from hostile_client import (
    WIRES,
    HostileWire,
    Oracle,
    hostile_requests,
    path_readings,
)
from support.raw_server import RawConnection, RawServer, raw_server

from corral._metering.calls import MeteredCall
from corral._metering.proxy.proxy import ModelProxy, ProxySettings
from corral._models.registry import find_provider

REAL = "canary-key-0123456789abcdef"
KEYS = (
    REAL,
    "AAH/Kz+canary/0123456789+abc==",
    "c4nary.~_-*!'$0123:,;@()",
    'c%2Fan&ary\\u002f<0>"123=',
)
"""Of several alphabets."""
AT_ONCE = 4


class Attack:
    """Sends requests through the proxy of one wire."""

    def __init__(self, wire: HostileWire, server: RawServer, base: str, real: str) -> None:
        self.calls: list[MeteredCall] = []
        settings = ProxySettings(
            upstream=f"{server.url}{base}",
            providers=lambda: [find_provider(wire.vendor)],
            keys={"KEY": real},
        )
        self.proxy = ModelProxy(settings, self.calls.append)
        self.real = real
        self.statuses: Counter[bytes] = Counter()

    async def send(self, request: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        try:
            writer.write(request)
            writer.write_eof()
            async with asyncio.timeout(60):
                got = await reader.read()
        finally:
            writer.close()
        assert self.real not in fully_decoded(got.decode("latin-1")), request
        assert got.startswith(b"HTTP/1.1 "), (request, got)
        self.statuses[got.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")[9:12]] += 1


def fully_decoded(text: str) -> str:
    """A response without any code."""
    return text + unquote(text) + unquote(unquote(text)) + html.unescape(text)


async def attack(wire: HostileWire, count: int, base: str, real: str) -> None:
    received: list[bytes] = []

    async def repeat(line: RawConnection) -> None:
        """A service that repeats the request in its response: every second time without the
        credential, as the key must not be anywhere else."""
        while request := await line.request():
            received.append(request)
            rows = request.split(b"\r\n")
            if len(received) % 2:
                hidden = (b"authorization:", b"x-api-key:", b"x-goog-api-key:")
                rows = [row for row in rows if not row.lower().startswith(hidden)]
            body = b"\n".join(rows)
            head = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body)
            await line.send(head + body)

    async with raw_server(repeat) as server:
        attacker = Attack(wire, server, base, real)
        await attacker.proxy.open()
        try:
            key = attacker.proxy.dummy_keys["KEY"]
            requests = iter(list(hostile_requests(wire, count, base, key)))

            async def send_all() -> None:
                for request in requests:
                    await attacker.send(request)

            await asyncio.gather(*(send_all() for _ in range(AT_ONCE)))
        finally:
            attacker.proxy.close()
            await attacker.proxy.wait_closed()
    oracle = Oracle(real)
    problems = [problem for each in received if (problem := oracle.key_problem(each))]
    assert problems == []
    billable = [each for each in received if oracle.is_billable(each)]
    assert len(attacker.calls) == len(billable), Counter(
        each.split(b"\r\n")[0] for each in billable
    )
    # The attack reaches all of it: what is passed on, what is refused, and why.
    assert len(billable) > count // 20
    assert len(received) > len(billable)
    assert {b"400", b"401", b"403", b"404", b"502"} <= attacker.statuses.keys()


BASES = ("", "/gateway/a%2Fb")


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.vendor)
@pytest.mark.deep_but_first
async def test_the_real_key_is_sent_in_one_place_only_and_every_model_call_is_counted(
    wire: HostileWire,
) -> None:
    for base, real in zip(BASES * 2, KEYS, strict=True):
        await attack(wire, 150, base, real)


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.vendor)
async def test_5000_hostile_requests_of_each_wire(wire: HostileWire) -> None:
    for base, real in product(BASES, KEYS):
        await attack(wire, 625, base, real)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/messages#/messages/count_tokens", "/v1/messages"),
        ("/v1/messages/count_tokens/%2e%2E", "/v1/messages"),
        ("/v1/x/..%2fmessages;a=b", "/v1/messages"),
        ("/v1%255cmessages", "/v1/messages"),
        ("http://other.test//v1//messages/?a=b", "/v1/messages"),
    ],
)
def test_the_oracle_reads_what_a_lenient_server_could(target: str, path: str) -> None:
    assert path in path_readings(target)
    request = f"POST {target} HTTP/1.1\r\nx-api-key: {REAL}\r\n\r\n".encode()
    assert Oracle(REAL).is_billable(request)
    assert not Oracle(REAL).is_billable(request.replace(b"messages", b"other"))


@pytest.mark.parametrize(
    "request_text",
    [
        f"GET /v1/models/{REAL} HTTP/1.1\r\nx-api-key: {REAL}",
        f"GET /v1/models HTTP/1.1\r\nx-api-key: {REAL}\r\nanthropic-beta: {REAL}",
        f"GET /v1/models?key={REAL} HTTP/1.1\r\nAuthorization: Bearer {REAL}",
        f"GET /v1/models HTTP/1.1\r\ncookie: {REAL}",
    ],
)
def test_the_oracle_sees_a_key_in_a_wrong_place(request_text: str) -> None:
    assert Oracle(REAL).key_problem(f"{request_text}\r\n\r\n".encode())
