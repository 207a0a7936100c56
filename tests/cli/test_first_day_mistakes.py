"""The mistakes of a first day: each gets one line that says what is wrong, one that says what to
do, and the documented exit code. Nothing is started or stored before."""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shlex
import signal
import subprocess
import sys
import termios
import time
from array import array
from pathlib import Path

import pytest
from support.pipeline_command import corral
from support.scripted_agent import GOOD, PROGRAM

from corral.errors import CorralError
from corral.system import paths
from corral.testing import ModelServer

CORRAL = str(Path(sys.executable).with_name("corral"))
AGENT = ("--agent", "gemini-cli", "--program", str(PROGRAM))
KEY = "scripted-key-0123456789"
FILES = {
    "file": "text",
    "broken.json": "{",
    "odd.json": '{"type": "strange"}',
    "array.json": "[]",
    "tasks.jsonl": '{"name": "a"}\n',
    "empty.jsonl": "",
    "syntax.toml": "[defaults\n",
    "key.toml": "[defaults]\ntimeot = 5\n",
    "value.toml": '[defaults]\ntimeout = "soon"\n',
    "policy.toml": 'shel = "allow"\n',
    "tiny.dot": "digraph { s [shape=Mdiamond]; a [prompt=x]; e [shape=Msquare]; s -> a -> e }",
    "typo.dot": 'digraph { s [shape=Mdiamond]; a [policy="edit"]; e [shape=Msquare]; s -> a -> e }',
}

MISTAKES = [
    # (words, exit code, what is wrong, what to do)
    ("rnu hi", 2, "no command is called 'rnu'", "Did you mean 'run'?"),
    ("sessions shw x", 2, "no such command 'shw'", "Did you mean 'show'?"),
    ("run --modle x hi", 2, "no such option '--modle'", "Did you mean --model?"),
    ("run --approve edit hi", 2, "'edit' is not one of", "Did you mean edits?"),
    ("run --timeout", 2, "option '--timeout' requires an argument", ""),
    ("run --timeout soon hi", 2, "'soon' is not a duration", "write 500ms, 30s"),
    ("run --max-turns many hi", 2, "'many' is not a valid integer", "See: corral run --help"),
    ("run fix the bug", 2, "unexpected extra arguments (the bug)", "Write the prompt in quotes"),
    ("run ''", 2, "the prompt is empty", "Give it as an argument"),
    ("run", 2, "the prompt is empty", "Give it as an argument"),
    ("run --file absent.md", 2, "the prompt file absent.md cannot be read", ""),
    ("run --agent gemni hi", 2, "no agent is called 'gemni'", "Did you mean 'gemini'?"),
    ("run --agent 'my-agent --acp' hi", 12, "no my-agent is on PATH", "corral agents list"),
    ("run --program absent hi", 12, "program 'absent' was not found", "Give the path"),
    ("run -m gemni:x hi", 2, "unknown model vendor 'gemni'", "Did you mean 'gemini'?"),
    ("run -m openai:gpt-5.5 hi", 6, "no API key for OpenAI", "Set OPENAI_API_KEY"),
    ("run --cwd absent hi", 2, "cwd does not exist", "Name a folder that exists"),
    ("run --cwd file hi", 2, "cwd is not a folder", ""),
    ("run --image absent.png hi", 2, "does not exist: ", ""),
    ("run --env NAME=value hi", 2, "not a valid name of an environment variable", "only the name"),
    ("run --policy edits hi", 2, "no policy file 'edits'", "Did you mean --approve edits?"),
    ("run --policy policy.toml hi", 2, "unknown key 'shel'", "Did you mean 'shell'?"),
    ("run --allow-tool read_fle hi", 2, "has no tool 'read_fle'", "read_file"),
    ("run --schema absent.json hi", 2, "absent.json cannot be read", "Give a file"),
    ("run --schema broken.json hi", 2, "broken.json is not JSON", ""),
    ("run --schema odd.json hi", 2, "the schema cannot be used", ""),
    ("run --resume absent hi", 4, "no session is called 'absent'", "corral sessions list"),
    ("run --fork hi", 2, "fork needs resume", ""),
    ("run --json --quiet hi", 2, "--json and --quiet are both given", ""),
    ("--config absent.toml run hi", 2, "'absent.toml' does not exist", "See: corral --help"),
    ("--config syntax.toml run hi", 2, "syntax.toml: Expected ']'", "line 1"),
    ("--config value.toml run hi", 2, "timeout: 'soon' is not a duration", ""),
    ("--config key.toml config check", 2, "unknown key 'timeot'", "did you mean 'timeout'?"),
    (
        "compare -a gemini hi",
        2,
        "compare needs two or more different agents",
        "--agents AGENT,AGENT",
    ),
    ("chat --agent gemni", 2, "no agent is called 'gemni'", "Did you mean 'gemini'?"),
    ("batch absent.jsonl", 2, "absent.jsonl: No such file", ""),
    ("batch empty.jsonl", 2, "empty.jsonl contains no tasks", ""),
    ("batch tasks.jsonl -p '{{nam}}'", 2, "task '1' has no field 'nam'", "Its fields: name"),
    ("batch tasks.jsonl --schema array.json", 2, "not a JSON Schema", ""),
    ("pipeline run absent.dot", 2, "cannot read the pipeline 'absent.dot'", "A pipeline is a file"),
    ("pipeline run tiny.dot --retries 11", 2, "node 'a': retries must be between 0 and 9", ""),
    ("pipeline run tiny.dot --policy edits", 2, "no policy file 'edits'", "--approve edits?"),
    ("pipeline show absent", 2, "there is no run 'absent'", "corral pipeline runs"),
    ("sessions show absent", 4, "no session is called 'absent'", "corral sessions list"),
]


@pytest.fixture
def started(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists when the agent was started. The agent is a program on PATH."""
    for name, text in FILES.items():
        (workspace / name).write_text(text)
    folder, mark = tmp_path / "bin", tmp_path / "started"
    folder.mkdir()
    program = folder / "gemini"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo 0.61.0 && exit\ntouch {mark}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    for name in ("OPENAI_API_KEY", "CORRAL_LOG"):
        monkeypatch.delenv(name, raising=False)
    return mark


def check_report(
    done: subprocess.CompletedProcess[str], code: int, wrong: str, advice: str
) -> None:
    """One line about the mistake, and at most one with advice."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("corral: "), done.stderr
    assert wrong in lines[0]
    assert len(lines) <= 2, done.stderr
    assert all(line.startswith("  ") for line in lines[1:])
    assert advice in done.stderr
    assert "Traceback" not in done.stderr
    assert "Errno" not in done.stderr


@pytest.mark.parametrize(("words", "code", "wrong", "advice"), MISTAKES, ids=str)
def test_a_mistake_gets_one_line_and_nothing_is_started(
    words: str, code: int, wrong: str, advice: str, workspace: Path, started: Path
) -> None:
    check_report(corral(*shlex.split(words), cwd=workspace), code, wrong, advice)
    assert not started.exists()
    assert not [*paths.sessions().glob("*")]


def test_every_exit_code_of_a_mistake_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "errors-and-exit-codes.md"
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", page.read_text(), re.MULTILINE)}
    kinds = {each.cli_exit for each in CorralError.__subclasses__()}
    assert {code for _, code, _, _ in MISTAKES} | kinds | {130, 141} <= documented


def test_an_agent_that_is_not_installed(
    workspace: Path, started: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/absent")
    done = corral("run", "hi", cwd=workspace)
    check_report(done, 12, "Gemini CLI was not found", "corral agents install gemini")


def test_no_node(workspace: Path, started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = workspace / "gemini"
    program.write_text("#!/usr/bin/env node\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(workspace))
    done = corral("run", "hi", cwd=workspace)
    check_report(done, 12, "needs Node.js 20 or newer", "Install Node.js")


@pytest.mark.parametrize("variable", ["CORRAL_HOME", "HOME"])
def test_a_home_that_cannot_be_written_is_no_reason_not_to_answer(
    workspace: Path, started: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("CORRAL_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(workspace / "file" / "home"))
    done = corral("run", *AGENT, "-", cwd=workspace, stdin=GOOD)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "the session is not stored" in done.stderr
    assert "set CORRAL_HOME to another folder" in done.stderr


WITHOUT_HOME = [
    # (words, exit code, what is wrong, what to do)
    ("run --session x hi", 1, "cannot be created: Not a directory", "Set CORRAL_HOME to another"),
    ("run --resume last hi", 4, "no session", ""),
    ("pipeline run tiny.dot --simulate", 2, "the run folder", "Choose a writable one"),
]


@pytest.mark.parametrize(("words", "code", "wrong", "advice"), WITHOUT_HOME, ids=str)
def test_what_needs_a_folder_says_so(
    workspace: Path,
    started: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    code: int,
    wrong: str,
    advice: str,
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(workspace / "file" / "home"))
    check_report(corral(*shlex.split(words), cwd=workspace), code, wrong, advice)
    assert not started.exists()


def test_lists_are_empty_where_there_is_no_folder(
    workspace: Path, started: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(workspace / "file" / "home"))
    for words in (("sessions", "list"), ("batches", "list"), ("pipeline", "runs")):
        done = corral(*words, cwd=workspace)
        assert (done.returncode, done.stderr) == (0, ""), words


@pytest.mark.parametrize("home", ["", None], ids=["empty", "not set"])
def test_without_a_home_the_user_database_is_asked(
    workspace: Path, started: Path, home: str | None
) -> None:
    env = {key: value for key, value in os.environ.items() if key not in ("HOME", "CORRAL_HOME")}
    env |= {} if home is None else {"HOME": home}
    done = subprocess.run(
        [CORRAL, "config", "path"], env=env, cwd=workspace, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert pwd.getpwuid(os.getuid()).pw_dir in done.stdout


def test_a_pipeline_with_a_mistake_names_the_node_and_the_correction(
    workspace: Path, started: Path
) -> None:
    done = corral("pipeline", "run", "typo.dot", cwd=workspace)
    assert done.returncode == 2
    assert "no policy is called 'edit'" in done.stderr
    assert "Did you mean edits?" in done.stderr
    assert not started.exists()


def run_model(
    server: ModelServer, *words: str, key: str, cwd: Path
) -> subprocess.CompletedProcess[str]:
    env = {"GEMINI_API_KEY": key, "GOOGLE_GEMINI_BASE_URL": server.url}
    model = ("-m", "gemini:gemini-2.5-flash", "--retries", "0", "--quiet")
    return corral("run", *model, *words, "hi", cwd=cwd, env=env)


def test_a_wrong_key(workspace: Path, started: Path) -> None:
    with ModelServer(key=KEY) as server:
        done = run_model(server, key="wrong-key-0123456789", cwd=workspace)
    check_report(done, 6, "", "GEMINI_API_KEY")


def test_no_network(workspace: Path, started: Path) -> None:
    env = {"GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:9"}
    words = ("run", "-m", "gemini:gemini-2.5-flash", "--retries", "0", "--quiet", "hi")
    check_report(
        corral(*words, cwd=workspace, env=env), 1, "127.0.0.1:9 cannot be reached", "network"
    )


# The end of the reader, and Ctrl-C at each moment.


def test_a_reader_that_closes_the_pipe(workspace: Path, started: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as closed:
        done = subprocess.run(
            [CORRAL, "run", *AGENT, "--quiet", "-"],
            input=b"init\ntext hello\nresult",
            stdout=closed,
            stderr=subprocess.PIPE,
            cwd=workspace,
            timeout=100,
        )
    assert (done.returncode, done.stderr) == (141, b"")


class Running:
    """``corral run`` whose stdin is a pipe."""

    def __init__(self, *words: str, cwd: Path) -> None:
        self.log = cwd / "corral.log"
        self._process = subprocess.Popen(
            [CORRAL, "run", *AGENT, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "CORRAL_LOG": str(self.log)},
            cwd=cwd,
        )
        assert self._process.stdin
        self.stdin = self._process.stdin

    def wait_for_log(self, text: str) -> None:
        for _ in range(1000):
            if self.log.exists() and text in self.log.read_text():
                return
            time.sleep(0.1)
        raise AssertionError(f"{text!r} was not logged")

    def wait_until_stdin_is_read(self) -> None:
        """Until nothing is left in the pipe."""
        for _ in range(1000):
            left = array("i", [0])
            fcntl.ioctl(self.stdin.fileno(), termios.FIONREAD, left)
            if left[0] == 0:
                return
            time.sleep(0.1)
        raise AssertionError("stdin was not read")

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C. Returns the exit code and stderr."""
        self._process.send_signal(signal.SIGINT)
        if self.stdin.closed:
            self._process.stdin = None
        _, stderr = self._process.communicate(timeout=100)
        return self._process.returncode, stderr.decode()


def check_interrupted(end: tuple[int, str]) -> None:
    code, stderr = end
    assert code == 130, stderr
    assert "Traceback" not in stderr


def test_ctrl_c_while_the_prompt_is_read(workspace: Path, started: Path) -> None:
    running = Running("-", cwd=workspace)
    running.stdin.write(b"half a prompt")
    running.stdin.flush()
    running.wait_until_stdin_is_read()
    check_interrupted(running.interrupt())
    assert not [*paths.sessions().glob("*")]


@pytest.mark.parametrize(
    ("script", "moment"),
    [("hang", "started "), ("init\nhang", '"type":"init"'), ("init\ntext x\nhang", '"delta":"x"')],
    ids=["while the agent starts", "before the answer", "in the answer"],
)
def test_ctrl_c_while_the_agent_works(
    script: str, moment: str, workspace: Path, started: Path
) -> None:
    running = Running("-", cwd=workspace)
    running.stdin.write(script.encode())
    running.stdin.close()
    running.wait_for_log(moment)
    check_interrupted(running.interrupt())
