"""Gemini CLI: what only this agent does, or what one agent shows for all of them.

Prompts that the CLI would expand, its own error classes, model aliases, sandbox and session files
are specific. The deadlines, ``keep=False`` and the reported file names are the work of corral; they
are tested with one real program.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable
from pathlib import Path

import pytest
from support.files import file_names
from support.hostile_git import Traps, make_repository
from support.model_scripts import sent_json, steps
from support.processes import FifoSignal, exclusive_machine, fifo_signal, processes_matching
from support.real_agents import RealAgent, for_agents
from support.scripted_agent import child_pids
from support.stream_checks import check_stream

import corral
from corral import errors, result_from_events
from corral._system import paths
from corral.events import Decision, Done, Error, Init, PermissionRequest, Text, ToolResult
from corral.testing import Lane, Turn, fail, hang, say
from corral.values import path_from_printable

pytestmark = pytest.mark.timeout(300)

KEY_INVALID = "API key not valid. Please pass a valid API key."
ODD = (
    "naïve “quotes” 漢字 👩‍👩‍👧‍👦 \u2028 \u2029 \x7f"
    " tab\there \\ back\\nslash $HOME `id` 'x' \"y\" {z}"
)


def sleeping_command(agent: RealAgent, sleep_time: str, started: FifoSignal) -> list[Turn]:
    """A model whose command leaves a process in another session, signals, and waits."""
    command = f"setsid sleep {sleep_time} & echo up > {started.path}; sleep {sleep_time}"
    return steps(agent.shell(command))


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(
            "/init " + ODD + "\n/quit\n" + "word " * 60_000 + " @seed.txt", id="slash-and-300-kB"
        ),
        pytest.param(
            f"  \n padded, ? and ! and # first\n@seed.txt and x@seed.txt, (@*.txt) {ODD}\n@.\n\n",
            id="padded-and-at",
        ),
    ],
)
@pytest.mark.usefixtures("seed")
@for_agents("gemini-cli")
async def test_prompts_that_the_cli_would_expand_arrive_as_they_are(
    agent: RealAgent, workspace: Path, prompt: str
) -> None:
    result = await agent.run([say("heard")], prompt)

    assert result.ok
    assert result.text == "heard"
    assert agent.requests[0].last_text == prompt
    assert "seed words" not in sent_json(agent.requests)
    assert file_names(workspace) == ["seed.txt"]


@pytest.mark.usefixtures("seed")
@for_agents("gemini-cli")
async def test_templates_in_a_slash_prompt_are_not_expanded(
    agent: RealAgent, workspace: Path
) -> None:
    prompt = "/init {{args}} !{touch ran.txt} @{seed.txt} and @seed.txt"

    result = await agent.run([say("heard")], prompt, policy="all")

    assert result.ok
    received = agent.requests[0].last_text
    # The only way to prevent the expansion here is an escape that stays in the text.
    assert received == "\n" + prompt.replace("@", "\\@")
    assert "seed words" not in sent_json(agent.requests)
    assert file_names(workspace) == ["seed.txt"]


@pytest.mark.usefixtures("seed")
@for_agents("gemini-cli")
async def test_files_are_inserted_with_expand_files_and_none_is_left_with_keep_false(
    agent: RealAgent,
) -> None:
    result = await agent.run([say("heard")], "/see @seed.txt", expand_files=True, keep=False)

    assert result.ok
    assert "seed words" in agent.requests[0].last_text
    assert "/see @seed.txt" in agent.requests[0].last_text
    assert result.resume_token is None
    assert list(paths.sessions().iterdir()) == []
    assert list(paths.process_registry().iterdir()) == []


@for_agents("gemini-cli")
async def test_a_model_that_the_cli_replaces_is_reported_with_a_warning(
    agent: RealAgent,
) -> None:
    events = await agent.events([say("hello")], model="gemini-3-pro-preview")
    result = result_from_events(events)
    assert result.model == "gemini-3.1-pro-preview"
    assert agent.requests[0].model == "gemini-3.1-pro-preview"
    warnings = [e for e in events if isinstance(e, Error)]
    assert [(w.code, w.level) for w in warnings] == [("model_differs", "warning")]
    assert "gemini-3.1-pro-preview" in warnings[0].message

    events = await agent.events([say("hello")], model="flash-lite")
    result = result_from_events(events)
    assert result.ok
    assert result.model == agent.requests[-1].model != "flash-lite"
    assert [e for e in events if isinstance(e, Error)] == []


@for_agents("gemini-cli")
async def test_files_of_an_embedded_repository_and_names_that_are_not_utf8_are_reported(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    make_repository(workspace)
    traps = Traps(tmp_path / "traps")
    (workspace / "sub").mkdir()
    traps.embed(workspace / "sub")
    script = tmp_path / "script"
    odd = "echo x > \"$(printf 'caf\\351')\""
    script.write_text(f"echo work > sub/work; {odd}; mkfifo dir/.gitignore\n")

    turns = [Turn(calls=[agent.shell(f"sh {script}")]), say("Done.")]
    result = await agent.run(turns, policy="all")

    assert (result.status, result.text) == ("success", "Done.")
    paths = {path_from_printable(each.path) for each in result.files}
    expected = ("sub/work", "caf\udce9", "dir/.gitignore")
    assert paths == {f"{workspace}/{name}" for name in expected}
    assert traps.ran == []


@pytest.mark.parametrize(
    ("turn", "kind", "words"),
    [
        pytest.param(
            fail(400, KEY_INVALID), errors.AuthenticationFailed, "API key not valid", id="bad-key"
        ),
        pytest.param(fail(400, "no such field"), errors.InvalidRequest, "no such field", id="400"),
        pytest.param(
            fail(429, "spent", quota_id="GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
            errors.QuotaSpent,
            "",
            id="daily-quota",
        ),
        pytest.param(
            fail(503, "overloaded"),
            errors.ServerFailed,
            "overloaded",
            id="503",
            marks=pytest.mark.deep,
        ),
        pytest.param(
            Turn(text=["half ", "of it"], cut=1), errors.NetworkFailed, "connection", id="cut"
        ),
        pytest.param(Turn(malformed="json"), errors.StreamBroken, "", id="malformed"),
        pytest.param(
            Turn(malformed="html"), errors.StreamBroken, "", id="html", marks=pytest.mark.deep
        ),
    ],
)
@for_agents("gemini-cli")
async def test_other_failures_of_the_model_have_their_own_class(
    agent: RealAgent, turn: Turn, kind: type[errors.CorralError], words: str
) -> None:
    events = await agent.events([turn, turn, turn, turn])

    assert isinstance(events[0], Init)
    done = events[-1]
    assert isinstance(done, Done)
    assert done.error is not None
    assert done.error.code == kind.code
    assert done.status == kind.status
    assert words in done.error.message
    assert done.error.facts["agent_version"] == "0.61.0"
    assert len(agent.requests) == 1
    with pytest.raises(kind) as caught:
        result_from_events(events).raise_for_status()
    assert type(caught.value) is kind
    assert caught.value.exit_code not in (None, 0)
    assert caught.value.argv


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        pytest.param(Turn(finish="SAFETY"), errors.ContentRefused, id="safety"),
        pytest.param(
            Turn(finish="MALFORMED_FUNCTION_CALL"), errors.StreamBroken, id="malformed-call"
        ),
    ],
)
@for_agents("gemini-cli")
async def test_a_refused_or_malformed_answer_is_an_error_although_the_exit_code_is_0(
    agent: RealAgent, turn: Turn, kind: type[errors.CorralError]
) -> None:
    result = await agent.run(lambda _request: turn)

    with pytest.raises(kind) as caught:
        result.raise_for_status()
    assert type(caught.value) is kind
    assert caught.value.exit_code == 0
    assert not result.ok


@for_agents("gemini-cli")
async def test_a_missing_sandbox_program_is_an_error(agent: RealAgent, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("node", "sh"):
        (tools / name).symlink_to(shutil.which(name) or name)

    result = await agent.run([], sandbox="agent", env={"PATH": str(tools)})

    with pytest.raises(errors.SandboxFailed, match="docker or podman"):
        result.raise_for_status()
    assert agent.requests == []


@for_agents("gemini-acp")
async def test_a_cli_that_ends_itself_fails_its_prompt_and_the_next_prompt_starts_another(
    agent: RealAgent, tmp_path: Path
) -> None:
    """After SIGTERM it exits with code 0."""
    events: list[corral.Event] = []
    async with agent.session([hang("half"), say("complete")]) as session:
        async for event in session.prompt("first question"):
            events.append(event)
            if isinstance(event, Text):
                for pid in child_pids():
                    os.kill(pid, signal.SIGTERM)
        assert child_pids() == []
        repeated = await session.run("second question")
    broken = result_from_events(check_stream(events))
    assert broken.text == "half"
    with pytest.raises(errors.StreamBroken) as caught:
        broken.raise_for_status()
    assert "--acp" in " ".join(caught.value.argv)
    assert (caught.value.exit_code, caught.value.signal) == (0, None)
    assert repeated.text == "complete"
    assert "first question" not in agent.requests[-1].texts
    assert processes_matching(str(tmp_path)) == []


@for_agents("gemini-cli")
async def test_cancelling_the_task_ends_every_process(
    agent: RealAgent, tmp_path: Path, sleep_time: str
) -> None:
    with fifo_signal(tmp_path / "started") as started:
        task = asyncio.create_task(
            agent.run(sleeping_command(agent, sleep_time, started), policy="all")
        )
        await asyncio.to_thread(started.wait)
        assert processes_matching(sleep_time)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert processes_matching(sleep_time) == []
        assert processes_matching(str(tmp_path)) == []


@for_agents("gemini-cli")
async def test_the_total_deadline_ends_the_command_and_closes_its_tool_call(
    agent: RealAgent, tmp_path: Path, sleep_time: str
) -> None:
    with exclusive_machine(tmp_path), fifo_signal(tmp_path / "started") as started:
        events = await agent.events(
            sleeping_command(agent, sleep_time, started), policy="all", timeout=12
        )
        await asyncio.to_thread(started.wait, 0)  # the command had started

    done = events[-1]
    assert isinstance(done, Done)
    assert done.status == "timeout"
    assert done.error is not None
    assert done.error.code == errors.TotalTimeout.code
    assert "12" in done.error.message
    assert [e.status for e in events if isinstance(e, ToolResult)] == ["cancelled"]
    assert processes_matching(sleep_time) == []
    assert processes_matching(str(tmp_path)) == []


@for_agents("gemini-cli")
async def test_a_silent_model_runs_into_the_idle_deadline(agent: RealAgent, tmp_path: Path) -> None:
    """From the start, or half-way through its answer."""
    runs: list[Awaitable[corral.Result]] = []
    lanes: list[Lane] = []
    for turn in (hang(), hang("first words")):
        runs.append(corral.run(agent.name, "do it", **agent.options([turn], idle_timeout=5)))
        lanes.append(agent.lane)
    with exclusive_machine(tmp_path):
        results = await asyncio.gather(*runs)

    for result in results:
        with pytest.raises(errors.IdleTimeout, match="5s without any event"):
            result.raise_for_status()
        assert result.status == "timeout"
    assert [result.text for result in results] == ["", "first words"]
    assert [len(lane.requests) for lane in lanes] == [1, 1]
    assert processes_matching(str(tmp_path)) == []


@for_agents("gemini-cli")
async def test_a_program_without_output_runs_into_the_startup_deadline(
    agent: RealAgent, tmp_path: Path, sleep_time: str
) -> None:
    program = tmp_path / "gemini"
    program.write_text(
        "#!/bin/bash\n"
        'if [ "$1" = --version ]; then echo 0.61.0; exit; fi\n'
        f"trap '' TERM\nexec sleep {sleep_time}\n"
    )
    program.chmod(0o755)

    events = await agent.events([], program=program, startup_timeout=1, grace=0.5)

    result = result_from_events(events)
    with pytest.raises(errors.StartupTimeout, match="1s"):
        result.raise_for_status()
    assert isinstance(events[0], Init)
    assert processes_matching(sleep_time) == []


@for_agents("gemini-cli")
async def test_a_session_is_resumed_by_the_id_of_the_cli_too(agent: RealAgent) -> None:
    first = await agent.run([say("one")], "first question")
    second = await agent.run([say("two")], "second question", resume=first.session_id)
    assert second.ok
    assert second.session_id == first.session_id
    assert "first question" in agent.requests[0].texts


@for_agents("gemini-cli")
async def test_an_interrupted_conversation_goes_on_and_can_be_resumed(agent: RealAgent) -> None:
    script = [Turn(text=("Once upon", " a time"), hang="after"), say("second"), say("third")]
    options = agent.options(script, policy="reads")
    async with corral.session(agent.name, **options) as session:
        turn = session.prompt("first question")
        events: list[corral.Event] = []
        async for event in turn:
            events.append(event)
            if isinstance(event, Text):
                turn.cancel()
        first = result_from_events(events)
        second = await session.run("second question")
    options["resume"] = "last"
    third = await corral.run(agent.name, "third question", **options)

    assert (first.status, first.text) == ("interrupted", "Once upon")
    assert [r.text for r in (second, third)] == ["second", "third"]
    assert first.resume_token is not None
    assert {r.resume_token for r in (first, second, third)} == {first.resume_token}
    assert {r.session_id for r in (first, second, third)} == {first.session_id}
    for request in agent.requests[1:]:
        assert "first question" in request.texts
    assert "second" in agent.requests[2].texts


@for_agents("gemini-acp")
async def test_a_cancelled_first_turn_can_be_continued_in_its_session_only(
    agent: RealAgent,
) -> None:
    options = agent.options([Turn(hang=True, repeat=2), say("second")], policy="reads")

    async def cancelled(session: corral.Session) -> corral.Result:
        before = len(agent.requests)
        turn = session.prompt("first question")
        reading = asyncio.create_task(turn.collect())
        while len(agent.requests) == before:
            await asyncio.sleep(0.01)
        turn.cancel()
        return await reading

    async with corral.session(agent.name, **options) as session:
        first = await cancelled(session)
    assert (first.status, first.resume_token) == ("interrupted", None)
    options["resume"] = "last"
    with pytest.raises(errors.ResumeLost, match="its first turn was interrupted"):
        await corral.run(agent.name, "second question", **options)

    del options["resume"]
    async with corral.session(agent.name, **options) as session:
        await cancelled(session)
        second = await session.run("second question")
    assert (second.status, second.text) == ("success", "second")
    assert second.resume_token is not None


@for_agents("gemini-acp")
async def test_files_that_corral_writes_for_the_agent_are_exact(
    agent: RealAgent, workspace: Path
) -> None:
    (workspace / "old.txt").write_bytes(b"one\r\ntwo\r\n")
    asked: list[str | None] = []

    def ask(request: PermissionRequest) -> Decision:
        asked.append(request.kind)
        return "allow_once"

    new, old = agent.write("deep/new.txt", "words\n"), workspace / "old.txt"
    script = steps(new, agent.edit(old, "two", "three"), agent.read(old))
    options = agent.options(script, allow_file_reads=True, allow_file_writes=True)
    async with corral.session(agent.name, ask=ask, **options) as session:
        result = await session.run("do it")
    assert result.ok
    assert asked == ["edit", "edit"]
    assert (workspace / "deep" / "new.txt").read_text() == "words\n"
    assert old.read_bytes() == b"one\r\nthree\r\n"
    assert {(Path(f.path).name, f.kind) for f in result.files} == {
        ("new.txt", "created"),
        ("old.txt", "modified"),
    }


@for_agents("gemini-acp")
async def test_audio_beside_attachments_is_refused_before_the_start(
    agent: RealAgent, workspace: Path
) -> None:
    (workspace / "word.wav").write_bytes(b"RIFF\x24\0\0\0WAVEfmt ")
    (workspace / "note.txt").write_text("words")
    options = agent.options([say("never")], audio=["word.wav"], attachments=["note.txt"])
    with pytest.raises(errors.ConfigError):
        async with corral.session(agent.name, **options):
            pass
    assert agent.requests == []
