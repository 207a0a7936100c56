"""A background process that cannot be started is an ``OSError``, and its lock is free."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from corral._system import fs
from corral._system.process import daemon


def test_an_intermediate_process_that_fails_is_an_os_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with an error if it cannot fork: the machine may have no processes left."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(OSError, match="cannot be started") as caught:
        daemon.start("any", lock=tmp_path / "lock", log=tmp_path / "log")
    assert caught.value.filename == str(tmp_path / "log")
    assert not fs.is_locked(tmp_path / "lock")
