"""Model calls that wait for a rate limit to end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from corral import errors, models
from corral.testing import ModelServer, fail, say

MODEL = "gemini:gemini-2.5-flash"
SHORT = 0.1


def client(server: ModelServer, key: str) -> models.Client:
    return models.Client(
        keys={"gemini": key}, base_urls={"gemini": server.url}, retries=0, environ={}
    )


async def answer(made: models.Client, streamed: bool, **options: Any) -> str:
    if streamed:
        return (await models.stream(MODEL, "hi", client=made, **options).collect()).text
    return (await models.generate(MODEL, "hi", client=made, **options)).text


streamed_or_not = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@streamed_or_not
async def test_a_wait_is_no_retry_and_does_not_count_for_timeouts(streamed: bool) -> None:
    script = [fail(429, "slow down", retry_after=0.4, times=3), say("at last")]
    async with ModelServer(script) as server, client(server, f"key-{streamed}") as made:
        options = {"on_limit": "wait", "retries": 0, "timeout": 1.0, "step_timeout": 1.0}
        assert await answer(made, streamed, **options) == "at last"
        assert len(server.requests) == 4


@streamed_or_not
async def test_without_the_option_the_call_fails(streamed: bool) -> None:
    script = [fail(429, "slow down", retry_after=SHORT), say("never")]
    async with ModelServer(script) as server, client(server, f"fails-{streamed}") as made:
        with pytest.raises(errors.RateLimited) as caught:
            await answer(made, streamed, retries=0)
        assert caught.value.resets_at is not None
        assert len(server.requests) == 1


async def test_a_limit_beyond_max_wait_fails_at_once() -> None:
    script = [fail(429, "slow down", retry_after=3600), say("never")]
    async with ModelServer(script) as server, client(server, "too-long") as made:
        with pytest.raises(errors.RateLimited):
            await answer(made, False, on_limit="wait", max_wait="1m")
        # The second call knows of the limit and is not sent.
        with pytest.raises(errors.RateLimited) as caught:
            await answer(made, False, on_limit="wait", max_wait="1m")
        assert caught.value.resets_at is not None
        assert len(server.requests) == 1


async def test_a_spent_quota_without_a_reset_fails_at_once() -> None:
    script = [fail(402, "no credit"), say("never")]
    async with ModelServer(script) as server, client(server, "spent") as made:
        with pytest.raises(errors.QuotaSpent):
            await answer(made, False, on_limit="wait")
        assert len(server.requests) == 1


async def test_twenty_calls_with_one_key_send_nothing_before_the_limit_ends() -> None:
    script = [fail(429, "slow down", retry_after=0.5), replace(say("ok"), repeat="forever")]
    async with ModelServer(script) as server, client(server, "shared") as made:
        first = asyncio.create_task(answer(made, False, on_limit="wait"))
        async with asyncio.timeout(20):
            while not server.requests:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.1)  # the first call has its 429
            others = [
                asyncio.create_task(answer(made, bool(n % 2), on_limit="wait")) for n in range(20)
            ]
            await asyncio.sleep(0.2)
            assert len(server.requests) == 1
            assert await first == "ok"
            assert await asyncio.gather(*others) == ["ok"] * 20
        assert len(server.requests) == 22


@pytest.mark.parametrize(
    "options",
    [{"on_limit": "fallback:x"}, {"on_limit": "wait", "max_wait": "soon"},
     {"on_limit": "wait", "max_wait": 0}],
)  # fmt: skip
async def test_bad_options_are_refused_before_anything_is_sent(options: dict[str, Any]) -> None:
    async with ModelServer([say("never")]) as server, client(server, "bad") as made:
        with pytest.raises(errors.ConfigError):
            await answer(made, False, **options)
        assert not server.requests
