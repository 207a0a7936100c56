"""Model calls of real agents, counted by corral's proxy, which has the key instead of the agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.files import files_containing
from support.process_memory import memory_has
from support.processes import processes_using
from support.real_agents import KEY, USAGE, RealAgent, for_agents

import corral
from corral import result_from_events
from corral._sessions.limit_waits import CONTINUE
from corral.events import Done, Error, Event, Init, ModelCall
from corral.testing import Request, Turn, fail

pytestmark = pytest.mark.timeout(400)

EVERY_DAY = ("gemini-cli", "gemini-acp", "claude-cli", "codex-cli", "opencode-cli")


def holders_of_key(folder: Path, *, memory: bool) -> list[str]:
    """Where the real key is in a process that works in this folder."""
    found: list[str] = []
    for pid, command in processes_using(folder).items():
        names = ["environ", "cmdline"]
        found += [f"{command}: {n}" for n in names if KEY in _read(Path(f"/proc/{pid}/{n}"))]
        if memory and memory_has(pid, KEY.encode()):
            found.append(f"{command}: memory")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("latin-1")
    except OSError:
        return ""


@for_agents()
async def test_every_call_is_counted_limits_are_waited_for_and_the_agent_does_not_have_the_key(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    """The model has a rate limit at the first and the third call, which the agent does not
    notice: the proxy waits."""
    holders: list[str] = []
    prompts: list[str] = []

    def answer(request: Request) -> Turn:
        if not request.tools or request.aside:
            return Turn(text="title", usage=USAGE)
        prompts.append(str(request.body))
        holders.extend(holders_of_key(workspace, memory=len(prompts) == 1))
        if len(prompts) in (1, 3):
            return fail(429, "slow down", retry_after=0.5)
        if len(prompts) == 2:
            return Turn(calls=[agent.shell("true")], usage=USAGE)
        return Turn(text="the answer", usage=USAGE)

    events = await agent.events(answer, policy="all", sandbox="off", on_limit="wait")
    result = result_from_events(events)
    assert result.ok, result.error
    assert result.text.endswith("the answer")
    assert holders == []
    assert files_containing(tmp_path, KEY) == []
    requests = agent.lane.requests
    assert any(KEY in value for value in requests[0].headers.values())
    calls = [event for event in events if isinstance(event, ModelCall)]
    assert len(calls) <= len(requests)
    assert [call.status for call in calls if not call.side] == [429, 200, 429, 200]
    answered = [call for call in calls if call.status == 200]
    assert not any(call.partial for call in answered)
    assert len(prompts) == 4
    assert not any(CONTINUE in prompt for prompt in prompts)
    limits = [each for each in events if isinstance(each, Error) and each.code == "rate_limited"]
    assert len(limits) == 2
    assert result.waited > 0.8
    assert result.usage_source == "metered"
    assert result.usage.input == 120 * len(answered)
    assert result.usage.output == 10 * len(answered)
    assert result.usage.cache_read == 20 * len(answered)
    [init] = [event for event in events if isinstance(event, Init)]
    assert (init.metered, init.meter_reason) == (True, None)


@for_agents("gemini-cli")
async def test_without_the_meter_the_agent_has_the_key_and_reports_its_usage(
    agent: RealAgent, workspace: Path
) -> None:
    holders: list[str] = []

    def answer(request: Request) -> Turn:
        holders.extend(holders_of_key(workspace, memory=True))
        return Turn(text="hi", usage=USAGE)

    result = await agent.run(answer, meter=False)
    places = {each.rpartition(": ")[2] for each in holders}
    assert places == {"environ", "memory"}  # so the search above finds what there is
    assert (result.usage_source, result.meter_reason) == ("reported", "meter is off")
    assert result.usage == agent.record.usage


@for_agents("gemini-cli")
async def test_a_response_with_the_key_is_cut_and_the_run_says_so(agent: RealAgent) -> None:
    script = [Turn(text=("Your key is ", KEY, "."), usage=USAGE), Turn(text="ok", usage=USAGE)]
    events = await agent.events(script, policy="all", sandbox="off")
    warnings = [each for each in events if isinstance(each, Error)]
    assert "key_in_response" in [each.code for each in warnings]
    first = next(each for each in events if isinstance(each, ModelCall))
    assert (first.partial, first.status) == (True, 200)
    assert "contains the key" in (first.error or "")
    assert KEY not in repr(events)


@for_agents()
async def test_a_run_ends_before_the_call_that_would_exceed_its_budget(agent: RealAgent) -> None:
    endless = [
        Turn(text="title", match="dominant language", repeat="forever"),
        Turn(calls=[agent.shell("true")], usage=USAGE, repeat="forever"),
    ]
    result = await agent.run(endless, policy="all", sandbox="off", max_calls=2)
    assert result.status == "max_budget", result
    assert result.error is not None
    assert result.error.code == "budget_exceeded"
    assert "2 of max_calls=2 spent" in result.error.message
    assert len(agent.lane.requests) == 2
    assert result.usage_source == "metered"


@for_agents("gemini-cli", "gemini-acp", "claude-cli")
async def test_a_paused_run_continues_when_its_budget_is_raised(agent: RealAgent) -> None:
    script = [Turn(calls=[agent.shell("true")], usage=USAGE), Turn(text="done", usage=USAGE)]
    codes: list[str] = []
    last: Event | None = None
    options = agent.options(
        script, policy="all", sandbox="off", max_calls=1, on_budget="pause", idle_timeout=10
    )
    async with corral.session(agent.name, **options) as session:
        async for event in session.prompt("do it"):
            last = event
            if isinstance(event, Error):
                codes.append(event.code)
            if isinstance(event, Error) and event.code == "budget_paused":
                assert session.budget is not None
                session.budget.add(calls=5)
    assert codes == ["budget_paused"]
    assert isinstance(last, Done)
    assert (last.status, last.text) == ("success", "done")


@for_agents("gemini-cli")
async def test_an_unknown_price_is_an_error_only_with_a_limit_on_the_cost(agent: RealAgent) -> None:
    model = "gemini-9-unheard-of"
    script = [Turn(text="hi", usage=USAGE, repeat="forever")]
    refused = await agent.run(script, model=model, max_cost=1.0)
    assert refused.error is not None
    assert (refused.error.code, len(agent.lane.requests)) == ("price_unknown", 0)
    assert (await agent.run(script, model=model, max_total_tokens=200_000)).ok


@for_agents("gemini-cli")
async def test_a_limit_on_the_cost_holds_where_cached_tokens_have_no_price(
    agent: RealAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "models.toml"
    own.write_text(
        f'[models."gemini:{agent.record.probe.model}"]\nprices = {{ input = 1.0, output = 1.0 }}\n'
    )
    monkeypatch.setenv("CORRAL_MODELS", str(own))
    call = agent.calls("read", path="x.txt")[0]
    usage = {"input": 100_000, "output": 10, "cached": 90_000}
    script = [Turn(calls=[call], usage=usage, repeat="forever")]
    result = await agent.run(script, max_cost=0.25)
    assert result.status == "max_budget"
    assert 0.1 <= (result.cost.usd or 0) <= 0.35
    assert result.cost.source == "estimated"
    assert len(agent.turns) <= 3


@for_agents(lambda record: record.persistent)
async def test_each_prompt_of_a_pool_gets_its_own_calls(agent: RealAgent) -> None:
    numbers = {f"Tell me the result of task number {n}, please.": 100 * n for n in (1, 2, 3)}

    def answer(request: Request) -> Turn:
        used = [count for text, count in numbers.items() if text in "\n".join(request.texts)]
        return Turn(text="done", usage={"input": used[0] if used else 7, "output": 1}, delay=0.5)

    options = agent.options(answer, sandbox="off", meter=True)
    async with corral.pool(agent.name, size=1, prompts_at_once=3, **options) as pool:
        results = await asyncio.gather(*(pool.run(prompt) for prompt in numbers))
        assert pool.started == 1
        # A title has no text that is assigned to a prompt for certain.
        for result, count in zip(results, numbers.values(), strict=True):
            if result.usage_source == "metered":
                assert (result.usage.input, result.meter_reason) == (count, None)
            else:
                assert "it is not certain" in (result.meter_reason or "")
        if agent.name in ("gemini-acp", "codex-acp"):
            assert [result.usage_source for result in results] == ["metered"] * 3
    assert all(result.ok for result in results)
