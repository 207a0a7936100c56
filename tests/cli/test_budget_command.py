"""``corral runs budget``: the budget of a run of another process is raised."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.batches import MODEL, CountingModel
from support.live_runs import wait_for
from support.pipeline_command import CORRAL, corral

from corral import live
from corral._publishing.records import LiveRun
from corral.testing import Call, ModelServer, Request, Turn

pytestmark = pytest.mark.whole_program

PIPELINE = """digraph work {
    max_calls=1; on_budget=pause
    start [shape=Mdiamond]
    a [prompt="task a"]
    b [prompt="task b"]
    done [shape=Msquare]
    start -> a -> b -> done
}"""


@pytest.fixture
def model(model_server: ModelServer, request: pytest.FixtureRequest) -> CountingModel:
    return CountingModel(model_server, request.node.nodeid)


@contextmanager
def started(*words: str, cwd: Path, model: CountingModel) -> Generator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [CORRAL, *words],
        cwd=cwd,
        env={**os.environ, **model.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_run(is_wanted: Callable[[LiveRun], object]) -> LiveRun | None:
    return next((run for run in live.runs() if is_wanted(run)), None)


@pytest.mark.deep
def test_a_paused_session_goes_on_and_wrong_amounts_are_refused(
    workspace: Path, model: CountingModel
) -> None:
    def twice(task: str, _request: Request) -> Turn | None:
        is_first = model.counts[task] == 1
        return Turn(calls=[Call("read_file", {"path": "x"})]) if is_first else None

    model.special = twice
    words = ("run", "--model", MODEL, "--max-calls", "1", "--on-budget", "pause", "task 1")
    with started(*words, cwd=workspace, model=model) as process:
        run = wait_for(lambda: first_run(lambda each: each.state == "paused"))
        for amounts, message in (
            (("+1.00",), "no max_cost"),
            (("--calls", "+0"), "must be more than 0"),
            (("-1.00",), "must be more than 0"),
            (("nan",), "must be more than 0"),
            (("much",), "must be a number"),
            (("--tokens", "1.5"), "must be a whole number"),
            (("--calls", "1"), "max_calls is 1 already"),
            ((), "no amount is given"),
            (("5", "--calls", "+1"), "all amounts with +"),
        ):
            refused = corral("runs", "budget", run.id, *amounts, cwd=workspace)
            assert refused.returncode == 2, amounts
            assert message in refused.stderr, refused.stderr
        raised = corral("runs", "budget", "last", "--calls", "2", cwd=workspace)
        assert (raised.returncode, raised.stderr) == (0, "")
        assert run.id in raised.stdout
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "did 1\n"), err
    assert model.counts.total() == 2
    ended = corral("runs", "budget", run.id, "+1.00", cwd=workspace)
    assert (ended.returncode, "does not run" in ended.stderr) == (2, True), ended.stderr
    unknown = corral("runs", "budget", "nothing-like-it", "+1.00", cwd=workspace)
    assert (unknown.returncode, "no run is called" in unknown.stderr) == (2, True)


@pytest.mark.deep
@pytest.mark.parametrize("more", [(), ("--no-durable",)], ids=["durable", "memory"])
def test_a_paused_pipeline_goes_on(
    workspace: Path, model: CountingModel, more: tuple[str, ...]
) -> None:
    (workspace / "work.dot").write_text(PIPELINE)
    words = ("pipeline", "run", "work.dot", "--model", MODEL, *more)
    with started(*words, cwd=workspace, model=model) as process:
        run = wait_for(lambda: first_run(lambda each: each.kind == "pipeline"))
        wait_for(lambda: model.counts.total() == 1)
        agent = wait_for(
            lambda: first_run(lambda each: each.kind == "session" and each.state == "paused")
        )
        refused = corral("runs", "budget", agent.id, "--calls", "+1", cwd=workspace)
        assert refused.returncode == 2, refused.stdout
        assert f"corral runs budget {run.id} +1.00" in refused.stderr
        raised = corral("runs", "budget", run.id, "--calls", "+1", cwd=workspace)
        assert (raised.returncode, raised.stderr) == (0, "")
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert model.counts == {"a": 1, "b": 1}


@pytest.mark.deep
@pytest.mark.parametrize("more", [(), ("--no-durable",)], ids=["durable", "memory"])
def test_a_paused_batch_goes_on(
    workspace: Path, model: CountingModel, more: tuple[str, ...]
) -> None:
    (workspace / "tasks.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    limits = ("--max-calls", "1", "--on-budget", "pause")
    words = ("batch", "tasks.jsonl", "-p", "task {{n}}", "--model", MODEL, *limits, *more)
    with started(*words, cwd=workspace, model=model) as process:
        run = wait_for(lambda: first_run(lambda each: each.kind == "batch"))
        wait_for(lambda: model.counts.total() == 1)
        if not more:
            listed = wait_for(lambda: _paused_line(workspace))
            assert run.id in listed
            shown = corral("runs", "show", run.id, cwd=workspace)
            assert "state      paused" in shown.stdout, shown.stdout
            assert f"continue   corral runs budget {run.id} +1.00" in shown.stdout
            refused = corral("runs", "resume", run.id, cwd=workspace)
            assert "is running" in refused.stderr, refused.stderr
        raised = corral("runs", "budget", run.id, "--calls", "2", cwd=workspace)
        assert (raised.returncode, raised.stderr) == (0, "")
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert model.counts == {"1": 1, "2": 1}


def _paused_line(workspace: Path) -> str | None:
    """The line of the list of batches that says so."""
    lines = corral("runs", "list", cwd=workspace).stdout.splitlines()
    return next((line for line in lines if " paused " in line), None)
