"""Model calls of real agents, counted by corral's proxy, which has the key instead of the agent."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.files import files_containing
from support.processes import processes_using
from support.real_agents import KEY, USAGE, RealAgent, for_agents

from corral import result_from_events
from corral.events import Init, ModelCall
from corral.testing import Request, Turn

pytestmark = pytest.mark.timeout(400)

EVERY_DAY = ("gemini-cli", "gemini-acp", "claude-cli", "codex-cli", "opencode-cli")


def holders_of_key(folder: Path, *, memory: bool) -> list[str]:
    """Where the real key is in a process that works in this folder."""
    found: list[str] = []
    for pid, command in processes_using(folder).items():
        names = ["environ", "cmdline"]
        found += [f"{command}: {n}" for n in names if KEY in _read(Path(f"/proc/{pid}/{n}"))]
        if memory and _memory_has(pid, KEY.encode()):
            found.append(f"{command}: memory")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("latin-1")
    except OSError:
        return ""


def _memory_has(pid: int, needle: bytes) -> bool:
    try:
        regions = Path(f"/proc/{pid}/maps").read_text().splitlines()
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            return any(_region_has(memory.fileno(), region, needle) for region in regions)
    except OSError:
        return False


def _region_has(memory: int, region: str, needle: bytes) -> bool:
    found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", region)
    if found is None:
        return False
    start, end = int(found[1], 16), int(found[2], 16)
    try:
        while start < end:
            data = os.pread(memory, min(end - start, 1 << 24), start)
            if not data or needle in data:
                return bool(data)
            start += len(data)
    except OSError:
        pass
    return False


@for_agents(every_day=EVERY_DAY)
async def test_every_model_call_is_counted_and_the_agent_does_not_have_the_key(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    holders: list[str] = []
    seen = 0

    def answer(request: Request) -> Turn:
        nonlocal seen
        if not request.tools or request.aside:
            return Turn(text="title", usage=USAGE)
        seen += 1
        memory = agent.name in ("gemini-cli", "gemini-acp") and seen == 1
        holders.extend(holders_of_key(workspace, memory=memory))
        if seen == 1:
            return Turn(calls=[agent.shell("true")], usage=USAGE)
        return Turn(text="the answer", usage=USAGE)

    events = await agent.events(answer, policy="all", sandbox="off")
    result = result_from_events(events)
    assert result.ok, result.error
    assert holders == []
    assert files_containing(tmp_path / "corral-home", KEY) == []
    requests = agent.lane.requests
    assert any(KEY in value for value in requests[0].headers.values())
    calls = [event for event in events if isinstance(event, ModelCall)]
    billed = [request for request in requests if request.tools or not request.aside]
    assert len(calls) >= 2
    assert len(calls) <= len(requests)
    assert [call.status for call in calls] == [200] * len(calls)
    assert not any(call.partial for call in calls)
    assert sum(not call.side for call in calls) == seen, (calls, billed)
    assert result.usage_source == "metered"
    assert result.usage.input == 120 * len(calls)
    assert result.usage.output == 10 * len(calls)
    assert result.usage.cache_read == 20 * len(calls)
    [init] = [event for event in events if isinstance(event, Init)]
    assert (init.metered, init.meter_reason) == (True, None)


@for_agents("gemini-cli")
async def test_without_the_meter_the_agent_reports_its_usage(agent: RealAgent) -> None:
    result = await agent.run([Turn(text="hi", usage=USAGE)], meter=False)
    assert (result.usage_source, result.meter_reason) == ("reported", "meter is off")
    assert result.usage == agent.record.usage
