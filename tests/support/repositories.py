"""Fixtures: a git repository with one commit, and a bare clone of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def git(folder: Path, *arguments: str) -> str:
    settings = ("user.name=t", "user.email=t@localhost", "maintenance.auto=false")
    identity = [word for setting in settings for word in ("-c", setting)]
    done = subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
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
    """A bare clone, as a shared remote."""
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare.git")
    return tmp_path / "bare.git"
