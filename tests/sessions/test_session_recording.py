"""Runs that are recorded, and replayed without the agent."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import Any, Unpack

import msgspec
import pytest
from support.mcp_servers import notes_server
from support.sandbox import needs_sandbox
from support.scripted_acp import agent as peer
from support.scripted_agent import GOOD, PROGRAM, child_pids
from support.stream_checks import check_stream

import corral
from corral import errors
from corral._sessions.permissions import Asker
from corral._system.cassette import format
from corral.events import Done, Text
from corral.run_kwargs import RunKwargs

pytestmark = pytest.mark.whole_program

TALK = "text hello\ncwd\nthought hm\nask execute ls -l\nstderr ouch\nusage 20 8\ntext bye"
KEY = "scripted-key-0123456789"


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
        # ``proof`` is about a program; a replay starts none.
        for name in ("ts", "run_id", "duration_ms", "resume_token", "proof"):
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
@pytest.mark.deep_but_first
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


@pytest.mark.deep
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


async def test_a_recorded_run_that_is_cancelled_leaves_nothing(
    workspace: Path, recording_file: Path, tmp_path: Path
) -> None:
    async with corral.session(peer(), cwd=workspace, record_to=recording_file, grace=1) as session:
        async for event in session.prompt("text x\nignore-cancel\nhang"):
            if isinstance(event, Text):
                assert len(left(tmp_path)) == 1
                break
    assert left(tmp_path) == []
    assert format.read(recording_file)[0].head.agent == peer()


async def test_secrets_of_the_run_are_not_in_the_recording_and_may_differ(
    workspace: Path, recording_file: Path
) -> None:
    def server(value: str) -> corral.McpServer:
        return notes_server(workspace, PLAIN_NAME=value)

    orders = "told session/new"
    await talk(
        peer(),
        orders,
        cwd=workspace,
        record_to=recording_file,
        mcp_servers=[server("canary-1234567")],
        policy=corral.Policy(mcp="allow"),
    )
    assert b"canary" not in recording_file.read_bytes()
    assert b"[notes:PLAIN_NAME redacted]" in recording_file.read_bytes()
    now = await talk(
        peer(),
        orders,
        cwd=workspace,
        replay=recording_file,
        mcp_servers=[server("other-7654321")],
        policy=corral.Policy(mcp="allow"),
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


LOOK = """
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline > /tmp/seen
find "$HOME" "$TMPDIR/.." . /run -xdev -type f -exec cat {} + >> /tmp/seen
mv /tmp/seen seen
"""
"""Everything that an agent in the sandbox can read of its processes and folders."""
ATTACK = """
cat rec/deep/talk.ndjson > shown
echo forged >> rec/deep/talk.ndjson
rm -f rec/deep/talk.ndjson
mv rec/deep/talk.ndjson rec/deep/old && echo forged > rec/deep/talk.ndjson
mv rec/deep rec/old && mkdir -p rec/deep && echo forged > rec/deep/talk.ndjson
mv rec old && mkdir -p rec/deep && echo forged > rec/deep/talk.ndjson
ln -f rec/deep/talk.ndjson other && echo forged >> other
:
"""
OFFLINE = corral.Policy(read="allow", write="allow", shell="allow", network="deny")


async def talk_in_sandbox(workspace: Path, script: str, **options: Unpack[RunKwargs]) -> None:
    (workspace / "script.sh").write_text(script)
    complete: RunKwargs = {
        **options,
        "cwd": workspace,
        "program": PROGRAM,
        "policy": OFFLINE,
        "sandbox": "require",
    }
    orders = "init\nsh sh script.sh 2> /dev/null\ntext done\nresult"
    stream = await talk("gemini-cli", orders, **complete)
    assert isinstance(stream[-1], Done)
    assert stream[-1].status == "success", stream[-1]


@needs_sandbox
@pytest.mark.parametrize("place", ["inside", "outside"])
async def test_a_recorded_agent_finds_no_secret_in_the_sandbox(
    place: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://me:canary-database@localhost/x")
    await talk_in_sandbox(
        workspace,
        LOOK,
        env={"GEMINI_API_KEY": "canary-key-0123456789"},
        meter=True,
        record_to=(workspace if place == "inside" else tmp_path) / "rec/talk.ndjson",
    )
    seen = (workspace / "seen").read_bytes()
    assert b"GEMINI_API_KEY=" in seen
    assert b"canary" not in seen


@needs_sandbox
async def test_a_recorded_agent_neither_sees_nor_changes_the_recording(workspace: Path) -> None:
    recording = workspace / "rec/deep/talk.ndjson"
    await talk_in_sandbox(
        workspace, ATTACK, env={"GEMINI_API_KEY": KEY}, meter=False, record_to=recording
    )
    assert (workspace / "shown").read_text() == ""
    assert "forged" not in recording.read_text()
    (take,) = format.read(recording)
    assert isinstance(take.entries[-1], format.ProgramEnded)


async def test_a_secret_that_an_agent_reads_is_not_in_the_recording(
    workspace: Path, recording_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that the agent was not given, and in a line that arrives in two pieces."""
    monkeypatch.setenv("DATABASE_URL", "postgres://me:canary-database@localhost/x")
    (workspace / ".env").write_text("PASSWORD=canary-database")
    (workspace / "pieces.sh").write_text("printf 'canary-da' >&2; sleep 0.2; echo 'tabase' >&2")
    orders = "init\nsh cat .env\nsh echo; sh pieces.sh\ntext It is canary-database\nresult"
    env = {"GEMINI_API_KEY": KEY}
    await talk(
        "gemini-cli", orders, cwd=workspace, record_to=recording_file, program=PROGRAM, env=env
    )
    recording = recording_file.read_text()
    assert "canary" not in recording
    assert recording.count("redacted]") >= 4  # the prompt has it too


async def test_a_session_whose_prompts_choose_models_is_recorded_completely(
    workspace: Path, recording_file: Path
) -> None:
    options: RunKwargs = {
        "cwd": workspace,
        "program": PROGRAM,
        "env": {"GEMINI_API_KEY": KEY},
        "record_to": recording_file,
        "meter": False,
    }
    async with corral.session("gemini-cli", **options) as session:
        for model in ("gemini-2.5-flash", "gemini-2.5-pro"):
            assert (await session.run(GOOD, model=model)).ok
    models = [take.head.args for take in format.read(recording_file)]
    assert len(models) == 2


async def test_a_link_is_not_overwritten_by_a_recording(workspace: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (workspace / "talk.ndjson").symlink_to(precious)
    (workspace / "rec").symlink_to(tmp_path)
    for path in ("talk.ndjson", "rec/precious"):
        with pytest.raises(errors.ConfigError, match="is a link that leads out of the workspace"):
            await talk(peer(), "text x", cwd=workspace, record_to=workspace / path)
    assert precious.read_text() == "mine"


async def test_a_file_of_the_agent_that_cannot_be_read_does_not_stop_a_recording(
    workspace: Path, recording_file: Path
) -> None:
    """A pipe in the agent's home that has the name of a word in the prompt."""
    env = {"GEMINI_API_KEY": KEY}
    stream = await talk(
        "gemini-cli",
        'init\nsh mkfifo "$TMPDIR/../home/a-long-name"\ntext made\nresult',
        "init\ntext a-long-name\nresult",
        cwd=workspace,
        record_to=recording_file,
        program=PROGRAM,
        env=env,
        policy="all",
    )
    assert isinstance(stream[-1], Done)
    assert stream[-1].status == "success"


async def test_a_recording_on_a_full_disk_is_reported_and_the_run_goes_on(
    workspace: Path, recording_file: Path
) -> None:
    prompts = ("text one", f"text {'x' * 20_000}")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    try:
        stream = await talk(peer(), *prompts, cwd=workspace, record_to=recording_file, record=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (warning,) = [event for event in stream if isinstance(event, corral.events.Error)]
    assert (warning.code, warning.level) == ("recording_lost", "warning")
    assert warning.message.startswith(f"the recording {recording_file} is not complete: File too")
    assert isinstance(stream[-1], Done)
    assert stream[-1].status == "success"
    now = await talk(peer(), *prompts, cwd=workspace, replay=recording_file)
    assert "ends here: it was not recorded to its end" in stop_of(now).message


async def test_a_recording_that_cannot_be_started_is_an_error(workspace: Path) -> None:
    with pytest.raises(errors.StorageFailed, match="cannot write the recording /dev/full"):
        await talk(peer(), "text x", cwd=workspace, record_to="/dev/full")
