"""The node ``merge``: branches of a pipeline enter the merge queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.merge_queues import GATE, add_branch, make_repository, repairing_agent
from support.repositories import git

from corral import pipelines
from corral.errors import ConfigError
from corral.values import as_texts

pytestmark = pytest.mark.whole_program

ENDS = "start [shape=Mdiamond]; exit [shape=Msquare]; node [shape=parallelogram];"
BOTH = pytest.mark.parametrize("mode", ["memory", "own worktree"])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = make_repository(tmp_path / "repo")
    git(folder, "branch", "target")
    return folder


def run(
    repo: Path, tmp_path: Path, graph: str, mode: str = "memory", **more: Any
) -> pipelines.PipelineResult:
    where: dict[str, Any] = {"cwd": repo, "durable": False}
    if mode == "own worktree":
        where = {"repository": repo, "db": f"sqlite:///{tmp_path / 'runs.db'}"}
    text = f"digraph g {{ {ENDS} {graph} }}"
    return pipelines.run_sync(text, run_dir=tmp_path / "run", **where, **more)


def merge_node(**attributes: str) -> str:
    given = {"type": "merge", "into": "target", "gate": GATE, **attributes}
    return "m [" + ", ".join(f'"{name}"="{value}"' for name, value in given.items()) + "]"


def fork(one: str, two: str, merge: str) -> str:
    return f"""p [shape=component, worktree=branch, merge=false]; f [shape=tripleoctagon]
        a [tool_command="{one}"]; b [tool_command="{two}"]; {merge}
        start -> p; p -> a -> f; p -> b -> f; f -> m -> exit"""


@BOTH
@pytest.mark.deep_but_first
def test_branches_of_a_parallel_node_are_merged_behind_the_gate(
    repo: Path, tmp_path: Path, mode: str
) -> None:
    graph = fork("echo a > a", "echo b > b", merge_node())
    result = run(repo, tmp_path, graph, mode)
    assert result.status == "success", result.reason
    assert result.context["merge.merged"] == 2
    assert git(repo, "show", "target:a") == "a"
    assert git(repo, "show", "target:b") == "b"
    # Two commits on the target, and the folder of the user has none of the files.
    assert len(git(repo, "rev-list", "main..target").split()) == 2
    assert git(repo, "status", "--porcelain") == ""
    assert sorted(result.branches) == sorted(as_texts(result.context["parallel.branches"]))


def test_items_and_a_conflict_without_a_session(repo: Path, tmp_path: Path) -> None:
    graph = f"""e [type=for_each, items="x,y", worktree=branch, merge=false,
            tool_command="echo {{{{item}}}} > list"]
        {merge_node()} start -> e -> m -> exit"""
    result = run(repo, tmp_path, graph)
    assert result.outcomes["m"].status == "partial_success"
    assert result.context["merge.merged"] == result.context["merge.failed"] == 1
    assert "conflict in list" in str(result.context["merge.summary"])
    (left,) = as_texts(result.context["merge.left"])
    assert git(repo, "show", f"{left}:list") == "y"


@pytest.mark.deep
def test_the_session_of_a_branch_resolves_a_conflict(repo: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    agent = repairing_agent(log).replace('"', '\\"')
    graph = f"""node [shape=box, agent="{agent}"]
        p [shape=component, worktree=branch, merge=false]; f [shape=tripleoctagon]
        a [prompt="write list one"]; b [prompt="write list two"]; {merge_node()}
        start -> p; p -> a -> f; p -> b -> f; f -> m -> exit"""
    result = run(repo, tmp_path, graph, policy="all")
    assert result.status == "success", result.context["merge.summary"]
    assert sorted(git(repo, "show", "target:list").split()) == ["one", "two"]
    lines = [line.split(" ", 2) for line in log.read_text().splitlines()]
    (asked,) = [line for line in lines if "is to be merged into target" in line[2]]
    # The session that wrote this branch, in the folder in which it wrote.
    assert asked[:2] in [line[:2] for line in lines[:2]]


def test_given_branches(repo: Path, tmp_path: Path) -> None:
    for name in ("work/one", "work/two", "other"):
        add_branch(repo, name, {f"files/{name}": "x\n"})
    graph = f"{merge_node(branches='work/*')} start -> m -> exit"
    result = run(repo, tmp_path, graph)
    assert result.status == "success", result.reason
    assert "files/other" not in git(repo, "ls-tree", "-r", "--name-only", "target")
    assert result.context["merge.merged"] == 2


def test_nothing_was_changed(repo: Path, tmp_path: Path) -> None:
    result = run(repo, tmp_path, fork("true", "true", merge_node()))
    assert result.status == "success"
    assert result.outcomes["m"].notes == "nothing to merge"
    assert git(repo, "rev-parse", "target") == git(repo, "rev-parse", "main")


def test_the_gate_fails_on_the_target(repo: Path, tmp_path: Path) -> None:
    result = run(repo, tmp_path, fork("touch a", "touch b", merge_node(gate="false")))
    assert result.status == "fail"
    assert "the gate fails on target itself" in result.reason
    assert len(result.branches) == 2


@pytest.mark.parametrize(
    ("graph", "error"),
    [
        (f"{merge_node()} start -> m -> exit", "no branches come to m"),
        (merge_node(branches="x", gate="make {{t}}") + " start -> m -> exit", "has a placeholder"),
        ("m [type=merge, branches=x, into=y]; start -> m -> exit", "needs gate"),
        (
            'e [type=for_each, items="x", merge=false, tool_command="true"] start -> e -> exit',
            "e has merge=false, but its branches work in one folder",
        ),
        (merge_node(branches="x", into="nowhere") + " start -> m -> exit", "no branch 'nowhere'"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    repo: Path, tmp_path: Path, graph: str, error: str
) -> None:
    with pytest.raises(Exception, match=error):
        run(repo, tmp_path, graph)
    assert not (tmp_path / "run").exists()


def test_files_that_are_not_committed_are_refused(repo: Path, tmp_path: Path) -> None:
    (repo / "list").write_text("changed\n")
    graph = fork("echo a > a", "echo b > b", merge_node())
    with pytest.raises(ConfigError, match="not committed"):
        run(repo, tmp_path, graph)
