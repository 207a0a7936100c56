"""Errors of a response are errors of the openai SDK."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from support.openai_client import MODEL, ask, client, events
from support.raw_answers import post

from corral.testing import ModelServer, Turn, fail, hang, say

PATH = "/v1/responses"


def output(server: ModelServer) -> tuple[list[str], Exception]:
    """The text that came before the SDK raised, and what it raised."""
    texts: list[str] = []
    with client(server) as sdk:
        try:
            for event in sdk.responses.create(model=MODEL, input="hello", stream=True):
                if event.type == "response.output_text.delta":
                    texts.append(event.delta)
        except (openai.OpenAIError, ValueError) as error:
            return texts, error
    raise AssertionError(f"the stream ended well: {texts}")


@pytest.mark.parametrize(
    ("turn", "kind", "type", "code"),
    [
        (fail(400, "no"), openai.BadRequestError, "invalid_request_error", None),
        (fail(401, "no"), openai.AuthenticationError, "authentication_error", "invalid_api_key"),
        (fail(403, "no"), openai.PermissionDeniedError, "permission_error", None),
        (fail(404, "no"), openai.NotFoundError, "invalid_request_error", "model_not_found"),
        (fail(413, "no"), openai.APIStatusError, "invalid_request_error", None),
        (fail(429, "no"), openai.RateLimitError, "rate_limit_error", "rate_limit_exceeded"),
        (
            fail(429, "no", quota_id="day"),
            openai.RateLimitError,
            "insufficient_quota",
            "insufficient_quota",
        ),
        (fail(500, "no"), openai.InternalServerError, "server_error", None),
        (fail(529, "no"), openai.InternalServerError, "server_error", None),
        (
            Turn(status=400, message="no", error_status="context_length_exceeded"),
            openai.BadRequestError,
            "invalid_request_error",
            "context_length_exceeded",
        ),
    ],
)
def test_an_error_is_the_sdks_own(
    turn: Turn, kind: type[openai.APIStatusError], type: str, code: str | None
) -> None:
    def send(server: ModelServer, **more: Any) -> None:
        with pytest.raises(kind) as caught:
            ask(server, **more)
        assert caught.value.status_code == turn.status
        assert (caught.value.type, caught.value.code) == (type, code)
        assert caught.value.body == {"message": "no", "type": type, "param": None, "code": code}
        assert caught.value.request_id is not None

    with ModelServer([turn] * 2) as server:
        send(server)
        send(server, stream=True)


def test_a_rate_limit_says_when_to_retry() -> None:
    with ModelServer([fail(429, retry_after=1.5), say("a")]) as server, client(server) as sdk:
        with pytest.raises(openai.RateLimitError) as caught:
            ask(server)
        headers = caught.value.response.headers
        assert headers["retry-after"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-reset-requests"] == "1.5s"
        good = sdk.responses.with_raw_response.create(model=MODEL, input="hello")
    assert good.headers["x-ratelimit-remaining-tokens"] != "0"
    assert good.headers["x-request-id"].startswith("req_")


def test_a_late_error_is_an_event_of_the_stream() -> None:
    turn = Turn(text=("one", "two"), status=429, late=True, message="Slow down.")
    with ModelServer([turn] * 2) as server:
        texts, error = output(server)
        assert texts == ["one", "two"]
        assert isinstance(error, openai.APIError)
        assert (error.message, error.code) == ("Slow down.", "rate_limit_exceeded")
        with pytest.raises(openai.RateLimitError):
            ask(server)


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"authorization": "Bearer right"}, 200), ({"api-key": "right"}, 200), ({}, 401)],
)
def test_a_key_is_accepted_in_the_headers_of_openai_and_azure(
    headers: dict[str, str], status: int
) -> None:
    with ModelServer([say("a")], key="right") as server:
        sent = httpx2.post(f"{server.url}{PATH}", json={"model": "m"}, headers=headers)
    assert sent.status_code == status


def test_a_wrong_key_is_refused_in_the_vendors_form() -> None:
    with ModelServer([say("a")], key="right") as server:
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
            ask(server)
        with client(server, "right") as sdk:
            assert sdk.responses.create(model=MODEL, input="hello").output_text == "a"


@pytest.mark.parametrize(
    ("body", "reported"), [("{", "could not parse"), ("[]", "not an object"), ({}, "'model'")]
)
def test_invalid_requests_are_refused_and_recorded(body: object, reported: str) -> None:
    with ModelServer([say("a")]) as server:
        assert reported in json.loads(post(server, PATH, body))["error"]["message"]
        assert len(server.failures) == 1


def test_an_exhausted_script_is_an_error_of_this_wire() -> None:
    with ModelServer([]) as server, pytest.raises(openai.BadRequestError, match="exhausted"):
        ask(server)


@pytest.mark.parametrize(
    "turn",
    [
        Turn(text=("one", "two"), cut=1),
        Turn(text=("one", "two"), cut_bytes=1900),
        Turn(text="one", malformed="json"),
        Turn(text="one", malformed=b"event: response.output_text.delta\ndata: nonsense\n\n"),
    ],
)
def test_a_broken_or_malformed_stream_makes_the_sdk_raise(turn: Turn) -> None:
    with ModelServer([turn]) as server:
        texts, error = output(server)
    assert texts == ["one"]
    kind = openai.APIConnectionError if turn.malformed is None else json.JSONDecodeError
    assert isinstance(error, kind)


@pytest.mark.parametrize("turn", [Turn(cut=0), Turn(text="whole", cut=1), Turn(malformed="json")])
def test_a_broken_unstreamed_answer_makes_the_sdk_raise(turn: Turn) -> None:
    with ModelServer([turn]) as server, pytest.raises((openai.APIError, json.JSONDecodeError)):
        ask(server)


def test_an_html_page_of_a_proxy_is_not_a_stream() -> None:
    with ModelServer([Turn(malformed="html")]) as server:
        assert events(server) == []


def test_a_hang_after_the_first_text() -> None:
    async def listen() -> None:
        async with ModelServer([hang("first")]) as server:
            url = server.env["OPENAI_BASE_URL"]
            async with AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as sdk:
                reported = aiter(
                    await sdk.responses.create(model=MODEL, input="hello", stream=True)
                )
                while (event := await asyncio.wait_for(anext(reported), 60)).type[-5:] != "delta":
                    pass
                assert event.type == "response.output_text.delta"
                assert event.delta == "first"
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(reported), 0.3)

    asyncio.run(listen())
