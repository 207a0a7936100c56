"""Sessions of every real agent: several prompts, resuming, forking, cancelling, and that nothing is
left running afterwards."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from support.files import file_names
from support.model_scripts import sent_json, steps
from support.processes import FifoSignal, exclusive_machine, fifo_signal, processes_matching
from support.real_agents import EVERY_DAY, USAGE, RealAgent, cancel_during_command, for_agents
from support.stream_checks import check_stream

import corral
from corral import errors, result_from_events
from corral._sessions import store
from corral._system import paths
from corral.events import Event, Init, Text, Thinking, ToolUse
from corral.run_kwargs import RunKwargs
from corral.testing import Lane, Turn, say

pytestmark = pytest.mark.timeout(400)

ODD_PROMPTS = (
    '/help --yolo "quoted" me@seed.txt @seed.txt $HOME\nend',
    "  /clear",
    "--version",
    "!touch bang.txt",
)
"""Prompts that an agent could take for commands, flags or files."""
LISTS_SESSIONS = {"gemini-acp": False, "opencode-acp": True}
ANSWERS = ("Hello.", "second answer", "third answer", "fourth answer")


def answer_odd_prompts() -> list[Turn]:
    """An answer to each prompt, however often the agent sends it."""
    turns = [
        Turn(text=text, match=prompt.strip(), usage=USAGE, repeat="forever")
        for prompt, text in zip(ODD_PROMPTS[1:], ANSWERS[1:], strict=True)
    ]
    first = Turn(
        thoughts="weighing",
        text=("Hel", "lo."),
        match=ODD_PROMPTS[0].partition("@")[0],
        usage=USAGE,
        repeat="forever",
    )
    return [first, *turns, Turn(text="aside", repeat="forever")]


@for_agents()
async def test_a_conversation_continues_in_its_session_and_after_resuming(
    agent: RealAgent, workspace: Path, seed: Path
) -> None:
    """Each prompt arrives as text, whatever it looks like; text, thoughts, usage and the session id
    are reported; a session can be resumed more than once."""
    # An agent that always obeys the file is refused beside it.
    documents = [] if "AGENTS.md" in agent.record.spec.project_files else ["AGENTS.md"]
    for name in documents:
        (workspace / name).write_text("WORDS of the repository")
    options = agent.options(answer_odd_prompts(), system_prompt="Be KIND.", meter=False)
    events = list[list[Event]]()
    listed: list[str] = []
    # A persistent agent has one process per session, the others one per prompt. OpenCode, whose
    # start takes seconds, is resumed once.
    for size in (2, 1, 1) if agent.record.persistent and agent.name != "opencode-acp" else (2, 2):
        async with corral.session(agent.name, **options) as session:
            for prompt in ODD_PROMPTS[len(events) :][:size]:
                events.append(check_stream([event async for event in session.prompt(prompt)]))
            listed = await list_sessions(session, agent)
        options["resume"] = result_from_events(events[-1]).resume_token
    results = [result_from_events(each) for each in events]

    assert [result.error for result in results] == [None] * 4
    assert [result.final_text for result in results] == [*ANSWERS]
    pieces = [event.delta for event in events[0] if isinstance(event, Text)]
    assert pieces == (["Hel", "lo."] if agent.record.streams else ["Hello."])
    thoughts = "".join(event.delta for event in events[0] if isinstance(event, Thinking))
    assert thoughts.endswith("weighing") == agent.record.thinks
    if agent.record.usage is not None:
        assert [result.usage for result in results] == [agent.record.usage] * 4
    assert len({result.session_id for result in results}) == 1
    assert listed == ([results[-1].session_id] if LISTS_SESSIONS.get(agent.name) else [])
    assert len({result.resume_token for result in results}) == 1
    assert len({result.run_id for result in results}) == 4
    init = [event for event in (*events[1], *events[2]) if isinstance(event, Init)]
    assert [event.resumed for event in init][-1]

    # No model sees a word joiner: it keeps the agent from taking text for a command or a file.
    added = agent.record.adds_after_prompt or "\0"
    texts = [request.last_text.replace("\u2060", "") for request in agent.turns]
    prompts = [text.partition(added)[0].strip() for text in texts]
    assert len(prompts) == 4
    assert all(sent.endswith(p.strip()) for sent, p in zip(prompts, ODD_PROMPTS, strict=True))
    response = [text for m in agent.turns[-1].history if m.role == "model" for text in m.texts]
    assert response == [*ANSWERS[:3]]
    sent = sent_json(agent.requests)
    assert "Be KIND." in sent
    assert "seed words" not in sent
    assert ("WORDS" in sent) is agent.record.reads_documents
    assert file_names(workspace) == [*documents, "seed.txt"]
    assert processes_matching(str(workspace.parent)) == []
    assert agent.failures == []


async def list_sessions(session: corral.Session, agent: RealAgent) -> list[str]:
    if agent.name not in LISTS_SESSIONS:
        return []
    if not LISTS_SESSIONS[agent.name]:
        with pytest.raises(errors.ConfigError, match="does not list its sessions"):
            await session.list_sessions()
        return []
    return [each.id for each in await session.list_sessions(agent.workspace)]


@for_agents(lambda record: record.supports("fork"))
async def test_a_fork_continues_from_a_session_that_stays_unchanged(agent: RealAgent) -> None:
    options = agent.options([Turn(text=f"answer {n}", usage=USAGE) for n in range(5)])
    first = await corral.run(agent.name, "question 0", **options)
    options["resume"] = first.resume_token
    options["fork"] = True
    async with corral.session(agent.name, **options) as session:
        forks = [await session.run(f"question {n}") for n in (1, 2)]
    options["fork"] = False
    second = await corral.run(agent.name, "question 3", **options)
    shutil.rmtree(store.find(first.resume_token or "").folder)  # the fork does not need it
    options["resume"] = forks[0].resume_token
    later = await corral.run(agent.name, "question 4", **options)

    results = (first, *forks, second, later)
    assert [result.final_text for result in results] == [f"answer {n}" for n in range(5)]
    assert first.session_id == second.session_id
    assert len({result.session_id for result in (*forks, later)}) == 1
    assert forks[0].session_id != first.session_id
    assert len({result.cost.usd for result in results}) == 1  # each run reports its own cost
    assert [result.usage.input for result in results] == [120] * 5  # and its own tokens
    questions = [
        [text[-1] for text in request.texts if text.startswith("question")]
        for request in agent.turns
    ]
    assert questions == [
        *(["0"], ["0", "1"], ["0", "1", "2"]),
        *(["0", "3"], ["0", "1", "2", "4"]),
    ]


@for_agents(lambda record: record.supports("resume") and not record.persistent)
async def test_a_lost_session_and_a_session_of_another_folder_cannot_be_resumed(
    agent: RealAgent, tmp_path: Path
) -> None:
    with pytest.raises(errors.ResumeLost, match="20260101-000000-abcdef"):
        await agent.run([], resume="20260101-000000-abcdef")
    options = agent.options([say("one"), say("never")])
    first = await corral.run(agent.name, "question", **options)
    options["resume"] = first.resume_token
    options["cwd"] = tmp_path / "other"
    (tmp_path / "other").mkdir()
    with pytest.raises(errors.ResumeLost, match="another folder") as caught:
        await corral.run(agent.name, "again", **options)
    assert str(agent.workspace) in (caught.value.hint or "")

    options["cwd"] = agent.workspace
    folder = store.find(first.resume_token or "").folder
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    lost = await corral.run(agent.name, "again", **options)
    with pytest.raises(errors.ResumeLost):
        lost.raise_for_status()
    assert len(agent.turns) == 1


@for_agents(spine=EVERY_DAY - {"opencode-cli"})
async def test_cancelling_a_prompt_ends_its_command_and_the_session_goes_on(
    agent: RealAgent, workspace: Path, tmp_path: Path, sleep_time: str
) -> None:
    with fifo_signal(tmp_path / "started") as started:
        # A process in another session ends with the agent, which a persistent agent survives.
        detached = "" if agent.record.persistent else f"setsid sleep {sleep_time} &"
        command = (
            f"touch ran.txt; sleep {sleep_time} & {detached}"
            f" echo up > {started.path}; sleep {sleep_time}"
        )
        script = [Turn(calls=[agent.shell(command)]), say("still here")]
        if agent.record.writes_outside:
            script.insert(0, Turn(calls=[agent.write(tmp_path / "up.txt")]))
        async with agent.session(script, policy="all") as session:
            result = await cancel_during_command(session, sleep_time, started)
            if agent.record.persistent or agent.name == "claude-cli":
                second = await session.run("and now?")
                assert second.final_text == "still here"
                assert second.session_id == result.session_id
                assert "do it" in sent_json(agent.turns[-1:])
        assert processes_matching(sleep_time) == []
        assert processes_matching(str(tmp_path)) == []
    assert (workspace / "ran.txt").exists()
    assert (tmp_path / "up.txt").exists() == agent.record.writes_outside


@for_agents("gemini-cli", "claude-cli")
async def test_leaving_a_session_early_ends_every_process(
    agent: RealAgent, tmp_path: Path, sleep_time: str
) -> None:
    """However the command started them."""
    with fifo_signal(tmp_path / "started") as started:
        script = [Turn(calls=[agent.shell(start_many(sleep_time, started))])]
        async with agent.session(script, policy="all") as session:
            async for event in session.prompt("do it"):
                if isinstance(event, ToolUse):
                    break
            await asyncio.to_thread(started.wait)
            assert processes_matching(sleep_time)
            assert processes_matching(str(tmp_path))
        assert processes_matching(sleep_time) == []
        assert processes_matching(str(tmp_path)) == []


def start_many(sleep_time: str, started: FifoSignal) -> str:
    """A command that starts children in several ways, signals, and waits."""
    lines = [
        f"sleep {sleep_time} &",
        f"setsid sleep {sleep_time} &",
        f"nohup sleep {sleep_time} > /dev/null 2>&1 &",
        f"(setsid sleep {sleep_time} < /dev/null > /dev/null 2>&1 &)",
        f"echo up > {started.path}",
        f"sleep {sleep_time}",
    ]
    return "\n".join(lines)


def open_files() -> set[str]:
    found: set[str] = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:
            continue
    return found


@pytest.mark.deep
@pytest.mark.parametrize(
    ("agent", "count"),
    [
        pytest.param("gemini-cli", 3, marks=pytest.mark.gemini_cli),
        pytest.param("gemini-cli", 20, marks=[pytest.mark.gemini_cli, pytest.mark.deep]),
        pytest.param("opencode-acp", 2, marks=[pytest.mark.opencode, pytest.mark.deep]),
    ],
    indirect=["agent"],
)
async def test_runs_at_once_share_nothing_and_leave_nothing_behind(
    agent: RealAgent, workspace: Path, tmp_path: Path, count: int
) -> None:
    options: list[RunKwargs] = []
    lanes: list[Lane] = []
    for number in range(count):
        folder = workspace / f"part-{number}"
        folder.mkdir()
        calls = [agent.write("mine.txt", f"{number}\n"), agent.shell(f"echo {number} > shell.txt")]
        options.append(agent.options(steps(*calls), cwd=folder, policy="all", timeout=300))
        lanes.append(agent.lane)
    before = open_files()
    with exclusive_machine(tmp_path):
        async with asyncio.timeout(350), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(corral.run(agent.name, f"question {number}", **each))
                for number, each in enumerate(options)
            ]
    results = [task.result() for task in tasks]
    assert [result.error for result in results if not result.ok] == []
    assert len({result.session_id for result in results}) == count
    assert len({result.resume_token for result in results}) == count
    for number, (result, lane) in enumerate(zip(results, lanes, strict=True)):
        folder = workspace / f"part-{number}"
        names = {Path(file.path).relative_to(folder).as_posix() for file in result.files}
        assert names == {"mine.txt", "shell.txt"}
        assert (folder / "mine.txt").read_text() == (folder / "shell.txt").read_text()
        assert [request.last_text for request in lane.requests] == [f"question {number}"] * 3
        assert result.files_complete
    assert processes_matching(str(tmp_path)) == []
    assert open_files() - before == set()
    assert list(paths.process_registry().iterdir()) == []
    assert list(paths.sessions().glob("*/tmp")) == []
    assert sorted(os.listdir(tmp_path)) == ["corral-home", "user-home", "workspace"]
    assert os.listdir(tmp_path / "user-home") == []
