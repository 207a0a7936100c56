"""The state of rate limits, and the waits for them."""

from __future__ import annotations

import asyncio

import pytest

from corral._metering import rate_limits
from corral._metering.rate_limits import LimitState, LimitWaits, credential_id, state_of
from corral._system import clock
from corral.errors import QuotaSpent, RateLimited, ServerFailed

KEY = "canary-key-0123456789abcdef"
SHORT = 0.05


@pytest.fixture
def credential(request: pytest.FixtureRequest) -> str:
    return credential_id("service.test", request.node.nodeid, "model")


def limited(seconds: float | None = SHORT) -> RateLimited:
    return RateLimited("too many requests", retry_after=seconds)


def test_the_name_of_a_credential_does_not_contain_the_key() -> None:
    name = credential_id("api.test", KEY, "m")
    assert KEY not in name
    assert name == credential_id("api.test", KEY, "m")
    others = [("api.test", KEY, "n"), ("b.test", KEY, "m"), ("api.test", KEY + "x", "m")]
    assert name not in {credential_id(*each) for each in others}


def test_only_limits_that_end_by_themselves_are_states() -> None:
    assert state_of(ServerFailed("down")) is None
    assert state_of(QuotaSpent("no credit left")) is None
    spent = state_of(QuotaSpent("the day's quota is spent", resets_at=2e9))
    assert spent == LimitState(2e9, "the day's quota is spent", is_spent=True)


def test_a_limit_without_an_end_is_tried_again_after_longer_and_longer_delays() -> None:
    now = clock.now()
    first, later = state_of(limited(None)), state_of(limited(None), 20)
    assert first is not None
    assert later is not None
    assert not first.is_known
    assert now + 2 < first.until < now + 10
    assert now + 299 < later.until < now + 1000


async def test_a_call_is_made_again_after_the_limit(credential: str) -> None:
    waits = LimitWaits(10.0)
    call = waits.call(credential)
    assert await call.before() is None
    before = clock.now()
    assert await call.after(limited()) is not None
    assert clock.now() >= before + SHORT
    assert waits.waited >= SHORT * 0.9
    assert not waits.is_waiting


async def test_other_calls_with_the_credential_wait_too(credential: str) -> None:
    state = LimitState(clock.now() + SHORT, "slow down")
    rate_limits.report(credential, state)
    assert await LimitWaits(10.0).call(credential).before() is None
    assert clock.now() >= state.until


async def test_a_shorter_limit_does_not_replace_a_longer_one(credential: str) -> None:
    longer = LimitState(clock.now() + 60, "longer")
    rate_limits.report(credential, longer)
    rate_limits.report(credential, LimitState(clock.now() + 1, "shorter"))
    assert rate_limits.current(credential) == longer


async def test_a_limit_that_takes_too_long_is_not_waited_for(credential: str) -> None:
    waits = LimitWaits(5.0)
    assert await waits.call(credential).after(limited(3600)) is None
    state = await waits.call(credential).before()
    assert state is not None
    assert state.error().resets_at == state.until
    assert await waits.call(credential, longest_hold=1.0).before() is state
    assert waits.waited == 0.0


async def test_all_waits_of_a_call_together_are_limited(credential: str) -> None:
    call = LimitWaits(SHORT * 2.5).call(credential)
    assert await call.after(limited()) is not None
    assert await call.after(limited()) is not None
    assert await call.after(limited()) is None


async def test_a_cancelled_wait_ends_at_once(credential: str) -> None:
    waits = LimitWaits(1e6)
    task = asyncio.create_task(waits.call(credential).after(limited(3600)))
    while not waits.is_waiting:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not waits.is_waiting
    assert waits.state is None


class Listener:
    def __init__(self) -> None:
        self.states: list[LimitState | None] = []

    def on_limit(self, state: LimitState | None) -> None:
        self.states.append(state)


async def test_listeners_get_the_state_and_its_end(credential: str) -> None:
    waits, listener = LimitWaits(10.0), Listener()
    waits.add_listener(listener.on_limit)
    state = await waits.call(credential).after(limited())
    assert listener.states == [state, None]
    waits.remove_listener(listener.on_limit)
    await waits.call(credential).after(limited())
    assert listener.states == [state, None]


async def test_a_wait_does_not_count_for_a_time_limit(credential: str) -> None:
    waits = LimitWaits(10.0)
    async with asyncio.timeout(SHORT * 2) as scope:
        with waits.exempt_from(scope):
            for _ in range(4):
                await waits.call(credential).after(limited())
        assert scope.when() is not None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT) as scope:
            with waits.exempt_from(scope):
                await waits.call(credential).after(limited())
                await asyncio.sleep(30)


def test_the_event_has_the_time() -> None:
    event = LimitState(clock.now() + 100, "slow down").event()
    assert event.code == "rate_limited"
    assert event.recoverable
    assert "(waits): slow down" in event.message
    assert event.facts["resets_at"] == event.facts["waits_until"]
    guess = LimitState(clock.now() + 100, "slow down", is_known=False).event()
    assert guess.facts["resets_at"] is None
