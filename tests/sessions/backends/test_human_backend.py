"""A person as the agent. The person is a thread, a pty or another process."""

from __future__ import annotations

import asyncio
import os
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.stream_checks import check_stream

import corral
from corral import Policy, errors, events
from corral._sessions import store
from corral._sessions.prepare import prepare
from corral._sessions.store import UNFINISHED
from corral._system import platform
from corral._system.terminal import Watch
from corral.events import Event

CORRAL = str(Path(sys.executable).with_name("corral"))
AWAITED = "the answer is awaited in: "


class Person:
    """Answers each question in its turn, from a thread, once the location is known."""

    def __init__(self, *answers: str | Callable[[Path], object]) -> None:
        self._answers = list(answers)
        self.events: list[Event] = []
        self.asked: list[str] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, events.Log) and event.text.startswith(AWAITED):
            answer = Path(event.text.removeprefix(AWAITED))
            self.asked.append(answer.with_name("prompt.md").read_text())
            threading.Thread(target=self._work, args=(self._answers.pop(0), answer)).start()

    def _work(self, how: str | Callable[[Path], object], answer: Path) -> None:
        if callable(how):
            how(answer)
        else:
            answer.write_text(how)


def test_what_a_person_saves_is_the_answer(workspace: Path) -> None:
    person = Person("It is a corral.\n")
    result = corral.run_sync("manual", "What is it?", cwd=workspace, on_event=person)
    assert (result.status, result.text) == ("success", "It is a corral.")
    assert person.asked[0].startswith("What is it?\n")
    assert str(workspace) in person.asked[0]
    kinds = [
        type(event) for event in check_stream(person.events) if not isinstance(event, events.Log)
    ]
    assert kinds == [events.Init, events.Text, events.Done]


def test_what_a_person_changes_on_disk_is_in_the_result(workspace: Path) -> None:
    def work(answer: Path) -> None:
        (workspace / "a.txt").write_text("theirs\n")
        answer.write_text("Done.")

    result = corral.run_sync("manual", "Write a.txt", cwd=workspace, on_event=Person(work))
    assert [(file.kind, Path(file.path).name) for file in result.files] == [("created", "a.txt")]


def test_a_draft_is_not_taken_until_its_last_line_is_deleted(workspace: Path) -> None:
    drafts: list[str] = []

    def write(answer: Path) -> None:
        template = answer.read_text()
        for draft in (template, f"Half\n{template}", f"Half an answer\n{template}", "   \n"):
            answer.write_text(draft)
            drafts.append(draft)
            time.sleep(0.3)  # long enough to be taken, if it were
        answer.write_text("A whole answer")

    result = corral.run_sync("manual", "Go on", cwd=workspace, on_event=Person(write))
    assert result.text == "A whole answer"
    assert UNFINISHED in drafts[0]
    assert len(drafts) == 4


def test_an_answer_that_is_moved_into_place_counts(workspace: Path) -> None:
    def move(answer: Path) -> None:
        made = answer.with_name("made-elsewhere")
        made.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
        made.rename(answer)

    result = corral.run_sync("manual", "Go on", cwd=workspace, on_event=Person(move))
    assert result.text == "one\ntwo"


def test_a_slow_writer_is_waited_for(workspace: Path) -> None:
    def write(answer: Path) -> None:
        with answer.open("w", buffering=1) as file:
            file.write("one\n")
            time.sleep(0.3)
            file.write("two\n")

    result = corral.run_sync("manual", "Go on", cwd=workspace, on_event=Person(write))
    assert result.text == "one\ntwo"


def test_without_file_notifications_the_file_is_polled(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> int:
        raise OSError("no inotify here")

    monkeypatch.setattr(platform, "inotify_open", none)
    monkeypatch.setattr(Watch, "WITHOUT_EVENTS", 0.05)
    result = corral.run_sync("manual", "Go on", cwd=workspace, on_event=Person("seen"))
    assert result.text == "seen"


@dataclass
class Review:
    summary: str
    problems: list[str]


def test_an_answer_that_does_not_fit_is_returned_to_the_person(workspace: Path) -> None:
    person = Person("I like it.", '{"summary": "small", "problems": []}')
    result = corral.run_sync(
        "manual", "Review it", cwd=workspace, output=Review, on_event=person, check=True
    )
    assert result.output == Review("small", [])
    assert len(person.asked) == 2
    assert "no JSON in the answer" in person.asked[1]


def test_the_person_sees_the_attachments_of_the_prompt(workspace: Path) -> None:
    (workspace / "notes.txt").write_text("notes")
    person = Person("ok")
    corral.run_sync(
        "manual",
        "Read it",
        cwd=workspace,
        on_event=person,
        system_prompt="Be kind.",
        attachments=["notes.txt"],
    )
    assert person.asked[0].startswith("Be kind.\n\nRead it\n\nAttached files:\n- notes.txt\n")


def test_a_person_has_a_month_by_default(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepare("manual", {"cwd": workspace}).run
    assert run.timeout == run.idle_timeout == 30 * 24 * 3600
    assert prepare("manual", {"cwd": workspace, "timeout": 5}).run.timeout == 5
    assert prepare("corral", {"cwd": workspace, "model": "chat:x"}).run.timeout == 600
    (tmp_path / "corral.toml").write_text("[agents.manual]\ntimeout = 900\n")
    monkeypatch.setenv("CORRAL_CONFIG", str(tmp_path / "corral.toml"))
    assert prepare("manual", {"cwd": workspace}).run.timeout == 900


def test_a_question_stays_open_after_a_deadline(workspace: Path) -> None:
    result = corral.run_sync("manual", "Still there?", cwd=workspace, timeout=0.2)
    assert result.status == "timeout"
    assert result.error
    assert f"--resume {result.resume_token}" in (result.error.hint or "")
    question = store.open_question(store.find("last"))
    assert question is not None
    question.answer.write_text("I was away.")
    repeated = corral.run_sync("manual", cwd=workspace, resume=result.resume_token)
    assert (repeated.status, repeated.text) == ("success", "I was away.")
    assert store.open_question(store.find("last")) is None


async def test_leaving_early_leaves_the_question_open(workspace: Path) -> None:
    async with corral.session("manual", cwd=workspace) as session:
        async for event in session.prompt("Still there?"):
            if isinstance(event, events.Log):
                break
    stored = store.find("last")
    assert stored.meta.status == "waiting"
    assert store.open_prompt(stored) == "Still there?"
    assert not store.is_in_use(stored)


def test_another_prompt_is_another_question_and_the_open_one_stays(workspace: Path) -> None:
    first = corral.run_sync("manual", "One?", cwd=workspace, timeout=0.2)
    person = Person("two")
    second = corral.run_sync(
        "manual", "Two?", cwd=workspace, resume=first.resume_token, on_event=person
    )
    assert second.text == "two"
    assert person.asked[0].startswith("Two?")
    assert (store.find("last").folder / "turn-1" / "prompt.md").read_text().startswith("One?")


def test_a_session_with_a_person_continues(workspace: Path) -> None:
    first = corral.run_sync("manual", "One?", cwd=workspace, on_event=Person("one"))
    person = Person("two")
    second = corral.run_sync(
        "manual", "One?", cwd=workspace, resume=first.resume_token, on_event=person
    )
    assert second.text == "two"
    assert second.session_id == first.session_id


def test_nothing_is_stored_without_keep(workspace: Path) -> None:
    result = corral.run_sync("manual", "One?", cwd=workspace, keep=False, on_event=Person("one"))
    assert (result.text, result.resume_token, store.all_sessions()) == ("one", None, [])


def test_a_removed_folder_ends_the_wait(workspace: Path) -> None:
    person = Person(lambda answer: shutil.rmtree(answer.parent))
    result = corral.run_sync("manual", "One?", cwd=workspace, on_event=person)
    assert result.error
    assert (result.error.code, result.status) == ("storage", "error")


class Counting(selectors.DefaultSelector):
    """Counts how often the loop wakes up."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.wakes += 1
        return super().select(timeout)


def test_waiting_does_not_wake_the_loop(workspace: Path) -> None:
    counts: list[int] = []
    was_idle: list[bool] = []

    def think(answer: Path) -> None:
        time.sleep(1.5)  # past the second that an answer of before would need to settle
        answer.with_name(".answer.md.swp").write_text("an editor's own")
        time.sleep(0.3)
        counts.append(selector.wakes)
        time.sleep(0.5)
        counts.append(selector.wakes)
        loop.call_soon_threadsafe(idle.set)
        was_idle.append(idle.wait(10))
        answer.write_text("thought over")

    selector, idle = Counting(), threading.Event()
    loop = asyncio.SelectorEventLoop(selector)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(
            corral.run("manual", "Think", cwd=workspace, track_files=False, on_event=Person(think))
        )
    assert result.text == "thought over"
    assert counts[0] == counts[1]
    assert counts[0] < 20
    assert was_idle == [True]  # it slept all the while, and did not spin between two wake-ups


def corral_run(workspace: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [CORRAL, "run", *words],
        cwd=workspace,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def reported(process: subprocess.Popen[str]) -> Path:
    """Where a run says that it waits for the answer."""
    assert process.stderr is not None
    for line in process.stderr:
        if AWAITED in line:
            return Path(line.strip().removeprefix(AWAITED))
    raise AssertionError("it never said where")


@pytest.mark.deep
def test_a_run_that_was_killed_finds_the_answer_that_came_meanwhile(workspace: Path) -> None:
    first = corral_run(workspace, "--agent", "manual", "Anybody there?")
    answer = reported(first)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=30)
    given = subprocess.run(
        [CORRAL, "runs", "answer", "last"],
        input="I am back.\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    name = answer.parent.parent.name
    assert given.returncode == 0, given.stderr
    assert f"corral runs resume {name}" in given.stderr
    second = corral_run(workspace, "--resume", name)
    out, err = second.communicate(timeout=60)
    assert (second.returncode, out) == (0, "I am back.\n"), err
    third = subprocess.run(
        [CORRAL, "runs", "answer", name], input="no", capture_output=True, text=True
    )
    assert (third.returncode, "is not waiting for a text" in third.stderr) == (2, True)


def test_an_answer_from_the_command_line_reaches_the_run_that_waits(workspace: Path) -> None:
    run = corral_run(workspace, "--agent", "manual", "Anybody there?")
    answer = reported(run)
    (workspace / "mine.md").write_text("Here.\n")
    given = subprocess.run(
        [CORRAL, "runs", "answer", answer.parent.parent.name, "-f", str(workspace / "mine.md")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    out, err = run.communicate(timeout=60)
    assert (out, run.returncode) == ("Here.\n", 0), err
    assert "received the answer" in given.stdout


@pytest.mark.parametrize("end", [b"\x04", b".\n"], ids=["ctrl-d", "dot"])
def test_at_a_terminal_the_person_is_asked_there(end: bytes, workspace: Path) -> None:
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(workspace)
        os.execv(CORRAL, [CORRAL, "run", "--agent", "manual", "Who\x1b]0;evil\x07 are you?"])
    try:
        seen = b""
        while b"single dot." not in seen:
            seen += os.read(terminal, 4096)
        os.write(terminal, b"First line\n" + b"second line\n" + end)
        while b"success" not in seen:
            seen += os.read(terminal, 4096)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)
    assert b"\x1b]0;evil" not in seen
    assert b"evil" in seen
    stored = store.find("last")
    texts = [event.delta for event in stored.events() if isinstance(event, events.Text)]
    assert texts == ["First line\nsecond line"]


def editor(folder: Path, body: str) -> str:
    """A program that edits the file it is given as the body says."""
    program = folder / "editor"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_an_editor_is_opened_on_the_question(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f'cp "$2" {tmp_path}/shown; {{ echo from the editor; cat "$2"; }} > {tmp_path}/new'
    command = editor(tmp_path, f'{body}; mv {tmp_path}/new "$2"')
    monkeypatch.setenv("VISUAL", f"{command} --wait")
    result = corral.run_sync("manual", "What now?", cwd=workspace, via="editor")
    assert (result.status, result.text) == ("success", "from the editor")
    assert "What now?" in (tmp_path / "shown").read_text()


@pytest.mark.parametrize(
    ("body", "code"), [("exit 0", "empty_answer"), ("exit 3", "process_failed")]
)
def test_an_editor_that_exits_without_an_answer_leaves_the_question_open(
    body: str, code: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", editor(tmp_path, body))
    monkeypatch.delenv("VISUAL", raising=False)
    result = corral.run_sync("manual", "What now?", cwd=workspace, via="editor")
    assert result.error
    assert result.error.code == code
    assert store.open_prompt(store.find("last")) == "What now?"


def test_a_run_that_ends_also_ends_the_editor(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", editor(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 300"))
    result = corral.run_sync("manual", "What now?", cwd=workspace, via="editor", timeout=2)
    assert result.status == "timeout"
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_missing_terminal_is_an_error_at_once(workspace: Path) -> None:
    with pytest.raises(errors.ConfigError, match="there is no terminal"):
        corral.run_sync("manual", "x", cwd=workspace, via="terminal")


def test_a_person_decides_what_the_policy_does_not(workspace: Path) -> None:
    for policy in (Policy(), Policy.all(), Policy.native()):
        rows = prepare("manual", {"cwd": workspace, "policy": policy}).compiled.report
        assert {enforcer for row in rows for enforcer in row.enforcers} == {"native"}
        assert not any(row.is_denied for row in rows)


@pytest.mark.parametrize(
    "policy",
    [
        Policy.reads(),
        Policy.edits(),
        Policy(allow_tools=["read"]),
        Policy(deny_tools=("shell",)),
        Policy(shell_rules=("allow git status",)),
    ],
)
def test_a_policy_that_denies_something_is_not_enforceable_for_a_person(
    policy: Policy, workspace: Path
) -> None:
    with pytest.raises(errors.PolicyNotEnforceable):
        prepare("manual", {"cwd": workspace, "policy": policy})


def test_without_strict_the_person_is_asked_not_to_use_denied_tools(workspace: Path) -> None:
    person = Person("ok")
    corral.run_sync("manual", "Do it", cwd=workspace, policy="edits", strict=False, on_event=person)
    assert "Please do not use: shell, network." in person.asked[0]


def test_options_that_a_person_does_not_support_are_refused(workspace: Path) -> None:
    def tool() -> str:
        """A tool."""
        return ""

    with pytest.raises(errors.ConfigError, match="cannot call functions"):
        corral.run_sync("manual", "x", cwd=workspace, tools=[tool])
    with pytest.raises(errors.ConfigError, match="has no model"):
        corral.run_sync("manual", "x", cwd=workspace, model="m")
    with pytest.raises(errors.ConfigError, match="no option 'via'"):
        corral.run_sync("corral", "x", cwd=workspace, model="chat:x", via="file")
