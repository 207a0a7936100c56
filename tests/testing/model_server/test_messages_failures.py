"""Errors of a response are errors of the anthropic SDK."""

from __future__ import annotations

import asyncio
import json

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic
from support.anthropic_client import HELLO, MODEL, ask, client, stream
from support.raw_answers import post

from corral.testing import ModelServer, Turn, fail, hang, say

PATH = "/v1/messages?beta=true"


@pytest.mark.parametrize(
    ("turn", "kind", "type"),
    [
        (fail(400, "no"), anthropic.BadRequestError, "invalid_request_error"),
        (fail(401, "no"), anthropic.AuthenticationError, "authentication_error"),
        (fail(403, "no"), anthropic.PermissionDeniedError, "permission_error"),
        (fail(404, "no"), anthropic.NotFoundError, "not_found_error"),
        (fail(413, "no"), anthropic.APIStatusError, "request_too_large"),
        (fail(429, "no"), anthropic.RateLimitError, "rate_limit_error"),
        (fail(429, "no", quota_id="day"), anthropic.RateLimitError, "billing_error"),
        (fail(500, "no"), anthropic.InternalServerError, "api_error"),
        (fail(529, "no"), anthropic.InternalServerError, "overloaded_error"),
        (Turn(status=400, message="no", error_status="odd"), anthropic.BadRequestError, "odd"),
    ],
)
def test_an_error_is_the_sdks_own(
    turn: Turn, kind: type[anthropic.APIStatusError], type: str
) -> None:
    with ModelServer([turn] * 2) as server:
        for send in (ask, stream):
            with pytest.raises(kind) as caught:
                send(server)
            error = caught.value
            assert error.status_code == turn.status
            assert error.body == {
                "type": "error",
                "error": {"type": type, "message": "no"},
                "request_id": error.request_id,
            }


def test_a_rate_limit_says_when_to_retry() -> None:
    with ModelServer([fail(429, retry_after=1.5), say("a")]) as server, client(server) as sdk:
        with pytest.raises(anthropic.RateLimitError) as caught:
            ask(server)
        headers = caught.value.response.headers
        assert headers["retry-after"] == "2"
        assert headers["anthropic-ratelimit-requests-remaining"] == "0"
        good = sdk.messages.with_raw_response.create(model=MODEL, max_tokens=9, messages=HELLO)
    assert good.headers["anthropic-ratelimit-tokens-remaining"] != "0"
    assert good.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert good.headers["request-id"].startswith("req_")


def test_a_late_error_is_an_event_of_the_stream() -> None:
    turn = Turn(text=("one", "two"), status=529, late=True, message="Overloaded")
    output: list[str] = []
    with ModelServer([turn] * 2) as server:
        with (
            client(server) as sdk,
            pytest.raises(anthropic.APIStatusError) as caught,
            sdk.messages.stream(model=MODEL, max_tokens=9, messages=HELLO) as events,
        ):
            output.extend(events.text_stream)
        assert output == ["one", "two"]
        assert caught.value.type == "overloaded_error"
        assert caught.value.response.status_code == 200
        with pytest.raises(anthropic.InternalServerError) as caught:
            ask(server)
        assert caught.value.status_code == 529


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"x-api-key": "right"}, 200), ({"authorization": "Bearer right"}, 200), ({}, 401)],
)
def test_a_key_is_accepted_in_both_headers(headers: dict[str, str], status: int) -> None:
    with ModelServer([say("a")], key="right") as server:
        sent = httpx2.post(f"{server.url}{PATH}", json={"model": "m"}, headers=headers)
    assert sent.status_code == status


def test_a_wrong_key_is_refused_in_the_vendors_form() -> None:
    with ModelServer([say("a")], key="right") as server:
        with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
            ask(server)
        with client(server, "right") as sdk:
            sdk.messages.create(model=MODEL, max_tokens=9, messages=HELLO)


@pytest.mark.parametrize(
    ("body", "output"), [("{", "not valid JSON"), ("[]", "not an object"), ({}, "model: Field")]
)
def test_invalid_requests_are_refused_and_recorded(body: object, output: str) -> None:
    with ModelServer([say("a")]) as server:
        reported = json.loads(post(server, PATH, body))
        assert reported["type"] == "error"
        assert output in reported["error"]["message"]
        assert len(server.failures) == 1


def test_an_exhausted_script_is_an_error_of_this_wire() -> None:
    with ModelServer([]) as server, pytest.raises(anthropic.BadRequestError, match="exhausted"):
        ask(server)


@pytest.mark.parametrize(
    "turn",
    [
        Turn(text=("one", "two"), cut=1),
        Turn(text=("one", "two"), cut_bytes=650),
        Turn(text="one", malformed="json"),
        Turn(text="one", malformed=b"event: content_block_delta\ndata: nonsense\n\n"),
    ],
)
def test_a_broken_or_malformed_stream_makes_the_sdk_raise(turn: Turn) -> None:
    output: list[str] = []
    with (
        ModelServer([turn]) as server,
        client(server) as sdk,
        pytest.raises((httpx2.RemoteProtocolError, json.JSONDecodeError)),
        sdk.messages.stream(model=MODEL, max_tokens=9, messages=HELLO) as events,
    ):
        output.extend(events.text_stream)
    assert output == ["one"]


@pytest.mark.parametrize("turn", [Turn(cut=0), Turn(text="whole", cut=1), Turn(malformed="json")])
def test_a_broken_unstreamed_answer_makes_the_sdk_raise(turn: Turn) -> None:
    with ModelServer([turn]) as server, pytest.raises((anthropic.APIError, json.JSONDecodeError)):
        ask(server)


def test_a_hang_after_the_first_text() -> None:
    async def listen() -> None:
        async with (
            ModelServer([hang("first")]) as server,
            AsyncAnthropic(api_key="k", base_url=server.url, max_retries=0) as sdk,
            sdk.messages.stream(model=MODEL, max_tokens=9, messages=HELLO) as events,
        ):
            output = aiter(events.text_stream)
            assert await asyncio.wait_for(anext(output), 60) == "first"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(output), 0.3)

    asyncio.run(listen())
