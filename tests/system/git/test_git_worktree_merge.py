"""Changes of a commit are merged into the user's files, or nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.repositories import git, repository

from corral._system import fs
from corral._system.git import worktree
from corral.errors import StorageFailed
from corral.values import printable_path

__all__ = ["repository"]


def changed(repository: Path, files: dict[str, str]) -> tuple[str, str]:
    """The commit of the repository, and one after it that is on no branch."""
    base = git(repository, "rev-parse", "HEAD")
    for name, text in files.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(text)
    new = worktree.snapshot_of(repository, base)
    git(repository, "reset", "-q", "--hard")
    git(repository, "clean", "-q", "-fd")
    return base, new


def test_changes_in_other_places_are_merged(repository: Path) -> None:
    (repository / "file").write_text("".join(f"line {n}\n" for n in range(20)))
    git(repository, "commit", "-q", "-am", "lines")
    text = (repository / "file").read_text()
    base, new = changed(repository, {"file": text.replace("line 1\n", "theirs\n"), "b/new": "x\n"})
    (repository / "file").write_text(text.replace("line 18\n", "ours\n"))
    index = git(repository, "diff", "--cached", "--name-only")
    assert worktree.merge_into(repository, repository, base, new, check=True) == ("b/new", "file")
    assert not (repository / "b").exists()
    assert worktree.merge_into(repository, repository, base, new, check=False) == ("b/new", "file")
    merged = (repository / "file").read_text()
    assert "theirs\n" in merged
    assert "ours\n" in merged
    assert (repository / "b" / "new").read_text() == "x\n"
    assert git(repository, "diff", "--cached", "--name-only") == index
    assert git(repository, "rev-parse", "HEAD") == base


def test_a_conflict_changes_nothing(repository: Path) -> None:
    base, new = changed(repository, {"file": "theirs\n", "another": "x\n"})
    (repository / "file").write_text("ours\n")
    with pytest.raises(worktree.Conflict, match="file"):
        worktree.merge_into(repository, repository, base, new, check=False)
    assert (repository / "file").read_text() == "ours\n"
    assert not (repository / "another").exists()


def test_a_conflict_names_the_file_as_it_is(repository: Path) -> None:
    """git itself would write the first name with octal numbers."""
    names = ["größe 漢.txt", 'a "b".txt', os.fsdecode(b"caf\xe9.txt")]
    base, new = changed(repository, dict.fromkeys(names, "theirs\n"))
    for name in names:
        (repository / name).write_text("ours\n")
    with pytest.raises(worktree.Conflict) as caught:
        worktree.merge_into(repository, repository, base, new, check=False)
    for name in names:
        assert printable_path(name) in caught.value.message
    assert "größe 漢.txt" in caught.value.message


def test_an_ignored_file_in_the_way_is_not_overwritten(repository: Path) -> None:
    base, new = changed(repository, {"made": "theirs\n", "another": "x\n"})
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "exclude").write_text("made\n")
    (repository / "made").write_text("ours\n")
    with pytest.raises(StorageFailed, match="made was changed meanwhile"):
        worktree.merge_into(repository, repository, base, new, check=False)
    assert (repository / "made").read_text() == "ours\n"
    assert not (repository / "another").exists()


def test_what_was_written_is_undone_if_writing_fails(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, new = changed(repository, {"a": "x\n", "file": "theirs\n", "z": "x\n"})
    write, left = fs.move_into_place, [2]

    def full(draft: bytes, path: bytes, *, dir_fd: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(28, "No space left on device")
        write(draft, path, dir_fd=dir_fd)

    monkeypatch.setattr(fs, "move_into_place", full)
    with pytest.raises(StorageFailed, match="No space left"):
        worktree.merge_into(repository, repository, base, new, check=False)
    assert (repository / "file").read_text() == "one\n"
    assert not (repository / "a").exists()
    assert not git(repository, "status", "--short")


def test_a_folder_is_copied_into_a_new_repository(workspace: Path, tmp_path: Path) -> None:
    (workspace / "sub").mkdir()
    (workspace / "sub" / "file").write_text("x\n")
    commit = worktree.folder_repository(tmp_path / "own", workspace)
    assert git(tmp_path / "own", "ls-tree", "-r", "--name-only", commit) == "sub/file"
    assert not (workspace / ".git").exists()
