"""``flow.parallel(worktree="branch")``: each branch has its own worktree, and they are merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import workflow_files
from support.merge_queues import make_repository, repairing_agent
from support.repositories import git

from corral import runs, workflows

pytestmark = pytest.mark.whole_program


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo")


def run(repo: Path, body: str, mode: str, **options: Any) -> workflows.WorkflowResult[Any]:
    options |= {"durable": mode != "memory"}
    if mode != "memory":
        options["db"] = str(repo.parent / "runs.db")
    workflow = workflow_files.load(repo.parent, body)
    return workflows.run_sync(workflow, cwd=repo, **options)


def two(one: str, other: str, rule: str, more: str = "") -> str:
    """A workflow with two branches that run these commands."""
    return f"""
@corral.workflow
async def two(flow: Flow) -> str:
    parts = [flow.command({one!r}, check=True, name="one"),
             flow.command({other!r}, check=True, name="two")]
    await flow.parallel(parts, worktree="branch", on_conflict={rule!r})
    {more}
    return (await flow.command("cat list one two")).stdout
"""


@pytest.mark.parametrize("mode", ["memory", "durable"])
@pytest.mark.deep_but_first
def test_the_changes_are_merged_into_the_workspace(repo: Path, mode: str) -> None:
    body = two("test ! -e two && echo 1 > one", "test ! -e one && echo 2 > two", "fail")
    result = run(repo, body, mode)
    assert result.output == "1\n2\n", result.reason
    assert (repo / "one").exists()
    assert git(repo, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert "parallel" in result.steps


@pytest.mark.parametrize("mode", ["memory", "durable"])
@pytest.mark.deep_but_first
def test_a_conflict_fails_the_step_and_keeps_the_branches(repo: Path, mode: str) -> None:
    result = run(repo, two("echo 1 > list", "echo 2 > list", "fail"), mode)
    assert result.status == "fail"
    assert "the same lines were changed twice" in result.reason
    assert (repo / "list").read_text() == ""
    left = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/corral").split()
    assert sorted(git(repo, "show", f"{name}:list") for name in left) == ["1", "2"]


def test_with_first_the_later_branch_is_left_out(repo: Path) -> None:
    assert run(repo, two("echo 1 > list", "echo 2 > list", "first"), "memory").output == "1\n"


@pytest.mark.parametrize(("answer", "expected"), [("parallel.2", "2\n"), ("none: nothing", "")])
@pytest.mark.deep
def test_a_person_chooses_the_branch_that_stays(repo: Path, answer: str, expected: str) -> None:
    waiting = run(repo, two("echo 1 > list", "echo 2 > list", "ask"), "durable", run_id="r")
    assert waiting.status == "waiting"
    (question,) = waiting.questions
    assert "parallel.2 changed the same lines as branches before: list" in question.text
    db = str(repo.parent / "runs.db")
    labels = [choice.label for choice in question.choices]
    (chosen,) = [label for label in labels if label.startswith(answer)]
    runs.answer_sync("r", chosen, request="conflict", db=db)
    done = runs.resume_sync("r", db=db)
    assert (done.status == "success") is bool(expected), done.reason
    assert (repo / "list").read_text() == expected


@pytest.mark.deep
def test_with_resume_the_session_resolves_the_conflict(repo: Path) -> None:
    log = repo.parent / "log"
    body = f"""
@corral.workflow
async def two(flow: Flow) -> list[str]:
    parts = [flow.run({repairing_agent(log)!r}, f"write list {{text}}", policy="all", name=text)
             for text in ("one", "two")]
    done = await flow.parallel(parts, worktree="branch", on_conflict="resume")
    return [each.text for each in done]
"""
    result = run(repo, body, "memory")
    assert result.status == "success", result.reason
    assert (repo / "list").read_text().split() == ["one", "two"]
    lines = [line.split(" ", 2) for line in log.read_text().splitlines()]
    assert [line[:2] for line in lines[:2] if line[2].endswith("two")] == [lines[2][:2]]


@pytest.mark.deep
def test_after_an_edit_what_a_branch_has_done_is_kept(repo: Path) -> None:
    body = two(
        "echo 1 > one; echo x >> ../count",
        "echo 2 > two",
        "fail",
        "await flow.command('false', check=True)",
    )
    # The worktree is elsewhere: count in the folder of the file.
    body = body.replace("../count", str(repo.parent / "count"))
    failed = run(repo, body, "durable", run_id="r")
    assert failed.status == "fail"
    git(repo, "clean", "-qfd")
    file = repo.parent / "flow.py"
    file.write_text(file.read_text().replace("echo 2 > two", "echo 3 > two"))
    file.write_text(file.read_text().replace("'false', check=True", "'true'"))
    done = runs.resume_sync("r", db=str(repo.parent / "runs.db"))
    assert done.output == "1\n3\n", done.reason
    assert (repo.parent / "count").read_text() == "x\n"


def test_a_branch_named_corral_is_refused_before_the_agent_runs(repo: Path) -> None:
    git(repo, "branch", "corral")
    body = """
@corral.workflow
async def own(flow: Flow) -> str:
    return (await flow.run("/nowhere/agent", "hi", worktree=True, name="w")).branch
"""
    result = workflow_files.run(repo, body)
    assert "the step 'w' failed" in result.reason
    assert "has a branch named corral" in result.reason


def test_without_a_repository_the_step_says_so(tmp_path: Path) -> None:
    body = two("true", "true", "fail")
    result = workflow_files.run(tmp_path, body)
    assert result.status == "fail"
    assert "needs a git repository" in result.reason


def test_an_agent_with_its_own_worktree_in_a_run_that_has_one(repo: Path, tmp_path: Path) -> None:
    """Git allows no branch below another one."""
    agent = repairing_agent(tmp_path / "log")
    body = f"""
    @corral.workflow
    async def one(flow: Flow) -> str:
        return (await flow.run({agent!r}, "write list one", worktree=True, policy="all")).branch
    """
    workflow = workflow_files.load(tmp_path, body)
    result = workflows.run_sync(workflow, repository=repo, db=str(tmp_path / "runs.db"), run_id="r")
    assert result.ok, result.reason
    assert git(repo, "show", f"{result.output}:list") == "one"
    assert result.branch != result.output
