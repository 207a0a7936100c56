"""Pools of persistent agents, with a scripted program that speaks the protocol."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import msgspec
import pytest
from support.sandbox import needs_sandbox
from support.scripted_acp import agent
from support.scripted_agent import PROGRAM as STREAM_PROGRAM
from support.scripted_agent import child_pids, open_descriptors
from support.stream_checks import check_stream

import corral
from corral import errors
from corral._agents import acp_command, registry
from corral._agents.spec import AcpTransport, AgentSpec
from corral._runs import transcript
from corral._sessions import store
from corral._sessions.acp.connection import AcpSession
from corral._sessions.pool import Pool
from corral._system import paths
from corral.events import Decision, Event, PermissionRequest, Text
from corral.policy import Policy
from corral.run_kwargs import RunKwargs


def scripted(workspace: Path, **options: Unpack[RunKwargs]) -> RunKwargs:
    merged: RunKwargs = {"cwd": workspace, "timeout": 30, "grace": 1, **options}
    return merged


async def until_no_children(seconds: float = 60.0) -> None:
    """Until this process has no children."""
    async with asyncio.timeout(seconds):
        while child_pids():
            await asyncio.sleep(0.01)


async def until_exists(path: Path) -> None:
    async with asyncio.timeout(60):
        while not path.exists():
            await asyncio.sleep(0.01)


async def test_many_prompts_share_two_processes_and_no_history(workspace: Path) -> None:
    before = open_descriptors()
    async with corral.pool(agent(), size=2, prompts_at_once=4, **scripted(workspace)) as pool:
        prompts = (pool.run(f"pid\nhistory\ntext {n}", track_files=False) for n in range(40))
        results = await asyncio.gather(*prompts)
        assert pool.started == 2
        assert len(child_pids()) == 2
    assert all(result.ok for result in results)
    assert [r.text.rpartition("[]")[2] for r in results] == [str(n) for n in range(40)]
    assert len({r.text.partition("[]")[0] for r in results}) == 2
    assert len({r.session_id for r in results}) == 40
    assert child_pids() == []
    assert open_descriptors() - before == set()
    assert list(paths.process_registry().iterdir()) == []


async def test_no_more_prompts_run_at_once_than_there_are_places(workspace: Path) -> None:
    release = workspace / "release"
    async with corral.pool(agent(), size=1, prompts_at_once=2, **scripted(workspace)) as pool:
        orders = [f"touch began-{n}\nuntil {release}\ntext {n}" for n in range(4)]
        running = [asyncio.create_task(pool.run(each, track_files=False)) for each in orders]
        await until_exists(workspace / "began-0")
        await until_exists(workspace / "began-1")
        assert sorted(os.listdir(workspace)) == ["began-0", "began-1"]
        release.touch()
        results = await asyncio.gather(*running)
    assert [result.text for result in results] == ["0", "1", "2", "3"]


async def test_a_running_process_is_used_before_another_is_started(workspace: Path) -> None:
    async with corral.pool(agent(), size=3, **scripted(workspace)) as pool:
        pids = {(await pool.run("pid")).text for _ in range(5)}
        assert pool.started == 1
    assert len(pids) == 1


async def test_the_prompts_of_a_pool_are_recorded_and_cannot_be_resumed(workspace: Path) -> None:
    async with corral.pool(agent(), **scripted(workspace)) as pool:
        results = [await pool.run(f"text answer {n}") for n in range(2)]
        await pool.run("text nothing", track_files=False)
    assert [each.resume_token for each in results] == [None, None]
    found = sorted(store.all_sessions(), key=lambda each: each.meta.created)
    texts = [turn.text for each in found for turn in transcript.turns(each.events())]
    assert texts == ["answer 0", "answer 1", "nothing"]
    assert {path.name for path in found[0].folder.iterdir()} == {store.META, store.EVENTS}
    with pytest.raises(errors.ResumeLost, match="it was a prompt of a pool"):
        await corral.run(agent(), "go", **scripted(workspace, resume=found[0].meta.id))


async def test_a_prompt_of_a_pool_is_verified(workspace: Path) -> None:
    async with corral.pool(agent(), **scripted(workspace, verify="test -f made")) as pool:
        result = await pool.run("text hi")
    assert result.verdict == "gaps"
    assert result.gaps == ("test -f made: the check did not pass: exited with 1",)


async def test_a_pool_that_declines_the_record_stores_nothing(workspace: Path) -> None:
    async with corral.pool(agent(), **scripted(workspace, record=False)) as pool:
        assert (await pool.run("text hi")).ok
    assert list(paths.sessions().iterdir()) == []


@pytest.mark.deep
async def test_a_process_keeps_nothing_of_the_prompts_it_has_served(workspace: Path) -> None:
    async with corral.pool(agent(), **scripted(workspace)) as pool:
        for _ in range(5):
            assert (await pool.run("raw a banner\ntext x")).ok
        gc.collect()
        assert [o for o in gc.get_objects() if isinstance(o, AcpSession)] == []


async def test_each_prompt_has_its_own_folder(workspace: Path) -> None:
    places = [workspace / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
    async with corral.pool(agent(), **scripted(workspace)) as pool:
        prompts = (pool.run("cwd\ntouch mine.txt", cwd=place) for place in places)
        results = await asyncio.gather(*prompts)
        assert pool.started == 1
    assert [result.text for result in results] == [str(place) for place in places]
    for result, place in zip(results, places, strict=True):
        assert [file.path for file in result.files] == [str(place / "mine.txt")]
        assert result.files_complete


@needs_sandbox
async def test_the_prompts_of_a_pool_share_the_sandbox_of_its_folder(
    workspace: Path, tmp_path: Path
) -> None:
    (workspace / "one").mkdir()
    other = tmp_path / "other"
    other.mkdir()
    options = scripted(workspace, sandbox="require", policy="all")
    async with corral.pool(agent(), **options) as pool:
        result = await pool.run("cwd\ntouch mine.txt", cwd=workspace / "one")
        with pytest.raises(errors.ConfigError, match="the sandbox of this pool shows"):
            await pool.run("cwd", cwd=other)
    assert result.ok
    assert (workspace / "one" / "mine.txt").exists()


async def test_relative_folders_belong_to_one_working_directory(workspace: Path) -> None:
    """The process has resolved them in its first one."""
    for name in ("one", "two", "docs"):
        (workspace / name).mkdir()
    options = scripted(workspace / "one", policy=Policy(writable=("../docs",)))
    async with corral.pool(agent(), **options) as pool:
        assert (await pool.run("text x")).ok
        with pytest.raises(errors.ConfigError, match=r"absolute folders: \.\./docs"):
            await pool.run("text x", cwd=workspace / "two")
        assert (await pool.run("text x")).ok
        assert pool.started == 1


async def test_files_are_served_only_in_the_folder_of_the_prompt(workspace: Path) -> None:
    for name in ("one", "two"):
        (workspace / name).mkdir()
        (workspace / name / "words").write_text(name)
    options = scripted(workspace / "one", allow_file_reads=True)
    async with corral.pool(agent(), **options) as pool:
        orders = f"read {workspace}/one/words\nread {workspace}/two/words"
        one = await pool.run(orders)
        two = await pool.run(orders, cwd=workspace / "two")
    assert one.text.startswith("[one][outside")
    assert two.text.startswith("[outside")
    assert two.text.endswith("[two]")


@pytest.mark.parametrize("options", [{"env": {"A": "b"}}, {"resume": "last"}])
async def test_options_of_the_process_belong_to_the_pool_and_not_to_a_prompt(
    workspace: Path, options: dict[str, Any]
) -> None:
    async with corral.pool(agent(), **scripted(workspace)) as pool:
        with pytest.raises(errors.ConfigError, match="fixed for the whole pool"):
            await pool.run("text x", **options)
        assert pool.started == 0


async def test_a_crash_fails_only_its_own_prompts_and_the_next_starts_a_new_process(
    workspace: Path,
) -> None:
    options = scripted(workspace, track_files=False)
    async with corral.pool(agent(), size=2, prompts_at_once=1, **options) as pool:
        orders = f"touch began\nuntil {workspace}/release\ntext fine"
        other = asyncio.create_task(pool.run(orders))
        await until_exists(workspace / "began")
        crashed = await pool.run("text half\nexit 3")
        (workspace / "release").touch()
        assert (await other).text == "fine"
        after = await asyncio.gather(*(pool.run("text back") for _ in range(2)))
        assert pool.started == 3
    assert crashed.status == "incomplete"
    assert crashed.text == "half"
    assert [result.text for result in after] == ["back", "back"]
    assert child_pids() == []


async def test_prompts_of_one_crashed_process_all_fail_and_none_hangs(workspace: Path) -> None:
    async with corral.pool(agent(), prompts_at_once=3, **scripted(workspace)) as pool:
        waiting = [
            asyncio.create_task(pool.run(f"touch began-{n}\nhang", track_files=False))
            for n in range(2)
        ]
        for number in range(2):
            await until_exists(workspace / f"began-{number}")
        await pool.run("die 9", track_files=False)
        async with asyncio.timeout(60):
            results = await asyncio.gather(*waiting)
        assert (await pool.run("text back")).text == "back"
        assert pool.started == 2
    assert {r.error.code for r in results if r.error} == {"killed_by_signal"}


async def test_a_failed_handshake_fails_its_prompt_and_leaves_no_process(
    workspace: Path,
) -> None:
    command_line = agent("--fails", "initialize", "exit")
    async with corral.pool(command_line, **scripted(workspace)) as pool:
        for _ in range(2):
            result = await pool.run("text x")
            assert result.error is not None
            assert result.error.code == "stream_broken"
            assert child_pids() == []
        assert pool.started == 2


@pytest.mark.deep
async def test_a_process_is_replaced_after_its_maximum_of_sessions(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = acp_command.agent_for

    def tiring(name: str) -> AgentSpec:
        return msgspec.structs.replace(
            make(name), transport=AcpTransport(quirks=acp_command.QUIRKS, sessions_per_process=3)
        )

    monkeypatch.setattr(acp_command, "agent_for", tiring)
    transport = registry.find(agent()).transport
    assert isinstance(transport, AcpTransport)
    assert transport.sessions_per_process == 3
    async with corral.pool(agent(), **scripted(workspace)) as pool:
        pids = [(await pool.run("pid")).text for _ in range(7)]
        assert pool.started == 3
        assert len(child_pids()) == 1
        more = await asyncio.gather(*(pool.run("pid", track_files=False) for _ in range(9)))
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]
    assert all(result.ok for result in more)
    assert child_pids() == []


async def test_an_idle_process_ends_and_the_next_prompt_starts_another(workspace: Path) -> None:
    options = dict(scripted(workspace))
    async with Pool(agent(), options, size=1, prompts_at_once=1, idle=0.05) as pool:
        assert (await pool.run("text one")).ok
        await until_no_children()
        assert (await pool.run("text two")).text == "two"
        assert pool.started == 2


async def test_leaving_while_an_idle_process_ends_waits_for_it(workspace: Path) -> None:
    options = dict(scripted(workspace))
    command_line = agent("--ignore-term")
    async with Pool(command_line, options, size=1, prompts_at_once=1, idle=0.0) as pool:
        assert (await pool.run("text one")).ok
        for _ in range(5):
            await asyncio.to_thread(str)
    assert child_pids() == []


async def test_cancelling_one_prompt_does_not_affect_the_others(workspace: Path) -> None:
    async with corral.pool(agent(), prompts_at_once=2, **scripted(workspace)) as pool:
        doomed = asyncio.create_task(pool.run("touch began\nhang", track_files=False))
        await until_exists(workspace / "began")
        orders = f"touch too\nuntil {workspace}/release\ntext fine"
        other = asyncio.create_task(pool.run(orders, track_files=False))
        await until_exists(workspace / "too")
        doomed.cancel()
        await asyncio.wait([doomed])
        assert doomed.cancelled()
        (workspace / "release").touch()
        assert (await other).text == "fine"
        assert (await pool.run("text more")).text == "more"
        assert pool.started == 1


async def test_a_prompt_that_ignores_its_deadline_ends_while_others_continue(
    workspace: Path,
) -> None:
    options = scripted(workspace, grace=0.2, track_files=False)
    async with corral.pool(agent(), prompts_at_once=2, **options) as pool:
        orders = f"touch began\nuntil {workspace}/release\ntext fine"
        other = asyncio.create_task(pool.run(orders))
        await until_exists(workspace / "began")
        async with asyncio.timeout(60):
            deaf = await pool.run("ignore-cancel\ntext x\nhang", timeout=3)
        assert deaf.status == "timeout"
        assert deaf.text == "x"
        (workspace / "release").touch()
        assert (await other).text == "fine"
        await until_no_children()
        assert (await pool.run("text fresh")).text == "fresh"
        assert pool.started == 2
    assert child_pids() == []


async def test_leaving_by_an_exception_ends_every_process(workspace: Path) -> None:
    before = open_descriptors()
    with pytest.raises(ZeroDivisionError):
        async with corral.pool(agent(), size=2, **scripted(workspace)) as pool:
            prompts = (pool.run("child\ndaemon\ntext x", track_files=False) for _ in range(2))
            await asyncio.gather(*prompts)
            assert len(child_pids()) >= 2
            _ = 1 / 0
    assert child_pids() == []
    assert open_descriptors() - before == set()


async def test_a_pool_cancelled_with_all_its_prompts_leaves_nothing(workspace: Path) -> None:
    # With a record, a prompt that worked for some time stays as an interrupted session.
    async def merged() -> None:
        pool = corral.pool(agent(), size=2, **scripted(workspace, record=False))
        async with pool, asyncio.TaskGroup() as group:
            for number in range(6):
                orders = f"touch began-{number}\ndaemon\nhang"
                group.create_task(pool.run(orders, track_files=False))

    task = asyncio.create_task(merged())
    for number in range(6):
        await until_exists(workspace / f"began-{number}")
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert child_pids() == []
    assert list(paths.sessions().iterdir()) == []


async def test_a_pool_asks_its_asker(workspace: Path) -> None:
    def ask(request: PermissionRequest) -> Decision:
        return "allow_once" if request.title == "make" else "deny"

    async with corral.pool(agent(), ask=ask, **scripted(workspace)) as pool:
        yes, no = await asyncio.gather(
            pool.run("ask execute make", track_files=False),
            pool.run("ask execute rm", track_files=False),
        )
    assert yes.text == "[b-once]"
    assert no.text == "[c-no]"
    assert len(no.denied) == 1


async def test_a_prompt_may_choose_its_images_and_its_system_prompt(workspace: Path) -> None:
    (workspace / "dot.png").write_bytes(b"dot")
    async with corral.pool(agent("--images"), **scripted(workspace)) as pool:
        result = await pool.run(
            "told session/prompt", images=["dot.png"], system_prompt="be brief", thinking=False
        )
    blocks = json.loads(result.text)["prompt"]
    assert blocks[0]["text"].startswith("be brief\n\n")
    assert blocks[1]["type"] == "image"


async def test_each_listener_gets_the_events_of_its_own_prompt_as_they_come(
    workspace: Path,
) -> None:
    release = workspace / "release"
    received: dict[str, list[Event]] = {"one": [], "two": []}

    def listen(event: Event, name: str) -> None:
        received[name].append(event)
        if isinstance(event, Text) and event.delta == "open":
            release.touch()  # the prompt would never end if its events came all at once

    async with corral.pool(agent(), **scripted(workspace, track_files=False)) as pool:
        results = await asyncio.gather(
            pool.run(f"text open\nuntil {release}\ntext one", on_event=partial(listen, name="one")),
            pool.run("text two", on_event=partial(listen, name="two")),
        )
    assert tuple(
        corral.result_from_events(check_stream(events)) for events in received.values()
    ) == tuple(results)


async def test_a_listener_that_raises_ends_only_its_own_prompt(workspace: Path) -> None:
    def refuse(event: Event) -> None:
        if isinstance(event, Text):
            raise ZeroDivisionError

    async with corral.pool(agent(), **scripted(workspace, track_files=False)) as pool:
        with pytest.raises(ZeroDivisionError):
            await pool.run("text x\nhang", on_event=refuse)
        assert (await pool.run("text fine")).text == "fine"
        assert pool.started == 1


async def test_check_raises_the_error_and_the_pool_continues(workspace: Path) -> None:
    async with corral.pool(agent(), **scripted(workspace)) as pool:
        with pytest.raises(errors.ContentRefused):
            await pool.run("text x\nstop refusal", check=True)
        assert (await pool.run("text fine", check=True)).text == "fine"


async def test_an_agent_with_one_process_per_prompt_is_refused_with_a_hint(workspace: Path) -> None:
    pool = corral.pool(
        "gemini-cli", cwd=workspace, env={"GEMINI_API_KEY": "k"}, program=STREAM_PROGRAM
    )
    with pytest.raises(errors.ConfigError, match="no pool can use it") as caught:
        async with pool:
            pass
    assert caught.value.hint is not None
    assert "gemini-acp" in caught.value.hint


async def test_a_pool_that_is_not_open_takes_no_prompt(workspace: Path) -> None:
    pool = corral.pool(agent(), **scripted(workspace))
    with pytest.raises(RuntimeError, match="open the pool first"):
        await pool.run("text x")


@pytest.mark.parametrize(("size", "at_once"), [(0, 1), (1, 0)])
def test_a_pool_of_size_zero_is_refused(size: int, at_once: int) -> None:
    with pytest.raises(errors.ConfigError, match="at least 1"):
        corral.pool(agent(), size=size, prompts_at_once=at_once)


async def test_a_pool_has_no_fallback(workspace: Path) -> None:
    options = scripted(workspace, on_limit="fallback:corral")
    with pytest.raises(errors.ConfigError, match="on_limit"):
        async with corral.pool(agent(), **options):
            pass


async def test_the_built_in_agent_needs_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")
    with pytest.raises(errors.ConfigError, match="corral works in this process") as caught:
        async with corral.pool("gemini:gemini-2.5-flash"):
            pass
    assert "Call corral.run for each prompt" in (caught.value.hint or "")
