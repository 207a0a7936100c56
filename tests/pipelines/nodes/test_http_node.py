"""Requests to a real server on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, NamedTuple

import pytest
from support.nodes import NodeHarness

pytest_plugins = ("support.node_fixtures",)


class ReceivedRequest(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Server(ThreadingHTTPServer):
    daemon_threads = True
    received: list[ReceivedRequest]
    let_go: Event

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        server.received.append(ReceivedRequest(self.command, self.path, headers, body))
        if self.path.startswith("/hang"):
            server.let_go.wait(30)
        status = int(self.path.split("/")[2]) if self.path.startswith("/status/") else 200
        kind, content = "text/plain", f"you sent {headers.get('authorization', '')}".encode()
        if self.path.startswith("/json"):
            kind, content = "application/json; charset=utf-8", b'{"n": [1, 2]}'
        if self.path.startswith("/broken"):
            kind, content = "application/json", b"{"
        if self.path.startswith("/large"):
            content = b"x" * 600_000
        if self.path.startswith("/cut"):
            content = b"x" * (512 * 1024 - 22) + content + b"x" * 1000
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    setattr(Handler, f"do_{method}", Handler.answer)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as served:
        served.received = []
        served.let_go = Event()
        thread = Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield served
        finally:
            served.let_go.set()
            served.shutdown()
            thread.join(10)


async def test_a_json_response_is_parsed(harness: NodeHarness, server: Server) -> None:
    outcome = await harness.attempt(
        "get",
        attrs={"type": "http", "url": "{{base}}/json/{{word}}?q={{word}}"},
        context={"base": server.url, "word": "a b/../?&x=1"},
    )
    assert outcome.status == "success", outcome
    assert outcome.context_updates["get.output"] == {"n": [1, 2]}
    assert outcome.context_updates["get.status"] == 200
    quoted = "a%20b%2F..%2F%3F%26x%3D1"
    assert server.received[0].path == f"/json/{quoted}?q={quoted}"


async def test_values_in_json_cannot_change_its_structure(
    harness: NodeHarness, server: Server
) -> None:
    outcome = await harness.attempt(
        attrs={
            "type": "http",
            "method": "post",
            "url": f"{server.url}/x",
            "json": '{"value": "{{value}}", "text": "It is {{value}}", "list": "{{list}}"}',
            "headers": "X-One: {{list.0}}\nX-Two: b",
        },
        context={"value": '", "evil": "', "list": [1, 2]},
    )
    assert outcome.status == "success", outcome
    (received,) = server.received
    assert json.loads(received.body) == {
        "value": '", "evil": "',
        "text": 'It is ", "evil": "',
        "list": [1, 2],
    }
    assert received.headers["content-type"] == "application/json"
    assert (received.headers["x-one"], received.headers["x-two"]) == ("1", "b")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
async def test_every_method_with_and_without_a_body(
    harness: NodeHarness, server: Server, method: str
) -> None:
    for body in ("", "words"):
        attrs = {"type": "http", "url": f"{server.url}/", "method": method, "body": body}
        assert (await harness.attempt(attrs=attrs)).status == "success"
    assert [(received.method, received.body) for received in server.received] == [
        (method, b""),
        (method, b"words"),
    ]


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(500, True), (503, True), (429, True), (400, False), (401, False), (403, False), (404, None)],
)
async def test_an_error_status_fails_the_node(
    harness: NodeHarness, server: Server, status: int, retryable: bool | None
) -> None:
    attrs = {"type": "http", "url": f"{server.url}/status/{status}"}
    outcome = await harness.attempt(attrs=attrs)
    assert f"answered with {status}: you sent" in outcome.failure_reason
    assert outcome.retryable is retryable
    expected = await harness.attempt(attrs={**attrs, "expect": f"200, {status}"})
    assert expected.status == "success"


@pytest.mark.parametrize(
    ("path", "expected"), [("/broken", "not JSON"), ("/large", "too large for the context")]
)
async def test_an_invalid_or_large_response_fails_the_node(
    harness: NodeHarness, server: Server, path: str, expected: str
) -> None:
    outcome = await harness.attempt(attrs={"type": "http", "url": server.url + path})
    assert expected in outcome.failure_reason


async def test_a_server_that_hangs_fails_the_node_at_the_timeout(
    harness: NodeHarness, server: Server
) -> None:
    attrs = {"type": "http", "url": f"{server.url}/hang", "timeout": "300ms"}
    outcome = await harness.attempt(attrs=attrs)
    assert outcome.status == "fail"
    assert outcome.retryable is True or "did not end within" in outcome.failure_reason


async def test_a_refused_connection_is_retryable(harness: NodeHarness, server: Server) -> None:
    url = server.url
    server.server_close()
    outcome = await harness.attempt(attrs={"type": "http", "url": url})
    assert outcome.retryable is True


async def test_a_cut_response_contains_no_part_of_a_secret(
    harness: NodeHarness, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_PAT", "canary-token-0123456789")
    attrs = {"type": "http", "url": f"{server.url}/cut", "bearer_env": "GITHUB_PAT"}
    outcome = await harness.attempt(attrs=attrs)
    assert "too large" in outcome.failure_reason
    assert harness.read("response.md").endswith("you sent Bearer …")


async def test_a_token_is_sent_and_written_to_no_file(
    harness: NodeHarness, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_PAT", "canary-token-0123456789")
    outcome = await harness.attempt(
        attrs={"type": "http", "url": f"{server.url}/", "bearer_env": "GITHUB_PAT"}
    )
    assert server.received[0].headers["authorization"] == "Bearer canary-token-0123456789"
    assert outcome.context_updates["step.output"] == "you sent Bearer [GITHUB_PAT redacted]"
    assert b"canary-token" not in harness.written_bytes()


@pytest.mark.parametrize(
    "attrs",
    [
        {"url": ""},
        {"url": "ftp://x/"},
        {"url": "http://127.0.0.1:1/{{no.such}}"},
        {"url": "http://127.0.0.1:1/", "method": "HEAD"},
        {"url": "http://127.0.0.1:1/", "json": "{", "method": "POST"},
        {"url": "http://127.0.0.1:1/", "json": "{}", "body": "x"},
        {"url": "http://127.0.0.1:1/", "headers": "X-A: {{evil}}"},
        {"url": "http://127.0.0.1:1/", "headers": "nonsense"},
        {"url": "http://127.0.0.1:1/", "bearer_env": "NO_SUCH_VARIABLE"},
    ],
)
async def test_an_invalid_request_is_an_error_that_is_not_retried(
    harness: NodeHarness, attrs: dict[str, Any]
) -> None:
    outcome = await harness.attempt(
        attrs={"type": "http", **attrs}, context={"evil": "a\r\nHost: evil"}
    )
    assert outcome.status == "fail"
    assert outcome.retryable is False
