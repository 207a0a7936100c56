"""Runs that are recorded, and replayed without the agent."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Any, Unpack

import msgspec
import pytest
from support.scripted_agent import GOOD, PROGRAM, child_pids
from support.stream_checks import check_stream

import corral
from corral import errors
from corral.events import Done, Text
from corral.run_kwargs import RunKwargs
from corral.sessions.permissions import Asker
from corral.system.cassette import format

pytestmark = pytest.mark.whole_program

PEER = Path(__file__).parents[1] / "programs" / "scripted_acp.py"
TALK = "text hello\ncwd\nthought hm\nask execute ls -l\nstderr ouch\nusage 20 8\ntext bye"
KEY = "scripted-key-0123456789"


def peer(*arguments: str) -> str:
    return shlex.join([sys.executable, "-S", "-E", str(PEER), "--acp", *arguments])


async def talk(
    agent: str, *prompts: str, ask: Asker | None = None, **options: Unpack[RunKwargs]
) -> list[corral.Event]:
    found: list[corral.Event] = []
    wanted: RunKwargs = {"timeout": 30, "startup_timeout": 20, "grace": 1, "meter": False}
    wanted.update(options)
    async with corral.session(agent, ask=ask, **wanted) as session:
        for prompt in prompts:
            found += check_stream([event async for event in session.prompt(prompt)])
    assert child_pids() == []
    return found


def essence(stream: list[corral.Event], cwd: Path) -> list[dict[str, Any]]:
    """The events without what is of one run alone."""
    text = msgspec.json.encode(stream).decode().replace(str(cwd), "CWD")
    events: list[dict[str, Any]] = msgspec.json.decode(text)
    for event in events:
        for name in ("ts", "run_id", "duration_ms", "resume_token"):
            event.pop(name, None)
        for error in (event, event.get("error") or {}):
            error.get("facts", {}).pop("argv", None)
    return events


@pytest.fixture
def other(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere" / "deeper"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def recording_file(tmp_path: Path) -> Path:
    return tmp_path / "tape.ndjson"


def left(folder: Path) -> list[str]:
    """The processes whose environment names the folder: those of this test alone."""
    found: list[str] = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in environ.read_bytes():
                found.append(environ.parent.joinpath("cmdline").read_bytes().decode())
    return found


def yes(_: object) -> corral.events.Decision:
    return "allow_once"


def no(_: object) -> corral.events.Decision:
    return "deny"


def stop_of(stream: list[corral.Event]) -> corral.events.Error:
    done = stream[-1]
    assert isinstance(done, Done)
    assert done.error
    return done.error


async def test_a_conversation_is_replayed_to_the_same_events_in_another_folder(
    workspace: Path, other: Path, recording_file: Path
) -> None:
    prompts = (TALK, "history")
    then = await talk(peer(), *prompts, ask=yes, cwd=workspace, record_to=recording_file)
    now = await talk(peer(), *prompts, ask=yes, cwd=other, replay=recording_file)
    assert essence(then, workspace) == essence(now, other)
    assert str(other) in "".join(event.delta for event in now if isinstance(event, Text))


@pytest.mark.parametrize(
    "orders",
    [
        GOOD,
        "init\nuse write_file a.txt\nused write_file\ntext done\nresult",
        "init\ntext half",
        "init\nraw not json\ntext x\nstderr a word\nresult",
        "stderr quota exceeded\nexit 41",
        "init\ndie 9",
        "init\nmany 5000\nresult",
    ],
)
async def test_one_process_per_prompt_is_replayed_to_the_same_events(
    orders: str, workspace: Path, other: Path, recording_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = await talk(
        "gemini-cli",
        orders,
        cwd=workspace,
        record_to=recording_file,
        program=PROGRAM,
        env={"GEMINI_API_KEY": KEY},
    )
    monkeypatch.setenv("PATH", "/nowhere")
    now = await talk("gemini-cli", orders, cwd=other, replay=recording_file)
    assert essence(then, workspace) == essence(now, other)


async def test_each_prompt_of_a_session_has_its_own_answer(
    workspace: Path, recording_file: Path
) -> None:
    prompts = (GOOD, "init\ntext second\nresult", GOOD)
    env = {"GEMINI_API_KEY": KEY}
    then = await talk(
        "gemini-cli", *prompts, cwd=workspace, record_to=recording_file, program=PROGRAM, env=env
    )
    assert len(format.read(recording_file)) == 3
    now = await talk("gemini-cli", *prompts, cwd=workspace, replay=recording_file)
    assert essence(then, workspace) == essence(now, workspace)
    more = await talk("gemini-cli", *prompts, GOOD, cwd=workspace, replay=recording_file)
    assert stop_of(more).code == "replay_mismatch"
    assert "made once more" in stop_of(more).message


async def test_another_prompt_is_a_mismatch_with_a_readable_difference(
    workspace: Path, recording_file: Path
) -> None:
    await talk(peer(), "text one", "text two", cwd=workspace, record_to=recording_file)
    now = await talk(peer(), "text one", "text three", cwd=workspace, replay=recording_file)
    error = stop_of(now)
    assert error.code == "replay_mismatch"
    assert '-        "text": "text two"\n+        "text": "text three"' in error.message
    assert "record the conversation again" in (error.hint or "")
    with pytest.raises(errors.ReplayMismatch):
        await corral.run(peer(), "text 1", cwd=workspace, replay=recording_file, check=True)


@pytest.mark.parametrize(
    ("prompt", "change"),
    [
        ("init\ntext another\nresult", {}),
        (GOOD, {"model": "gemini-2.5-pro"}),
        (GOOD, {"policy": "all"}),
        (GOOD, {"system_prompt": "Be brief."}),
    ],
    ids=["prompt", "model", "policy", "system-prompt"],
)
async def test_a_changed_prompt_to_one_process_is_a_mismatch(
    prompt: str, change: RunKwargs, workspace: Path, recording_file: Path
) -> None:
    made: RunKwargs = {"cwd": workspace, "model": "gemini-2.5-flash", "policy": "edits"}
    then: RunKwargs = {
        **made,
        "record_to": recording_file,
        "program": PROGRAM,
        "env": {"GEMINI_API_KEY": KEY},
    }
    await talk("gemini-cli", GOOD, **then)
    now: RunKwargs = {**made, **change, "replay": recording_file}
    error = stop_of(await talk("gemini-cli", prompt, **now))
    assert error.code == "replay_mismatch"
    assert "\n-" in error.message
    assert "\n+" in error.message


async def test_a_prompt_that_reaches_the_agent_in_a_file_counts_too(
    workspace: Path, other: Path, recording_file: Path
) -> None:
    env = {"GEMINI_API_KEY": KEY}
    answer_text = "Read @README.md"
    await talk(
        "gemini-cli", answer_text, cwd=workspace, record_to=recording_file, program=PROGRAM, env=env
    )
    same = await talk("gemini-cli", answer_text, cwd=other, replay=recording_file)
    assert stop_of(same).code == "stream_broken"  # as it was: the program knows no such word
    now = await talk("gemini-cli", "Read @LICENSE", cwd=other, replay=recording_file)
    assert "@README.md" in stop_of(now).message
    assert "@LICENSE" in stop_of(now).message


async def test_another_answer_to_a_question_is_a_difference(
    workspace: Path, recording_file: Path
) -> None:
    await talk(peer(), TALK, ask=yes, cwd=workspace, record_to=recording_file)
    now = await talk(peer(), TALK, ask=no, cwd=workspace, replay=recording_file)
    assert stop_of(now).code == "replay_mismatch"
    assert '-      "optionId": "b-once"' in stop_of(now).message


async def test_a_session_that_is_left_early_replays(workspace: Path, recording_file: Path) -> None:
    await talk(peer(), "text one", "text two", cwd=workspace, record_to=recording_file)
    now = await talk(peer(), "text one", cwd=workspace, replay=recording_file)
    assert isinstance(now[-1], Done)
    assert now[-1].status == "success"


async def test_processes_of_a_recorded_agent_end_with_it(
    workspace: Path, recording_file: Path, tmp_path: Path
) -> None:
    await talk(peer(), "child\ndaemon\ntext x", cwd=workspace, record_to=recording_file)
    assert left(tmp_path) == []


async def test_a_run_that_is_cancelled_leaves_nothing_of_recorder_and_agent(
    workspace: Path, recording_file: Path, tmp_path: Path
) -> None:
    async with corral.session(peer(), cwd=workspace, record_to=recording_file, grace=1) as session:
        async for event in session.prompt("text x\nignore-cancel\nhang"):
            if isinstance(event, Text):
                assert len(left(tmp_path)) == 2
                break
    assert left(tmp_path) == []
    assert format.read(recording_file)[0].head.agent == peer()


async def test_secrets_of_the_run_are_not_in_the_recording_and_may_differ(
    workspace: Path, recording_file: Path
) -> None:
    def server(value: str) -> corral.McpServer:
        return corral.McpServer("notes", command=("true",), env={"PLAIN_NAME": value})

    orders = "told session/new"
    await talk(
        peer(),
        orders,
        cwd=workspace,
        record_to=recording_file,
        mcp_servers=[server("canary-1234567")],
    )
    assert b"canary" not in recording_file.read_bytes()
    assert b"[notes:PLAIN_NAME redacted]" in recording_file.read_bytes()
    now = await talk(
        peer(), orders, cwd=workspace, replay=recording_file, mcp_servers=[server("other-7654321")]
    )
    assert isinstance(now[-1], Done)
    assert now[-1].status == "success"


async def test_a_recording_is_of_its_agent(workspace: Path, recording_file: Path) -> None:
    with pytest.raises(errors.ConfigError, match="cannot be read"):
        await talk("gemini-cli", GOOD, cwd=workspace, replay=recording_file)
    env = {"GEMINI_API_KEY": KEY}
    await talk(
        "gemini-cli", GOOD, cwd=workspace, record_to=recording_file, program=PROGRAM, env=env
    )
    with pytest.raises(errors.ConfigError, match="recorded with gemini-cli, not with gemini-acp"):
        await talk("gemini-acp", GOOD, cwd=workspace, replay=recording_file)


async def test_a_replay_needs_no_credentials(workspace: Path, recording_file: Path) -> None:
    env = {"GEMINI_API_KEY": KEY}
    await talk(
        "gemini-cli", GOOD, cwd=workspace, record_to=recording_file, program=PROGRAM, env=env
    )
    now = await talk("gemini-cli", GOOD, cwd=workspace, replay=recording_file, auth="subscription")
    assert isinstance(now[-1], Done)
    assert now[-1].status == "success"


async def test_what_cannot_be_recorded_or_replayed_is_refused(
    workspace: Path, recording_file: Path
) -> None:
    def tool() -> str:
        """A tool."""
        return ""

    with pytest.raises(errors.ConfigError, match="record_to and replay both given"):
        await corral.run(
            peer(), "x", cwd=workspace, record_to=recording_file, replay=recording_file
        )
    with pytest.raises(errors.ConfigError, match="runs in this process"):
        await corral.run("corral", "x", cwd=workspace, record_to=recording_file, model="gemini:any")
    await talk(peer(), "text x", cwd=workspace, record_to=recording_file)
    with pytest.raises(errors.ConfigError, match="a recording calls no tools"):
        await corral.run(peer(), "text x", cwd=workspace, replay=recording_file, tools=[tool])
