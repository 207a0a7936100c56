"""A run may work in a folder of its own; what it leaves is a branch, and files for others."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from engine.engine_world import World, eventually, submit

from corral.engine import artefacts, doors, workspaces
from corral.errors import ConfigError, StorageFailed
from corral.pipelines import loading


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    done = subprocess.run(
        ["git", *who, "-C", str(folder), *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "file").write_text("one\n")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def pipeline(world: World, wait: str = "true") -> str:
    return f"""digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare]
        a [shape=parallelogram, tool_command="echo two >> file; echo begin a >> {world.log}"]
        b [shape=parallelogram,
           tool_command="cat file > copy; echo begin b >> {world.log}; {wait}"]
        start -> a -> b -> exit }}"""


def test_a_run_works_in_a_worktree_and_leaves_a_branch(world: World, repository: Path) -> None:
    (repository / "file").write_text("not committed\n")
    world.worker()
    submit(world, pipeline(world), repository=repository, artefacts=f"file://{world.folder}/left")
    closed = world.closed()
    left = closed.context["workspace"]
    assert isinstance(left, dict)
    assert left.get("files") == ["copy", "file"], closed.outcomes["a"]
    assert git(repository, "show", f"{left['branch']}:copy") == "one\ntwo"
    assert (repository / "file").read_text() == "not committed\n"
    assert git(repository, "worktree", "list").count("\n") == 0
    assert not workspaces.own_place("r").exists()
    assert closed.context["artefacts"] == ["changes.patch"]
    assert "+two" in (world.folder / "left" / "r" / "changes.patch").read_text()


def test_a_worktree_that_is_gone_is_made_again_with_what_was_kept(
    file_world: World, repository: Path
) -> None:
    world = file_world
    graph = pipeline(world, f"while ! test -e {world.folder}/go; do sleep 0.02; done")
    first = world.worker()
    submit(world, graph, repository=repository, detached=False)
    eventually(lambda: "begin b" in world.lines(), "the second node to begin")
    world.kill(first)
    # As on another machine, which has the repository and not the folder.
    subprocess.run(["rm", "-rf", str(workspaces.own_place("r"))], check=True, timeout=60)
    (world.folder / "go").touch()
    world.worker()
    left = world.closed().context["workspace"]
    assert isinstance(left, dict)
    assert git(repository, "show", f"{left['branch']}:copy") == "one\ntwo"
    assert world.lines() == ["begin a", "begin b", "begin b"]


def test_a_commit_that_is_not_there_is_refused(tmp_path: Path, repository: Path) -> None:
    async def begin(commit: str | None, root: Path) -> str:
        return await doors.start(
            loading.load("digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start->exit }"),
            folder=tmp_path / "r",
            workspace=tmp_path,
            db=str(tmp_path / "x.db"),
            pool="default",
            repository=root,
            commit=commit,
        )

    with pytest.raises(ConfigError, match="has no commit"):
        asyncio.run(begin("nowhere", repository))
    with pytest.raises(ConfigError, match="git repository"):
        asyncio.run(begin(None, tmp_path / "user-home"))


def test_artefacts_come_back_as_they_went(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "file").write_bytes(b"\0\1")
    (tmp_path / "a" / "other").write_text("x")
    url = f"file://{tmp_path}/shared"
    assert artefacts.put(tmp_path / "a", url, "run/1") == ["deep/file", "other"]
    assert artefacts.put(tmp_path / "a", url, "run/1") == ["deep/file", "other"]
    assert artefacts.get(url, "run/1", tmp_path / "b") == ["deep/file", "other"]
    assert (tmp_path / "b" / "deep" / "file").read_bytes() == b"\0\1"


def test_a_place_for_artefacts_that_will_not_do_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file system"):
        artefacts.check("nothing-like-it://x")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    with pytest.raises(StorageFailed, match="cannot be put"):
        artefacts.put(tmp_path / "a", "file:///proc/nowhere", "r")
