"""The worktree of a run, used by several nodes at once, on one machine and on two."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.repositories import bare, git, repository

from corral._engine.payloads import RunConfig, RunWorktree
from corral._engine.workspace import run_worktree
from corral._pipelines.scheduler.outcome import Outcome
from corral.errors import ConfigError, StorageFailed

pytestmark = pytest.mark.whole_program

__all__ = ["bare", "repository"]

On = Callable[[str], None]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> On:
    """A function that switches to the corral home of another machine."""

    def change(name: str) -> None:
        monkeypatch.setenv("CORRAL_HOME", str(tmp_path / name))

    change("one")
    return change


def reserve(where: Path | str, run: str = "r", commit: str | None = None) -> RunWorktree:
    tree = run_worktree.choose(run, where, commit)

    async def scenario() -> None:
        async with run_worktree.reserved(tree, stays=True):
            pass

    asyncio.run(scenario())
    return tree


def config_of(tree: RunWorktree, tmp_path: Path) -> RunConfig:
    config = RunConfig(folder=str(tmp_path / "run"), workspace=".", tree=tree)
    return config.on_this_machine()


def run_command(tree: RunWorktree, tmp_path: Path, visit: str, command: str) -> Outcome:
    """Run a node attempt with this command in the worktree."""
    here = config_of(tree, tmp_path)

    async def scenario() -> Outcome:
        async with run_worktree.used(tree):
            place = Path(here.workspace)
            await asyncio.to_thread(subprocess.run, command, shell=True, cwd=place, check=True)
            return await run_worktree.save(tree, Outcome(), visit)

    return asyncio.run(scenario())


@asynccontextmanager
async def using(tree: RunWorktree, tmp_path: Path) -> AsyncGenerator[Path]:
    here = config_of(tree, tmp_path)
    async with run_worktree.used(tree):
        yield Path(here.workspace)


def close(tree: RunWorktree, tmp_path: Path) -> dict[str, object]:
    return dict(asyncio.run(run_worktree.close(tree, str(tmp_path / "run"), "r")))


def test_two_machines_take_turns_in_one_worktree(bare: Path, on: On, tmp_path: Path) -> None:
    tree = reserve(bare)
    for number in range(4):
        on(("one", "two")[number % 2])
        assert run_command(
            tree, tmp_path, f"n.{number}", f"echo {number} >> file; touch f{number}"
        ).ok
    on("two")
    saved = close(tree, tmp_path)
    assert saved["files"] == ["f0", "f1", "f2", "f3", "file"]
    assert git(bare, "show", f"{tree.branch}:file") == "one\n0\n1\n2\n3"
    assert git(bare, "rev-list", "--count", f"main..{tree.branch}") == "4"
    assert "+3" in (tmp_path / "run" / "artifacts" / "changes.patch").read_text()


@pytest.mark.deep
def test_parallel_work_on_two_machines_is_merged(bare: Path, on: On, tmp_path: Path) -> None:
    tree = reserve(bare)
    run_command(tree, tmp_path, "both.1", "touch from-the-start")

    async def scenario() -> None:
        async with using(tree, tmp_path) as first:
            on("two")
            async with using(tree, tmp_path) as second:
                (first / "a").write_text("a\n")
                (second / "b").write_text("b\n")
                assert (await run_worktree.save(tree, Outcome(), "b.1")).ok
                on("one")
                assert (await run_worktree.save(tree, Outcome(), "a.1")).ok
                assert (first / "b").exists()

    asyncio.run(scenario())
    on("two")
    assert run_command(tree, tmp_path, "join.1", "cat a b from-the-start > both").ok
    assert git(bare, "show", f"{tree.branch}:both") == "a\nb"


def test_conflicting_work_fails_and_is_saved_to_a_branch(
    bare: Path, on: On, tmp_path: Path
) -> None:
    tree = reserve(bare)

    async def scenario() -> Outcome:
        async with using(tree, tmp_path) as first:
            on("two")
            other_node = asyncio.to_thread(run_command, tree, tmp_path, "b.1", "echo theirs > file")
            assert (await other_node).ok
            on("one")
            (first / "file").write_text("mine\n")
            return await run_worktree.save(tree, Outcome(), "a.1")

    outcome = asyncio.run(scenario())
    assert (outcome.status, outcome.retryable) == ("fail", False)
    aside = outcome.failure_reason.rpartition(" ")[2]
    assert "file" in outcome.failure_reason
    assert git(bare, "show", f"{aside}:file") == "mine"
    assert git(bare, "show", f"{tree.branch}:file") == "theirs"
    # The next node continues from the branch.
    assert run_command(tree, tmp_path, "c.1", "test $(cat file) = theirs").ok


def test_parallel_nodes_on_one_machine_lose_no_changes(
    repository: Path, on: On, tmp_path: Path
) -> None:
    tree = reserve(repository)

    def lane(number: int) -> Outcome:
        return run_command(tree, tmp_path, f"n.{number}", f"echo {number} > f{number}")

    with concurrent.futures.ThreadPoolExecutor(8) as lanes:
        assert all(outcome.ok for outcome in lanes.map(lane, range(8)))
    saved = close(tree, tmp_path)
    assert saved["files"] == [f"f{number}" for number in range(8)]
    assert git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.deep
def test_changes_of_a_killed_node_are_replaced_by_a_newer_branch(
    bare: Path, on: On, tmp_path: Path
) -> None:
    tree = reserve(bare)
    (run_worktree.workspace_folder(tree) / "file").write_text("half of i")
    on("two")
    assert run_command(tree, tmp_path, "a.1", "echo it all > file").ok
    on("one")
    assert run_command(tree, tmp_path, "b.1", "cp file copy").ok
    assert git(bare, "show", f"{tree.branch}:copy") == "it all"


def test_commits_of_an_agent_stay_and_its_index_is_not_changed(
    repository: Path, on: On, tmp_path: Path
) -> None:
    tree = reserve(repository)
    who = "git -c user.name=a -c user.email=a@localhost"
    assert run_command(tree, tmp_path, "a.1", f"echo two > file; {who} commit -qam mine").ok
    assert run_command(tree, tmp_path, "b.1", "echo new > other").ok
    place = run_worktree.workspace_folder(tree)
    assert git(place, "status", "--short") == "?? other"
    subprocess.run(["rm", "-rf", str(place.parent)], check=True, timeout=60)
    assert run_command(tree, tmp_path, "c.1", "git log --format=%s -1 > subject").ok
    assert (place / "subject").read_text() == "mine\n"
    assert git(place, "status", "--short") == "?? other\n?? subject"
    close(tree, tmp_path)
    assert "mine" in git(repository, "log", "--format=%s", tree.branch).splitlines()


def test_a_lock_file_of_a_killed_git_is_ignored(repository: Path, on: On, tmp_path: Path) -> None:
    tree = reserve(repository)
    (run_worktree.workspace_folder(tree).parent / "index.lock").touch()
    assert run_command(tree, tmp_path, "a.1", "touch new").ok


def test_a_repository_that_an_agent_created_there_is_not_used(
    repository: Path, on: On, tmp_path: Path
) -> None:
    tree = reserve(repository)
    evil = f"rm .git; git init -q; git config filter.evil.clean 'touch {tmp_path}/ran; cat'"
    assert run_command(tree, tmp_path, "a.1", f"{evil}; echo '* filter=evil' > .gitattributes").ok
    assert close(tree, tmp_path)["files"] == [".gitattributes"]
    assert not (tmp_path / "ran").exists()
    assert git(repository, "worktree", "list").count("\n") == 0


def test_a_run_without_changes_leaves_no_branch(repository: Path, on: On, tmp_path: Path) -> None:
    tree = reserve(repository)
    assert run_command(tree, tmp_path, "a.1", "true").ok
    assert close(tree, tmp_path) == {"files": []}
    assert git(repository, "branch", "--list", "corral/*") == ""


def test_a_repository_that_cannot_be_used_is_refused(
    repository: Path, bare: Path, on: On, tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    for where, commit, words in (
        (tmp_path / "plain", None, "git repository"),
        (tmp_path / "nowhere", None, "there is no repository"),
        (f"file://{tmp_path}/nowhere", None, "cannot be read"),
        (repository, "nothing", "has no commit 'nothing'"),
        (bare, "nothing", "has no commit 'nothing'"),
        ("--upload-pack=x", None, "is not a repository"),
        ("me:very-secret@localhost:x", None, "contains a password"),
        ("m:very@secret@localhost:x", None, "contains a password"),
        ("ext::sh -c true", None, "there is no repository"),
        ("ext://me:very-secret@localhost/x", None, "contains a user name or a password"),
        ("ext://localhost/x", None, "the protocol 'ext' is not allowed"),
        ("https://me:very-secret@localhost/x", None, "contains a user name or a password"),
        ("https://very-secret@localhost/x", None, "contains a user name or a password"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            run_worktree.choose("r", where, commit)
        assert "very-secret" not in f"{caught.value} {caught.value.hint}"


def test_an_existing_branch_is_refused(repository: Path, on: On) -> None:
    git(repository, "branch", "corral/r")
    with pytest.raises(ConfigError, match="the branch corral/r already exists"):
        reserve(repository)
    git(repository, "branch", "-D", "corral/r")
    git(repository, "branch", "corral")  # so git cannot create corral/r
    with pytest.raises(ConfigError, match="cannot be written"):
        reserve(repository)
    assert git(repository, "worktree", "list").count("\n") == 0


def test_a_bare_repository_that_cannot_be_written_is_refused(bare: Path, on: On) -> None:
    git(bare, "branch", "corral")
    with pytest.raises(ConfigError, match="cannot be written"):
        reserve(bare)


def test_hooks_of_a_bare_repository_on_this_machine_do_not_run(
    bare: Path, on: On, tmp_path: Path
) -> None:
    for name in ("pre-receive", "update", "post-receive", "post-update", "reference-transaction"):
        hook = bare / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
        hook.chmod(0o700)
    assert run_command(reserve(bare), tmp_path, "a.1", "touch new").ok
    assert not (tmp_path / "ran").exists()


def test_a_run_id_with_special_characters_gets_a_valid_branch(
    repository: Path, on: On, tmp_path: Path
) -> None:
    tree = reserve(repository, "../..//é \n@{~^:*.lock")
    assert run_command(tree, tmp_path, "a.1", "touch new").ok
    assert close(tree, tmp_path)["files"] == ["new"]


def test_a_deleted_branch_is_reported(bare: Path, on: On, tmp_path: Path) -> None:
    tree = reserve(bare)
    git(bare, "branch", "-D", tree.branch)
    with pytest.raises(StorageFailed, match="was deleted in"):
        run_command(tree, tmp_path, "a.1", "true")


def test_an_idle_worktree_is_removed(bare: Path, on: On, tmp_path: Path) -> None:
    old, used = reserve(bare, "old"), reserve(bare, "used")
    places = [run_worktree.workspace_folder(each) for each in (old, used)]
    for place in places:
        os.utime(place.parent / "tree.json", (0, 0))

    async def scenario() -> None:
        async with using(used, tmp_path):
            os.utime(places[1].parent / "tree.json", (0, 0))
            await asyncio.to_thread(
                run_command, await asyncio.to_thread(later), tmp_path, "a.1", "true"
            )

    def later() -> RunWorktree:
        return run_worktree.choose("new", bare)

    with pytest.raises(StorageFailed, match="was deleted in"):  # it was not reserved
        asyncio.run(scenario())
    assert [place.exists() for place in places] == [False, True]
