"""``--repository`` and ``--artifacts``: a worktree for a run, and its branch."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.hostile_git import Traps
from support.pipeline_command import corral, lines_of, pipeline, put
from support.repositories import git, repository

from corral._engine import existing_runs, pipeline_runs, query
from corral.errors import ConfigError

__all__ = ["repository"]

PLAIN = """digraph d { start [shape=Mdiamond]; done [shape=Msquare]
    a [shape=parallelogram, tool_command="echo two >> file"]
    b [shape=parallelogram, tool_command="test -e fine || { echo bad > left; exit 1; }
        cp file copy; echo x > $ATTRACTOR_LOGS_ROOT/artifacts/note"]
    start -> a -> b; b -> done [condition="outcome=success"] }"""


def refused(tmp_path: Path, **given: Any) -> str:
    path = tmp_path / put(tmp_path, PLAIN)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(pipeline_runs.run(path, db=str(tmp_path / "x.db"), **given))
    return f"{caught.value} {caught.value.hint}"


def test_options_that_exclude_each_other_are_an_error(repository: Path, tmp_path: Path) -> None:
    message = refused(tmp_path, repository=repository, cwd=tmp_path)
    assert "cwd and repository cannot be combined" in message
    assert "commit needs a repository" in refused(tmp_path, commit="main")
    for given in ({"repository": repository}, {"artifacts": f"file://{tmp_path}/left"}):
        assert "durable" in refused(tmp_path, durable=False, **given)
    assert "no file system" in refused(tmp_path, artifacts="nothing-like-it://x")
    message = refused(tmp_path, artifacts="ftp://me:very-secret@localhost/x")
    assert "very-secret" not in message
    assert "password" in message
    assert "has no commit" in refused(tmp_path, repository=repository, commit="gone")
    assert not (tmp_path / "x.db").exists()
    assert git(repository, "branch", "--list", "corral/*") == ""


def test_a_pipeline_that_cannot_run_leaves_no_branch(repository: Path, tmp_path: Path) -> None:
    put(tmp_path, PLAIN.replace("shape=parallelogram, tool_command=\"echo two >> file\"",
                                "type=include, dotfile=\"child.dot\""))  # fmt: skip
    with pytest.raises(ConfigError, match=r"child\.dot"):
        asyncio.run(pipeline_runs.run(tmp_path / "p.dot", repository=repository))
    assert git(repository, "branch", "--list", "corral/*") == ""
    assert git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.deep
def test_a_failed_run_leaves_its_work_and_a_fork_starts_before_it(
    repository: Path, tmp_path: Path
) -> None:
    put(tmp_path, PLAIN)
    words = ("--repository", str(repository), "--artifacts", f"file://{tmp_path}/left", "--json")
    done = pipeline("run", "p.dot", *words, cwd=tmp_path)
    failed = lines_of(done)[-1]
    assert (done.returncode, failed["status"]) == (1, "fail"), done.stderr
    assert failed["files"] == ["file", "left"]
    assert failed["artifacts"] == ["changes.patch"]
    assert (tmp_path / "left" / failed["run"] / "changes.patch").exists()
    put(tmp_path, PLAIN.replace("test -e fine ||", "test ! -e left ||"))
    done = corral("runs", "fork", failed["run"], "--from", "b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "· 2 files: copy, file" in done.stderr
    branches = git(repository, "branch", "--list", "corral/*", "--format=%(refname:short)").split()
    (fork,) = (name for name in branches if name != failed["branch"])
    assert git(repository, "show", f"{fork}:copy") == "one\ntwo"
    assert git(repository, "status", "--short") == ""


@pytest.mark.deep
def test_a_run_whose_worktree_was_removed_is_resumed(repository: Path, tmp_path: Path) -> None:
    gate = PLAIN.replace("test -e fine ||", "test -e file ||").replace(
        "start -> a -> b;", "ask [shape=hexagon]; start -> a -> ask; ask -> b [label=yes];"
    )
    put(tmp_path, gate)
    done = pipeline("run", "p.dot", "--repository", str(repository), "--json", cwd=tmp_path)
    assert done.returncode == 10, done.stderr
    run = lines_of(done)[-1]["run"]
    place = Path(asyncio.run(query.show(run)).workspace)
    assert (place / "file").read_text() == "one\ntwo\n"
    shutil.rmtree(place.parent)
    asyncio.run(existing_runs.answer(run, "yes"))
    done = corral("runs", "resume", run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"branch corral/{run}" in done.stderr
    assert git(repository, "show", f"corral/{run}:copy") == "one\ntwo"
    assert not place.exists()


@pytest.mark.deep
def test_a_hostile_repository_runs_nothing_and_its_embedded_files_are_stored(
    repository: Path, tmp_path: Path
) -> None:
    traps = Traps(tmp_path / "traps")
    traps.plant(repository / ".git")
    (tmp_path / "embedded").mkdir()
    (tmp_path / "embedded" / "work").write_text("work\n")
    traps.embed(tmp_path / "embedded")
    script = f"""cp -r {tmp_path}/embedded sub; echo '* filter=evil' > .gitattributes
        echo x > "$(printf 'caf\\\\351')"; rm .git; cp -r {repository}/.git .git"""
    put(
        tmp_path,
        f"""digraph d {{ start [shape=Mdiamond]; done [shape=Msquare]
        a [shape=parallelogram, tool_command="{script.replace('"', chr(92) + '"')}"]
        b [shape=parallelogram, tool_command="echo more >> sub/work"]
        start -> a -> b -> done }}""",
    )
    done = pipeline("run", "p.dot", "--repository", str(repository), "--json", cwd=tmp_path)
    ended = lines_of(done)[-1]
    assert (done.returncode, ended["status"]) == (0, "success"), done.stderr
    assert set(ended["files"]) == {".gitattributes", r'"caf\351"', "sub/work"}
    assert traps.ran == []
    plain = tmp_path / "plain"
    (repository / ".git" / "config").write_text("[core]\n\tbare = false\n")
    (repository / ".git" / "info" / "attributes").unlink()
    shutil.rmtree(repository / ".git" / "hooks")
    git(tmp_path, "clone", "-q", "-b", ended["branch"], str(repository), str(plain))
    assert (plain / "sub" / "work").read_text() == "work\nmore\n"


@pytest.mark.deep
def test_a_run_whose_work_cannot_be_stored_fails(repository: Path, tmp_path: Path) -> None:
    left = "$ATTRACTOR_LOGS_ROOT/artifacts"
    command = f"echo new > new; rm -rf {left}; touch {left}"
    put(
        tmp_path,
        f"""digraph d {{ start [shape=Mdiamond]; done [shape=Msquare]
        a [shape=parallelogram, tool_command="{command}"]; start -> a -> done }}""",
    )
    done = pipeline("run", "p.dot", "--repository", str(repository), "--json", cwd=tmp_path)
    ended = lines_of(done)[-1]
    assert (done.returncode, ended["status"]) == (1, "fail"), done.stderr
    assert "its work could not be saved" in done.stdout + done.stderr


def test_a_password_in_the_repositorys_name_is_not_shown(tmp_path: Path) -> None:
    put(tmp_path, PLAIN)
    done = pipeline("run", "p.dot", "--repository", "u:very-secret@host:x", cwd=tmp_path)
    assert "'…@host:x' contains a password" in done.stderr
    assert "very-secret" not in done.stdout + done.stderr
