"""``corral pipeline run`` in memory, run as a program."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.pipeline_command import CORRAL, GATE, TINY, corral, lines_of, pipeline, put

from corral._pipelines import events
from corral.testing import ModelServer, say

RUN = ("run", "--no-durable")
SHELL = """digraph shell {{
    start [shape=Mdiamond]
    work [shape=parallelogram, tool_command="{command}"]
    done [shape=Msquare]
    start -> work
    work -> done [condition="outcome=success"]
}}"""


def test_the_last_answer_is_on_stdout_and_progress_on_stderr(workspace: Path) -> None:
    done = pipeline(*RUN, put(workspace, TINY), "--simulate", cwd=workspace)
    assert (done.returncode, done.stdout) == (0, "[Simulated] Response for stage: a\n")
    assert "✓ a" in done.stderr
    assert "success" in done.stderr
    assert "\x1b" not in done.stderr


def test_simulate_all_answers_gates_and_a_script_chooses_the_path(workspace: Path) -> None:
    file = put(workspace, GATE)
    first = pipeline(*RUN, "--simulate=all", file, cwd=workspace)
    assert (first.returncode, "ask: Y" in first.stderr) == (0, True), first.stderr
    (workspace / "script.json").write_text('{"ask": "fail"}')
    second = pipeline(*RUN, "--script", "script.json", file, cwd=workspace)
    assert second.returncode == 1, second.stderr
    # Without a value the flag does not take the file as one.
    assert pipeline(*RUN, "--simulate", put(workspace, TINY), cwd=workspace).returncode == 0


def test_quiet_prints_only_the_answer(workspace: Path) -> None:
    done = pipeline(*RUN, put(workspace, TINY), "--simulate", "-q", cwd=workspace)
    assert (done.stdout, done.stderr) == ("[Simulated] Response for stage: a\n", "")


def test_json_prints_one_event_per_line_and_then_the_result(workspace: Path) -> None:
    done = pipeline(*RUN, put(workspace, TINY), "--simulate", "--json", cwd=workspace)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, last = done.stdout.splitlines()
    happened = [events.from_json(line) for line in lines]
    assert isinstance(happened[0], events.PipelineStarted)
    assert isinstance(happened[-1], events.PipelineCompleted)
    result = json.loads(last)
    assert (result["type"], result["status"]) == ("result", "success")
    assert result["completed"] == ["start", "a", "done"]


def test_a_failed_run_exits_with_1_and_prints_the_reason(workspace: Path) -> None:
    file = put(workspace, SHELL.format(command="echo no way >&2; exit 3"))
    done = pipeline(*RUN, file, cwd=workspace)
    assert done.returncode == 1
    assert "work" in done.stderr
    assert "exited with 3: no way" in done.stderr
    assert "to repeat" not in done.stderr
    done = pipeline("run", file, "--run-id", "r", "--db", "runs.db", cwd=workspace)
    line = "  to continue: corral runs resume r --db runs.db\n"
    assert done.stderr.endswith(line)


def test_the_run_folder_is_the_given_one(workspace: Path) -> None:
    file = put(workspace, TINY)
    assert pipeline(*RUN, file, "--simulate", "--run-dir", "out", cwd=workspace).returncode == 0
    manifest = json.loads((workspace / "out" / "manifest.json").read_text())
    assert manifest["name"] == "tiny"
    checkpoint = json.loads((workspace / "out" / "checkpoint.json").read_text())
    assert checkpoint["current_node"] == "done"
    assert (workspace / "out" / "a" / "response.md").read_text().startswith("[Simulated]")
    second = pipeline(*RUN, file, "--simulate", "--run-dir", "out", cwd=workspace)
    assert second.returncode == 2
    assert "not empty" in second.stderr


def test_goal_values_and_workspace_reach_the_nodes(workspace: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = 'echo \\"$goal {{name}} {{many}}\\"; pwd'
    file = put(workspace, SHELL.format(command=command))
    words = ("--goal", "Shine", "--set", "name=Ann", "--set", "many:=[1, 2]")
    done = pipeline(*RUN, file, *words, "--cwd", str(elsewhere), "--json", cwd=workspace)
    assert done.returncode == 0, done.stderr
    output = lines_of(done)[-1]["context"]["tool.output"]
    assert output.startswith("Shine Ann [1")
    assert str(elsewhere) in output


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("digraph p { a -> ", (), "expected"),
        ("digraph p { start [shape=Mdiamond] }", (), "terminal_node"),
        (TINY, ("--set", "novalue"), "KEY=VALUE"),
        (TINY, ("--set", "x:=[1"), "invalid JSON"),
        (TINY, ("--set", "graph.goal=x"), "reserved"),
        (TINY, ("--cwd", "absent"), "is not a directory"),
        (TINY, ("--db", "x.db"), "both given"),
        (TINY, ("--json", "--quiet"), "both given"),
        (TINY, ("--import", "no_such_module"), "no_such_module"),
        (TINY, ("--model", "gemini:gemini-2.5-flash"), "GEMINI_API_KEY"),
        (TINY, ("--agent", "nobody"), "nobody"),
        (GATE, ("--simulate",), "there is no terminal"),
        (
            'digraph p { start [shape=Mdiamond] c [type=include, dotfile="absent.dot"]'
            " done [shape=Msquare] start -> c -> done }",
            ("--simulate",),
            "absent.dot",
        ),
    ],
)
def test_bad_input_is_an_error_before_the_run_starts(
    text: str, words: tuple[str, ...], message: str, workspace: Path, tmp_path: Path
) -> None:
    done = pipeline(*RUN, put(workspace, text), *words, cwd=workspace)
    assert done.returncode in (2, 6), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("manifest.json"))


def test_gates_are_answered_by_auto_approve_with_the_first_choice(workspace: Path) -> None:
    done = pipeline(*RUN, put(workspace, GATE), "--auto-approve", "--json", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert lines_of(done)[-1]["completed"] == ["start", "ask", "ship", "done"]


def test_a_registered_node_type_runs(workspace: Path) -> None:
    put(
        workspace,
        "from corral.pipelines import Outcome, handler\n\n\n"
        "@handler('my.step')\nasync def step(work):\n"
        "    return Outcome(context_updates={'answer': 42})\n",
        "my_steps.py",
    )
    file = put(workspace, TINY.replace('prompt="go"', 'type="my.step"'))
    done = pipeline(*RUN, file, "--import", "my_steps", "--json", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert lines_of(done)[-1]["context"]["answer"] == 42


def test_a_model_answers(workspace: Path) -> None:
    with ModelServer([say("Hello from the model.")]) as server:
        words = ("--model", "gemini:gemini-2.5-flash")
        done = pipeline(*RUN, put(workspace, TINY), *words, cwd=workspace, env=server.env)
    assert (done.returncode, done.stdout) == (0, "Hello from the model.\n"), done.stderr
    assert "tokens" in done.stderr


class AtTerminal:
    """``corral pipeline`` at a pseudo-terminal."""

    def __init__(self, *words: str, cwd: Path) -> None:
        self._primary, secondary = pty.openpty()
        self.process = subprocess.Popen(
            [CORRAL, "pipeline", *words],
            cwd=cwd,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
            stdin=secondary,
            stdout=secondary,
            stderr=secondary,
            start_new_session=True,
        )
        os.close(secondary)
        self.screen = ""

    def until(self, text: str) -> None:
        ends = time.monotonic() + 40
        while text not in self.screen:
            assert time.monotonic() < ends, self.screen[-2000:]
            self._read()
        self.screen = self.screen.partition(text)[2]

    def _read(self) -> None:
        if select.select([self._primary], [], [], 1)[0]:
            try:
                self.screen += os.read(self._primary, 4096).decode("utf-8", "replace")
            except OSError:  # the other side is closed
                self.process.wait(30)

    def type(self, text: str) -> None:
        os.write(self._primary, text.encode())

    def end(self) -> int:
        """Its exit code."""
        ends = time.monotonic() + 40
        while self.process.poll() is None:
            assert time.monotonic() < ends, self.screen[-2000:]
            self._read()
        os.close(self._primary)
        return self.process.returncode


@pytest.mark.deep
@pytest.mark.parametrize("way", ["--no-durable", "--quiet"])
def test_a_gate_is_asked_at_the_terminal(way: str, workspace: Path) -> None:
    """In memory, and durable."""
    there = AtTerminal("run", way, put(workspace, GATE), cwd=workspace)
    there.until("Ship it?")
    there.until("[N] No")
    there.type("perhaps\n")
    there.until("one of: Y, N")
    there.type("n\n")
    assert there.end() == 0, there.screen


def test_control_characters_of_a_gate_are_escaped_at_the_terminal(workspace: Path) -> None:
    text = GATE.replace("Ship it?", "Ship \x1b]0;owned\x07it?")
    there = AtTerminal(*RUN, put(workspace, text), cwd=workspace)
    there.until(r"Ship \x1b]0;owned\x07it?")
    there.until("[N] No")
    there.type("y\n")
    assert there.end() == 0


def test_the_events_and_the_result_of_a_run_in_memory_have_no_secret(workspace: Path) -> None:
    """Secrets in the output of a command, in an answer, in a value, and in a bearer token."""
    secrets = {
        "GITHUB_PAT": "canary-github-pat-0123",
        "DATABASE_URL": "postgres://app:canary-db-pw-0123@db.example/app",
        "PLAIN_NAME": "canary-bearer-0123",
    }
    (workspace / "dump").write_text("\n".join(secrets.values()))
    text = """digraph g {
        start [shape=Mdiamond]; done [shape=Msquare]
        read [shape=parallelogram, tool_command="cat dump; cat dump >&2"]
        ask [type=prompt, model="gemini:gemini-2.5-flash", prompt="Repeat {{tool.output}}"]
        agent [prompt="Repeat it", model="gemini:gemini-2.5-flash"]
        send [type=http, url="http://127.0.0.1:9/x", bearer_env="PLAIN_NAME"]
        start -> read -> ask -> agent -> send -> done
    }"""
    answer = " and ".join(secrets.values())
    with ModelServer([say(answer), say(answer)]) as server:
        done = pipeline(
            *(*RUN, put(workspace, text), "--json"),
            *("--set", f"given={secrets['GITHUB_PAT']}", "--run-dir", "kept"),
            cwd=workspace,
            env={**server.env, **secrets},
        )
        sent = str([request.body for request in server.requests])
    assert '"type":"text"' in done.stdout
    assert "GITHUB_PAT redacted" in done.stdout
    files = [
        path.read_text() for path in (workspace / "kept" / "stages").rglob("*") if path.is_file()
    ]
    for text in (done.stdout, done.stderr, sent, *files):
        assert "canary-db-pw-0123" not in text
        assert "canary-bearer-0123" not in text
        assert secrets["GITHUB_PAT"] not in text


def test_the_live_view_is_drawn_only_at_a_terminal(workspace: Path) -> None:
    file = put(workspace, SHELL.format(command="sleep 1"))
    there = AtTerminal(*RUN, file, cwd=workspace)
    there.until("\x1b[")
    there.until("work")
    assert there.end() == 0
    assert "✓\x1b[0m work" in there.screen


def test_ctrl_c_ends_the_running_commands_and_exits_with_130(workspace: Path) -> None:
    file = put(workspace, SHELL.format(command="echo $$ > pid; exec sleep 300"))
    process = subprocess.Popen(
        [CORRAL, "pipeline", *RUN, file], cwd=workspace, stderr=subprocess.PIPE, text=True
    )
    pid = _read(workspace / "pid")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr
    assert "resume" not in stderr  # a run in memory cannot be resumed
    assert "Traceback" not in stderr
    assert not Path(f"/proc/{pid}").exists()


def _read(path: Path) -> str:
    ends = time.monotonic() + 40
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return path.read_text().strip()


def test_warnings_of_lint_are_printed_before_the_run(workspace: Path) -> None:
    warned = put(
        workspace,
        "digraph g { s [shape=Mdiamond]; e [shape=Msquare]; a [prompt=x, type=magic]; s->a->e }",
    )
    done = pipeline(*RUN, warned, "--simulate", cwd=workspace)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stderr.splitlines()
    assert f"{warned}:1:" in first
    assert "warning type_known: no node type is called 'magic'" in first
    assert any("✓ a" in line for line in rest)
    quiet = pipeline(*RUN, warned, "--simulate", "-q", cwd=workspace)
    assert quiet.stderr == ""


def test_an_unhandled_failure_is_reported_alike_everywhere(workspace: Path) -> None:
    text = """digraph g {
        start [shape=Mdiamond]; done [shape=Msquare]
        build [shape=parallelogram, tool_command="exit 3"]
        deploy [shape=parallelogram, tool_command="touch deployed"]
        start -> build -> deploy -> done
    }"""
    done = pipeline(*RUN, put(workspace, text), "--json", "--run-dir", "run", cwd=workspace)
    result = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, result["status"]) == (1, "fail")
    assert result["reason"].startswith("node 'build' failed: `exit 3` exited with 3")
    assert not (workspace / "deployed").exists()
    checkpoint = json.loads((workspace / "run" / "checkpoint.json").read_text())
    assert checkpoint["node_outcomes"]["build"]["status"] == "fail"


def test_a_folder_that_is_not_a_run_folder_is_an_error(workspace: Path) -> None:
    done = corral("runs", "resume", str(workspace), cwd=workspace)
    assert done.returncode == 2
    assert "is not a run folder" in done.stderr
