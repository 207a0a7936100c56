"""corral's own folders are private to their owner."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import namespace
from support.pipeline_command import CORRAL

from corral._system import paths


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
        "import os; os.umask(0); from corral._sessions import store;"
        " store.create('gemini-cli', '/').make_folders()"
    )
    env = {**os.environ, "CORRAL_HOME": str(home)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    places = [home, *home.rglob("*")]
    assert {oct(mode(p)) for p in places if p.is_dir()} == {"0o700"}
    assert {oct(mode(p)) for p in places if p.is_file()} == {"0o600"}


AS_ANOTHER_USER = """
import os, sys
from support import namespace
namespace.enter()
os.execv(sys.argv[1], sys.argv[1:])
"""
SCRIPT = """
[[turn]]
[[turn.call]]
name = "write_file"
args = { path = "a.txt", content = "scripted" }
[[turn]]
text = "done"
repeat = "forever"
"""
MODEL = ("--fake", "script.toml", "--agent", "corral", "--model", "openai:gpt-5")
COMMANDS = {
    "run": ("run", *MODEL, "--approve", "edits", "write"),
    "batch": ("batch", "tasks.jsonl", "--prompt", "write", *MODEL, "--approve", "edits"),
    "pipeline run": ("pipeline", "run", "p.dot", *MODEL, "--approve", "edits"),
    "runs list": ("runs", "list"),
}


@pytest.mark.skipif(not namespace.is_allowed(), reason="no user namespaces")
@pytest.mark.parametrize(
    ("home", "command"),
    [
        *(("read-only", command) for command in COMMANDS),
        ("none", "run"),
        ("unwritable XDG folders", "run"),
    ],
)
@pytest.mark.deep_but_first
def test_without_a_home_that_can_be_written_a_temporary_one_is_used(
    tmp_path: Path, workspace: Path, home: str, command: str
) -> None:
    """As a user that /etc/passwd does not list, in a git repository: a container of a CI."""
    subprocess.run(["git", "init", "-q"], cwd=workspace, check=True)
    (workspace / "script.toml").write_text(SCRIPT)
    (workspace / "tasks.jsonl").write_text('{"n": 1}\n')
    (workspace / "p.dot").write_text(
        'digraph p { s [shape=Mdiamond]; w [prompt="write"]; e [shape=Msquare]; s -> w -> e }'
    )
    read_only, temporary = tmp_path / "read-only", tmp_path / "t"
    read_only.mkdir(mode=0o555)
    temporary.mkdir()
    env = {"PATH": os.environ["PATH"], "TMPDIR": str(temporary)}
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    if home == "read-only":
        env["HOME"] = str(read_only)
    elif home != "none":
        env |= {"HOME": str(tmp_path), "XDG_STATE_HOME": str(read_only), "XDG_CONFIG_HOME": "/proc"}
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, CORRAL, *COMMANDS[command]],
        cwd=workspace,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("set CORRAL_HOME to keep them") == 1, done.stderr
    assert "ermission" not in done.stdout + done.stderr
    assert (temporary / f"corral-{namespace.USER}").is_dir()
    assert (workspace / "a.txt").exists() == (command in ("run", "batch", "pipeline run"))


@pytest.mark.skipif(not namespace.is_allowed(), reason="no user namespaces")
def test_installed_agents_are_used_from_a_home_that_can_only_be_read(tmp_path: Path) -> None:
    agents = tmp_path / "corral" / "agents"
    agents.mkdir(parents=True)
    agents.parent.chmod(0o555)
    code = "from corral._system import paths; print(paths.managed()); print(paths.home())"
    env = {"XDG_STATE_HOME": str(tmp_path), "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", AS_ANOTHER_USER, sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    temporary = tmp_path / f"corral-{namespace.USER}" / "home"
    assert done.stdout.split() == [str(agents), str(temporary)]
