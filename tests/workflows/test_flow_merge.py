"""``flow.merge``: branches of a workflow enter the merge queue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import workflow_files
from support.durable_processes import wait_until
from support.merge_queues import GATE, add_branch, make_repository, repairing_agent
from support.pipeline_command import corral
from support.repositories import git

from corral import merge_queue, runs, workflows
from corral._merging.queue import QueueStore
from corral._pipelines.simulation import SimulateMode
from corral.merge_queue import MergeReport
from corral.values import Json

pytestmark = pytest.mark.whole_program

HEAD = "from corral.merge_queue import MergeReport\n"
ALL = """
@corral.workflow
async def all_of(flow: Flow, branches: list[str], more=None) -> MergeReport:
    return await flow.merge(branches, **{"into": "target", "gates": ["true"], **(more or {})})
"""
EDITS = """
AGENT = {agent!r}

@corral.workflow
async def edits(flow: Flow) -> MergeReport:
    done = await flow.parallel(
        [flow.run(AGENT, f"write list {{text}}", worktree=True) for text in ("one", "two")],
        max_parallel=1,
    )
    report = await flow.merge([each.branch for each in done], into="target", gates={gates!r})
    await flow.command("echo after >> ../after", name="after")
    return report
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = make_repository(tmp_path / "repo")
    git(folder, "branch", "target")
    return folder


def run(
    repo: Path, body: str, mode: str = "memory", **options: Any
) -> workflows.WorkflowResult[Any]:
    options |= {"repository": repo} if mode == "own worktree" else {"cwd": repo}
    options |= {"durable": mode != "memory"}
    if mode != "memory":
        options["db"] = str(repo.parent / "runs.db")
    workflow = workflow_files.load(repo.parent, HEAD + body)
    return workflows.run_sync(workflow, policy="all", **options)


def merge(repo: Path, *branches: str, **more: Json) -> workflows.WorkflowResult[MergeReport]:
    simulate: SimulateMode = more.pop("simulate", False)  # type: ignore[assignment]
    return run(repo, ALL, args={"branches": [*branches], "more": more}, simulate=simulate)


@pytest.mark.parametrize("mode", ["memory", "own worktree"])
@pytest.mark.deep_but_first
def test_the_session_that_made_a_branch_resolves_its_conflict(
    repo: Path, tmp_path: Path, mode: str
) -> None:
    log = tmp_path / "log"
    body = EDITS.format(agent=repairing_agent(log), gates=[GATE])
    result = run(repo, body, mode)
    report = result.output
    assert isinstance(report, MergeReport)
    assert (report.merged, report.failed, report.pending, report.into) == (2, 0, "", "target")
    assert report.tip == git(repo, "rev-parse", "target")
    assert sorted(git(repo, "show", "target:list").split()) == ["one", "two"]
    assert git(repo, "show", "main:list") == ""
    lines = [line.split(" ", 2) for line in log.read_text().splitlines()]
    (asked,) = [line for line in lines if "is to be merged into target" in line[2]]
    assert asked[:2] == lines[1][:2]  # the session, and its folder
    assert result.steps[-2:] == ["merge", "after"]


@pytest.mark.deep
def test_the_report_has_the_reason_of_a_branch_that_failed(repo: Path) -> None:
    add_branch(repo, "good", {"files/good": "x\n"})
    bad = add_branch(repo, "bad", {"files/bad": "x\n"})
    gates: list[Json] = ["true", "! ls files | grep bad"]
    result = merge(repo, "bad", "good", gates=gates)
    report = result.output
    states = {entry.branch: entry.state for entry in report.entries}
    assert states == {"bad": "failed", "good": "merged"}
    assert "the gate failed: `! ls files | grep bad`" in report.entries[0].reason
    assert report.entries[0].output == "bad"
    assert result.outcomes["merge"].status == "partial_success"
    assert report.summary.startswith("1 merged into target, 1 not\nbad failed: the gate failed")
    assert git(repo, "rev-parse", "bad") == bad
    assert git(repo, "ls-tree", "-r", "--name-only", "target", "files") == "files/good"
    strict = merge(repo, "bad", "good", gates=gates, check=True)
    assert strict.status == "fail"
    assert "the step 'merge' failed: 1 of 2 branches were not merged: bad failed" in strict.reason


def test_branches_of_others_in_the_queue_are_not_in_the_report(repo: Path) -> None:
    for name in ("mine", "theirs"):
        add_branch(repo, name, {f"files/{name}": "x\n"})
    store = merge_queue_store(repo)
    store.change(lambda queue: queue.add("theirs", git(repo, "rev-parse", "theirs"), ""))
    report = merge(repo, "mine").output
    assert [entry.branch for entry in report.entries] == ["mine"]
    assert len(git(repo, "rev-list", "main..target").split()) == 2


def merge_queue_store(repo: Path) -> QueueStore:
    merge_queue.run_sync(["main"], into="target", gates=["true"], cwd=repo)
    return QueueStore.of(repo, "target")


def test_agent_and_options_are_for_the_sessions_that_are_asked(repo: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        add_branch(repo, name, {"list": f"{name}\n"})
    agent = repairing_agent(tmp_path / "log")
    none = merge(repo, "one", "two", agent=agent, rounds=0).output
    assert (none.merged, none.failed) == (1, 1)
    limited = merge(repo, "two", agent=agent, env={"A": "b"}, timeout=0.001).output
    assert "its session" in limited.entries[0].reason
    done = merge(repo, "two", agent=agent, timeout="1m").output
    assert done.ok
    assert sorted(git(repo, "show", "target:list").split()) == ["one", "two"]


@pytest.mark.parametrize("simulate", [True, "all"])
def test_a_simulation_merges_nothing(repo: Path, simulate: SimulateMode) -> None:
    add_branch(repo, "one", {"files/one": "x\n"})
    report = merge(repo, "one", "unknown", simulate=simulate).output
    assert (report.merged, report.failed) == (2, 0)
    assert git(repo, "rev-parse", "target") == git(repo, "rev-parse", "main")


@pytest.mark.parametrize(
    ("branches", "more", "error"),
    [
        ([], {}, "flow.merge needs branches"),
        ([""], {}, "'' is not the name of a branch"),
        (["work/*"], {}, "'work/*' is not the name of a branch"),
        (["nowhere"], {}, "has no branch 'nowhere'"),
        (["main"], {"into": "nowhere"}, "has no branch 'nowhere'"),
        (["target"], {}, "target cannot be merged into itself"),
        (["main"], {"gates": []}, "no gate: which command must succeed"),
        (["main"], {"gates": "make test"}, "gates must be a list of texts, got: 'make test'"),
        (["main"], {"gates": ["false"]}, "the gate fails on target itself"),
        (["main"], {"agent": "nobody"}, "nobody"),
        (["main"], {"polcy": "all"}, "polcy"),
        (["main"], {"gate_sandbox": "yes"}, "gate_sandbox must be auto or require, got: 'yes'"),
        (["main"], {"rounds": "x"}, "rounds must be a number"),
        (["main"], {"cwd": ".."}, "is not in a git repository"),
    ],
)
def test_bad_input_is_refused_before_anything_is_merged(
    repo: Path, branches: list[str], more: dict[str, Json], error: str
) -> None:
    result = merge(repo, *branches, **more)
    assert result.status == "fail"
    assert error in result.reason
    assert "flow.py:" in result.reason
    assert git(repo, "rev-parse", "target") == git(repo, "rev-parse", "main")


@pytest.mark.deep
def test_a_repository_on_another_machine_is_refused(repo: Path, tmp_path: Path) -> None:
    db, workflow = str(tmp_path / "runs.db"), workflow_files.load(tmp_path, HEAD + ALL)
    args = {"branches": ["main"]}
    result = workflows.run_sync(workflow, args=args, repository=f"file://{repo}", db=db)
    assert "merges branches of a repository on this machine" in result.reason


@pytest.mark.deep
def test_an_edit_of_the_gates_repeats_the_merge_and_what_comes_after_it(
    repo: Path, tmp_path: Path
) -> None:
    log, db = tmp_path / "log", str(tmp_path / "runs.db")
    body = EDITS.format(agent=repairing_agent(log), gates=[GATE])
    first = run(repo, body, "durable", run_id="first")
    merged = git(repo, "rev-parse", "target")
    file = tmp_path / "flow.py"
    file.write_text(file.read_text().replace(repr([GATE]), repr([GATE, "true"])))
    plan = runs.resume_sync("first", plan_only=True, db=db)
    assert ([*plan.kept], [*plan.repeated]) == (["log", "log-2"], ["merge", "after"])
    second = runs.resume_sync("first", db=db)
    assert second.output.ok, first
    assert git(repo, "rev-parse", "target") == merged  # all of it was there


SLOW = """
@corral.workflow
async def slow(flow: Flow) -> MergeReport:
    return await flow.merge(["bad", "slow"], into="target", gates={gates!r})
"""


@pytest.mark.parametrize("also", ["", "its agent host"])
@pytest.mark.deep
def test_a_merge_that_was_killed_goes_on(repo: Path, home: Path, tmp_path: Path, also: str) -> None:
    """What has ended is not done again."""
    log, go = tmp_path / "log", tmp_path / "go"
    for name in ("bad", "slow"):
        add_branch(repo, name, {f"files/{name}": "x\n"})
    gate = f"ls files >> {log}; test ! -e files/bad || exit 1; test ! -e files/slow"
    gate = f"{gate} || test -e {go} || (while test ! -e {go}; do sleep 0.05; done)"
    (tmp_path / "flow.py").write_text(workflow_files.HEAD + HEAD + SLOW.format(gates=[gate]))
    words = ("--db", str(tmp_path / "runs.db"))
    command = [sys.executable, "-m", "corral", "workflow", "run", str(tmp_path / "flow.py"), *words]
    with subprocess.Popen(
        [*command, "--run-id", "r"], cwd=repo, stdin=subprocess.DEVNULL
    ) as process:
        wait_until(
            lambda: log.exists() and "slow" in log.read_text(), "the gate of the branch slow"
        )
        process.send_signal(signal.SIGKILL)
    if also:
        for file in home.glob("hosts/**/pid"):
            os.kill(int(file.read_text().split()[0]), signal.SIGKILL)
    go.touch()
    done = corral("runs", "resume", "r", "-q", *words, cwd=repo)
    assert done.returncode == 0, done.stderr
    assert log.read_text().split().count("bad") == 1
    assert log.read_text().split().count("slow") == (2 if also else 1)
    found = json.loads(done.stdout)["entries"]
    assert [(each["branch"], each["state"]) for each in found] == [
        ("bad", "failed"), ("slow", "merged"),
    ]  # fmt: skip
    assert git(repo, "rev-list", "--count", "main..target") == "1"
