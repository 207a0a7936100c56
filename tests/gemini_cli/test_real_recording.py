"""The real Gemini CLI, recorded with a scripted model; then played without it, or Node, or any
server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from support.gemini_tools import read, shell
from support.real_gemini import KEY
from support.stream_checks import check_stream

import corral
from corral.events import Decision, Done, PermissionRequest
from corral.options import RunKwargs
from corral.system.cassette import format
from corral.testing import Turn, say

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli
PROMPTS = ("Read @seed.txt and ask", "And again?")


def ask(_: PermissionRequest) -> Decision:
    return "allow_once"


async def talk(agent: str, options: RunKwargs, *prompts: str) -> list[corral.Event]:
    found: list[corral.Event] = []
    async with corral.session(agent, ask=ask, **options) as session:
        for prompt in prompts:
            found += check_stream([event async for event in session.prompt(prompt)])
    return found


def essence(stream: list[corral.Event], cwd: Path) -> list[dict[str, Any]]:
    text = msgspec.json.encode(stream).decode().replace(str(cwd), "CWD")
    events: list[dict[str, Any]] = msgspec.json.decode(text)
    for event in events:
        for name in ("ts", "run_id", "duration_ms", "resume_token"):
            event.pop(name, None)
    return events


@pytest.mark.parametrize("agent", ["gemini-cli", "gemini-acp"])
@pytest.mark.timeout(240)
async def test_a_conversation_is_played_without_node_key_and_server(
    agent: str, gemini: Gemini, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "seed.txt").write_text("seed words\n")
    tape = tmp_path / "tape.ndjson"
    script = [
        Turn(thoughts="**Hm**\nlet me see", calls=[read("seed.txt")]),
        Turn(calls=[shell("echo hello")]),
        say(f"It says seed words; and {KEY}."),
        say("Still."),
    ]
    policy = corral.Policy(read="allow", shell="ask" if agent == "gemini-acp" else "allow")
    made = gemini.options(script, policy=policy, record_to=tape)
    then = await talk(agent, made, *PROMPTS)
    assert isinstance(then[-1], Done)
    assert then[-1].status == "success", then[-1]
    assert KEY.encode() not in tape.read_bytes()
    assert format.read(tape)[0].head.version

    monkeypatch.setenv("PATH", "/nowhere")
    other = tmp_path / "elsewhere"
    other.mkdir()
    played: RunKwargs = {
        "cwd": other,
        "model": "gemini-2.5-flash",
        "policy": policy,
        "retries": 1,
        "replay": tape,
        "timeout": 60,
    }
    now = await talk(agent, played, *PROMPTS)
    assert essence(then, workspace) == essence(now, other)
    assert len(gemini.requests) == 4

    changed = await talk(agent, played, "Read @other.txt and ask")
    assert isinstance(changed[-1], Done)
    assert changed[-1].error
    assert changed[-1].error.code == "replay_mismatch"
    assert "@other.txt" in changed[-1].error.message
