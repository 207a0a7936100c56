"""Failures of requests to a vendor, and their errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from corral import errors, models
from corral.errors import CorralError
from corral.testing import ModelServer, Turn, fail, say

MODEL = "gemini:gemini-2.5-flash"
KEY = "canary-key-0123456789abcdef"


def client(url: str, **options: Any) -> models.Client:
    """A client with one vendor, without the environment, and with short timeouts."""
    given: dict[str, Any] = {"read_timeout": 5.0, "retries": 0, "environ": {}, **options}
    return models.Client(keys={"gemini": KEY}, base_urls={"gemini": url}, **given)


async def failure(url: str, streamed: bool, **options: Any) -> CorralError:
    """The error of a call, which does not contain the key in any form."""
    async with client(url, **options) as made, asyncio.timeout(20):
        with pytest.raises(CorralError) as caught:
            if streamed:
                await models.stream(MODEL, "hi", client=made).collect()
            else:
                await models.generate(MODEL, "hi", client=made)
        assert KEY not in repr(made)
    error = caught.value
    assert KEY not in f"{error} {error!r} {error.event()!r} {error.frame}"
    return error


streamed_or_not = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@streamed_or_not
@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, errors.InvalidRequest, False),
        (401, errors.AuthenticationFailed, False),
        (403, errors.AccessDenied, False),
        (404, errors.ModelNotFound, False),
        (408, errors.TimedOut, False),
        (413, errors.ContextLengthExceeded, False),
        (422, errors.InvalidRequest, False),
        (429, errors.RateLimited, True),
        (500, errors.ServerFailed, True),
        (503, errors.ServerFailed, True),
        (529, errors.ServerFailed, True),
    ],
)
async def test_a_status_becomes_its_error(
    status: int, kind: type[CorralError], retryable: bool, streamed: bool
) -> None:
    async with ModelServer([fail(status)]) as server:
        error = await failure(server.url, streamed)
        assert len(server.requests) == 1
    assert type(error) is kind
    assert (error.provider, error.http_status, error.retryable) == ("gemini", status, retryable)
    assert error.hint


@streamed_or_not
@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        (Turn(malformed="html"), errors.StreamBroken),
        (Turn(malformed=""), errors.StreamBroken),
        (Turn(text="x", finish=None), errors.StreamBroken),
        (Turn(text=("a", "b"), cut=1), errors.StreamBroken),
        (Turn(cut=0), errors.NetworkFailed),
        (Turn(text="a", status=503, late=True), errors.ServerFailed),
        (Turn(block_reason="SAFETY"), errors.ContentRefused),
    ],
    ids=["html", "empty", "no-end", "cut", "closed", "late", "blocked"],
)
async def test_a_missing_answer_is_an_error_with_its_facts(
    turn: Turn, kind: type[CorralError], streamed: bool
) -> None:
    async with ModelServer([turn]) as server:
        error = await failure(server.url, streamed)
    assert type(error) is kind
    assert error.provider == "gemini"
    assert error.hint


@streamed_or_not
@pytest.mark.parametrize("turn", [Turn(hang=True), Turn(text=("a", "b"), hang="after")])
async def test_a_server_that_sends_nothing_ends_with_the_read_timeout(
    turn: Turn, streamed: bool
) -> None:
    async with ModelServer([turn]) as server:
        error = await failure(server.url, streamed, read_timeout=0.2)
    assert type(error) is errors.IdleTimeout
    assert error.provider == "gemini"
    assert error.hint


@streamed_or_not
@pytest.mark.parametrize(
    ("url", "kind", "named"),
    [
        ("http://127.0.0.1:1", errors.NetworkFailed, "127.0.0.1:1"),
        ("http://no-such-host.invalid", errors.NetworkFailed, "no-such-host.invalid"),
        ("http://[::1", errors.ConfigError, "http://[::1"),
        ("http://localhost:99999", errors.ConfigError, "99999"),
        ("http://", errors.ConfigError, "base URL"),
        ("nonsense", errors.ConfigError, "nonsense"),
    ],
)
async def test_an_unreachable_address_is_named(
    url: str, kind: type[CorralError], named: str, streamed: bool
) -> None:
    error = await failure(url, streamed)
    assert type(error) is kind
    assert named in error.message


@pytest.mark.parametrize("status", [429, 500, 503])
@streamed_or_not
async def test_transient_errors_are_retried(status: int, streamed: bool) -> None:
    script = [fail(status, retry_after=0, times=2), say("at last")]
    async with ModelServer(script) as server, client(server.url, retries=2) as made:
        if streamed:
            answer = await models.stream(MODEL, "hi", client=made).collect()
        else:
            answer = await models.generate(MODEL, "hi", client=made)
        assert answer.text == "at last"
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    "turn",
    [
        fail(400),
        fail(401),
        fail(408),
        fail(429, quota_id="PerDay", retry_after=0),
        fail(503, retry_after=61),
    ],
)
@streamed_or_not
async def test_lasting_errors_are_not_retried(turn: Turn, streamed: bool) -> None:
    async with ModelServer([turn, say("never")]) as server:
        await failure(server.url, streamed, retries=2)
        assert len(server.requests) == 1


def answer(status: int, body: str, *headers: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", f"Content-Length: {size}"]
    return ("\r\n".join([*lines, *headers, "Connection: close"]) + "\r\n\r\n" + body).encode()


@asynccontextmanager
async def raw(reply: bytes, seen: list[bytes] | None = None) -> AsyncGenerator[str, None]:
    """A server that sends these bytes to every client and closes the connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(head)
        writer.write(reply)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@streamed_or_not
async def test_a_wrong_content_length_is_a_broken_response(streamed: bool) -> None:
    async with raw(answer(200, '{"candidates": []}', length=500)) as url:
        error = await failure(url, streamed)
    assert type(error) is errors.StreamBroken
    assert error.provider == "gemini"


@streamed_or_not
async def test_a_redirect_is_not_followed_and_the_key_is_not_sent(streamed: bool) -> None:
    elsewhere: list[bytes] = []
    async with (
        raw(answer(200, "{}"), elsewhere) as target,
        raw(answer(307, "", f"Location: {target}/other?token=secret")) as url,
    ):
        error = await failure(url, streamed)
    assert elsewhere == []
    assert type(error) is errors.InvalidRequest
    assert error.http_status == 307
    assert "secret" not in str(error)


@streamed_or_not
@pytest.mark.parametrize("late", [False, True])
async def test_a_key_that_the_server_repeats_is_redacted(streamed: bool, late: bool) -> None:
    turn = Turn(status=400, message=f"the key {KEY} is bad", late=late)
    async with ModelServer([turn]) as server:
        error = await failure(server.url, streamed)
    assert "the key … is bad" in error.message


async def test_a_key_that_is_too_short_is_not_redacted() -> None:
    async with ModelServer([Turn(status=400, message="an example")]) as server:
        short = models.Client(
            keys={"gemini": "x"}, base_urls={"gemini": server.url}, environ={}, retries=0
        )
        async with short as made:
            with pytest.raises(CorralError, match="an example"):
                await models.generate(MODEL, "go", client=made)


async def test_the_key_is_sent_only_in_its_header() -> None:
    async with ModelServer([say("a"), say("b")]) as server, client(server.url) as made:
        await models.generate(MODEL, "hi", client=made)
        await models.stream(MODEL, "hi", client=made).collect()
        for request in server.requests:
            assert KEY not in f"{request.path} {request.body}"
            assert [n for n, value in request.headers.items() if KEY in value] == ["x-goog-api-key"]


async def test_a_broken_stream_after_data_gives_an_event_and_then_raises() -> None:
    turn = Turn(text=("one", "two"), cut=1, chunk_delay=0.05)
    async with ModelServer([turn, say("never")]) as server:
        async with client(server.url, retries=2) as made:
            seen: list[models.StreamEvent] = []
            with pytest.raises(errors.StreamBroken):
                async for event in models.stream(MODEL, "hi", client=made):
                    seen.append(event)
        assert len(server.requests) == 1
    assert [event.text for event in seen if isinstance(event, models.TextDelta)] == ["one"]
    assert isinstance(seen[-1], models.Failed)
    assert seen[-1].code == "stream_broken"
