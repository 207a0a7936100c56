"""corral's own folders are private to their owner."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.system import paths


@pytest.fixture
def loose_umask() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("loose_umask")
def test_the_home_and_everything_in_it_is_private_with_any_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "a" / "corral"))
    paths.write_private(paths.cache() / "deep" / "file.json", b"{}")
    made = [tmp_path / "a", *sorted((tmp_path / "a").rglob("*"))]
    assert [oct(mode(path)) for path in made if path.is_dir()] == ["0o700"] * 4
    assert mode(paths.cache() / "deep" / "file.json") == 0o600


@pytest.mark.usefixtures("loose_umask")
def test_a_home_that_others_can_read_becomes_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CORRAL_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    paths.sessions().mkdir(parents=True)
    assert mode(paths.home()) == 0o775
    paths.make_dir(paths.sessions() / "one")
    assert [mode(p) for p in (paths.home(), paths.sessions())] == [0o700, 0o700]
    assert mode(tmp_path) == mode(tmp_path) | 0o500


@pytest.mark.usefixtures("loose_umask")
def test_a_chosen_home_keeps_its_mode_and_its_folders_are_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    (shared / "sessions").mkdir(parents=True)
    monkeypatch.setenv("CORRAL_HOME", str(shared))
    paths.make_dir(paths.sessions() / "one")
    assert (mode(shared), mode(shared / "sessions")) == (0o775, 0o700)


def test_a_run_makes_its_home_private(tmp_path: Path) -> None:
    home = tmp_path / "new" / "corral"
    script = (
        "import os; os.umask(0); from corral.sessions import store;"
        " store.create('gemini-cli', '/').make_folders()"
    )
    env = {**os.environ, "CORRAL_HOME": str(home)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    places = [home, *home.rglob("*")]
    assert {oct(mode(p)) for p in places if p.is_dir()} == {"0o700"}
    assert {oct(mode(p)) for p in places if p.is_file()} == {"0o600"}
