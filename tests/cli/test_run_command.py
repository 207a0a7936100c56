"""``corral run``, ``agents`` and ``sessions``, run as programs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.mcp_servers import notes_server
from support.pipeline_command import CORRAL, corral
from support.sandbox import needs_sandbox
from support.scripted_agent import GOOD, PROGRAM

from corral import from_json
from corral.events import Done


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")


AGENT = ("--agent", "gemini-cli", "--program", str(PROGRAM))


def run(script: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return corral("run", *AGENT, *words, "-", cwd=cwd, stdin=script)


class Running:
    """``corral run --json`` while it runs."""

    def __init__(self, script: str, *words: str, cwd: Path) -> None:
        self._process = subprocess.Popen(
            [CORRAL, "run", *AGENT, "--json", *words, "-"],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(script.encode())
        self._process.stdin.close()
        self.stdout = self._process.stdout
        self.signal = self._process.send_signal

    def end(self) -> tuple[int, str]:
        """Wait for the end. Returns the exit code and stderr."""
        assert self._process.stderr
        with closing(self.stdout), self._process.stderr as stderr:
            return self._process.wait(30), stderr.read().decode()


def test_the_answer_is_on_stdout_and_progress_on_stderr(workspace: Path) -> None:
    done = run(
        "init\ntext Hel\ntext lo.\nuse read_file a\nused read_file\ntext Bye.\nresult",
        cwd=workspace,
    )
    assert done.returncode == 0
    assert done.stdout == "Hello.\n\nBye.\n"
    assert "✓ read_file a" in done.stderr
    assert "success" in done.stderr


def test_quiet_prints_only_the_answer(workspace: Path) -> None:
    done = run(GOOD, "--quiet", cwd=workspace)
    assert (done.stdout, done.stderr) == ("hello\n", "")


def test_json_prints_one_event_per_line(workspace: Path) -> None:
    done = run(GOOD, "--json", cwd=workspace)
    events = [from_json(line) for line in done.stdout.splitlines()]
    assert isinstance(events[-1], Done)
    assert [event.seq for event in events] == [1, 2, 3]


def test_denied_capabilities_are_printed_once_if_no_one_can_be_asked(workspace: Path) -> None:
    done = run(GOOD, cwd=workspace)
    assert "gemini-cli has no channel for questions (gemini-acp can ask)" in done.stderr
    assert "write, shell, network denied" in done.stderr
    assert "no channel" not in run(GOOD, "--approve", "all", cwd=workspace).stderr


@pytest.mark.parametrize(
    ("script", "words", "code"),
    [
        ("init\ntext x", [], 11),
        ("init\nhang", ["--idle-timeout", "0.3"], 3),
        ("hang", ["--startup-timeout", "0.3"], 3),
        ("exit 41", [], 6),
        ("exit 53", [], 8),
        ("exit 173", [], 7),
        ("exit 44", [], 1),
        ("init\nresult error", [], 1),
        ("exit 55", [], 5),
        ("exit 127", [], 12),
    ],
)
def test_each_status_has_its_exit_code(
    script: str, words: list[str], code: int, workspace: Path
) -> None:
    done = run(script, *words, cwd=workspace)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "corral: " in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run"], 2, "the prompt is empty"),
        (["run", ""], 2, "the prompt is empty"),
        (["run", "x", "--file", "y"], 2, "both given"),
        (["run", "--file", "missing.md"], 2, "missing.md cannot be read: No such file"),
        (["run", "x", "--cwd", "nowhere"], 2, "cwd does not exist"),
        (["run", "x", "--cwd", "a-file"], 2, "cwd is not a folder"),
        (["run", "x", "--agent", "gemni-cli"], 2, "Did you mean 'gemini-cli'?"),
        (["run", "x", "--timeout", "0"], 2, "--timeout must be more than 0"),
        (["run", "x", "--max-turns", "0"], 2, "--max-turns must be at least 1"),
        (["run", "x", "--approve", "edits", "--policy", "p.toml"], 2, "both given"),
        (["run", "x", "--policy", "missing.toml"], 2, "missing.toml: No such file"),
        (["run", "x", "--policy", "bad.toml"], 2, "(at line 2, column"),
        (["run", "x", "--policy", "odd.toml"], 2, "Did you mean 'write'?"),
        (
            ["run", "x", "--policy", "walled.toml", "--sandbox", "off"],
            2,
            "cannot enforce network=deny",
        ),
        (["run", "x", "--program", "nowhere"], 12, "was not found"),
        (["run", "x", "--image", "nowhere.png"], 2, "a file for the prompt does not exist"),
        (["run", "x", "--resume", "nothing"], 4, "no session is called"),
        (["run", "x", "--json", "--quiet"], 2, "both given"),
        (["run", "x", "--allow-tool", "read_fil"], 2, "did you mean 'read_file'?"),
        (["run", "x", "--frobnicate"], 2, "no such option"),
        (["frobnicate"], 2, "no command is called"),
        (["--config", "bad.toml", "run", "x"], 2, "(at line 2, column"),
        (["runs", "show", "nothing"], 4, "no run is called"),
        (["agents", "show", "nobody"], 2, "no agent is called"),
        (["agents", "install", "manual"], 2, "nothing to install"),
        (["agents", "check", "manual"], 2, "cannot be checked by a script"),
        (["runs", "answer", "nothing", "yes"], 4, "no run is called"),
        (["run", "x", "--agent", "manual", "--via", "terminal"], 2, "there is no terminal"),
        (["fake", "serve", "bad.toml"], 2, "bad.toml"),
    ],
)
def test_bad_input_is_an_error_before_the_agent_starts(
    words: list[str], code: int, message: str, workspace: Path
) -> None:
    (workspace / "a-file").write_text("")
    (workspace / "bad.toml").write_text("read = 'allow'\nwrite = \n")
    (workspace / "odd.toml").write_text("wrte = 'allow'\n")
    (workspace / "walled.toml").write_text("shell = 'allow'\nnetwork = 'deny'\n")
    extra = ["--program", str(PROGRAM)] if words[:1] == ["run"] and "--program" not in words else []
    done = corral(*words, *extra, cwd=workspace)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (Path(os.environ["CORRAL_HOME"]) / "sessions").exists()


def test_a_missing_program_is_an_error_with_the_install_command(
    workspace: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    done = corral("run", "x", cwd=workspace, env={**os.environ, "PATH": str(bare)})
    assert done.returncode == 12
    assert "corral agents install gemini" in done.stderr


def test_installing_without_node_or_npm_is_an_error(workspace: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    done = corral(
        "agents", "install", "gemini", cwd=workspace, env={**os.environ, "PATH": str(bare)}
    )
    assert done.returncode == 12
    assert "Node.js 20 or newer is needed" in done.stderr


def test_a_failing_npm_leaves_no_folder_and_its_message_is_shown(
    workspace: Path, tmp_path: Path
) -> None:
    fakes = tmp_path / "bin"
    fakes.mkdir()
    for name, body in {"node": "exit 0", "npm": "echo 'npm error code E404' >&2; exit 1"}.items():
        (fakes / name).write_text(f"#!/bin/sh\n{body}\n")
        (fakes / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{fakes}:/bin"}
    done = corral("agents", "install", "gemini", cwd=workspace, env=env)
    assert done.returncode == 12
    assert "npm error code E404" in done.stderr
    managed = Path(os.environ["CORRAL_HOME"]) / "agents" / "gemini"
    assert list(managed.iterdir()) == []


@needs_sandbox
def test_the_command_line_shows_that_a_policy_needs_a_sandbox(workspace: Path) -> None:
    (workspace / "p.toml").write_text("write = 'allow'\nshell = 'allow'\nnetwork = 'deny'\n")
    words = ("run", "x", "--dry-run", "--policy", "p.toml", "--program", str(PROGRAM))
    shown = corral(*words, cwd=workspace)
    assert "sandbox      bubblewrap: gemini-acp alone cannot enforce network=deny" in shown.stdout
    found = corral("agents", "policy", "gemini", "--policy", "p.toml", cwd=workspace).stdout
    assert "sandbox: bubblewrap: gemini-acp alone cannot enforce network=deny" in found
    assert "(sandbox)" in found


def test_allowing_everything_without_a_sandbox_is_a_warning_unless_off(workspace: Path) -> None:
    words = ("run", "x", "--dry-run", "--approve", "all", "--program", str(PROGRAM))
    assert "--sandbox auto" in corral(*words, cwd=workspace).stderr
    assert corral(*words, "--sandbox", "off", cwd=workspace).stderr == ""


def test_a_dry_run_shows_everything_and_starts_nothing(workspace: Path) -> None:
    done = run(
        "write evil.txt\n" + GOOD, "--dry-run", "--json", "--approve", "edits", cwd=workspace
    )
    shown = json.loads(done.stdout)
    assert shown["agent"] == "gemini-cli"
    assert "GEMINI_API_KEY" in shown["env"]
    assert "scripted-key" not in done.stdout
    assert shown["policy"][1]["verdict"] == "allow"
    assert not (workspace / "evil.txt").exists()
    assert not (Path(os.environ["CORRAL_HOME"]) / "sessions").exists()
    plain = run(GOOD, "--dry-run", cwd=workspace)
    assert "ask→deny" in plain.stdout
    assert "model        the agent's own\n" in plain.stdout


def test_a_variable_to_pass_on_that_is_not_set_is_a_warning(workspace: Path) -> None:
    words = ("--env", "PATH", "--env", "NO_SUCH_VARIABLE", "--dry-run")
    done = run(GOOD, *words, cwd=workspace)
    assert done.returncode == 0
    assert "--env NO_SUCH_VARIABLE: this variable is not set here" in done.stderr
    assert "--env PATH" not in done.stderr


def test_a_dry_run_without_credentials_shows_the_policy_and_then_what_is_missing(
    workspace: Path,
) -> None:
    env = {"GEMINI_API_KEY": "", "GOOGLE_API_KEY": "", "HOME": str(workspace)}
    words = ("run", "x", "--dry-run", "--approve", "edits", "--program", str(PROGRAM))
    done = corral(*words, cwd=workspace, env=env)
    assert done.returncode == 6, done.stderr
    assert "Set GEMINI_API_KEY" in done.stderr
    assert "write       allow" in done.stdout
    in_json = corral(*words, "--json", cwd=workspace, env=env)
    assert (in_json.returncode, in_json.stdout) == (6, "")


def test_a_closed_pipe_ends_the_agent_without_an_error_message(workspace: Path) -> None:
    running = Running("init\ntext x\nmany 200000\nhang", cwd=workspace)
    assert running.stdout.readline()
    running.stdout.close()
    code, stderr = running.end()
    assert code == 141
    assert "Traceback" not in stderr
    assert list((Path(os.environ["CORRAL_HOME"]) / "processes").iterdir()) == []


def test_a_closed_stdout_is_an_error_before_the_agent_starts(workspace: Path) -> None:
    done = subprocess.run(
        f"{CORRAL} run --agent gemini-cli --program {PROGRAM} 'write evil.txt' >&-",
        shell=True,
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == "corral: stdout is closed\n"
    assert not (workspace / "evil.txt").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_agent_and_exits_130(
    number: signal.Signals, workspace: Path
) -> None:
    running = Running("init\ndaemon\ntext x\nhang", cwd=workspace)
    running.stdout.readline()
    running.stdout.readline()
    running.signal(number)
    rest = running.stdout.read().splitlines()
    assert running.end()[0] == 130
    last = from_json(rest[-1])
    assert isinstance(last, Done)
    assert last.status == "interrupted"
    assert list((Path(os.environ["CORRAL_HOME"]) / "processes").iterdir()) == []


def test_sessions_are_listed_shown_and_exported(workspace: Path) -> None:
    first = run(GOOD, "--json", cwd=workspace)
    listed = json.loads(corral("runs", "list", "--json", cwd=workspace).stdout)
    assert [one["state"] for one in listed] == ["success"]
    assert "hello" in corral("runs", "show", "last", cwd=workspace).stdout
    exported = corral("runs", "export", listed[0]["id"], cwd=workspace).stdout
    begin, prompt, facts, *rest = exported.splitlines(keepends=True)
    assert begin + "".join(rest) == first.stdout
    assert [json.loads(line)["name"] for line in (prompt, facts)] == ["prompt", "run_facts"]


def test_a_session_is_resumed_by_name(workspace: Path) -> None:
    run(GOOD, cwd=workspace)
    done = run("init\ntext again\nresult", "--resume", "last", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "again\n"


def test_no_keep_leaves_no_session(workspace: Path) -> None:
    assert run(GOOD, "--no-keep", cwd=workspace).returncode == 0
    assert json.loads(corral("runs", "list", "--json", cwd=workspace).stdout) == []


def test_agents_are_listed_with_their_problems(workspace: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path)}
    listed = json.loads(corral("agents", "list", "--json", cwd=workspace, env=env).stdout)
    gemini = next(one for one in listed if one["name"] == "gemini-cli")
    assert not gemini["installed"]
    assert "was not found" in gemini["problem"]


def test_the_policy_table_is_available_as_json(workspace: Path) -> None:
    done = corral("agents", "policy", "gemini", "--json", cwd=workspace)
    tables = json.loads(done.stdout)
    assert {row["enforcer"] for row in tables["all"]["report"]} == {"native"}
    assert {row["enforcer"] for row in tables["reads"]["report"]} == {"native"}
    assert tables["all"]["sandbox"] == []
    assert "ask→deny" in corral("agents", "policy", "gemini-cli", cwd=workspace).stdout


def test_help_lists_every_command_and_imports_only_click(workspace: Path) -> None:
    done = corral("--help", cwd=workspace)
    for name in ("run", "agents", "sessions", "fake"):
        assert name in done.stdout
    code = (
        "import sys; from corral._cli.main import command\n"
        "command.main(['--help'], standalone_mode=False)\n"
        "assert 'asyncio' not in sys.modules and 'msgspec' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_a_scripted_model_is_served_for_the_given_time(workspace: Path) -> None:
    (workspace / "script.toml").write_text('[[turn]]\ntext = "hi"\n')
    done = corral("fake", "serve", "script.toml", "--seconds", "0.3", cwd=workspace)
    assert done.returncode == 0
    assert done.stdout.startswith("http://127.0.0.1:")


def test_an_example_script_is_written_and_served_and_not_overwritten(workspace: Path) -> None:
    done = corral("fake", "new", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "--fake fake.toml --approve edits" in done.stdout
    done = corral("fake", "serve", "--seconds", "0.3", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "export GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:" in done.stderr
    (workspace / "fake.toml").write_text("mine")
    done = corral("fake", "new", cwd=workspace)
    assert done.returncode == 2
    assert "fake.toml exists already" in done.stderr
    assert (workspace / "fake.toml").read_text() == "mine"

    done = corral("fake", "new", "script.json", cwd=workspace)
    assert done.returncode == 2
    assert "corral fake new script.toml" in done.stderr
    assert not (workspace / "script.json").exists()


def test_processes_of_a_killed_run_are_ended_by_reap(workspace: Path) -> None:
    running = Running("init\ndaemon\ntext x\nhang", cwd=workspace)
    running.stdout.readline()
    running.stdout.readline()
    running.signal(signal.SIGKILL)
    running.end()
    registry = Path(os.environ["CORRAL_HOME"]) / "processes"
    assert len(list(registry.iterdir())) == 1
    done = corral("agents", "doctor", "--reap", cwd=workspace)
    assert done.returncode == 0
    assert "1 left behind, 0 running" in done.stdout
    assert list(registry.iterdir()) == []


@pytest.mark.deep
def test_deadlines_apply_while_the_reader_of_stdout_does_not_read(workspace: Path) -> None:
    running = Running("init\nmany 20000\nresult", "--timeout", "1", cwd=workspace)
    assert running.end()[0] == 3


@pytest.mark.parametrize(
    "redirection", ["2>&-", "2>/dev/full", "</dev/null", "PYTHONIOENCODING=ascii"]
)
def test_the_answer_is_printed_if_other_streams_are_closed(
    redirection: str, workspace: Path
) -> None:
    before, after = ("", redirection) if "=" not in redirection else (redirection, "")
    (workspace / "script").write_text("init\ntext héllo\nresult")
    done = subprocess.run(
        f"{before} {CORRAL} run --agent gemini-cli --program {PROGRAM} --file script {after}",
        shell=True,
        cwd=workspace,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert done.stdout.startswith(b"h")


def test_the_folder_of_a_killed_run_is_removed(workspace: Path) -> None:
    running = Running("init\ntext x\nhang", "--no-keep", cwd=workspace)
    running.stdout.readline()
    running.signal(signal.SIGKILL)
    running.end()
    sessions = Path(os.environ["CORRAL_HOME"]) / "sessions"
    assert len(list(sessions.iterdir())) == 1
    assert corral("agents", "doctor", "--reap", cwd=workspace).returncode == 0
    assert list(sessions.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("run", "write a.txt"),
        ("batch", "tasks.jsonl", "--prompt", "write {{name}}", "--no-durable"),
        ("pipeline", "run", "p.dot", "--no-durable"),
    ],
    ids=lambda words: words[0],
)
def test_a_scripted_model_for_one_command(workspace: Path, words: tuple[str, ...]) -> None:
    (workspace / "tasks.jsonl").write_text('{"name": "a.txt"}\n')
    (workspace / "p.dot").write_text(
        'digraph p { s [shape=Mdiamond]; w [prompt="write a.txt"]; e [shape=Msquare]; s -> w -> e }'
    )
    (workspace / "script.toml").write_text(
        '[[turn]]\n[[turn.call]]\nname = "write_file"\n'
        'args = { path = "a.txt", content = "scripted" }\n[[turn]]\ntext = "a scripted answer"\n'
    )
    fake = ("--fake", "script.toml", "--agent", "corral", "--model", "openai:gpt-5")
    done = corral(*words, *fake, "--approve", "edits", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert (workspace / "a.txt").read_text().strip() == "scripted"


def test_a_locale_without_utf_8_changes_nothing(workspace: Path) -> None:
    (workspace / "s.toml").write_text(
        '[[turn]]\n[[turn.call]]\nname = "write_file"\n'
        'args = { path = "ü.txt", content = "größe" }\n'
        '[[turn]]\n[[turn.call]]\nname = "shell"\nargs = { command = "cat ü.txt" }\n'
        '[[turn]]\ntext = "fertig ä"\n',
        "utf-8",
    )
    model = ("--fake", "s.toml", "--model", "gemini:gemini-2.5-flash", "--approve", "all")
    off = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [CORRAL, "run", "--json", *model, "schreib ü"],
        cwd=workspace,
        env={**os.environ, **off},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (workspace / "ü.txt").read_text("utf-8") == "größe"
    events = [json.loads(line) for line in done.stdout.decode().splitlines()]
    results = [event for event in events if event["type"] == "tool_result"]
    assert [event["status"] for event in results] == ["success", "success"]
    assert "größe" in results[1]["output"]
    assert events[-1]["text"] == "fertig ä"


@pytest.mark.parametrize(
    "words",
    [
        ("run", "keep it"),
        ("batch", "tasks.jsonl", "--prompt", "keep {{name}}", "--no-durable"),
        ("pipeline", "run", "p.dot", "--no-durable"),
    ],
    ids=lambda words: words[0],
)
def test_an_mcp_server_is_given_by_a_flag_and_named_if_it_cannot_be_used(
    workspace: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "tasks.jsonl").write_text('{"name": "it"}\n')
    (workspace / "p.dot").write_text(
        'digraph p { s [shape=Mdiamond]; w [prompt="keep it"]; e [shape=Msquare]; s -> w -> e }'
    )
    (workspace / "script.toml").write_text(
        '[[turn]]\n[[turn.call]]\nname = "mcp__notes__keep"\nargs = { text = "kept" }\n'
        '[[turn]]\ntext = "done"\n'
    )
    monkeypatch.setenv("SECRET_OF_NOTES", "canary-1234567")
    model = ("--fake", "script.toml", "--agent", "corral", "--model", "openai:gpt-5")
    program = shlex.join(notes_server(workspace).command)
    notes = f"notes=NOTES_TOKEN=${{SECRET_OF_NOTES}} {program}"
    done = corral(*words, *model, "--approve", "all", "--mcp", notes, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert (workspace / "note.txt").read_text() == "kept"
    assert "canary" not in done.stdout + done.stderr

    dead = "dead=KEY=${SECRET_OF_NOTES} sh -c 'echo wrong key: $KEY >&2; exit 3'"
    failed = corral(*words, *model, "--approve", "all", "--mcp", dead, cwd=workspace)
    assert failed.returncode != 0
    assert "the MCP server 'dead' ended with exit code 3: wrong key" in failed.stderr
    assert "canary" not in failed.stdout + failed.stderr
