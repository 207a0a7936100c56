"""The model proxy holds calls while a credential is limited."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from corral._metering.calls import MeteredCall
from corral._metering.proxy.proxy import ModelProxy, ProxySettings
from corral._metering.rate_limits import LimitWaits
from corral._models.registry import find_provider
from corral._system.http.client import Http
from corral.errors import CorralError, RateLimited
from corral.testing import ModelServer, Turn, fail, say

PATH = "/v1beta/models/gemini-2.5-flash:generateContent"
BODY = msgspec.json.encode({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]})


class Run:
    """One agent behind its own proxy."""

    def __init__(self, server: ModelServer, key: str, waits: LimitWaits | None, **options: float):
        self.calls: list[MeteredCall] = []
        self.limits: list[CorralError | None] = []
        settings = ProxySettings(
            upstream=server.url,
            providers=lambda: [find_provider("gemini")],
            keys={"KEY": key},
            **options,
        )
        self.proxy = ModelProxy(
            settings, self.calls.append, on_limit=self.limits.append, waits=waits
        )

    async def call(self) -> int:
        """The status of one call of the agent."""
        http = Http(connect_timeout=5.0, read_timeout=30.0)
        headers = {"x-goog-api-key": self.proxy.dummy_keys["KEY"]}
        try:
            url = f"http://127.0.0.1:{self.proxy.port}{PATH}"
            answer = await http.post(url, BODY, headers)
            await answer.head(1_000_000)
            answer.close()
            return answer.status
        finally:
            await http.close()

    async def __aenter__(self) -> Run:
        await self.proxy.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.proxy.close()
        await self.proxy.wait_closed()


async def test_a_limited_call_is_made_again_and_each_one_is_reported() -> None:
    script = [fail(429, "slow down", retry_after=0.2, times=2), say("ok")]
    async with ModelServer(script) as server:
        async with Run(server, "key-again-0123456789", LimitWaits(60.0)) as run:
            assert await run.call() == 200
        assert [call.status for call in run.calls] == [429, 429, 200]
        assert [type(each) for each in run.limits] == [RateLimited, RateLimited, type(None)]
        assert len(server.requests) == 3


async def test_without_waits_the_agent_gets_the_response_unchanged() -> None:
    async with ModelServer([fail(429, "slow down", retry_after=9.5)]) as server:
        async with Run(server, "key-plain-0123456789", None) as run:
            assert await run.call() == 429
        (limit,) = run.limits
        assert isinstance(limit, RateLimited)
        assert limit.retry_after == 9.5


async def test_a_limit_longer_than_the_agent_waits_is_passed_on_and_not_met_again() -> None:
    script: list[Turn] = [fail(429, "slow down", retry_after=600), say("never")]
    async with ModelServer(script) as server:
        waits = LimitWaits(3600.0)
        async with Run(server, "key-hold-01234567890", waits, longest_hold=1.0) as run:
            assert await run.call() == 429
            assert await run.call() == 429
        assert len(server.requests) == 1
        assert waits.waited == 0.0


async def test_twenty_runs_with_one_key_send_nothing_before_the_limit_ends() -> None:
    script = [fail(429, "slow down", retry_after=0.6), replace(say("ok"), repeat="forever")]
    async with ModelServer(script) as server, asyncio.timeout(60):
        runs = [Run(server, "key-shared-012345678", LimitWaits(60.0)) for _ in range(20)]
        for run in runs:
            await run.proxy.open()
        try:
            first = asyncio.create_task(runs[0].call())
            while not runs[0].calls:
                await asyncio.sleep(0.005)
            others = [asyncio.create_task(run.call()) for run in runs[1:]]
            await asyncio.sleep(0.2)
            assert len(server.requests) == 1
            assert await asyncio.gather(first, *others) == [200] * 20
        finally:
            for run in runs:
                await run.__aexit__()
        assert len(server.requests) == 21


async def test_an_agent_that_leaves_ends_its_wait() -> None:
    async with ModelServer([fail(429, "slow down", retry_after=600)]) as server:
        waits = LimitWaits(3600.0)
        async with Run(server, "key-leave-0123456789", waits) as run, asyncio.timeout(30):
            task = asyncio.create_task(run.call())
            while not waits.is_waiting:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while waits.is_waiting:
                await asyncio.sleep(0.005)
        assert [call.status for call in run.calls] == [429]
