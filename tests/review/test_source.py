"""What is reviewed: ranges, the work tree, given patches; and the files that a reviewer sees."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.repositories import git, repository

from corral._review.diff import parse
from corral._review.source import Source, from_repository, given_patch, reviewed_files
from corral.errors import ConfigError

__all__ = ["repository"]


@pytest.fixture
def folder(repository: Path) -> Path:
    """Two commits on ``change``, one on ``main``, and a change and a new file in the work tree."""
    git(repository, "checkout", "-q", "-b", "change")
    for number in (1, 2):
        (repository / f"c{number}").write_text("c\n")
        git(repository, "add", "--all")
        git(repository, "commit", "-q", "-m", f"change {number}")
    git(repository, "checkout", "-q", "main")
    (repository / "m").write_text("m\n")
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "on main")
    git(repository, "checkout", "-q", "change")
    (repository / "file").write_text("two\n")
    (repository / "new").write_text("n\n")
    (repository / ".gitignore").write_text("ignored\n")
    (repository / "ignored").write_text("secret\n")
    return repository


def paths(source: Source) -> set[str]:
    return {file.path for file in parse(source.diff)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (None, {"c1", "c2", "file", "new", ".gitignore"}),
        ("main...change", {"c1", "c2"}),
        ("main...", {"c1", "c2"}),
        ("main..change", {"c1", "c2", "m"}),
        ("HEAD~1", {"c2", "file", "new", ".gitignore"}),
        ("change~1..change", {"c2"}),
    ],
)
def test_a_range_is_as_for_git_diff(folder: Path, change: str | None, expected: set[str]) -> None:
    index = (folder / ".git" / "index").read_bytes()
    found = from_repository(change, folder)
    assert paths(found) == expected
    assert (folder / ".git" / "index").read_bytes() == index
    if change == "main...change":
        assert found.messages.split() == ["change", "2", "change", "1"]


def test_a_remote_branch_is_found_as_in_a_checkout_of_ci(folder: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--branch", "change", str(folder), "clone")
    assert paths(from_repository("main...HEAD", tmp_path / "clone")) == {"c1", "c2"}
    assert paths(from_repository(None, tmp_path / "clone")) <= {"c1", "c2"}


@pytest.mark.parametrize("change", ["nothing...HEAD", "HEAD..nothing", "--output=x", "HEAD~99"])
def test_a_commit_that_is_not_there_is_an_error_before_anything(folder: Path, change: str) -> None:
    with pytest.raises(ConfigError, match="there is no commit"):
        from_repository(change, folder)


def test_histories_without_a_common_commit_name_the_shallow_clone(folder: Path) -> None:
    git(folder, "checkout", "-q", "--orphan", "other")
    git(folder, "commit", "-q", "-m", "other")
    with pytest.raises(ConfigError, match="no common commit") as error:
        from_repository("main...other", folder)
    assert "fetch-depth" in str(error.value)


def test_without_a_default_branch_the_error_says_what_to_give(folder: Path) -> None:
    git(folder, "branch", "-m", "main", "trunk")
    with pytest.raises(ConfigError, match="default branch is not known") as error:
        from_repository(None, folder)
    assert "corral review BASE...HEAD" in str(error.value)


def test_without_a_repository_the_error_says_so(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="git repository"):
        from_repository(None, workspace)
    assert given_patch(b"x", "t", workspace).root is None


def test_a_file_with_control_characters_is_no_binary(repository: Path) -> None:
    (repository / "run.sh").write_bytes(b"echo 1 # \0\n" + b"rm -r x\n" * 20)
    (repository / "data").write_bytes(bytes(range(256)) * 20)
    found = from_repository("HEAD", repository)
    files = parse(found.diff)
    assert found.as_text == {"run.sh"}
    assert {(file.path, file.is_binary) for file in files} == {
        ("run.sh", True),
        ("run.sh", False),
        ("data", True),
    }


def test_the_reviewer_sees_the_new_version_and_nothing_that_could_steer_it(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("AGENTS.md", "sub/Claude.md", ".claude/settings.json", "corral.toml", "sub/ok.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("..")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    source = from_repository("main", folder)
    with reviewed_files(source, empty=False) as place:
        seen = {
            os.path.relpath(os.path.join(above, name), place)
            for above, _, names in os.walk(place)
            for name in names
        }
        assert (place / "file").read_text() == "two\n"
    assert seen == {"file", "new", "c1", "c2", ".gitignore", "sub/ok.md", "run"}
    assert not place.parent.exists()
    left = [place.parents[1] / name for name in ("old", "new")]
    for each, age in zip(left, (90_000, 60), strict=True):
        (each / "files").mkdir(parents=True)
        os.utime(each, (time.time() - age, time.time() - age))
    with reviewed_files(source, empty=True) as place:
        assert [*place.iterdir()] == []
    assert [each.exists() for each in left] == [False, True]
