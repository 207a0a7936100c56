"""Whether a server can be connected to, and what is reported if not."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from corral._system.http.reachability import why_unreachable

REFUSED = os.strerror(errno.ECONNREFUSED)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is bound but not listened on: every connection is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def open_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_refused_connection_is_reported_with_its_address(closed_port: int) -> None:
    reason = asyncio.run(why_unreachable(f"http://127.0.0.1:{closed_port}/v1"))
    assert reason == f"127.0.0.1:{closed_port}: {REFUSED}"


def test_a_name_that_does_not_exist_is_reported() -> None:
    reason = asyncio.run(why_unreachable("https://no-such-host.invalid/v1"))
    assert reason is not None
    assert reason.startswith("the name no-such-host.invalid cannot be resolved")


def test_a_server_that_accepts_connections_has_no_reason(open_port: int) -> None:
    assert asyncio.run(why_unreachable(f"http://127.0.0.1:{open_port}")) is None
    assert asyncio.run(why_unreachable(f"http://localhost:{open_port}")) is None


@pytest.mark.parametrize("url", ["", "localhost", "ftp://localhost", "http://[::1", "http://h:x"])
def test_nothing_is_claimed_about_what_is_not_a_web_address(url: str) -> None:
    assert asyncio.run(why_unreachable(url)) is None


def test_with_a_proxy_both_ways_must_fail(
    closed_port: int, open_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{closed_port}"
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{open_port}")
    assert asyncio.run(why_unreachable(url)) is None
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port}")
    assert asyncio.run(why_unreachable(url)) == f"the proxy 127.0.0.1:{closed_port}: {REFUSED}"


def test_a_proxy_that_is_not_understood_claims_nothing(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"socks5://127.0.0.1:{closed_port}")
    assert asyncio.run(why_unreachable(f"http://127.0.0.1:{closed_port}")) is None
