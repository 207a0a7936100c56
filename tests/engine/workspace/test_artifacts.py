"""Artifacts are uploaded and downloaded through fsspec."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.engine.workspace import artifacts
from corral.errors import ConfigError, StorageFailed


def test_uploaded_artifacts_can_be_downloaded_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "file").write_bytes(b"\0\1")
    (tmp_path / "a" / "other").write_text("x")
    url = f"file://{tmp_path}/shared"
    assert artifacts.upload(tmp_path / "a", url, "run/1") == ["deep/file", "other"]
    assert artifacts.upload(tmp_path / "a", url, "run/1") == ["deep/file", "other"]
    assert artifacts.download(url, "run/1", tmp_path / "b") == ["deep/file", "other"]
    assert (tmp_path / "b" / "deep" / "file").read_bytes() == b"\0\1"


def test_an_unusable_artifacts_url_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file system"):
        artifacts.check("nothing-like-it://x")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    with pytest.raises(StorageFailed, match="cannot upload"):
        artifacts.upload(tmp_path / "a", "file:///proc/nowhere", "r")
