"""Errors in Google's own format: quotas, keys, and responses of proxies."""

from __future__ import annotations

import pytest
from models.test_model_errors import answer, failure, raw, streamed_or_not

from corral import errors
from corral.errors import CorralError
from corral.testing import ModelServer, Turn, fail

QUOTA = "You exceeded your current quota, please check your plan and billing details."


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        (fail(400, "The input token count (9) exceeds the maximum"), errors.ContextLengthExceeded),
        (fail(429, quota_id="GenerateRequestsPerDayPerProject"), errors.QuotaSpent),
        (fail(429, QUOTA, quota_id="GenerateRequestsPerDayPerProject"), errors.QuotaSpent),
        (fail(429, QUOTA, quota_id="GenerateRequestsPerMinutePerProject"), errors.RateLimited),
        (fail(429, QUOTA, retry_after=9), errors.RateLimited),
        (fail(429, QUOTA), errors.QuotaSpent),
        (Turn(status=400, error_status="PERMISSION_DENIED"), errors.AccessDenied),
        (Turn(status=400, error_status="RESOURCE_EXHAUSTED"), errors.RateLimited),
    ],
)
async def test_the_vendors_error_code_wins_over_the_status(
    turn: Turn, kind: type[CorralError]
) -> None:
    async with ModelServer([turn]) as server:
        assert type(await failure(server.url, False)) is kind


async def test_a_wrong_key_with_status_400_is_a_failed_authentication() -> None:
    async with ModelServer(key="another") as server:
        error = await failure(server.url, False)
    assert type(error) is errors.AuthenticationFailed
    assert (error.http_status, error.provider_code) == (400, "API_KEY_INVALID")
    assert error.hint is not None
    assert "GEMINI_API_KEY" in error.hint


@pytest.mark.parametrize("code", ['"abc"', "[]", "{}", "1e99"])
async def test_an_error_in_another_format_is_chosen_by_its_status(code: str) -> None:
    body = f'{{"error": {{"code": {code}, "message": 7}}}}'
    async with raw(answer(502, body)) as url:
        error = await failure(url, False)
    assert type(error) is errors.ServerFailed
    assert error.http_status == 502


@streamed_or_not
@pytest.mark.parametrize("malformed", ["json", b"\xff\xfe\x00garbage"])
async def test_a_response_that_is_not_json_is_broken(
    malformed: str | bytes, streamed: bool
) -> None:
    async with ModelServer([Turn(malformed=malformed, text="x")]) as server:
        error = await failure(server.url, streamed)
    assert type(error) is errors.StreamBroken
    assert error.provider == "gemini"
    assert error.hint
