"""Branches of parallel nodes in their own worktrees, merged where they join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.durable_processes import DurableProcesses, submit, wait_until
from support.merge_queues import make_repository, repairing_agent
from support.repositories import bare, git, repository

from corral import pipelines, runs
from corral._pipelines.execution.interviewers import Queued
from corral.errors import ConfigError

pytestmark = pytest.mark.whole_program

__all__ = ["bare", "repository"]

ENDS = "start [shape=Mdiamond]; exit [shape=Msquare]; node [shape=parallelogram];"
MODES = pytest.mark.parametrize("mode", ["memory", "durable", "own worktree"])


def run(
    graph: str, repository: Path, tmp_path: Path, mode: str = "memory", **more: Any
) -> pipelines.PipelineResult:
    where: dict[str, Any] = {"cwd": repository}
    if mode == "own worktree":
        where = {"repository": repository}
    if mode != "memory":
        where["db"] = f"sqlite:///{tmp_path / 'runs.db'}"
    number = len(list(tmp_path.glob("run-*")))
    return pipelines.run_sync(
        f"digraph g {{ {ENDS} {graph} }}",
        durable=mode != "memory",
        run_dir=tmp_path / f"run-{number}",
        **where,
        **more,
    )


def fork(rule: str, one: str, two: str, more: str = "") -> str:
    return f"""p [shape=component, worktree=branch, on_conflict={rule}]
        f [shape=tripleoctagon]
        a [tool_command="{one}"]; b [tool_command="{two}"]; after [tool_command="cat file"]
        {more} start -> p; p -> a -> f; p -> b -> f; f -> after -> exit"""


def file_of(result: pipelines.PipelineResult, repository: Path, name: str = "file") -> str:
    """A file after the run: in the user's folder, or on the branch of the run."""
    if result.branch:
        return git(repository, "show", f"{result.branch}:{name}")
    return (repository / name).read_text().rstrip("\n")


def branches(repository: Path) -> list[str]:
    return git(repository, "for-each-ref", "--format=%(refname)").split("\n")


@MODES
@pytest.mark.deep_but_first
def test_changes_of_the_branches_are_merged(repository: Path, tmp_path: Path, mode: str) -> None:
    (repository / "file").write_text("".join(f"{n}\n" for n in range(20)))
    git(repository, "commit", "-qam", "more lines")
    one = "test ! -e b && echo a > a && sed -i 's/^1$/one/' file"
    two = "echo b > b && sed -i 's/^18$/eighteen/' file"
    before = branches(repository)
    result = run(fork("fail", one, two), repository, tmp_path, mode)
    assert result.status == "success", result.reason
    lines = file_of(result, repository).split("\n")
    assert (lines[1], lines[18]) == ("one", "eighteen")
    assert file_of(result, repository, "a") == "a"
    assert file_of(result, repository, "b") == "b"
    assert result.context["parallel.merged"] == ["a", "b"]
    assert result.branches == []
    own = [f"refs/heads/{result.branch}"] if result.branch else []
    assert sorted(branches(repository)) == sorted(before + own)


@MODES
@pytest.mark.deep_but_first
def test_a_conflict_fails_the_node_and_keeps_each_branch(
    repository: Path, tmp_path: Path, mode: str
) -> None:
    result = run(fork("fail", "echo a > file", "echo b > file"), repository, tmp_path, mode)
    assert result.status == "fail"
    assert "file" in result.reason
    assert sorted(git(repository, "show", f"{each}:file") for each in result.branches) == ["a", "b"]
    assert all(each in result.reason for each in result.branches)
    assert (repository / "file").read_text() == "one\n"


def test_with_first_the_later_branch_is_left_out(repository: Path, tmp_path: Path) -> None:
    result = run(fork("first", "echo a > file", "echo b > file; touch b"), repository, tmp_path)
    assert result.status == "success"
    assert result.outcomes["p"].status == "partial_success"
    assert (repository / "file").read_text() == "a\n"
    assert not (repository / "b").exists()
    (left,) = result.branches
    assert git(repository, "show", f"{left}:file") == "b"


@pytest.mark.parametrize("mode", ["memory", "durable"])
@pytest.mark.parametrize(("answer", "expected"), [("2", "b"), ("b", "b"), ("f", "")])
@pytest.mark.deep_but_first
def test_a_person_chooses_the_branch(
    repository: Path, tmp_path: Path, mode: str, answer: str, expected: str
) -> None:
    graph = fork("ask", "echo a > file", "echo b > file")
    person = Queued([answer])
    result = run(graph, repository, tmp_path, mode, interviewer=person)
    assert (result.status == "success") is bool(expected), result.reason
    assert (repository / "file").read_text().strip() == (expected or "one")


def test_uncommitted_files_of_the_user_are_in_each_branch(repository: Path, tmp_path: Path) -> None:
    (repository / "file").write_text("not committed\n")
    (repository / "new").write_text("new\n")
    result = run(fork("fail", "cat new > a", "cat file > b"), repository, tmp_path)
    assert result.status == "success", result.reason
    assert (repository / "a").read_text() == "new\n"
    assert (repository / "b").read_text() == "not committed\n"
    assert git(repository, "diff", "--cached", "--name-only") == ""


def test_a_failed_branch_is_not_merged_and_stays(repository: Path, tmp_path: Path) -> None:
    graph = fork("fail", "echo a > a", "echo b > b; exit 1")
    result = run(graph, repository, tmp_path)
    assert result.status == "success"
    assert (repository / "a").exists()
    assert not (repository / "b").exists()
    (left,) = result.branches
    assert git(repository, "show", f"{left}:b") == "b"


@MODES
@pytest.mark.deep_but_first
def test_branches_inside_branches(repository: Path, tmp_path: Path, mode: str) -> None:
    graph = """node [shape=parallelogram]
        p [shape=component, worktree=branch]; q [shape=component, worktree=branch]
        f [shape=tripleoctagon]; g [shape=tripleoctagon]
        a [tool_command="echo a > a"]; b [tool_command="test ! -e a && echo b > b"]
        c [tool_command="test ! -e b && echo c > c"]; d [tool_command="test -e b -a -e c"]
        start -> p; p -> a -> f; p -> q; q -> b -> g; q -> c -> g; g -> d -> f; f -> exit"""
    result = run(graph, repository, tmp_path, mode)
    assert result.status == "success", result.reason
    for name in "abc":
        assert file_of(result, repository, name) == name
    assert result.branches == []


@MODES
@pytest.mark.deep_but_first
def test_a_child_pipeline_works_in_the_worktree_of_its_branch(
    repository: Path, tmp_path: Path, mode: str
) -> None:
    (repository / "child.dot").write_text(
        f'digraph child {{ {ENDS} x [tool_command="test ! -e a; echo x > x"]; start -> x -> exit }}'
    )
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "child")
    graph = """p [shape=component, worktree=branch]; f [shape=tripleoctagon]
        a [tool_command="echo a > a"]; c [type=include, dotfile="child.dot"]
        start -> p; p -> a -> f; p -> c -> f; f -> exit"""
    result = run(graph, repository, tmp_path, mode)
    assert result.status == "success", result.reason
    assert file_of(result, repository, "x") == "x"
    assert file_of(result, repository, "a") == "a"


def test_a_branch_cannot_lead_back_and_lose_its_files(repository: Path, tmp_path: Path) -> None:
    graph = """p [shape=component, worktree=branch]; f [shape=tripleoctagon]
        before [tool_command="true"]; a [tool_command="echo a > a; exit 1", retry_target=before]
        b [tool_command="echo b > b"]
        start -> before -> p; p -> a -> f; p -> b -> f; f -> exit"""
    result = run(graph, repository, tmp_path)
    assert result.status == "success"  # of the other branch
    assert "leads back to before" in str(result.context["parallel.results"])
    (left,) = result.branches
    assert git(repository, "show", f"{left}:a") == "a"


@MODES
@pytest.mark.deep_but_first
def test_items_of_a_for_each(repository: Path, tmp_path: Path, mode: str) -> None:
    graph = """e [type=for_each, items="x,y", worktree=branch,
            tool_command="test ! -e x -a ! -e y && echo {{item}} > {{item}}"]
        start -> e -> exit"""
    before = branches(repository)
    result = run(graph, repository, tmp_path, mode)
    assert result.status == "success", result.reason
    assert file_of(result, repository, "x") == "x"
    assert file_of(result, repository, "y") == "y"
    own = [f"refs/heads/{result.branch}"] if result.branch else []
    assert sorted(branches(repository)) == sorted(before + own)


@pytest.mark.deep
def test_items_that_conflict(repository: Path, tmp_path: Path) -> None:
    graph = """e [type=for_each, items="x,y", worktree=branch, on_conflict={rule},
            tool_command="echo {{{{item}}}} > file"]
        start -> e -> exit"""
    result = run(graph.format(rule="fail"), repository, tmp_path)
    assert result.status == "fail"
    assert (repository / "file").read_text() == "one\n"
    result = run(graph.format(rule="first"), repository, tmp_path)
    assert result.outcomes["e"].status == "partial_success"
    assert (repository / "file").read_text() == "x\n"


def test_without_a_repository_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for graph in (
        fork("fail", "touch a", "touch b"),
        'e [type=for_each, items="x", worktree=branch, tool_command="touch a"]; start -> e -> exit',
    ):
        with pytest.raises(ConfigError, match="worktree=branch: this needs a git repository"):
            run(graph, tmp_path / "plain", tmp_path)
    assert list((tmp_path / "plain").iterdir()) == []


@pytest.mark.parametrize(
    "graph",
    [
        fork("ask", "echo a > file", "echo b > file"),
        """e [type=for_each, items="a,b", worktree=branch, on_conflict=ask,
            tool_command="echo {{item}} > file"]; start -> e -> exit""",
    ],
)
@pytest.mark.deep
def test_a_durable_run_waits_for_the_choice(repository: Path, tmp_path: Path, graph: str) -> None:
    db = f"sqlite:///{tmp_path / 'runs.db'}"
    waiting = run(graph, repository, tmp_path, "durable")
    assert waiting.status == "waiting"
    (question,) = waiting.questions
    assert "file" in question.text
    assert (repository / "file").read_text() == "one\n"
    runs.answer_sync(waiting.run, question.choices[1].key, db=db)
    result = runs.resume_sync(waiting.run, db=db)
    assert result.status == "success", result.reason
    assert (repository / "file").read_text() == "b\n"
    assert len(result.branches) == (question.node == "p")


@pytest.mark.deep
def test_a_repository_on_another_machine(bare: Path, tmp_path: Path) -> None:
    items = """e [type=for_each, items="x,y", worktree=branch,
        tool_command="echo {{item}} > {{item}}"]; after -> e -> exit;"""
    graph = (
        fork("fail", "echo a > a", "echo b > b", items)
        .replace("after -> exit", "after")
        .replace("cat file", "cat a b")
    )
    before = branches(bare)
    result = run(graph, bare, tmp_path, "own worktree")
    assert result.status == "success", result.reason
    names = git(bare, "ls-tree", "--name-only", result.branch).split("\n")
    assert names == ["a", "b", "file", "x", "y"]
    assert sorted(branches(bare)) == sorted([*before, f"refs/heads/{result.branch}"])


@pytest.mark.parametrize("node", ["b", "after", "p"])
@pytest.mark.deep
def test_a_fork_has_the_work_of_the_nodes_that_it_takes_over(
    repository: Path, tmp_path: Path, node: str
) -> None:
    graph = fork(
        "fail", "echo a > a", "sleep 0.3; echo b > b", 'a -> a2; a2 [tool_command="ls a"];'
    )
    graph = graph.replace("p -> a -> f", "p -> a; a2 -> f").replace("cat file", "cat a b")
    first = run(graph, repository, tmp_path, "own worktree")
    assert first.status == "success", first.reason
    forked = runs.fork_sync(first.run, node, db=f"sqlite:///{tmp_path / 'runs.db'}")
    assert forked.status == "success", forked.reason
    assert file_of(forked, repository, "a") == "a"
    assert file_of(forked, repository, "b") == "b"


def test_a_branch_continues_after_its_process_was_killed(
    file_processes: DurableProcesses, repository: Path
) -> None:
    processes = file_processes
    begin = f"echo begin {{}} >> {processes.log}"
    wait = f"while ! test -e {processes.folder}/go; do sleep 0.02; done"
    graph = f"""digraph d {{ {ENDS} p [shape=component, worktree=branch]; f [shape=tripleoctagon]
        a [tool_command="echo a > a; {begin.format("a")}"]
        b [tool_command="echo b > b"]; c [tool_command="{begin.format("c")}; {wait}; cp b c"]
        start -> p; p -> a -> f; p -> b -> c -> f; f -> exit }}"""
    first = processes.worker()
    processes.workspace = repository
    submit(processes, graph, detached=False)
    wait_until(lambda: {"begin a", "begin c"} <= {*processes.lines()}, "both branches to begin")
    processes.kill(first)
    (processes.folder / "go").touch()
    processes.worker()
    closed = processes.wait_for_run()
    assert closed.status == "success", closed.reason
    assert [(repository / name).read_text() for name in "abc"] == ["a\n", "b\n", "b\n"]
    assert closed.saved["branches"] == []


@pytest.mark.parametrize("kind", ["parallel", "for_each"])
@pytest.mark.parametrize("mode", ["memory", "own worktree"])
@pytest.mark.deep_but_first
def test_with_resume_the_session_of_the_later_branch_resolves_the_conflict(
    tmp_path: Path, kind: str, mode: str
) -> None:
    repository = make_repository(tmp_path / "repo")
    log = tmp_path / "log"
    agent = repairing_agent(log).replace('"', '\\"')
    graph = f"""node [shape=box, agent="{agent}"]
        p [shape=component, worktree=branch, on_conflict=resume]; f [shape=tripleoctagon]
        a [prompt="write list one"]; b [prompt="write list two"]
        start -> p; p -> a -> f; p -> b -> f; f -> exit"""
    if kind == "for_each":
        graph = f"""e [type=for_each, items="one,two", worktree=branch, on_conflict=resume,
            agent="{agent}", prompt="write list {{{{item}}}}"] start -> e -> exit"""
    result = run(graph, repository, tmp_path, mode, policy="all")
    assert result.status == "success", result.reason
    assert sorted(file_of(result, repository, "list").split()) == ["one", "two"]
    assert result.branches == []
    lines = [line.split(" ", 2) for line in log.read_text().splitlines()]
    assert len(lines) == 3
    # The same session, in the folder in which it wrote.
    (first,) = [line for line in lines[:2] if line[2].endswith("two")]
    assert lines[2][:2] == first[:2]
    assert "There is a conflict in: list" in lines[2][2]


def test_with_resume_nothing_is_merged_if_no_session_made_the_branch(
    repository: Path, tmp_path: Path
) -> None:
    result = run(fork("resume", "echo a > file", "echo b > file"), repository, tmp_path)
    assert result.status == "fail"
    assert "no session made b" in result.reason
    assert len(result.branches) == 2
    assert (repository / "file").read_text() == "one\n"
