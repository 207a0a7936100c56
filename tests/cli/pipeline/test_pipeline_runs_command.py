"""``corral pipeline`` with durable runs: resume, show, answer, cancel, fork; workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pipeline_command import (
    CORRAL,
    GATE,
    TINY,
    corral,
    fresh_corral,
    lines_of,
    pipeline,
    put,
)

from corral._cli import worker as worker_command
from corral._engine.dbos.client import QueueLimit

STEPS = """digraph steps {
    start [shape=Mdiamond]
    one [shape=parallelogram, tool_command="echo one >> done.txt"]
    two [shape=parallelogram, tool_command="echo two >> done.txt; touch at-two
        until test -e go; do sleep 0.1; done"]
    three [shape=parallelogram, tool_command="echo three >> done.txt"]
    done [shape=Msquare]
    start -> one -> two -> three -> done
}"""


def shown(name: str, cwd: Path, *more: str) -> dict[str, Any]:
    done = corral("runs", "show", name, "--json", *more, cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found["content"], **found["run"]}


def show(name: str, cwd: Path, *more: str) -> str:
    return str(corral("runs", "show", name, *more, cwd=cwd).stdout)


def newest(cwd: Path) -> str:
    done = corral("runs", "list", "--json", "--kind", "pipeline", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)[0]["id"])


def appears(path: Path) -> None:
    ends = time.monotonic() + 100
    while not path.exists():
        assert time.monotonic() < ends, f"{path} never came"
        time.sleep(0.02)


@pytest.fixture
def started(workspace: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


def start(processes: list[subprocess.Popen[str]], *words: str, cwd: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [CORRAL, *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    processes.append(process)
    return process


def test_a_run_is_stored_listed_and_shown(workspace: Path) -> None:
    assert corral("runs", "list", cwd=workspace).returncode == 0  # there is no database yet
    done = pipeline("run", put(workspace, TINY), "--simulate", "--goal", "Shine", cwd=workspace)
    assert (done.returncode, done.stdout) == (0, "[Simulated] Response for stage: a\n"), done.stderr
    assert "✓ a" in done.stderr
    name = newest(workspace)
    assert name in corral("runs", "list", cwd=workspace).stdout
    found = shown(name, workspace)
    assert found["state"] == "success"
    folder = Path(found["folder"])
    assert found["outcomes"]["a"] == {"status": "success"}
    assert (folder / "a" / "response.md").read_text().startswith("[Simulated]")
    text = show(name, workspace)
    assert "Shine" in text
    assert str(folder) in text


def test_json_prints_the_events_of_a_durable_run_and_then_the_result(workspace: Path) -> None:
    done = pipeline("run", put(workspace, TINY), "--simulate", "--json", cwd=workspace)
    assert (done.returncode, done.stderr) == (0, "")
    lines = lines_of(done)
    assert [line["type"] for line in (lines[0], lines[-2], lines[-1])] == [
        "pipeline_started",
        "pipeline_completed",
        "result",
    ]
    assert [line["node"] for line in lines if line["type"] == "step_completed"] == [
        "start",
        "a",
        "done",
    ]


@pytest.mark.deep
def test_the_deadline_of_a_gate_is_printed(workspace: Path) -> None:
    file = put(
        workspace, GATE.replace("hexagon", "hexagon, human.timeout=2d, default_choice=No", 1)
    )
    done = pipeline("run", file, "--db", "mine.db", cwd=workspace)
    assert done.returncode == 10, done.stderr
    until = re.search(r"  answer by (\d{4}-\d\d-\d\d \d\d:\d\d); then 'No' is the", done.stderr)
    assert until is not None, done.stderr
    name = re.search(r"answer (\S+) --db", done.stderr)
    assert name is not None
    text = show(name[1], workspace, "--db", "mine.db")
    assert f"answer by {until[1]}; then 'No' is the answer" in text
    [question] = shown(name[1], workspace, "--db", "mine.db")["questions"]
    assert abs(question["deadline"] - time.time() - 172_800) < 600


@pytest.mark.deep
def test_a_gate_without_a_person_exits_with_10_and_is_answered_later(workspace: Path) -> None:
    done = pipeline("run", put(workspace, GATE), "--db", "mine.db", cwd=workspace)
    assert done.returncode == 10, done.stderr
    line = next(line for line in done.stderr.splitlines() if "# No" in line)
    words = line.partition("#")[0].split()[1:]
    name = words[words.index("answer") + 1]

    wrong = corral("runs", "answer", name, "perhaps", "--db", "mine.db", cwd=workspace)
    assert wrong.returncode == 2
    assert "Y (Yes), N (No)" in wrong.stderr
    assert corral("runs", "resume", name, "--db", "mine.db", cwd=workspace).returncode == 10
    assert "state      waiting: a person is asked" in show(name, workspace, "--db", "mine.db")
    assert " waiting " in corral("runs", "list", "--db", "mine.db", cwd=workspace).stdout
    assert shown(name, workspace, "--db", "mine.db")["state"] == "waiting"

    answered = corral(*words, "--text", "too early", cwd=workspace)
    assert answered.returncode == 0, answered.stderr
    assert f"corral runs resume {name} --db mine.db" in answered.stderr
    text = show(name, workspace, "--db", "mine.db")
    assert "answered; the run has not read it yet" in text
    assert "corral runs answer" not in text
    found = shown(name, workspace, "--db", "mine.db")
    assert [each["answered"] for each in found["questions"]] == [True]
    assert found["state"] == "interrupted"
    done = corral("runs", "resume", found["folder"], "--db", "mine.db", "--json", cwd=workspace)
    assert done.returncode == 0, done.stderr
    result = lines_of(done)[-1]
    assert result["completed"] == ["start", "ask", "keep", "done"]
    assert result["context"]["human.gate.text"] == "too early"
    folder = Path(result["folder"])
    for node in result["completed"]:
        assert json.loads((folder / node / "status.json").read_text())["outcome"] == "success", node
    gate = json.loads((folder / "ask" / "status.json").read_text())
    assert gate["context_updates"]["human.gate.selected"] == "N"

    late = corral("runs", "answer", name, "Y", "--db", "mine.db", cwd=workspace)
    assert late.returncode == 2
    assert corral("runs", "resume", name, "--db", "mine.db", cwd=workspace).returncode == 0


@pytest.mark.deep
def test_a_question_of_a_nested_pipeline_is_answered_on_the_outer_run(workspace: Path) -> None:
    put(workspace, GATE, "child.dot")
    text = TINY.replace('prompt="go"', 'type=include, dotfile="child.dot"')
    done = pipeline("run", put(workspace, text), cwd=workspace)
    assert done.returncode == 10, done.stderr
    assert "Ship it?" in done.stderr
    name = newest(workspace)
    assert "Ship it?" in show(name, workspace)
    assert (
        corral("runs", "answer", name, "perhaps", "--request", "ask", cwd=workspace).returncode == 2
    )
    assert corral("runs", "answer", name, "yes", "--request", "ask", cwd=workspace).returncode == 0
    done = corral("runs", "resume", name, "--json", cwd=workspace)
    assert done.returncode == 0, done.stderr
    result = lines_of(done)[-1]
    assert result["completed"] == ["start", "a", "done"]
    assert result["context"]["tool.output"] == "shipped\n"
    put(workspace, text, "auto.dot")
    assert pipeline("run", "auto.dot", "--auto-approve", cwd=workspace).returncode == 0


@pytest.mark.deep
def test_node_names_are_printed_safely_and_an_ended_run_takes_no_answer(workspace: Path) -> None:
    odd = "a\x1b[2J\x07\x9b31m"
    waits = pipeline("run", put(workspace, GATE.replace("ask", f'"{odd}"')), cwd=workspace)
    assert waits.returncode == 10, waits.stderr
    name = newest(workspace)
    found = waits.stderr + show(name, workspace)
    assert found.count(r"? a\x1b[2J\x07\x9b31m: Ship it?") == 2
    assert not [c for c in found if not c.isprintable() and c != "\n"]
    assert corral("runs", "cancel", name, cwd=workspace).returncode == 0
    late = corral("runs", "answer", name, "Y", cwd=workspace)
    assert late.returncode == 2
    assert "nothing waits for an answer" in late.stderr


@pytest.mark.deep
def test_a_gate_with_a_short_timeout_is_awaited(workspace: Path) -> None:
    text = GATE.replace('label="Ship it?"', 'label="Ship it?", human.timeout=1s, '
                        'human.default_choice=keep')  # fmt: skip
    done = pipeline("run", put(workspace, text), "--json", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert lines_of(done)[-1]["completed"] == ["start", "ask", "keep", "done"]


def test_a_killed_run_is_resumed_without_repeating_finished_nodes(
    workspace: Path, started: list[subprocess.Popen[str]]
) -> None:
    process = start(started, "pipeline", "run", put(workspace, STEPS), cwd=workspace)
    appears(workspace / "at-two")
    process.kill()
    process.wait(30)
    name = newest(workspace)
    assert shown(name, workspace)["state"] == "interrupted"
    (workspace / "go").touch()
    done = corral("runs", "resume", name, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "● one" not in done.stderr
    assert (workspace / "done.txt").read_text().split() == ["one", "two", "three"]


def at_work(cwd: Path) -> list[str]:
    """The commands that run in this folder."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd") == str(cwd):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode())
        except OSError:
            continue
    return [line for line in found if "until" in line]


@pytest.mark.deep
def test_ctrl_c_prints_the_command_that_resumes_the_run(
    workspace: Path, started: list[subprocess.Popen[str]]
) -> None:
    process = start(started, "pipeline", "run", put(workspace, STEPS), cwd=workspace)
    appears(workspace / "at-two")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    name = newest(workspace)
    assert f"corral runs resume {name}" in stderr
    (workspace / "go").touch()
    done = corral("runs", "resume", name, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert (workspace / "done.txt").read_text().split() == ["one", "two", "three"]


@pytest.mark.deep
def test_cancelling_an_interrupted_run_ends_its_commands(
    workspace: Path, started: list[subprocess.Popen[str]]
) -> None:
    process = start(started, "pipeline", "run", put(workspace, STEPS), cwd=workspace)
    appears(workspace / "at-two")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    name = newest(workspace)
    assert corral("runs", "cancel", name, cwd=workspace).returncode == 0
    assert shown(name, workspace)["state"] == "cancelled"
    ends = time.monotonic() + 30
    while at_work(workspace):
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.deep
def test_a_run_is_cancelled_by_another_process(
    workspace: Path, started: list[subprocess.Popen[str]]
) -> None:
    process = start(started, "pipeline", "run", put(workspace, STEPS), cwd=workspace)
    appears(workspace / "at-two")
    name = newest(workspace)
    done = corral("runs", "cancel", name, "--reason", "enough", cwd=workspace)
    assert done.returncode == 0, done.stderr
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1, stderr
    assert "enough" in stderr or "cancelled" in stderr
    assert at_work(workspace) == []


@pytest.mark.deep
def test_a_fork_runs_again_from_the_given_node(workspace: Path) -> None:
    (workspace / "go").touch()
    file = put(workspace, STEPS)
    assert pipeline("run", file, cwd=workspace).returncode == 0
    name = newest(workspace)
    done = corral("runs", "fork", name, "--from", "two", "--json", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert lines_of(done)[-1]["run"] != name
    assert (workspace / "done.txt").read_text().split() == ["one", "two", "three", "two", "three"]
    done = corral("runs", "fork", name, "--from", "start", "--json", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert (workspace / "done.txt").read_text().split()[5:] == ["one", "two", "three"]
    late = corral("runs", "cancel", name, cwd=workspace)
    assert late.returncode == 2
    assert "already ended: success" in late.stderr
    nowhere = corral("runs", "fork", name, "--from", "nowhere", cwd=workspace)
    assert nowhere.returncode == 2
    assert "no node 'nowhere'\n  Name one with --from: start, one" in nowhere.stderr


@pytest.mark.deep
def test_a_changed_pipeline_is_an_error_unless_it_is_accepted(workspace: Path) -> None:
    first = 'first [shape=parallelogram, tool_command="echo first >> done.txt"]\n    ask ['
    text = GATE.replace("ask [", first).replace("start -> ask", "start -> first -> ask")
    run = pipeline("run", put(workspace, text), "--max-calls", "3", cwd=workspace)
    assert run.returncode == 10, run.stderr
    name = newest(workspace)
    put(workspace, f"// moved\n{text}")
    assert corral("runs", "resume", name, cwd=workspace).returncode == 10  # nothing has changed
    put(workspace, text.replace("{", '{ goal = "Another"', 1))
    assert corral("runs", "resume", name, cwd=workspace).returncode == 2
    put(workspace, text.replace("Ship it?", "Ship it now?"))
    done = corral("runs", "resume", name, cwd=workspace)
    assert done.returncode == 2
    assert "--accept-changed" in done.stderr
    words = ("--accept-changed", "--max-calls", "7")
    done = corral("runs", "resume", name, *words, cwd=workspace)
    assert done.returncode == 10, done.stderr
    assert "Ship it now?" in done.stderr
    assert newest(workspace) == name
    assert (workspace / "done.txt").read_text() == "first\n"
    resumed = corral("runs", "resume", name, cwd=workspace)
    assert resumed.returncode == 10, resumed.stderr
    found = shown(name, workspace)
    assert found["tries"] == 2
    assert (Path(found["folder"]).name, found["budget"]["max_calls"]) == (name, 7)
    assert corral("runs", "answer", name, "Y", cwd=workspace).returncode == 0
    put(workspace, text.replace("echo shipped", "echo shipped >> done.txt"))
    done = corral("runs", "resume", name, "--accept-changed", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert (workspace / "done.txt").read_text() == "first\nshipped\n"


@pytest.mark.parametrize(
    "words", [("answer", "no-run", "y"), ("cancel", "no-run"),
              ("resume", "no-run"), ("fork", "no-run", "--from", "a")]
)  # fmt: skip
def test_an_unknown_run_is_an_error(words: tuple[str, ...], workspace: Path) -> None:
    done = corral("runs", *words, cwd=workspace)
    assert done.returncode == 4, done.stderr
    assert "no run is called 'no-run'" in done.stderr
    assert "`corral runs list` lists them" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_engine_the_error_names_the_extra(workspace: Path, tmp_path: Path) -> None:
    put(workspace, TINY)
    (tmp_path / "hidden").mkdir()
    put(tmp_path / "hidden", "import sys\nsys.modules['dbos'] = None\n", "sitecustomize.py")
    env = {"PYTHONPATH": str(tmp_path / "hidden")}
    done = fresh_corral("pipeline", "run", "p.dot", cwd=workspace, env=env)
    assert done.returncode == 2
    assert "corral[engine]" in done.stderr
    assert "--no-durable" in done.stderr
    simulated = ("run", "p.dot", "--simulate", "--no-durable")
    assert fresh_corral("pipeline", *simulated, cwd=workspace, env=env).returncode == 0


@pytest.mark.deep
def test_workers_execute_a_run_and_stop_cleanly(
    workspace: Path, started: list[subprocess.Popen[str]]
) -> None:
    worker = start(
        started, "worker", "--db", "shared.db", "--queue", "far", "--concurrency", "2",
        "--limit", "codex-cli=1,each:1,9/1m", cwd=workspace,
    )  # fmt: skip
    assert worker.stderr
    assert "serving far" in worker.stderr.readline()
    (workspace / "go").touch()
    words = ("--db", "shared.db", "--queue", "far")
    done = pipeline("run", put(workspace, STEPS), *words, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert (workspace / "done.txt").read_text().split() == ["one", "two", "three"]
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0


@pytest.mark.deep
def test_a_worker_says_that_a_limit_has_an_unknown_name(
    workspace: Path, started: list[subprocess.Popen[str]]
) -> None:
    limits = ("--limit", "codx-cli=1", "--limit", "codex@team=1", "--limit", "openai=2")
    worker = start(started, "worker", "--db", "limits.db", *limits, cwd=workspace)
    assert worker.stderr
    line = worker.stderr.readline()
    assert "--limit codx-cli=1: no agent is called 'codx-cli'" in line
    assert "only nodes with queue=codx-cli" in line
    assert "codex-cli" in line.partition("queue=")[2]
    assert "serving default" in worker.stderr.readline()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0


@pytest.mark.deep
def test_invalid_options_of_a_worker_are_an_error(workspace: Path) -> None:
    for words in (
        ("--queue", ""),
        ("--limit", "codex"),
        ("--limit", "=2"),
        ("--limit", "codex=some:2"),
        ("--limit", "codex=0"),
        ("--limit", "codex=3/soon"),
        ("--concurrency", "0"),
        ("--db", "mysql://x/y"),
    ):
        done = corral("worker", *words, cwd=workspace)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr


def test_a_limit_has_counts_for_all_workers_for_each_and_per_time() -> None:
    assert worker_command.parse_limit("codex-cli=2") == QueueLimit(
        resource="codex-cli", everywhere=2
    )
    assert worker_command.parse_limit("codex@a=2").resource == "codex-acp@a"
    limit = worker_command.parse_limit("gemini-acp@team=4,each:2, 30/1m")
    assert limit == QueueLimit(resource="gemini-acp@team", everywhere=4, each=2, starts=30, per=60)


@pytest.mark.parametrize("limit", ["0", "-1", "99999999999999999999999", "many"])
def test_an_invalid_number_of_runs_is_an_error(limit: str, workspace: Path) -> None:
    done = corral("runs", "list", "-n", limit, cwd=workspace)
    assert done.returncode == 2
    assert "--limit" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.deep
def test_an_unhandled_failure_of_a_durable_run_is_reported_alike_everywhere(
    workspace: Path,
) -> None:
    text = """digraph g {
        start [shape=Mdiamond]; done [shape=Msquare]
        build [shape=parallelogram, tool_command="exit 3"]
        deploy [shape=parallelogram, tool_command="touch deployed"]
        start -> build -> deploy -> done
    }"""
    done = pipeline("run", put(workspace, text), "--json", cwd=workspace)
    result = lines_of(done)[-1]
    assert (done.returncode, result["status"]) == (1, "fail")
    found = shown(result["run"], workspace)
    assert (found["state"], found["reason"]) == ("failed", result["reason"])
    assert result["reason"].startswith("node 'build' failed: `exit 3` exited with 3")
    assert "failed" in corral("runs", "list", cwd=workspace).stdout
    assert not (workspace / "deployed").exists()
