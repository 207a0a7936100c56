"""Real agents whose model has a rate limit. A short one, for which the proxy waits, is in
``test_real_metering.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import pytest
from support.real_agents import USAGE, RealAgent, for_agents

from corral import result_from_events
from corral._metering import rate_limits
from corral._sessions import meter as session_meter
from corral._sessions.limit_waits import CONTINUE
from corral.events import Error, Event, ModelCall
from corral.run_kwargs import RunKwargs
from corral.testing import Request, Turn, fail

pytestmark = pytest.mark.timeout(400)

LIMIT = fail(429, "slow down", retry_after=0.5)


class Script:
    """A limit at the first and the third call."""

    def __init__(self, agent: RealAgent) -> None:
        self._agent = agent
        self.calls = 0
        self.prompts: list[str] = []

    def answer(self, request: Request) -> Turn:
        if not request.tools or request.aside:
            return Turn(text="title", usage=USAGE)
        self.calls += 1
        self.prompts.append(str(request.body))
        if self.calls in (1, 3):
            return LIMIT
        if self.calls == 2:
            return Turn(calls=[self._agent.shell("true")], usage=USAGE)
        return Turn(text="the answer", usage=USAGE)


def options_for(agent: RealAgent) -> RunKwargs:
    options: RunKwargs = {"policy": "all", "sandbox": "off", "on_limit": "wait"}
    if agent.record.supports("retries"):
        options["retries"] = 0
    return options


def limits_of(events: list[Event]) -> list[Error]:
    return [each for each in events if isinstance(each, Error) and each.code == "rate_limited"]


@for_agents("gemini-cli", "gemini-acp", "codex-cli")
async def test_a_limit_longer_than_the_agent_waits_ends_it_and_it_is_resumed(
    agent: RealAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_meter, "LONGEST_HOLD", 0.0)
    await _check_resumed(agent, lambda codes: codes.count(429) >= 2)


@for_agents("gemini-cli", "claude-cli", "codex-cli")
@pytest.mark.deep
async def test_an_agent_whose_calls_are_not_counted_is_resumed(
    agent: RealAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "FIRST_DELAY", 0.1)
    await _check_resumed(agent, lambda codes: codes == [], meter=False)


async def _check_resumed(
    agent: RealAgent, expected: Callable[[list[int | None]], bool], **options: Unpack[RunKwargs]
) -> None:
    script = Script(agent)
    given = options_for(agent)
    given.update(options)
    events = await agent.events(script.answer, **given)
    result = result_from_events(events)
    assert result.ok, result.error
    assert result.text.endswith("the answer")
    assert CONTINUE not in script.prompts[1]
    assert CONTINUE in script.prompts[-1]
    assert len(limits_of(events)) == 2
    calls = [each.status for each in events if isinstance(each, ModelCall) and not each.side]
    assert expected(calls)


@for_agents("gemini-cli", "claude-cli", "codex-cli")
async def test_a_failed_run_has_the_time_that_the_vendor_sent(agent: RealAgent) -> None:
    """``test_an_agent_is_not_started_for_a_limit_that_takes_too_long`` has Gemini CLI every day."""
    script = [fail(429, "slow down", retry_after=1234, times="forever")]
    result = await agent.run(script, retries=0)
    assert result.error is not None
    assert result.error.code == "rate_limit"
    assert result.error.facts["retry_after"] == 1234
    assert isinstance(result.error.facts["resets_at"], float)


@pytest.mark.parametrize("meter", [True, False], ids=["metered", "not metered"])
@for_agents("gemini-cli")
async def test_an_agent_is_not_started_for_a_limit_that_takes_too_long(
    agent: RealAgent, tmp_path: Path, *, meter: bool
) -> None:
    starts, program = tmp_path / "starts", tmp_path / "program"
    version = 'if [ "$1" = --version ]; then echo 0.61.0; exit; fi'
    program.write_text(f'#!/bin/sh\n{version}\necho "$@" >> {starts}\nexec {agent.program} "$@"\n')
    program.chmod(0o755)
    options: RunKwargs = {
        "program": str(program),
        "env": {"GEMINI_API_KEY": f"key-of-this-test-only-{meter}"},
        "meter": meter,
        "model": "gemini-2.5-flash",
        "retries": 0,
        "on_limit": "wait",
        "max_wait": 5.0,
    }
    script = [fail(429, "slow down", retry_after=1234, times="forever")]
    first = await agent.run(script, **options)
    started = starts.read_text()
    second = await agent.run(script, **options)
    assert starts.read_text() == started
    for result in (first, second):
        assert result.error is not None
        assert result.error.code == "rate_limit"
        assert isinstance(result.error.facts["resets_at"], float)
    assert first.error is not None
    assert first.error.facts["retry_after"] == 1234
