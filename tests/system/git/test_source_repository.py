"""Whether the work tree that a task starts from has changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.hostile_git import make_repository

from corral._system.git import scan
from corral._system.git.source_repository import has_changes


def test_a_work_tree_with_too_many_files_to_look_at_has_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_repository(tmp_path / "repository")
    assert not has_changes(repository)
    monkeypatch.setattr(scan, "MOST_ENTRIES", 1)
    assert has_changes(repository)
