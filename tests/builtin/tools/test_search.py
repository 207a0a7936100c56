"""grep: the same results from ripgrep and from corral's own search."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.builtin_tools import call_error, call_ok, call_tool

from corral._builtin.tools import find
from corral._builtin.tools.workspace import Workspace

ROOT = Path(__file__).parents[3]
PINNED = next(ROOT.glob("tools/ripgrep/node_modules/@vscode/ripgrep-*/bin/rg"), None)
"""`make` installs it beside the agents, so that no machine tests our own search alone."""
RIPGREP = str(PINNED) if PINNED else shutil.which("rg")


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """PATH with ripgrep and nothing else, or with nothing at all."""
    (tmp_path / "bin").mkdir()
    if request.param == "rg" and RIPGREP is not None:
        (tmp_path / "bin" / "rg").symlink_to(RIPGREP)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return str(request.param)


pytestmark = pytest.mark.parametrize(
    "engine",
    [
        "python",
        pytest.param("rg", marks=pytest.mark.skipif(RIPGREP is None, reason="no ripgrep here")),
    ],
    indirect=True,
)


@pytest.fixture
def here(workspace: Path, engine: str) -> Workspace:
    del engine
    return Workspace(workspace)


def fill(root: Path, files: dict[str, str | bytes]) -> None:
    for name, locked in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(locked if isinstance(locked, bytes) else locked.encode())


async def test_lines_have_path_and_number(here: Workspace) -> None:
    fill(here.root, {"a.py": "import os\nx = 1\n", "src/b.py": "y\nimport re\n", "c": "export\n"})
    output = await call_ok(here, "grep", pattern=r"^import \w+")
    assert sorted(output.splitlines()) == ["a.py:1:import os", "src/b.py:2:import re"]


async def test_a_folder_a_file_and_a_glob_narrow_the_search(here: Workspace) -> None:
    for name in ("a.py", "a.txt", "src/a.py", "src/deep/b.py"):
        fill(here.root, {name: "x\n"})
    assert await call_ok(here, "grep", pattern="x", path="a.txt") == "a.txt:1:x"
    assert await call_ok(here, "grep", pattern="x", path="src/deep") == "src/deep/b.py:1:x"
    found = await call_ok(here, "grep", pattern="x", include="*.py", path="src")
    assert sorted(found.splitlines()) == ["src/a.py:1:x", "src/deep/b.py:1:x"]
    assert await call_ok(here, "grep", pattern="x", include="src/*.py") == "src/a.py:1:x"
    assert await call_ok(here, "grep", pattern="x", include="*.{txt,md}") == "a.txt:1:x"


async def test_the_search_is_case_sensitive_by_default(here: Workspace) -> None:
    fill(here.root, {"a": "Über\nÜBER\n"})
    assert await call_ok(here, "grep", pattern="über") == "No line matches über"
    found = await call_ok(here, "grep", pattern="über", ignore_case=True)
    assert found.splitlines() == ["a:1:Über", "a:2:ÜBER"]


async def test_generated_folders_and_binaries_are_left_out(here: Workspace) -> None:
    for name in ("node_modules/x", "src/node_modules/x", ".git/config", ".github/ci", "ok"):
        fill(here.root, {name: "hit\n"})
    fill(here.root, {"binary": b"\0hit\n"})
    output = await call_ok(here, "grep", pattern="hit")
    assert sorted(output.splitlines()) == [".github/ci:1:hit", "ok:1:hit"]
    assert await call_ok(here, "grep", pattern="hit", path="node_modules") == "node_modules/x:1:hit"


async def test_results_stop_at_the_requested_number(here: Workspace) -> None:
    fill(here.root, {"a": "x\n" * 10})
    output = await call_ok(here, "grep", pattern="x", max_results=3)
    assert output.splitlines() == [
        "a:1:x",
        "a:2:x",
        "a:3:x",
        "(there are more than 3 results: narrow the search)",
    ]
    assert "more than" not in await call_ok(here, "grep", pattern="x", max_results=10)


async def test_many_results_are_truncated_only_for_the_model(here: Workspace) -> None:
    fill(here.root, {"a": "x\n" * 1_500})
    outcome = await call_tool(here, "grep", pattern="x", max_results=2_000)
    assert len(outcome.text.splitlines()) == 1_500
    assert len(outcome.shown.splitlines()) <= 200


async def test_windows_line_ends_odd_bytes_and_long_lines_are_searched(here: Workspace) -> None:
    fill(here.root, {"a": b"end\r\nnot the end.\r\n", "b": b"caf\xe9 bar\n"})
    fill(here.root, {"c": "y" * 5_000 + "hit\n"})
    assert await call_ok(here, "grep", pattern="end$") == "a:1:end"
    assert await call_ok(here, "grep", pattern="bar") == "b:1:caf\ufffd bar"
    assert len(await call_ok(here, "grep", pattern="hit")) < 700


async def test_unusual_names_are_shown_readably(here: Workspace) -> None:
    (here.root / "-rf").write_text("x\n")
    fd = os.open(os.fsencode(here.root) + b"/odd\xff:1", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"x\n")
    os.close(fd)
    output = await call_ok(here, "grep", pattern="x")
    assert sorted(output.splitlines()) == ["-rf:1:x", "odd?:1:1:x"]
    assert await call_ok(here, "grep", pattern="x", path="-rf") == "-rf:1:x"


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "*x"])
async def test_an_invalid_regular_expression_is_an_error(here: Workspace, pattern: str) -> None:
    assert (await call_error(here, "grep", pattern=pattern)).startswith("the search failed: ")


async def test_a_pattern_is_never_an_option(here: Workspace) -> None:
    fill(here.root, {"a": "--files\n-e\n"})
    assert await call_ok(here, "grep", pattern="--files") == "a:1:--files"
    assert await call_ok(here, "grep", pattern="-e", include="-*") == "No line matches -e"


async def test_a_search_that_takes_too_long_is_stopped(
    here: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "GREP_SECONDS", 1.0)
    fill(here.root, {"a": "a" * 60 + "!\n", "z": "aaa\n"})
    output = await call_ok(here, "grep", pattern="^(a+)+$")
    assert "the search was stopped after 1 s" in output or output == "z:1:aaa"


async def test_a_ripgrep_that_the_tools_can_write_is_never_run(
    here: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searching needs no permission to run programs; a tool could have written this one."""
    fake = here.root / "bin" / "rg"
    fake.parent.mkdir()
    fake.write_text(f"#!{sys.executable}\nopen('ran', 'w')\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    fill(here.root, {"a": "x\n"})
    assert await call_ok(here, "grep", pattern="^x") == "a:1:x"
    assert not (here.root / "ran").exists()
    assert not (fake.parent / "ran").exists()
