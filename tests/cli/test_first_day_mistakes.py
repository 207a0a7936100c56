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
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.command_in_process import run_in_process
from support.pipeline_command import corral
from support.scripted_agent import GOOD, PROGRAM

import corral as corral_package
from corral import models, pipelines
from corral._cli.main import INSTEAD, command
from corral._system import paths
from corral.errors import CorralError
from corral.testing import ModelServer

CORRAL = str(Path(sys.executable).with_name("corral"))
AGENT = ("--agent", "gemini-cli", "--program", str(PROGRAM))
KEY = "scripted-key-0123456789"
LONGEST = 160
"""Characters of the line that says what is wrong."""
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
    "x.diff": "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
    "tiny.dot": "digraph { s [shape=Mdiamond]; a [prompt=x]; e [shape=Msquare]; s -> a -> e }",
    "agent.toml": '[defaults]\nagent = "claude"\n',
    "table.toml": "[default]\ntimeout = 3\n",
    "typo.dot": 'digraph { s [shape=Mdiamond]; a [policy="edit"]; e [shape=Msquare]; s -> a -> e }',
}

MISTAKES = [
    # (words, exit code, what is wrong, what to do)
    ("rnu hi", 2, "no command is called 'rnu'", "Did you mean 'run'?"),
    ("docs sandbox auto", 2, "one TOPIC is shown at a time", "corral docs --search sandbox auto"),
    ("run --mcp notes hi", 2, "NAME=URL, got: 'notes'", "As in 'notes=python"),
    ("config show codex", 2, "unexpected extra argument", "config show --agent NAME"),
    ("models list gemini", 2, "unexpected extra argument", "models list --provider NAME"),
    ("runs shw x", 2, "no command is called 'shw'", "Did you mean 'show'?"),
    ("run --modle x hi", 2, "no such option '--modle'", "Did you mean --model?"),
    ("run --approve edit hi", 2, "'edit' is not one of", "Did you mean edits?"),
    ("run --timeout", 2, "option '--timeout' requires an argument", ""),
    ("run --timeout soon hi", 2, "'soon' is not a duration", "write 500ms, 30s"),
    ("run --max-turns many hi", 2, "'many' is not a valid integer", "See: corral run --help"),
    ("run fix the bug", 2, "unexpected extra arguments (the bug)", "Write the prompt in quotes"),
    ("run gemini hi", 2, "unexpected extra argument (hi)", "corral run --agent gemini PROMPT"),
    ("run ''", 2, "the prompt is empty", "Give it as an argument"),
    ("run", 2, "the prompt is empty", "Give it as an argument"),
    ("run --file absent.md", 2, "the prompt file absent.md cannot be read", ""),
    ("run --agent gemni hi", 2, "no agent is called 'gemni'", "Did you mean 'gemini'?"),
    ("run --agent 'my-agent --acp' hi", 12, "no my-agent is on PATH", "corral agents list"),
    ("run --agent '/absent/agent --acp' hi", 12, "program '/absent/agent' was not found", "path"),
    ("run --agent ./file hi", 12, "program './file' is not executable", "path"),
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
    ("run --resume absent hi", 4, "no session is called 'absent'", "corral runs list"),
    ("run --fork hi", 2, "--fork needs --resume", ""),
    ("run --json --quiet hi", 2, "--json and --quiet are both given", ""),
    ("--config absent.toml run hi", 2, "'absent.toml' does not exist", "See: corral --help"),
    ("--config syntax.toml run hi", 2, "syntax.toml: Expected ']'", "line 1"),
    ("--config value.toml run hi", 2, "timeout: 'soon' is not a duration", ""),
    ("--config key.toml config check", 2, "unknown key 'timeot'", "did you mean 'timeout'?"),
    (
        "compare -a gemini hi",
        2,
        "compare needs two or more different agents",
        "--agent AGENT,AGENT",
    ),
    ("chat --agent gemni", 2, "no agent is called 'gemni'", "Did you mean 'gemini'?"),
    ("batch absent.jsonl", 2, "absent.jsonl: No such file", ""),
    ("batch empty.jsonl", 2, "empty.jsonl contains no tasks", ""),
    ("batch tasks.jsonl", 2, "task '1' has no field 'task'", "into --prompt, as {{name}}."),
    ("batch tasks.jsonl -p '{{nam}}'", 2, "task '1' has no field 'nam'", "Its fields: name"),
    ("batch tasks.jsonl --schema array.json", 2, "not a JSON Schema", ""),
    ("pipeline run absent.dot", 2, "cannot read the pipeline 'absent.dot'", "A pipeline is a file"),
    ("pipeline run tiny.dot --retries 11", 2, "node 'a': retries must be between 0 and 9", ""),
    ("pipeline run tiny.dot --policy edits", 2, "no policy file 'edits'", "--approve edits?"),
    ("runs show absent", 4, "no run is called 'absent'", "corral runs list"),
    # Commands of other programs, or in another place.
    ("install gemini", 2, "no command is called 'install'", "Write corral agents install NAME."),
    ("login", 2, "no command is called 'login'", "Write corral agents doctor"),
    ("auth", 2, "no command is called 'auth'", "Write corral agents doctor"),
    ("init", 2, "no command is called 'init'", "Write corral demo"),
    ("version", 2, "no command is called 'version'", "Write corral --version."),
    ("upgrade", 2, "no command is called 'upgrade'", "Write corral agents install NAME"),
    ("ls", 2, "no command is called 'ls'", "Write corral runs list."),
    ("history", 2, "no command is called 'history'", "Write corral runs list."),
    ("logs", 2, "no command is called 'logs'", "Write corral runs show last."),
    ("resume last", 2, "no command is called 'resume'", "Write corral runs resume last."),
    ("fork", 2, "no command is called 'fork'", "Write corral runs fork last."),
    ("ask hi", 2, "no command is called 'ask'", "Write corral run PROMPT."),
    ("hi", 2, "no command is called 'hi'", 'For a prompt: corral run "hi".'),
    ("fix the bug", 2, "no command is called 'fix'", 'For a prompt: corral run "fix the bug".'),
    ("'What is this?'", 2, "no command is called 'What is", 'corral run "What is this?".'),
    ("config set agent x", 2, "no command is called 'set'", "that corral config path prints."),
    ("config get timeout", 2, "no command is called 'get'", "Write corral config show."),
    ("agents update gemini", 2, "called 'update'", "Write corral agents install NAME."),
    ("agents test gemini", 2, "no command is called 'test'", "Write corral agents doctor NAME."),
    ("agents isntall gemini", 2, "called 'isntall'", "Did you mean 'install'?"),
    ("sessions resume last", 2, "called 'resume'", "Write corral runs resume ID PROMPT."),
    ("sessions rm x", 2, "no command is called 'rm'", "Write corral runs delete ID."),
    ("sessions export x", 2, "no command is called 'export'", "Write corral runs export ID."),
    ("pipeline tiny.dot", 2, "called 'tiny.dot'", "Write corral pipeline run tiny.dot."),
    ("pipeline list", 2, "no command is called 'list'", "Write corral runs list --kind"),
    ("pipeline validate x", 2, "called 'validate'", "Write corral pipeline lint FILE."),
    ("batch list", 2, "no file of tasks is called 'list'", "corral runs list?"),
    ("completion", 2, "missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish", "See:"),
    ("help run", 2, "no command is called 'help'", "Write corral --help, or corral COMMAND --help"),
    # Options of other programs.
    ("run -p hi", 2, "no such option '-p'", 'Write corral run "PROMPT".'),
    ("run --prompt hi", 2, "no such option '--prompt'", 'Write corral run "PROMPT".'),
    ("run --print hi", 2, "no such option '--print'", 'Write corral run --quiet "PROMPT".'),
    ("run --continue hi", 2, "no such option '--continue'", "Write --resume last."),
    ("run --debug hi", 2, "no such option '--debug'", "Write -vv."),
    ("run --output-format json hi", 2, "'--output-format'", "Write --json or --result."),
    ("run --dangerously-skip-permissions hi", 2, "no such option", "Write --approve all."),
    ("run --yolo hi", 2, "no such option '--yolo'", "Write --approve all."),
    ("run --auto hi", 2, "no such option '--auto'", "Write --approve edits."),
    ("run --allowedTools Bash hi", 2, "no such option", "Did you mean --allow-tool?"),
    ("run --max-budget-usd 1 hi", 2, "no such option", "Write --max-cost USD."),
    ("run --provider openai hi", 2, "no such option", "Write -m VENDOR:MODEL."),
    ("run --api-key x hi", 2, "no such option '--api-key'", "corral models list"),
    ("batch tasks.jsonl -p hi -j 4", 2, "no such option '-j'", "Write --concurrency N."),
    ("chat hi", 2, "unexpected extra argument (hi)", "for one prompt: corral run PROMPT."),
    # Values.
    ("run --agent gpt-5 hi", 2, "no agent is called 'gpt-5'", "--model openai:gpt-5"),
    ("run --agent gemini-2.5-flash hi", 2, "no agent is called", "gemini:gemini-2.5-flash"),
    ("run --agent anthropic hi", 2, "no agent is called", "--model anthropic:MODEL"),
    ("run --agent 'Fix the bug' hi", 2, "reads like a prompt", "The agent comes first"),
    ("run -m gpt-5 hi", 2, "no model of another vendor: gpt-5", "--model openai:gpt-5"),
    ("run -m '' hi", 2, "--model is empty", ""),
    ("run --max-cost '$1' hi", 2, "'$1' is not a number", "See: corral run --help"),
    ("run --max-cost -1 hi", 2, "--max-cost must be more than 0", ""),
    ("batch x.jsonl --task-max-cost 0", 2, "--task-max-cost must be more than 0", ""),
    ("run --timeout 0 hi", 2, "--timeout must be more than 0", ""),
    ("run --retries 50 hi", 2, "--retries must be between 0 and 9", ""),
    ("run --sandbox docker hi", 2, "'docker' is not one of 'needed', 'off'", ""),
    ("run --effort extreme hi", 2, "'extreme' is not one of 'none', 'minimal'", ""),
    ("run --attach absent.pdf hi", 2, "does not exist: ", ""),
    ("run --notify '' hi", 2, "--notify is empty", ""),
    ("run --on-limit fallback:gemni hi", 2, "no agent is called 'gemni'", "'gemini'?"),
    ("run --fail-on v=1 hi", 2, "--fail-on needs --schema", ""),
    ("run --json --result hi", 2, "--json prints events: leave out --result", ""),
    ("run --replay absent hi", 2, "the recording cannot be read: absent", "--record-to FILE"),
    ("run 'Explain this diff'", 2, "stdin is empty", "Add </dev/null to run without it."),
    ("run --resume last hi", 4, "there is no run yet", "`corral run PROMPT` starts one."),
    ("runs export last", 4, "there is no run yet", "`corral run PROMPT` starts one."),
    (
        "runs export x --format pdf",
        2,
        "'pdf' is not one of 'ndjson'",
        "See: corral runs export --help",
    ),
    ("runs usage --by month", 2, "'month' is not one of 'day'", "See: corral runs usage --help"),
    ("runs usage --since yesterday", 2, "'yesterday' is not a duration", ""),
    ("runs prune", 2, "missing option '--older-than'", "See: corral runs prune --help"),
    ("runs prune --older-than 30", 2, "--older-than 30 has no unit", "Write 30d for days"),
    ("runs watch absent", 2, "absent is not running", "corral runs replay absent"),
    ("runs show", 2, "give the id of a run ('last' is the newest)", ""),
    ("sessions stop absent", 2, "no session of this folder is called", "corral runs show ID"),
    ("pipeline run tiny.dot --set x", 2, "--set x: write KEY=VALUE", ""),
    ("pipeline run tiny.dot --db x://y", 2, "x databases are not supported", "Use a file"),
    ("batch", 2, "give one file of tasks, got 0", "--files 'src/**/*.py'"),
    ("batch --files 'no/*.py' -p hi", 2, "no file matches 'no/*.py'", "Quote the pattern."),
    ("batch tasks.jsonl -p hi --concurrency 0", 2, "0 is not in the range x>=1", ""),
    ("compare -a gemini,gemni hi", 2, "no agent is called 'gemni'", "Did you mean 'gemini'?"),
    (
        "review --patch x.diff --diff-only -a gemini,gemni",
        2,
        "no agent is called 'gemni'",
        "Did you mean 'gemini'?",
    ),
    ("agents install corral", 2, "is part of corral: there is nothing to install", ""),
    ("--config agent.toml config check", 2, "agent is not in [defaults]", "above the first table"),
    ("--config table.toml config check", 2, "unknown table 'default'", "Did you mean [defaults]?"),
]
CALLS = [
    # (Python, what is wrong, what to do)
    ('corral.run_sync("What does this do?")', "reads like a prompt", "The agent comes first"),
    ('corral.run_sync("Fix it", policy="edits")', "reads like a prompt", 'prompt="PROMPT"'),
    ('corral.run_sync("gemini")', "there is no prompt", "Give prompt or prompt_file."),
    ('corral.run_sync("gemini", "")', "the prompt is empty", ""),
    ('corral.run_sync("gemini", ["hi"])', "the prompt must be text, got: list", ""),
    ('corral.run_sync("gpt-5", "hi")', "no agent is called", "model='openai:gpt-5'"),
    ('corral.run_sync(3, "hi")', "an agent name must be a string, got: 3", ""),
    ('corral.run_sync("gemini", "hi", timout=3)', "unknown option 'timout'", "'timeout'?"),
    ('corral.run_sync("gemini", "hi", verbose=True)', "unknown option 'verbose'", "lists all"),
    ('corral.run_sync("gemini", "hi", timeout="soon")', "'soon' is not a duration", "30s"),
    ('corral.run_sync("gemini", "hi", policy="edit")', "got: 'edit'", "Did you mean 'edits'?"),
    ('corral.run_sync("gemini", "hi", policy={"write": "allow"})', "got: dict", "corral.Policy("),
    ('corral.run_sync("gemini", "hi", sandbox=True)', "must be one of needed, off, auto", ""),
    ('corral.run_sync("gemini", "hi", strict="yes")', "strict must be True or False", ""),
    ('corral.run_sync("gemini", "hi", max_cost="1")', "max_cost must be a number, got: str", ""),
    ('corral.run_sync("gemini", "hi", images="a.png")', "images must be a list, got: str", ""),
    ('corral.run_sync("gemini", "hi", env="A=b")', "env must be a dict, got: str", ""),
    ('corral.run_sync("gemini", "hi", model="openai:gpt-5")', "another vendor", "--agent codex"),
    ('corral.run_sync("gemini", "hi", resume="absent")', "no session is called 'absent'", ""),
    ('corral.run_sync("gemini", "hi", output="text")', "must be a type", "Pass the class itself"),
    (
        'corral.run_sync("gemini", "hi", until="pytest")',
        "until must be a check",
        "command_succeeds",
    ),
    ('corral.run_sync("gemini", "hi", tools=[3])', "a tool must be a function, got: int", ""),
    ('corral.run_sync("gemini", "hi", tools=print)', "tools must be a list", "tools=[function]"),
    ('corral.run_sync("gemini", "hi", ask=3)', "ask must be a function, got: int", ""),
    ('corral.batch_sync({"a": 1}, "hi")', "must be a list or a file", "Write [task]."),
    ('corral.batch_sync([], "hi")', "there are no tasks", ""),
    ('corral.batch_sync(["a"], "{{path}}")', "task '1' has no field 'path'", "Its fields: task."),
    ('corral.batch_sync(["a"], "hi", agnt="x")', "unknown option 'agnt'", "did you mean 'agent'?"),
    ('pipelines.run_sync("absent.dot")', "cannot read the pipeline 'absent.dot'", "is a file"),
    ('models.generate_sync("gpt-5", "hi")', "has no vendor prefix", "openai:gpt-5?"),
    ('models.generate_sync("openai:gpt-5", "hi")', "no API key for OpenAI", "OPENAI_API_KEY"),
    ('models.generate_sync("gemni:x", "hi")', "unknown model vendor", "Did you mean 'gemini'?"),
    ('corral.Policy(write="yes")', "write must be allow, ask or deny, got: 'yes'", ""),
    ('corral.session_sync("gemni").__enter__()', "no agent is called 'gemni'", "'gemini'?"),
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


@pytest.fixture
def nothing_starts(
    started: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The test runs beside the files; no agent and no session is started."""
    monkeypatch.chdir(workspace)
    yield
    assert not started.exists()
    assert not [*paths.sessions().glob("*")]


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


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(("words", "code", "wrong", "advice"), MISTAKES, ids=str)
def test_a_mistake_gets_one_line_and_nothing_is_started(
    words: str, code: int, wrong: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_report(run_in_process(words, monkeypatch), code, wrong, advice)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(("call", "wrong", "advice"), CALLS, ids=str)
def test_a_wrong_call_gets_one_line_and_nothing_is_started(
    call: str, wrong: str, advice: str
) -> None:
    with pytest.raises(CorralError) as raised:
        eval(call, {"corral": corral_package, "pipelines": pipelines, "models": models})
    lines = str(raised.value).splitlines()
    assert wrong in lines[0]
    assert len(lines) <= 2
    assert len(lines[0]) < LONGEST
    assert advice in str(raised.value)


def test_what_is_to_be_written_instead_exists() -> None:
    context = command.make_context("corral", ["help"])
    for written in INSTEAD.values():
        group: click.Command | None = command
        for word in re.findall(r"^corral ((?:[a-z]+ ?)*)", written)[:1]:
            for name in word.split():
                if isinstance(group, click.Group):
                    group = group.get_command(context, name)
                    assert group is not None, written


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


@pytest.mark.parametrize(
    ("variable", "reports"),
    [
        ("CORRAL_HOME", ["the session is not stored", "set CORRAL_HOME to another folder"]),
        ("HOME", ["cannot be written", "resume with --resume"]),
    ],
)
def test_a_home_that_cannot_be_written_is_no_reason_not_to_answer(
    workspace: Path,
    started: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    reports: list[str],
) -> None:
    for name in ("CORRAL_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(workspace / "file" / "home"))
    done = corral("run", *AGENT, "-", cwd=workspace, stdin=GOOD)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert [text for text in reports if text not in done.stderr] == []


WITHOUT_HOME = [
    # (words, exit code, what is wrong, what to do)
    ("run --session x hi", 1, "cannot be created: Not a directory", "Set CORRAL_HOME to another"),
    ("run --resume last hi", 4, "no run yet", ""),
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
    done = corral("runs", "list", cwd=workspace)
    assert (done.returncode, done.stderr) == (0, "")


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
