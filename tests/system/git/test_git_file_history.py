"""The history of a folder's files: what turns changed, and undoing it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from support.repositories import git, repository

from corral._system.git import folder_store
from corral._system.git.file_history import FileHistory
from corral._system.git.folder_store import StoreLimits
from corral.errors import StorageFailed

__all__ = ["repository"]


def turn(history: FileHistory, folder: Path, **files: str | None) -> None:
    """A turn that writes these files; None deletes one."""
    history.begin_turn()
    for name, text in files.items():
        path = folder / name.replace("_", "/")
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    history.end_turn()


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


def test_turns_are_undone_one_after_another_without_a_repository(
    workspace: Path, tmp_path: Path
) -> None:
    (workspace / "a").write_text("one\n")
    (workspace / "b").write_text("kept\n")
    start = contents(workspace)
    history = FileHistory(tmp_path / "own", workspace)
    turn(history, workspace, a="two\n", new_x="x\n")
    middle = contents(workspace)
    turn(history, workspace)  # changes nothing
    turn(history, workspace, b=None, a="three\n")
    assert "-two\n+three\n" in history.diff()
    assert "-one\n+three\n" in history.diff(all_turns=True)
    second = FileHistory(tmp_path / "own", workspace)  # as another process would
    assert sorted(second.undo()) == ["a", "b"]
    assert contents(workspace) == middle
    assert second.undo() == {"a": "restored", "new/x": "removed"}
    assert contents(workspace) == start
    assert not (workspace / "new").exists()
    assert (second.undo(), second.diff()) == ({}, "")
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700


def test_in_a_repository_nothing_is_written_to_it_and_earlier_changes_stay(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "sub").mkdir()
    (repository / "sub" / "tracked").write_text("t\n")
    (repository / ".gitignore").write_text("ignored\n")
    git(repository, "add", "--all")
    git(repository, "commit", "-q", "-m", "second")
    (repository / "sub" / "mine").write_text("not committed\n")
    (repository / "sub" / "tracked").write_text("changed by a person\n")
    objects = sorted((repository / ".git" / "objects").rglob("*"))
    history = FileHistory(tmp_path / "own", repository / "sub")
    turn(history, repository / "sub", tracked="by the agent\n", ignored="i\n", mine=None)
    assert sorted(history.undo()) == ["mine", "tracked"]
    assert (repository / "sub" / "tracked").read_text() == "changed by a person\n"
    assert (repository / "sub" / "mine").read_text() == "not committed\n"
    assert (repository / "sub" / "ignored").exists()
    assert sorted((repository / ".git" / "objects").rglob("*")) == objects


def test_a_file_that_was_changed_since_is_not_undone(workspace: Path, tmp_path: Path) -> None:
    (workspace / "a").write_text("one\n")
    history = FileHistory(tmp_path / "own", workspace)
    turn(history, workspace, a="two\n", b="new\n")
    (workspace / "a").write_text("by a person\n")
    with pytest.raises(StorageFailed, match="a was changed meanwhile"):
        history.undo()
    assert contents(workspace) == {"a": "by a person\n", "b": "new\n"}
    (workspace / "a").write_text("two\n")
    assert sorted(history.undo()) == ["a", "b"]


def test_a_folder_that_is_too_large_is_refused(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_store, "LIMITS", StoreLimits(files=2))
    for name in "abc":
        (workspace / name).write_text(name)
    history = FileHistory(tmp_path / "own", workspace)
    with pytest.raises(StorageFailed, match="too many"):
        history.begin_turn()
    history.end_turn()
    assert history.turns == []
