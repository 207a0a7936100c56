"""A durable run in its own worktree, and its artifacts."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

from support.durable_processes import DurableProcesses, submit, wait_until
from support.repositories import git, repository

from corral._engine.workspace import run_worktree

__all__ = ["repository"]


def pipeline(processes: DurableProcesses, wait: str = "true") -> str:
    return f"""digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare]
        a [shape=parallelogram, tool_command="echo two >> file; echo begin a >> {processes.log}"]
        b [shape=parallelogram,
           tool_command="cat file > copy; echo begin b >> {processes.log}; {wait}"]
        start -> a -> b -> exit }}"""


def begin(processes: DurableProcesses, graph: str, repository: Path, **options: Any) -> Path:
    """Start a run in a worktree; returns the directory that it works in."""
    tree = run_worktree.choose("r", repository)

    async def scenario() -> None:
        async with run_worktree.reserved(tree, stays=False):
            await asyncio.to_thread(submit, processes, graph, tree=tree, **options)

    asyncio.run(scenario())
    return run_worktree.workspace_folder(tree)


def test_a_run_works_in_a_worktree_and_creates_a_branch(
    processes: DurableProcesses, repository: Path
) -> None:
    (repository / "file").write_text("not committed\n")
    processes.worker()
    place = begin(
        processes, pipeline(processes), repository, artifacts_url=f"file://{processes.folder}/left"
    )
    closed = processes.wait_for_run()
    left = closed.saved["workspace"]
    assert isinstance(left, dict)
    assert left.get("files") == ["copy", "file"], closed.outcomes["a"]
    assert git(repository, "show", f"{left['branch']}:copy") == "one\ntwo"
    assert (repository / "file").read_text() == "not committed\n"
    assert git(repository, "worktree", "list").count("\n") == 0
    assert not place.parent.exists()
    assert closed.saved["artifacts"] == ["changes.patch"]
    assert "+two" in (processes.folder / "left" / "r" / "changes.patch").read_text()


def test_a_deleted_worktree_is_created_again_with_the_saved_work(
    file_processes: DurableProcesses, repository: Path
) -> None:
    processes = file_processes
    graph = pipeline(processes, f"while ! test -e {processes.folder}/go; do sleep 0.02; done")
    first = processes.worker()
    place = begin(processes, graph, repository, detached=False)
    wait_until(lambda: "begin b" in processes.lines(), "the second node to begin")
    processes.kill(first)
    # As on another machine, which has the repository but not the directory.
    subprocess.run(["rm", "-rf", str(place.parent)], check=True, timeout=60)
    (processes.folder / "go").touch()
    processes.worker()
    left = processes.wait_for_run().saved["workspace"]
    assert isinstance(left, dict)
    assert git(repository, "show", f"{left['branch']}:copy") == "one\ntwo"
    assert processes.lines() == ["begin a", "begin b", "begin b"]
