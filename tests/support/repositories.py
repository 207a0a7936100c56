"""A repository of a person's, for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


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


@pytest.fixture
def bare(repository: Path, tmp_path: Path) -> Path:
    """One that nobody works in, for machines to meet at."""
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare.git")
    return tmp_path / "bare.git"
