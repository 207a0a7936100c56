"""When a rate limit ends, by the headers and bodies of each vendor."""

from __future__ import annotations

import msgspec
import pytest

from corral._models.errors import next_midnight, read_time
from corral._models.registry import find_provider
from corral._models.spec import FailedResponse
from corral.errors import CorralError, QuotaSpent, RateLimited

NOW = 1_790_000_000.0
"""2026-09-21 14:13:20 UTC."""


def failure(vendor: str, body: object, **headers: str) -> CorralError:
    provider = find_provider(vendor)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = msgspec.json.encode(body)
    return provider.wire.failure(
        FailedResponse(provider=provider, model="m", status=429, body=data, headers=named, now=NOW)
    )


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1", 1),
        ("0.5", 0.5),
        ("6m0s", 360),
        ("20ms", 0.02),
        ("1h2m3.5s", 3723.5),
        (f"{NOW + 9:.0f}", 9),
        (f"{(NOW + 9) * 1000:.0f}", 9),
        ("2026-09-21T14:13:30Z", 10),
        ("2026-09-21T16:13:30+02:00", 10),
    ],
)
def test_the_forms_of_a_time(value: str, seconds: float) -> None:
    assert read_time(value, NOW) == pytest.approx(NOW + seconds, abs=0.01)


@pytest.mark.parametrize("value", ["", "soon", "-5", "2026-09-21T14:13:30", "nan nan"])
def test_what_is_not_a_time_is_unknown(value: str) -> None:
    assert read_time(value, NOW) is None


ANTHROPIC = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
OPENAI = {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}
LATER = "2026-09-21T14:14:20Z"
SOONER = "2026-09-21T14:13:25Z"


def test_the_limit_that_is_used_up_counts() -> None:
    error = failure(
        "anthropic",
        ANTHROPIC,
        anthropic_ratelimit_requests_remaining="0",
        anthropic_ratelimit_requests_reset=SOONER,
        anthropic_ratelimit_tokens_remaining="500",
        anthropic_ratelimit_tokens_reset=LATER,
    )
    assert type(error) is RateLimited
    assert error.resets_at == NOW + 5


def test_of_two_limits_the_later_counts() -> None:
    error = failure(
        "openai",
        OPENAI,
        x_ratelimit_remaining_requests="0",
        x_ratelimit_reset_requests="1s",
        x_ratelimit_remaining_tokens="0",
        x_ratelimit_reset_tokens="6m0s",
    )
    assert error.resets_at == NOW + 360


def test_a_usage_limit_of_an_account() -> None:
    error = failure("anthropic", ANTHROPIC, anthropic_ratelimit_unified_reset=f"{NOW + 7200:.0f}")
    assert error.resets_at == NOW + 7200


def test_retry_after_wins() -> None:
    error = failure("anthropic", ANTHROPIC, retry_after="3", anthropic_ratelimit_tokens_reset=LATER)
    assert error.resets_at == NOW + 3


def test_a_spent_credit_does_not_end_with_the_limits_in_the_headers() -> None:
    body = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    error = failure("openai", body, x_ratelimit_reset_tokens="1s")
    assert type(error) is QuotaSpent
    assert error.resets_at is None


def quota(quota_id: str) -> object:
    details: list[object] = [
        {
            "@type": "type.googleapis.com/google.rpc.QuotaFailure",
            "violations": [{"quotaId": quota_id}],
        },
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37.5s"},
    ]
    status = "RESOURCE_EXHAUSTED"
    return {"error": {"code": 429, "status": status, "message": "quota", "details": details}}


def test_the_quota_of_a_minute() -> None:
    error = failure("gemini", quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier"))
    assert type(error) is RateLimited
    assert error.resets_at == NOW + 37.5


def test_the_quota_of_a_day_ends_at_midnight_and_not_after_the_delay() -> None:
    error = failure("gemini", quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier"))
    assert type(error) is QuotaSpent
    assert error.resets_at == next_midnight("America/Los_Angeles", NOW)
    assert error.retry_after is None


def test_midnight_in_another_zone() -> None:
    # 07:13 in Los Angeles: the day has 16 h 46 min 40 s left.
    assert next_midnight("America/Los_Angeles", NOW) == NOW + 60400
    assert next_midnight("Nowhere/City", NOW) is None
    assert next_midnight("America/Los_Angeles", 0.0) is None
