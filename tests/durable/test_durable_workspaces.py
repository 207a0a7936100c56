"""A run may work in a folder of its own; what it leaves is a branch, and files for others."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.durable_processes import DurableProcesses, submit, wait_until
from support.repositories import git, repository

from corral.durable.workspace import artifacts, run_worktree
from corral.errors import ConfigError, StorageFailed

__all__ = ["repository"]


def pipeline(world: DurableProcesses, wait: str = "true") -> str:
    return f"""digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare]
        a [shape=parallelogram, tool_command="echo two >> file; echo begin a >> {world.log}"]
        b [shape=parallelogram,
           tool_command="cat file > copy; echo begin b >> {world.log}; {wait}"]
        start -> a -> b -> exit }}"""


def begin(world: DurableProcesses, graph: str, repository: Path, **more: Any) -> Path:
    """Returns where its worktree is."""
    tree = run_worktree.choose("r", repository)

    async def whole() -> None:
        async with run_worktree.reserved(tree, stays=False):
            await asyncio.to_thread(submit, world, graph, tree=tree, **more)

    asyncio.run(whole())
    return run_worktree.workspace_folder(tree)


def test_a_run_works_in_a_worktree_and_leaves_a_branch(
    world: DurableProcesses, repository: Path
) -> None:
    (repository / "file").write_text("not committed\n")
    world.worker()
    place = begin(world, pipeline(world), repository, artifacts_url=f"file://{world.folder}/left")
    closed = world.wait_for_run()
    left = closed.saved["workspace"]
    assert isinstance(left, dict)
    assert left.get("files") == ["copy", "file"], closed.outcomes["a"]
    assert git(repository, "show", f"{left['branch']}:copy") == "one\ntwo"
    assert (repository / "file").read_text() == "not committed\n"
    assert git(repository, "worktree", "list").count("\n") == 0
    assert not place.parent.exists()
    assert closed.saved["artifacts"] == ["changes.patch"]
    assert "+two" in (world.folder / "left" / "r" / "changes.patch").read_text()


def test_a_worktree_that_is_gone_is_made_again_with_what_was_kept(
    file_world: DurableProcesses, repository: Path
) -> None:
    world = file_world
    graph = pipeline(world, f"while ! test -e {world.folder}/go; do sleep 0.02; done")
    first = world.worker()
    place = begin(world, graph, repository, detached=False)
    wait_until(lambda: "begin b" in world.lines(), "the second node to begin")
    world.kill(first)
    # As on another machine, which has the repository and not the folder.
    subprocess.run(["rm", "-rf", str(place.parent)], check=True, timeout=60)
    (world.folder / "go").touch()
    world.worker()
    left = world.wait_for_run().saved["workspace"]
    assert isinstance(left, dict)
    assert git(repository, "show", f"{left['branch']}:copy") == "one\ntwo"
    assert world.lines() == ["begin a", "begin b", "begin b"]


def test_artifacts_come_back_as_they_went(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "file").write_bytes(b"\0\1")
    (tmp_path / "a" / "other").write_text("x")
    url = f"file://{tmp_path}/shared"
    assert artifacts.upload(tmp_path / "a", url, "run/1") == ["deep/file", "other"]
    assert artifacts.upload(tmp_path / "a", url, "run/1") == ["deep/file", "other"]
    assert artifacts.download(url, "run/1", tmp_path / "b") == ["deep/file", "other"]
    assert (tmp_path / "b" / "deep" / "file").read_bytes() == b"\0\1"


def test_a_place_for_artifacts_that_will_not_do_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file system"):
        artifacts.check("nothing-like-it://x")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    with pytest.raises(StorageFailed, match="cannot upload"):
        artifacts.upload(tmp_path / "a", "file:///proc/nowhere", "r")
