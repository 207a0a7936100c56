"""Worktrees are at their commit, independent of the user's work tree, and run nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from corral._system.git.worktree import TaskWorktree, branch_name, repository_root
from corral.errors import ConfigError


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


@pytest.fixture
def repository(workspace: Path) -> Path:
    git(workspace, "init", "-q", "-b", "main")
    (workspace / "a.txt").write_text("a\n")
    git(workspace, "add", ".")
    git(workspace, "commit", "-qm", "first")
    return workspace


async def test_a_worktree_is_at_its_commit_after_the_branch_moved(
    repository: Path, tmp_path: Path
) -> None:
    root, commit = repository_root(repository)
    (repository / "a.txt").write_text("later\n")
    git(repository, "commit", "-qam", "second")
    tree = await TaskWorktree.make(root, commit, tmp_path / "tree")
    assert (tree.place / "a.txt").read_text() == "a\n"
    assert await tree.commit_to("corral/b/t", "nothing") is None
    (tree.place / "b.txt").write_text("b\n")
    change = await tree.commit_to("corral/b/t", "a message")
    assert change is not None
    assert change.files == ("b.txt",)
    assert git(repository, "log", "-1", "--format=%s %P", "corral/b/t") == f"a message {commit}"
    second = await TaskWorktree.make(root, commit, tree.place)
    assert not (second.place / "b.txt").exists()
    await second.remove()
    assert not tree.place.exists()
    assert git(repository, "worktree", "list").count("\n") == 0


async def test_commits_of_the_agent_are_included(repository: Path, tmp_path: Path) -> None:
    tree = await TaskWorktree.make(*repository_root(repository), tmp_path / "tree")
    (tree.place / "b.txt").write_text("b\n")
    git(tree.place, "add", ".")
    git(tree.place, "commit", "-qm", "its own")
    change = await tree.commit_to("corral/b/t", "ours")
    assert change is not None
    assert git(repository, "log", "-1", "--format=%s", change.commit) == "its own"


async def test_a_repository_that_replaced_the_worktree_runs_nothing(
    repository: Path, tmp_path: Path
) -> None:
    tree = await TaskWorktree.make(*repository_root(repository), tmp_path / "tree")
    (tree.place / ".git").unlink()
    git(tree.place, "init", "-q")
    git(tree.place, "config", "filter.evil.clean", f"touch {tmp_path}/ran; cat")
    (tree.place / ".gitattributes").write_text("* filter=evil\n")
    (tree.place / "b.txt").write_text("b\n")
    change = await tree.commit_to("corral/b/t", "ours")
    assert not (tmp_path / "ran").exists()
    assert change is not None
    assert set(change.files) == {".gitattributes", "b.txt"}


def test_a_folder_without_a_repository_is_an_error(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="needs a git repository with a commit"):
        repository_root(workspace)
    git(workspace, "init", "-q")
    with pytest.raises(ConfigError, match="needs a git repository with a commit") as refused:
        repository_root(workspace)
    assert refused.value.hint == "It has no commit yet: make the first one."


def test_branch_names_are_valid_for_git() -> None:
    odd = ["a b", "a..b", "ü", "-x", "x.lock", "a/b", "@{", "", "." * 5, "x" * 300, "ok.1_2-3"]
    names = [branch_name("batch", each) for each in odd]
    assert len(set(names)) == len(odd)
    assert names[-1] == "corral/batch/ok.1_2-3"
    for name in names:
        subprocess.run(["git", "check-ref-format", f"refs/heads/{name}"], check=True)
