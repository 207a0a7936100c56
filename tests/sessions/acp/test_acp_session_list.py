"""The list of sessions that an agent itself has stored."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import pytest
from support import scripted_acp
from support.scripted_agent import PROGRAM as STREAM_PROGRAM
from support.scripted_agent import child_pids

import corral
from corral import AgentSession, errors
from corral._sessions.backends import acp
from corral.run_kwargs import RunKwargs


def session(workspace: Path, *arguments: str, **options: Unpack[RunKwargs]) -> corral.Session:
    command = scripted_acp.agent(*arguments)
    merged: RunKwargs = {"cwd": workspace, "timeout": 30, "grace": 1, **options}
    return corral.session(command, **merged)


async def test_every_page_of_the_agents_own_sessions_is_listed(workspace: Path) -> None:
    async with session(workspace, "--lists", "5") as opened:
        before = await opened.list_sessions()
        result = await opened.run("text hello")
        after = await opened.list_sessions()
        assert len(child_pids()) == 1
    assert [each.id for each in before] == [f"old-{number}" for number in range(5)]
    own = AgentSession(
        result.session_id or "", str(workspace), "text hello", "2026-01-02T03:04:05Z"
    )
    assert after == [*before, own]
    assert child_pids() == []


async def test_the_sessions_of_one_folder_are_listed_alone(workspace: Path) -> None:
    async with session(workspace, "--lists", "3") as opened:
        result = await opened.run("text hello")
        listed = await opened.list_sessions(workspace)
    assert [each.id for each in listed] == [result.session_id]


async def test_sessions_are_listed_while_a_prompt_is_under_way_and_no_event_is_lost(
    workspace: Path,
) -> None:
    release = workspace / "release"
    texts: list[str] = []
    async with session(workspace, "--lists", "3", track_files=False) as opened:
        async for event in opened.prompt(f"text one\nuntil {release}\ntext two"):
            if isinstance(event, corral.events.Text):
                texts.append(event.delta)
                assert len(await opened.list_sessions()) == 4
                release.touch()
    assert "".join(texts) == "onetwo"


async def test_a_list_without_an_end_is_read_only_so_far(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp, "PAGES", 7)
    async with session(workspace, "--lists", "3", "--endless") as opened:
        assert len(await opened.list_sessions()) == 3


async def test_after_a_crash_the_list_comes_from_a_new_process(workspace: Path) -> None:
    async with session(workspace, "--lists", "2") as opened:
        assert not (await opened.run("die 9")).ok
        assert len(await opened.list_sessions()) == 2


async def test_listing_is_an_error_if_the_agent_cannot_list_and_prompts_still_work(
    workspace: Path,
) -> None:
    async with session(workspace) as opened:
        with pytest.raises(errors.ConfigError, match="does not list its sessions"):
            await opened.list_sessions()
        assert (await opened.run("text fine")).text == "fine"


async def test_listing_is_an_error_for_an_agent_with_one_process_per_prompt(
    workspace: Path,
) -> None:
    options: RunKwargs = {
        "cwd": workspace,
        "program": STREAM_PROGRAM,
        "env": {"GEMINI_API_KEY": "k"},
    }
    async with corral.session("gemini-cli", **options) as opened:
        with pytest.raises(errors.ConfigError, match="does not list its sessions"):
            await opened.list_sessions()
        assert child_pids() == []


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("error", errors.RemoteError),
        ("nonsense", errors.StreamBroken),
        ("exit", errors.CorralError),
    ],
)
async def test_a_list_that_fails_is_an_error_and_the_next_prompt_works(
    how: str, kind: type[errors.CorralError], workspace: Path
) -> None:
    async with session(workspace, "--lists", "2", "--fails", "session/list", how) as opened:
        with pytest.raises(kind):
            await opened.list_sessions()
        assert (await opened.run("text fine")).text == "fine"
