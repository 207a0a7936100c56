"""Where held-out tests find the modules of a work, as pytest itself reads its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral._verification.scenarios.run_scenarios import PytestSettings, find_settings

INI = "[pytest]\npythonpath = src 'a b'\n"
TOML = '[tool.pytest.ini_options]\npythonpath = ["src", "a b"]\n'
FOUND = ("src", "a b")


@pytest.mark.parametrize(
    ("files", "root", "pythonpath"),
    [
        ({"pytest.ini": INI}, ".", FOUND),
        ({"pyproject.toml": TOML}, ".", FOUND),
        ({"tox.ini": INI}, ".", FOUND),
        ({"setup.cfg": INI.replace("[pytest]", "[tool:pytest]")}, ".", FOUND),
        ({"../pyproject.toml": TOML}, "..", FOUND),
        ({"pyproject.toml": "[tool.x]\n", "../tox.ini": INI}, "..", FOUND),
        ({"pytest.ini": "", "pyproject.toml": TOML}, ".", ()),
        ({"pytest.ini": INI, "../pyproject.toml": TOML.replace("src", "x")}, ".", FOUND),
        ({"setup.cfg": "[pytest]\npythonpath = x\n"}, ".", ()),
    ],
)
def test_they_are_those_that_pytest_finds(
    tmp_path: Path, files: dict[str, str], root: str, pythonpath: tuple[str, ...]
) -> None:
    folder = tmp_path / "top" / "here"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    found = find_settings(folder, tmp_path / "top")
    assert found == PytestSettings(root, pythonpath)


@pytest.mark.parametrize("name", ["pyproject.toml", "tox.ini", "setup.cfg", "pytest.ini"])
@pytest.mark.parametrize(
    "content", [b"\xff", b"[", b"[tool]\npytest = 1\n", b"[pytest\n", b"x" * 2_000_000]
)
def test_odd_files_have_no_settings(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert find_settings(tmp_path, tmp_path) == PytestSettings()


def test_nothing_above_the_tree_is_read(tmp_path: Path) -> None:
    (tmp_path / "tox.ini").write_text(INI)
    (tmp_path / "tree").mkdir()
    assert find_settings(tmp_path / "tree", tmp_path / "tree") == PytestSettings()
