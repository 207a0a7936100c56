"""Error responses in OpenAI's format and in those of other servers."""

# The SDK is generic over what it parses, which the checkers cannot follow.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from support.openai_oracle import sdk

from corral import errors
from corral._models.chat import spec
from corral._models.openai.spec import PROVIDERS
from corral._models.spec import FailedResponse
from corral.errors import CorralError
from corral.model_types import RateLimit

PROVIDER = PROVIDERS[0]


def failed(status: int, body: Any, **headers: str) -> CorralError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return PROVIDER.wire.failure(
        FailedResponse(provider=PROVIDER, model="gpt-9", status=status, body=raw, headers=named)
    )


def body_of(message: str = "No.", **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": None, "param": None, "code": None, **more}}


@pytest.mark.parametrize(
    ("status", "body", "error", "theirs"),
    [
        (400, body_of(type="invalid_request_error"), errors.InvalidRequest, "BadRequestError"),
        (400, body_of(code="context_length_exceeded"), errors.ContextLengthExceeded,
         "BadRequestError"),
        (400, body_of("This model's maximum context length is 8192 tokens."),
         errors.ContextLengthExceeded, "BadRequestError"),
        (400, body_of(code="content_filter"), errors.ContentRefused, "BadRequestError"),
        (400, body_of(code="invalid_prompt"), errors.ContentRefused, "BadRequestError"),
        (401, body_of(code="invalid_api_key"), errors.AuthenticationFailed,
         "AuthenticationError"),
        (403, body_of(), errors.AccessDenied, "PermissionDeniedError"),
        (404, body_of(code="model_not_found"), errors.ModelNotFound, "NotFoundError"),
        (422, body_of(), errors.InvalidRequest, "UnprocessableEntityError"),
        (429, body_of(code="rate_limit_exceeded", type="tokens"), errors.RateLimited,
         "RateLimitError"),
        (429, body_of(code="insufficient_quota", type="insufficient_quota"), errors.QuotaSpent,
         "RateLimitError"),
        (500, body_of(type="server_error"), errors.ServerFailed, "InternalServerError"),
        (503, body_of(code="invalid_api_key"), errors.ServerFailed, "InternalServerError"),
    ],
)  # fmt: skip
def test_an_error_is_chosen_by_status_and_code(
    status: int, body: Any, error: type[CorralError], theirs: str
) -> None:
    import openai

    ours = failed(status, body)
    assert type(ours) is error
    assert (ours.provider, ours.http_status) == ("openai", status)
    assert body["error"]["message"] in ours.message
    kind: type[openai.APIStatusError] = getattr(openai, theirs)
    with sdk(lambda _: httpx2.Response(status, json=body)) as client, pytest.raises(kind) as sent:
        client.responses.create(model="m", input="hi")
    code = body["error"]["code"]
    assert sent.value.code == code
    assert ours.provider_code == (code or body["error"]["type"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": "model 'x' not found"}, "model 'x' not found"),
        ({"code": "invalid", "error": "Incorrect API key"}, "Incorrect API key"),
        ({"object": "error", "message": "Bad id", "code": "3280"}, "Bad id"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body"], "msg": "Extra inputs are not permitted"}]}, "Extra inputs"),
        ([{"error": {"message": "In a list", "code": 400}}], "In a list"),
        ({"error": {"message": "Provider returned error", "code": 400,
                    "metadata": {"raw": "too many images"}}}, "too many images"),
        (b"<html><h1>Bad gateway</h1></html>", "Bad gateway"),
        (b"", "HTTP 400"),
        ({"error": None}, '"error": null'),
    ],
)  # fmt: skip
def test_error_bodies_of_different_servers_are_read(body: Any, words: str) -> None:
    assert words in failed(400, body).message


def test_the_delay_in_the_headers_wins() -> None:
    body = body_of("Please try again in 20s.", code="rate_limit_exceeded")
    assert failed(429, body).retry_after == 20
    assert failed(429, body, retry_after="3").retry_after == 3
    assert failed(429, body, retry_after_ms="150").retry_after == 0.15


def test_remaining_limits_are_read_from_headers() -> None:
    for wire in (PROVIDER.wire, spec.WIRE):
        assert wire.rate_limit_headers.keys() == {*RateLimit.__struct_fields__}
        assert wire.rate_limit_headers["tokens_remaining"] == "x-ratelimit-remaining-tokens"
