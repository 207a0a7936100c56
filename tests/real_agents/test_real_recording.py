"""Real agents recorded with a scripted model, and replayed without the program and the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.real_agents import KEY, RealAgent, for_agents
from support.stream_checks import check_stream

import corral
from corral._system.cassette import format
from corral.events import Decision, Done, PermissionRequest
from corral.run_kwargs import RunKwargs
from corral.testing import Turn, say

pytestmark = pytest.mark.timeout(400)
PROMPTS = ("Read @seed.txt and ask", "And again?")


def ask(_: PermissionRequest) -> Decision:
    return "allow_once"


async def talk(agent: str, options: RunKwargs, *prompts: str) -> list[corral.Event]:
    found: list[corral.Event] = []
    # The calls of a metered run are events, which a recording of the agent's output does not have.
    unmetered: RunKwargs = {**options, "meter": False}
    async with corral.session(agent, ask=ask, **unmetered) as session:
        for prompt in prompts:
            found += check_stream([event async for event in session.prompt(prompt)])
    return found


def comparable(stream: list[corral.Event], cwd: Path) -> list[dict[str, Any]]:
    text = msgspec.json.encode(stream).decode().replace(str(cwd), "CWD")
    events: list[dict[str, Any]] = msgspec.json.decode(text)
    for event in events:
        # ``proof`` is about a program; a replay starts none.
        for name in ("ts", "run_id", "duration_ms", "resume_token", "proof"):
            event.pop(name, None)
    return events


@for_agents("gemini-cli", "gemini-acp")
async def test_a_recorded_conversation_is_replayed_without_program_key_and_server(
    agent: RealAgent, seed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = seed.parent
    recording_file = tmp_path / "tape.ndjson"
    script = [
        Turn(thoughts="**Hm**\nlet me see", calls=[agent.read("seed.txt")]),
        Turn(calls=[agent.shell("echo hello")]),
        say(f"It says seed words; and {KEY}."),
        say("Still."),
    ]
    policy = corral.Policy(read="allow", shell="ask" if agent.record.asks else "allow")
    made = agent.options(script, policy=policy, record_to=recording_file)
    recorded = await talk(agent.name, made, *PROMPTS)
    assert isinstance(recorded[-1], Done)
    assert recorded[-1].status == "success", recorded[-1]
    assert KEY.encode() not in recording_file.read_bytes()
    assert format.read(recording_file)[0].head.version

    monkeypatch.setenv("PATH", "/nowhere")
    other = tmp_path / "elsewhere"
    other.mkdir()
    options: RunKwargs = {
        "cwd": other,
        "model": agent.record.probe.model,
        "policy": policy,
        "retries": 0,
        "replay": recording_file,
        "timeout": 60,
    }
    replayed = await talk(agent.name, options, *PROMPTS)
    assert comparable(recorded, workspace) == comparable(replayed, other)
    assert len(agent.requests) == 4

    changed = await talk(agent.name, options, "Read @other.txt and ask")
    assert isinstance(changed[-1], Done)
    assert changed[-1].error
    assert changed[-1].error.code == "replay_mismatch"
    assert "@other.txt" in changed[-1].error.message
