"""How the built-in agent waits for rate limits."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from support.builtin_agent import BuiltinAgent, events_of, warning_codes

import corral
from corral.events import Done, Error
from corral.result import result_from_events
from corral.run_kwargs import RunKwargs
from corral.testing import call, fail, say

pytest_plugins = ("support.builtin_agent_fixture",)


@pytest.mark.parametrize("wire", ["gemini", "anthropic", "openai", "chat"])
async def test_a_run_goes_on_after_the_limit(ours: BuiltinAgent, wire: str) -> None:
    script = [
        fail(429, "slow down", retry_after=0.6),
        call("read_file", path="a.txt"),
        fail(429, "slow down", retry_after=0.6),
        say("done"),
    ]
    (ours.workspace / "a.txt").write_text("A")
    # The deadlines are shorter than the waits.
    options: RunKwargs = {"on_limit": "wait", "retries": 0, "timeout": 1.1}
    if wire != "gemini":
        options["timeout"], options["idle_timeout"] = 1.9, 0.5
    events = await ours.events(script, wire=wire, **options)
    result = result_from_events(events)
    assert result.ok, result.error
    assert warning_codes(events) == ["rate_limited", "rate_limited"]
    assert len(ours.requests) == 4
    assert result.waited >= 1.1
    (done,) = events_of(events, Done)
    assert done.waited_ms <= done.duration_ms


async def test_a_run_fails_at_a_limit_unless_it_waits(ours: BuiltinAgent) -> None:
    result = await ours.run([fail(429, "slow down", retry_after=0.1)], retries=0)
    assert result.error is not None
    assert result.error.code == "rate_limit"
    assert isinstance(result.error.facts["resets_at"], float)


async def test_a_wait_beyond_max_wait_fails(ours: BuiltinAgent) -> None:
    script = [fail(429, "slow down", retry_after=3600)]
    env = {"GEMINI_API_KEY": "another-key-for-max-wait"}
    result = await ours.run(script, on_limit="wait", max_wait="10m", env=env)
    assert result.error is not None
    assert result.error.code == "rate_limit"
    assert result.waited == 0.0


async def test_a_cancelled_wait_ends_the_run_at_once(ours: BuiltinAgent) -> None:
    env = {"GEMINI_API_KEY": "another-key-for-cancel"}
    script = [fail(429, "slow down", retry_after=3600)]
    async with ours.session(script, on_limit="wait", env=env) as session, asyncio.timeout(30):
        turn, last = session.prompt("do it"), None
        async for event in turn:
            if isinstance(event, Error) and event.code == "rate_limited":
                turn.cancel()
            last = event
    assert isinstance(last, Done)
    assert last.status == "interrupted"


async def test_another_process_sees_the_state(ours: BuiltinAgent) -> None:
    env = {"GEMINI_API_KEY": "another-key-for-state"}
    script = [fail(429, "slow down", retry_after=0.3), replace(say("done"), delay=0.1)]
    states: list[tuple[str, bool]] = []
    async with ours.session(script, on_limit="wait", env=env) as session:
        async for event in session.prompt("do it"):
            if isinstance(event, Error):
                await asyncio.sleep(0.05)
                (run,) = [run for run in corral.live.runs() if run.id == session.id]
                states.append((run.state, run.until is not None))
    assert states == [("rate_limited", True)]


@pytest.mark.parametrize(
    "on_limit", ["", "later", "fallback:", "fallback:codex,,corral", "fallback:codex,codex"]
)
async def test_a_wrong_option_is_refused(ours: BuiltinAgent, on_limit: str) -> None:
    with pytest.raises(corral.errors.ConfigError, match="on_limit"):
        await ours.run([say("never")], on_limit=on_limit)
    assert not ours.requests


async def test_a_call_that_the_vendor_refused_counts_once_for_max_calls(ours: BuiltinAgent) -> None:
    """Its repetition is the same call."""
    script = [fail(429, "slow down", retry_after=0.1) for _ in range(2)]
    async with ours.session([*script, say("hello")], retries=1, max_calls=1) as session:
        refused = await session.prompt("hi").collect()
        with pytest.raises(corral.errors.BudgetExceeded, match="1 of max_calls=1 spent"):
            await session.prompt("hi").collect()
    assert refused.error is not None
    assert (refused.error.code, len(ours.requests)) == ("rate_limit", 2)
