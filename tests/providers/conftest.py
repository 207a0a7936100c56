"""Fixtures of the provider tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.scripted_agent import PROGRAM


@pytest.fixture
def gemini_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted program is the ``gemini`` of this machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "gemini").symlink_to(PROGRAM)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")


@pytest.fixture
def no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
