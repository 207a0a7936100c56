"""Artifacts are uploaded through fsspec."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral._engine.workspace import artifacts
from corral.errors import ConfigError, StorageFailed


def test_artifacts_are_uploaded_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "file").write_bytes(b"\0\1")
    (tmp_path / "a" / "other").write_text("x")
    url = f"file://{tmp_path}/shared"
    assert artifacts.upload(tmp_path / "a", url, "run/1") == ["deep/file", "other"]
    assert artifacts.upload(tmp_path / "a", url, "run/1") == ["deep/file", "other"]
    uploaded = tmp_path / "shared" / "run" / "1"
    files = sorted(path.relative_to(uploaded) for path in uploaded.rglob("*") if path.is_file())
    assert [path.as_posix() for path in files] == ["deep/file", "other"]
    assert (uploaded / "deep" / "file").read_bytes() == b"\0\1"


def test_an_unusable_artifacts_url_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file system"):
        artifacts.check("nothing-like-it://x")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    with pytest.raises(StorageFailed, match="cannot upload"):
        artifacts.upload(tmp_path / "a", "file:///proc/nowhere", "r")
