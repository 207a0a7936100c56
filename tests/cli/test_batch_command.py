"""``corral batch`` as a program: its output and exit codes, and how it continues after a kill."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.batches import MODEL, CountingModel, results_of
from support.pipeline_command import CORRAL, corral

from corral.testing import ModelServer, Turn, fail, hang


@pytest.fixture
def model(model_server: ModelServer, request: pytest.FixtureRequest) -> CountingModel:
    return CountingModel(model_server, request.node.nodeid)


def put(folder: Path, count: int, name: str = "tasks.jsonl") -> str:
    lines = (json.dumps({"n": number}) for number in range(1, count + 1))
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return name


def batch(
    *words: str, cwd: Path, model: CountingModel | None = None, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    env = model.env if model is not None else {}
    more = ("--model", MODEL) if model is not None else ()
    return corral("batch", *words, *more, cwd=cwd, env=env, timeout=timeout)


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    ends = time.monotonic() + 300
    while lines_of(path) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends, f"{path} never had {count} lines"
        time.sleep(0.01)


def start(*words: str, cwd: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [CORRAL, "batch", *words],
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_results_are_on_stdout_and_the_report_on_stderr(
    workspace: Path, model: CountingModel
) -> None:
    tasks = put(workspace, 3)
    model.special = lambda task, _request: fail(400, "no such luck") if task == "2" else None
    done = batch(tasks, "-p", "task {{n}}", "--no-durable", cwd=workspace, model=model)
    assert done.returncode == 1, done.stderr
    found = {line["id"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert found["1"]["text"] == "did 1"
    assert found["2"]["error"]["code"] == "invalid_request"
    assert "✗ 2:" in done.stderr
    assert "2 of 3 done · 1 failed" in done.stderr
    assert "invalid_request × 1 (2)" in done.stderr
    assert "--retry-failed" in done.stderr


def test_the_report_is_json_on_request_and_quiet_prints_none(workspace: Path) -> None:
    tasks = put(workspace, 3)
    words = (tasks, "-p", "task {{n}}", "--simulate", "--no-durable", "-o", "r.jsonl")
    done = batch(*words, "--json", "--quiet", cwd=workspace)
    assert (done.returncode, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["type"] == "report"
    assert (report["total"], report["succeeded"], report["left"]) == (3, 3, 0)
    assert set(results_of(workspace / "r.jsonl")) == {"1", "2", "3"}


def test_the_prompt_and_the_schema_are_read_from_files(
    workspace: Path, model: CountingModel
) -> None:
    (workspace / "p.md").write_text("task {{n}}\n")
    (workspace / "s.json").write_text('{"type": "object", "required": ["a"]}')
    model.special = lambda task, _request: Turn(text='{"a": 1}' if task == "1" else "never")
    done = batch(
        put(workspace, 2), "-p", "@p.md", "--schema", "s.json", "--no-durable", "-o", "r.jsonl",
        cwd=workspace, model=model,
    )  # fmt: skip
    assert done.returncode == 1
    found = results_of(workspace / "r.jsonl")
    assert found["1"]["output"] == {"a": 1}
    assert found["2"]["error"]["code"] == "schema_not_met"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gone.jsonl",), "No such file"),
        (("bad.jsonl",), "bad.jsonl line 2 is not JSON"),
        (("empty.jsonl",), "contains no tasks"),
        (("t.jsonl", "-p", "{{x}}"), "task '1' has no field 'x'"),
        (("t.jsonl", "-p", "@gone.md"), "gone.md"),
        (("t.jsonl", "-p", "{{n}}", "--schema", "bad.jsonl"), "is not JSON"),
        (("t.jsonl", "-p", "{{n}}", "-o", "no/such/r.jsonl"), "results cannot be written"),
        (("t.jsonl", "-p", "{{n}}", "-o", "notes.txt"), "is not a batch result"),
        (("t.jsonl", "-p", "{{n}}", "--no-durable", "--queue", "q"), "both given"),
        (
            ("t.jsonl", "-p", "{{n}}", "--fake", "fake.toml", "--queue", "q"),
            "for this command only",
        ),
        (("t.jsonl", "-p", "{{n}}", "--agent", "nobody-cli"), "nobody-cli"),
        (("t.jsonl", "-p", "{{n}}", "--concurrency", "0"), "concurrency"),
    ],
)
def test_bad_input_is_an_error_before_anything_is_started(
    workspace: Path, words: tuple[str, ...], message: str
) -> None:
    put(workspace, 2, "t.jsonl")
    (workspace / "bad.jsonl").write_text('"a"\n{"n": \n')
    (workspace / "empty.jsonl").touch()
    (workspace / "fake.toml").write_text('[[turn]]\ntext = "Hi."\n')
    (workspace / "notes.txt").write_text("mine\n")
    simulated = () if "--agent" in words else ("--simulate",)
    done = batch(*words, *simulated, cwd=workspace)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert (workspace / "notes.txt").read_text() == "mine\n"
    assert not (Path(os.environ["CORRAL_HOME"]) / "batches").exists()


@pytest.mark.deep
def test_after_a_kill_the_same_command_goes_on_with_another_scripted_model(workspace: Path) -> None:
    """The first one ended with its command, and the agents of the tasks are still there."""
    words = (put(workspace, 1), "-p", "task {{n}}", "-o", "r.jsonl", "--model", MODEL)
    script = workspace / "fake.toml"
    script.write_text("[[turn]]\nhang = true\n")
    process = start(*words, "--fake", script.name, cwd=workspace, env={})
    jobs = Path(os.environ["CORRAL_HOME"]) / "hosts"
    try:
        while not [*jobs.glob("*/jobs/*/started.*")]:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
    finally:
        process.kill()
        process.communicate(timeout=60)
    script.write_text('[[turn]]\ntext = "Hi."\n')
    done = corral("batch", *words, "--fake", script.name, cwd=workspace, timeout=100)
    assert done.returncode == 0, done.stderr
    assert results_of(workspace / "r.jsonl")["1"]["text"] == "Hi."


@pytest.mark.spine
def test_after_a_kill_the_same_command_repeats_no_task(
    workspace: Path, model: CountingModel
) -> None:
    """The agents run in a separate process, which the second command finds."""
    count = 12
    words = (put(workspace, count), "-p", "task {{n}}", "-o", "r.jsonl", "-n", "3")
    model.special = lambda task, _request: Turn(text=f"did {task}", delay=0.2)
    output = workspace / "r.jsonl"
    for lines in (1, 5):
        process = start(*words, "--model", MODEL, cwd=workspace, env=model.env)
        try:
            wait_for_lines(output, lines, process)
        finally:
            process.kill()
            process.communicate(timeout=60)
    done = batch(*words, cwd=workspace, model=model)
    assert done.returncode == 0, done.stderr
    found = results_of(output)
    assert {key: line["text"] for key, line in found.items()} == {
        str(n): f"did {n}" for n in range(1, count + 1)
    }
    assert model.counts == {str(n): 1 for n in range(1, count + 1)}
    assert "of them earlier" in done.stderr


@pytest.mark.deep
def test_an_interrupted_batch_prints_how_to_continue_and_is_resumed_by_its_name(
    workspace: Path, model: CountingModel, tmp_path: Path
) -> None:
    words = (put(workspace, 8), "-p", "task {{n}}", "-o", "r.jsonl", "-n", "1", "--model", MODEL)
    model.special = lambda task, _request: Turn(text=f"did {task}", delay=0.2)
    process = start(*words, cwd=workspace, env=model.env)
    try:
        wait_for_lines(workspace / "r.jsonl", 2, process)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "of 8 done; running tasks finish in the background" in stderr
    assert "run the same command again" in stderr
    assert stderr.splitlines()[-2].strip().startswith("corral batch tasks.jsonl -p 'task {{n}}'")
    resume = re.fullmatch(r"  or: corral (runs resume r-\w+)", stderr.splitlines()[-1])
    assert resume, stderr
    assert resume[1] in corral("runs", "show", "last", cwd=tmp_path).stdout
    done = corral(*resume[1].split(), "--json", cwd=tmp_path, env=model.env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["succeeded"] == 8
    assert len(results_of(workspace / "r.jsonl")) == 8
    assert model.counts.total() == 8
    repeated = corral(*resume[1].split(), cwd=tmp_path)
    assert (repeated.returncode, "has already ended: success" in repeated.stderr) == (2, True)


@pytest.mark.deep
def test_two_batches_cannot_write_the_same_file(workspace: Path, model: CountingModel) -> None:
    words = (put(workspace, 4), "-p", "task {{n}}", "-o", "r.jsonl", "-n", "1", "--no-durable")
    model.special = lambda task, _request: hang("did") if task == "2" else None
    process = start(*words, "--model", MODEL, cwd=workspace, env=model.env)
    try:
        wait_for_lines(workspace / "r.jsonl", 1, process)
        second = batch(*words, cwd=workspace, model=model)
    finally:
        process.kill()
        process.communicate(timeout=60)
    assert second.returncode == 2
    assert "another process is writing to r.jsonl" in second.stderr
    model.special = lambda _task, _request: None
    assert batch(*words, cwd=workspace, model=model).returncode == 0
    assert len(results_of(workspace / "r.jsonl")) == 4


def test_a_spent_budget_has_its_own_exit_code(workspace: Path, model: CountingModel) -> None:
    model.special = lambda task, _request: Turn(text="x", usage={"input": 1_000_000, "output": 0})
    words = (put(workspace, 5), "-p", "task {{n}}", "-o", "r.jsonl", "-n", "1", "--no-durable")
    done = batch(*words, "--max-cost", "0.5", cwd=workspace, model=model)
    assert done.returncode == 8, done.stderr
    assert "the budget is spent" in done.stderr
    assert batch(*words, cwd=workspace, model=model).returncode == 0
    assert model.counts.total() == 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "count",
    [90, *(pytest.param(count, marks=pytest.mark.deep) for count in (2000, 10_000))],
)
@pytest.mark.deep
def test_a_killed_batch_of_thousands_of_tasks_is_completed(workspace: Path, count: int) -> None:
    words = (put(workspace, count), "-p", "task {{n}}", "--simulate", "-o", "r.jsonl", "-n", "64")
    process = start(*words, cwd=workspace, env={})
    try:
        wait_for_lines(workspace / "r.jsonl", count // 3, process)
    finally:
        process.kill()
        process.communicate(timeout=60)
    done = batch(*words, "--json", cwd=workspace, timeout=500)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["succeeded"], report["failed"]) == (count, 0)
    assert report["earlier"] >= count // 3
    assert len(results_of(workspace / "r.jsonl")) == count


@pytest.mark.deep
def test_the_batch_example_of_the_docs_runs(workspace: Path, model: CountingModel) -> None:
    page = (Path(__file__).parents[2] / "docs" / "batches.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=workspace,
        env={**os.environ, **model.env},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "README.md success" in done.stdout
    assert set(results_of(workspace / "python.jsonl")) == {"README.md", "LICENSE"}


def test_the_progress_bar_shows_the_share_the_rate_and_the_cost() -> None:
    from corral._cli.ui.batch_progress import BatchProgress
    from corral._engine.batch.results import BatchError, BatchResult, BatchTally

    tally = BatchTally("b", 10)
    progress = BatchProgress(enabled=True, live=False)
    assert progress.line() == "starting"
    tally.add(BatchResult(id="0", status="success", cost_usd=0.5), earlier=True)
    for number in range(1, 4):
        error = BatchError(code="x", message="no") if number == 3 else None
        result = BatchResult(
            id=str(number),
            status="failed" if error else "success",
            error=error,
            cost_usd=0.25,
        )
        tally.add(result)
        progress.show(result, tally.report(seconds=1))
    parts = progress.line().split(" · ")
    assert parts[:2] == ["4/10", "1 failed"]
    assert parts[2].endswith(("/s", "/min"))
    assert parts[3].endswith(" left")
    assert parts[4] == "$1.2500"
    assert progress.share == 0.4


@pytest.mark.deep
def test_batches_are_listed_shown_and_pruned(workspace: Path) -> None:
    tasks = put(workspace, 2)
    done = batch(tasks, "--simulate", "-p", "{{n}}", "-o", "r.jsonl", "--name", "b", cwd=workspace)
    assert done.returncode == 0, done.stderr
    (seen,) = json.loads(corral("runs", "list", "--json", cwd=workspace).stdout)
    assert (seen["id"], seen["kind"], seen["state"]) == ("b", "batch", "success")
    shown = corral("runs", "list", cwd=workspace).stdout
    assert re.search(r"^b +batch +success ", shown, re.MULTILINE), shown
    assert (
        "run        b\nkind       batch\n" in corral("runs", "show", "last", cwd=workspace).stdout
    )
    shown = corral("runs", "show", "b", cwd=workspace).stdout
    assert "2: 2 done, 0 failed, 0 left" in shown
    assert str(workspace / "r.jsonl") in shown
    assert "prompt     {{n}}\n" in shown
    ended = corral("runs", "cancel", "b", cwd=workspace)
    assert (ended.returncode, "already ended: success" in ended.stderr) == (2, True)
    wrong = corral("runs", "prune", "--older-than", "soon", cwd=workspace)
    assert (wrong.returncode, "is not a duration" in wrong.stderr) == (2, True)
    pruned = corral("runs", "prune", "--older-than", "0s", "--dry-run", cwd=workspace).stdout
    assert re.search(r"^batch +success .* b\n1 would be deleted", pruned, re.MULTILINE), pruned
    assert "1 deleted" in corral("runs", "prune", "--older-than", "0s", cwd=workspace).stdout
    assert corral("runs", "list", "--json", cwd=workspace).stdout == "[]\n"
    assert lines_of(workspace / "r.jsonl") == 2


def test_each_file_of_a_pattern_is_a_task(workspace: Path) -> None:
    for name in ("b.txt", "a.txt", "c.bin"):
        (workspace / name).write_bytes(b"\0" if name == "c.bin" else name.encode())
    words = ("--prompt", "{{path}} {{content}}", "--simulate", "--no-durable", "--in-order")
    done = corral("batch", "--files", "*", *words, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["a.txt", "b.txt"]
    assert "skipped 1 of 3 files: 1 binary (c.bin)" in done.stderr
    expanded = corral("batch", "--files", "a.txt", "b.txt", *words, cwd=workspace)
    assert expanded.stdout.count("\n") == 2
    none = corral("batch", *words, cwd=workspace)
    assert (none.returncode, "give one file of tasks, got 0" in none.stderr) == (2, True)


@pytest.mark.deep
def test_a_full_disk_behind_stdout_names_the_command_that_continues(workspace: Path) -> None:
    words = ["batch", put(workspace, 2), "--prompt", "x{{n}}", "--simulate", "--db", "runs.db"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [CORRAL, *words], cwd=workspace, stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=100,
        )  # fmt: skip
    assert done.returncode == 1
    *_, error, hint = done.stderr.splitlines()
    assert error == "corral: the output cannot be written: No space left on device"
    assert hint == f"  then run the same command again: corral {shlex.join(words)}"
    second = corral(*words, cwd=workspace)
    assert {json.loads(line)["id"] for line in second.stdout.splitlines()} == {"1", "2"}
