"""Sessions through the public functions, with a scripted program as the agent."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Unpack

import pytest
from support.scripted_agent import GOOD, PROGRAM, child_pids, open_descriptors, scripted_options
from support.stream_checks import check_stream

import corral
from corral import errors
from corral._sessions import store
from corral.events import Done, Error, Init, Log, Text, ToolResult, Unknown, Vendor
from corral.run_kwargs import RunKwargs
from corral.values import as_object, as_objects


async def events_of(
    workspace: Path, orders: str, **options: Unpack[RunKwargs]
) -> list[corral.Event]:
    async with corral.session("gemini-cli", **scripted_options(workspace, **options)) as session:
        events = [event async for event in session.prompt(orders)]
    check_stream(events)
    return events


async def result_of(workspace: Path, orders: str, **options: Unpack[RunKwargs]) -> corral.Result:
    return corral.result_from_events(await events_of(workspace, orders, **options))


@pytest.mark.deep
@pytest.mark.both_loops
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <coroutine object test_a_loop")
def test_a_loop_that_is_closed_in_the_middle_of_a_run_leaves_no_process(
    workspace: Path, tmp_path: Path
) -> None:
    started = asyncio.Event()

    async def run() -> None:
        async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
            async for event in session.prompt("init\ntext hello\nhang"):
                if event.type == "text":
                    started.set()

    loop = asyncio.new_event_loop()
    task = loop.create_task(run())
    loop.run_until_complete(started.wait())
    assert child_pids()
    loop.close()
    del task, loop
    gc.collect()
    assert child_pids() == []
    [transcript] = (tmp_path / "corral-home" / "sessions").glob("*/events.ndjson")
    assert "hello" in transcript.read_text()
    assert asyncio.run(result_of(workspace, GOOD)).ok


async def test_a_prompt_becomes_events_and_a_result(workspace: Path) -> None:
    events = await events_of(workspace, "init\necho the prompt\ntext Hel\ntext lo.\nresult")
    assert [type(event) for event in events] == [Init, Text, Text, Done]
    result = corral.result_from_events(events)
    assert result.ok
    assert result.text == "Hello."
    assert result.session_id == "vendor-session"
    assert result.model == "gemini-2.5-flash"
    assert result.agent_version == "0.61.0"
    assert result.usage == corral.Usage(
        input=20, output=10, reasoning=2, cache_read=5, coverage="complete"
    )


async def test_a_version_that_was_never_tested_is_a_warning_once_per_session(
    workspace: Path, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "package.json").write_text('{"name": "@google/gemini-cli", "version": "9.9.9"}')
    program = package / "gemini"
    program.write_text(f'#!/bin/sh\nexec "{PROGRAM}" "$@"\n')
    program.chmod(0o755)
    options = scripted_options(workspace, program=program)
    async with corral.session("gemini-cli", **options) as session:
        first = [event async for event in session.prompt(GOOD)]
        second = [event async for event in session.prompt(GOOD)]
    [found] = [event for event in first if event.type == "error"]
    assert (found.code, found.level, found.phase) == ("untested_version", "warning", "handshake")
    assert "Gemini CLI 9.9.9 was never tested with corral" in found.message
    assert corral.result_from_events(first).ok
    assert not [event for event in second if event.type == "error"]


async def test_run_returns_the_result_and_calls_on_event_for_each_event(workspace: Path) -> None:
    seen: list[corral.Event] = []
    result = await corral.run(
        "gemini-cli", GOOD, on_event=seen.append, **scripted_options(workspace)
    )
    assert result.text == "hello"
    assert corral.result_from_events(seen) == result


def test_run_sync_works_without_a_loop(workspace: Path) -> None:
    assert corral.run_sync("gemini-cli", GOOD, **scripted_options(workspace)).text == "hello"


async def test_run_sync_works_inside_a_running_loop_and_names_the_alternative(
    workspace: Path,
) -> None:
    with pytest.warns(RuntimeWarning, match="run_sync stops the running event loop") as warned:
        found = corral.run_sync("gemini-cli", GOOD, **scripted_options(workspace))
    assert found.text == "hello"
    assert [each.filename for each in warned] == [__file__]


async def test_check_raises_the_error_of_the_result(workspace: Path) -> None:
    with pytest.raises(errors.StreamBroken) as caught:
        await corral.run("gemini-cli", "init\ntext half", check=True, **scripted_options(workspace))
    assert caught.value.result.text == "half"
    assert caught.value.exit_code == 0
    assert caught.value.agent_version == "0.61.0"
    assert str(PROGRAM) in " ".join(caught.value.argv)


async def test_a_clean_exit_without_a_result_is_incomplete(workspace: Path) -> None:
    result = await result_of(workspace, "init\ntext half an ans")
    assert result.status == "incomplete"
    assert result.text == "half an ans"


async def test_success_needs_a_clean_exit_too(workspace: Path) -> None:
    result = await result_of(workspace, "init\ntext x\nresult\nexit 3")
    assert result.status == "error"
    assert result.error is not None
    assert result.error.facts["exit_code"] == 3


async def test_death_by_a_signal_has_its_own_error(workspace: Path) -> None:
    result = await result_of(workspace, "init\ndie 9")
    assert result.error is not None
    assert result.error.code == "killed_by_signal"
    assert result.error.facts["signal"] == 9


async def test_a_stream_without_init_gets_one(workspace: Path) -> None:
    events = await events_of(workspace, "raw some banner\ntext hello\nresult")
    assert [type(event) for event in events] == [Init, Log, Text, Done]


async def test_invalid_lines_are_passed_on_and_the_stream_continues(workspace: Path) -> None:
    orders = 'init\nraw {"type":"message","role"\nraw {"type":"newer"}\nraw hm\ntext x\nresult'
    events = await events_of(workspace, orders)
    assert [type(e) for e in events] == [Init, Error, Unknown, Log, Text, Done]
    assert corral.result_from_events(events).ok


async def test_open_tools_are_closed_as_cancelled(workspace: Path) -> None:
    events = await events_of(workspace, "init\nuse read_file a.txt\nexit 0")
    assert [e.status for e in events if isinstance(e, ToolResult)] == ["cancelled"]


async def test_files_combine_what_tools_report_with_changes_on_disk(workspace: Path) -> None:
    orders = "init\nuse write_file a.txt\nwrite a.txt\nused write_file\nwrite b.txt\nresult"
    result = await result_of(workspace, orders)
    assert [(Path(f.path).name, f.kind, f.by_tool) for f in result.files] == [
        ("a.txt", "created", True),
        ("b.txt", "created", False),
    ]


async def test_silence_at_the_start_ends_by_its_own_deadline(workspace: Path) -> None:
    result = await result_of(workspace, "hang", startup_timeout=0.3)
    assert result.status == "timeout"
    assert result.error is not None
    assert result.error.code == "startup_timeout"
    assert child_pids() == []


async def test_silence_in_between_ends_by_its_own_deadline(workspace: Path) -> None:
    result = await result_of(workspace, "init\ntext x\nhang", idle_timeout=2)
    assert result.error is not None
    assert result.error.code == "idle_timeout"
    assert result.text == "x"


async def test_the_total_deadline_ends_a_busy_agent(workspace: Path) -> None:
    orders = "init\nchild\ndaemon\n" + "text x\nsleep 0.05\n" * 200
    result = await result_of(workspace, orders, timeout=0.5)
    assert result.error is not None
    assert result.error.code == "total_timeout"
    assert child_pids() == []


async def test_a_slow_reader_is_not_an_idle_agent(workspace: Path) -> None:
    options = scripted_options(workspace, idle_timeout=1.5)
    async with corral.session("gemini-cli", **options) as session:
        events: list[corral.Event] = []
        async for event in session.prompt("init\ntext a\nsleep 0.05\ntext b\nresult"):
            if not events:
                await asyncio.sleep(2)
            events.append(event)
    assert corral.result_from_events(events).ok


async def test_an_agent_that_does_not_exit_after_its_turn_is_ended(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral._sessions.deadlines.EXIT_TIMEOUT", 0.2)
    events = await events_of(workspace, "init\ntext x\nresult\nhang")
    assert [e.code for e in events if isinstance(e, Error)] == ["lingered"]
    assert corral.result_from_events(events).ok


async def test_a_policy_that_did_not_load_ends_the_agent_at_once(workspace: Path) -> None:
    orders = "init\nstderr [USER] Policy file error in policy.toml:\nhang"
    result = await result_of(workspace, orders)
    assert result.error is not None
    assert result.error.code == "policy_not_loaded"


async def test_a_retry_on_stderr_is_reported_while_the_agent_waits(workspace: Path) -> None:
    options = scripted_options(workspace)
    async with corral.session("gemini-cli", **options) as session:
        async for event in session.prompt(
            "init\nstderr Attempt 1 failed with status 429. Re\nhang"
        ):
            if isinstance(event, Error):
                assert event.code == "retrying"
                break


async def test_breaking_out_of_the_loop_ends_all_processes(workspace: Path) -> None:
    before = open_descriptors()
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        async for event in session.prompt("init\nchild\ndaemon\ntext x\nhang"):
            if isinstance(event, Text):
                break
    assert child_pids() == []
    assert open_descriptors() == before


async def test_an_exception_in_the_loop_ends_all_processes(workspace: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
            async for event in session.prompt("init\ndaemon\nignore-term\ntext x\nhang"):
                if isinstance(event, Text):
                    _ = 1 / 0
    assert child_pids() == []


async def test_the_next_prompt_ends_one_that_was_left_half_way(workspace: Path) -> None:
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        async for _ in session.prompt("init\ntext x\nhang"):
            break
        assert (await session.run(GOOD)).ok
        assert child_pids() == []


async def test_cancel_ends_the_stream_as_interrupted(workspace: Path) -> None:
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        turn = session.prompt("init\ntext x\nhang")
        events: list[corral.Event] = []
        async for event in turn:
            events.append(event)
            turn.cancel()
    check_stream(events)
    assert corral.result_from_events(events).status == "interrupted"


@pytest.mark.deep
async def test_a_session_that_is_dropped_leaves_no_process_and_no_warning(workspace: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = corral.session("gemini-cli", **scripted_options(workspace))
        await session.__aenter__()
        async for event in session.prompt("init\nchild\ntext x\nhang"):
            if isinstance(event, Text):
                break
        assert child_pids()
        del session
        async with asyncio.timeout(60):
            while child_pids():
                gc.collect()
                await asyncio.sleep(0.01)  # the loop still has to drop the iterator


async def test_a_session_remembers_and_can_be_resumed(workspace: Path) -> None:
    first = await result_of(workspace, "init abc\ntext one\nresult\nargv first.json")
    assert first.resume_token is not None
    repeated = await result_of(
        workspace, "init abc\ntext two\nresult\nargv second.json", resume=first.resume_token
    )
    assert repeated.ok
    argv = json.loads((workspace / "second.json").read_text())["argv"]
    assert argv[argv.index("--resume") + 1] == "abc"
    assert "--resume" not in json.loads((workspace / "first.json").read_text())["argv"]
    assert store.find("last").meta.turns == 2


async def test_a_session_from_another_folder_is_not_resumed(
    workspace: Path, tmp_path: Path
) -> None:
    first = await result_of(workspace, GOOD)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(errors.ResumeLost, match="another folder"):
        await result_of(elsewhere, GOOD, resume=first.resume_token)


async def test_a_turn_that_never_ended_cannot_be_resumed(workspace: Path) -> None:
    result = await result_of(workspace, "init\ntext half")
    assert result.resume_token is None
    with pytest.raises(errors.ResumeLost):
        await result_of(workspace, GOOD, resume="last")


async def test_without_keep_nothing_stays_on_disk(workspace: Path) -> None:
    result = await result_of(workspace, GOOD, keep=False)
    assert result.ok
    assert result.resume_token is None
    home = Path(os.environ["CORRAL_HOME"])
    assert [path for path in home.rglob("*") if path.is_file() and "cache" not in path.parts] == []


async def test_the_transcript_is_the_stream_and_is_private(workspace: Path) -> None:
    events = await events_of(workspace, GOOD, record=True)
    stored = store.find("last")
    begin, prompt, facts, *rest = stored.events()
    assert [begin, *rest] == events
    assert isinstance(prompt, Vendor)
    assert (prompt.name, prompt.data) == ("prompt", GOOD)
    assert isinstance(facts, Vendor)
    assert as_object(facts.data)["program"] == str(PROGRAM)
    assert {"capability": "read", "verdict": "allow", "enforcer": "native"} in as_objects(
        as_object(facts.data)["policy"]
    )
    assert (stored.folder / "events.ndjson").stat().st_mode & 0o777 == 0o600
    assert stored.folder.stat().st_mode & 0o777 == 0o700


async def test_a_known_secret_is_redacted_wherever_the_agent_writes_it(workspace: Path) -> None:
    key = "scripted-key-0123456789"
    events = await events_of(
        workspace, f"init\ntext my key is {key}\nstderr {key}\nexit 1", record=True
    )
    reported = b"".join(corral.to_json(event) for event in events).decode()
    assert key not in reported
    assert "my key is [GEMINI_API_KEY redacted]" in reported
    for path in Path(os.environ["CORRAL_HOME"]).rglob("*"):
        if path.is_file():
            assert key not in path.read_text()


async def test_the_end_of_stderr_does_not_start_with_part_of_a_secret(workspace: Path) -> None:
    key = "scripted-key-0123456789"
    filler = "x" * (16_384 - len("0123456789\n"))  # what is kept begins inside the key
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        await session.run(f"init\nstderr {key}{filler}\nexit 1")
        assert session.stderr == f"…{filler}\n"


async def test_only_what_is_allowed_reaches_the_child(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "not-yours")
    monkeypatch.setenv("WANTED", "yes")
    await result_of(workspace, "init\nargv seen.json\nresult", pass_env=["WANTED"])
    env = json.loads((workspace / "seen.json").read_text())["env"]
    assert "DATABASE_URL" not in env
    assert "ANTHROPIC_API_KEY" not in env
    assert env["WANTED"] == "yes"
    assert env["GEMINI_API_KEY"] == "scripted-key-0123456789"


async def test_runs_that_share_a_folder_do_not_claim_to_know_all_files(workspace: Path) -> None:
    one, two = await asyncio.gather(
        result_of(workspace, "init\nsleep 0.3\nresult"),
        result_of(workspace, "init\nsleep 0.3\nresult"),
    )
    assert not one.files_complete
    assert not two.files_complete


@pytest.mark.deep
async def test_forty_runs_half_of_them_cancelled_leave_nothing(workspace: Path) -> None:
    await result_of(workspace, GOOD)  # what is loaded and opened once, is
    before, dice = open_descriptors(), random.Random(7)
    kinds = ("hang", "child\nhang", "daemon\nhang", "ignore-term\nchild\nhang", "many 2000\nresult")

    async def one(number: int) -> None:
        folder = workspace / str(number)
        folder.mkdir()
        orders = "init\ntext x\n" + dice.choice(kinds if number % 2 else ("result",))
        options = scripted_options(folder, grace=0.2, keep=False)
        run = asyncio.ensure_future(corral.run("gemini-cli", orders, **options))
        if number % 2:
            await asyncio.wait([run], timeout=dice.random())
            run.cancel()
            await asyncio.wait([run])
        else:
            assert (await run).ok

    await asyncio.gather(*(one(number) for number in range(40)))
    assert child_pids() == []
    assert open_descriptors() == before
    home = Path(os.environ["CORRAL_HOME"])
    assert list((home / "processes").iterdir()) == []
    assert len(list((home / "sessions").iterdir())) == 1


async def test_a_turn_cancelled_before_it_began_starts_nothing(workspace: Path) -> None:
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        turn = session.prompt(f"write ran.txt\n{GOOD}")
        turn.cancel()
        events = [event async for event in turn]
    check_stream(events)
    assert corral.result_from_events(events).status == "interrupted"
    assert not (workspace / "ran.txt").exists()


async def test_a_turn_that_was_never_read_keeps_no_earlier_one_alive(workspace: Path) -> None:
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        async for event in session.prompt("init\ntext x\nhang"):
            if isinstance(event, Text):
                break
        session.prompt(GOOD)
    assert child_pids() == []


async def test_two_runs_never_share_a_session(workspace: Path) -> None:
    first = await result_of(workspace, GOOD)
    async with corral.session(
        "gemini-cli", **scripted_options(workspace, resume=first.resume_token)
    ) as session:
        async for event in session.prompt("init\ntext x\nhang"):
            if isinstance(event, Text):
                break
        with pytest.raises(errors.ConfigError, match="in use by another run"):
            await result_of(workspace, GOOD, resume=first.resume_token)


async def test_a_transcript_cut_in_the_middle_of_a_line_is_still_read(workspace: Path) -> None:
    first = await result_of(workspace, GOOD, record=True)
    stored = store.find("last")
    with (stored.folder / "events.ndjson").open("ab") as file:
        file.write(b'{"type":"te')
    await result_of(workspace, GOOD, record=True, resume=first.resume_token)
    assert [type(event) for event in stored.events()].count(Done) == 2


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (None, "interrupted"),
        (ValueError(), "interrupted"),
        (errors.StorageFailed("full disk"), "error"),
    ],
)
async def test_what_was_recorded_before_a_turn_was_left_is_kept(
    workspace: Path, failure: Exception | None, status: str
) -> None:
    options = scripted_options(workspace, record=True)
    with contextlib.suppress(ValueError, errors.StorageFailed):
        async with corral.session("gemini-cli", **options) as session:
            async for event in session.prompt("init\ntext x\nhang"):
                if isinstance(event, Text):
                    break
            if failure is not None:
                raise failure
    assert store.find("last").meta.status == status
    assert [type(event) for event in store.find("last").events()] == [Init, Vendor, Vendor, Text]


async def test_a_failed_turn_has_no_resume_token(workspace: Path) -> None:
    result = await result_of(workspace, "init\nresult error\nexit 1")
    assert result.resume_token is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cwd": ""}, "cwd is empty"),
        ({"cwd": "bad\udcff"}, "not UTF-8"),
        ({"system_prompt": "\ud800"}, "cannot be sent"),
        ({"resume": "a\0b"}, "cannot be sent"),
        ({"record": True, "keep": False}, "stored with the session"),
    ],
)
async def test_impossible_goals_are_errors(options: RunKwargs, says: str, workspace: Path) -> None:
    with pytest.raises(errors.ConfigError, match=says):
        await result_of(workspace, GOOD, **options)


def test_an_interruption_of_run_sync_inside_a_loop_ends_the_agent(workspace: Path) -> None:
    program = (
        "import asyncio, corral, sys\n"
        "from support.scripted_agent import scripted_options\n"
        "from pathlib import Path\n"
        "async def main():\n"
        "    corral.run_sync('gemini-cli', 'init\\ntext x\\nhang',\n"
        "        on_event=lambda e: print(e.seq),\n"
        f"        **scripted_options(Path({str(workspace)!r}), keep=False))\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    process.stdout.readline()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.stdout.close()
    home = Path(os.environ["CORRAL_HOME"])
    assert list((home / "processes").iterdir()) == []
    assert list((home / "sessions").iterdir()) == []


async def test_a_turn_that_ended_well_stays_a_success_whatever_follows(workspace: Path) -> None:
    result = await result_of(workspace, "init\ntext done\nresult success\ntext !\nresult error")
    assert (result.status, result.text) == ("success", "done!")
    assert result.error is None


async def test_a_first_turn_that_timed_out_is_resumed_by_the_next_prompt(workspace: Path) -> None:
    async with corral.session("gemini-cli", **scripted_options(workspace, timeout=3)) as session:
        first = await session.run("init abc\nhang")
        second = await session.run(f"argv argv.json\n{GOOD}")
    assert (first.status, first.resume_token) == ("timeout", second.resume_token)
    argv = json.loads((workspace / "argv.json").read_text())["argv"]
    assert argv[argv.index("--resume") + 1] == "abc"


async def test_after_a_turn_without_a_session_the_next_prompt_fails(workspace: Path) -> None:
    async with corral.session("gemini-cli", **scripted_options(workspace, timeout=3)) as session:
        first = await session.run("hang")
        with pytest.raises(errors.ResumeLost, match="its first turn timed out"):
            await session.run(GOOD)
    assert (first.status, first.resume_token) == ("timeout", None)
