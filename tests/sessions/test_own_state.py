"""Corral's own files are out of an agent's reach, also if they are in its workspace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.durable_processes import wait_until
from support.sandbox import needs_sandbox
from support.scripted_agent import scripted_options

from corral import Policy
from corral._agents.spec import Launch
from corral._builtin.tools.workspace import ToolError, Workspace
from corral._engine.batch.results import OutputFile
from corral._engine.dbos import database
from corral._sessions import store
from corral._sessions.prepare import prepare
from corral._sessions.sandbox import command_sandbox
from corral._system import paths
from corral._system.path_guard import PathGuard
from corral._system.process import daemon

ORIGINAL = "original\n"
ITEMS = (
    "state/sessions/x/events.ndjson",
    "state/processes/1",
    "state/engine.db",
    "deep/er/runs.db",
    "deep/er/runs.db.executors/1",
    "results.jsonl",
    "corral.toml",
    "trusted/mine.toml",
    ".venv/lib/corral.py",
    ".git/config",
)
"""Stores, registries, databases, results of batches, settings, the program itself."""
ATTACK = """
for file in "$@"; do
  echo attack > $file
  rm -rf $file
  mv $file $file.old && echo attack > $file
  folder=$(dirname $file)
  while [ $folder != . ]; do
    mv $folder $folder.old && mkdir -p $(dirname $file) && echo attack > $file
    folder=$(dirname $folder)
  done
done
echo attack > deep/er/runs.db-journal
echo ended > ended
"""


@pytest.fixture
def own_files(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """All of corral's own files, in a workspace."""
    monkeypatch.setattr(paths, "_announced", {})
    monkeypatch.setenv("CORRAL_HOME", str(workspace / "state"))
    monkeypatch.setenv("CORRAL_CONFIG", str(workspace / "trusted/mine.toml"))
    monkeypatch.setattr(sys, "prefix", str(workspace / ".venv"))
    for name in ITEMS:
        file = workspace / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("" if file.suffix in (".toml", ".jsonl") else ORIGINAL)
    database.find(str(workspace / "deep/er/runs.db"))
    results = OutputFile(workspace / "results.jsonl")
    yield workspace
    results.close()


@needs_sandbox
def test_no_command_in_the_sandbox_changes_them(own_files: Path) -> None:
    before = {name: (own_files / name).read_text() for name in ITEMS}
    policy = Policy(read="allow", write="allow", shell="allow", network="deny")
    options = {**scripted_options(own_files), "sandbox": "require", "policy": policy}
    sandbox = command_sandbox(prepare("gemini-acp", options))
    assert sandbox is not None
    wrapped = sandbox.wrap()
    command = [*wrapped.argv, "sh", "-c", ATTACK, "sh", *ITEMS]
    subprocess.run(command, pass_fds=wrapped.passed, check=True, capture_output=True, timeout=60)
    for number in wrapped.passed:
        os.close(number)
    assert (own_files / "ended").read_text() == "ended\n"
    assert {name: (own_files / name).read_text() for name in ITEMS} == before
    journal = own_files / "deep/er/runs.db-journal"
    assert journal.read_text() == ""


@pytest.mark.parametrize("name", ITEMS[:6])
def test_no_file_tool_uses_them(own_files: Path, name: str) -> None:
    tools, guard = Workspace(own_files), PathGuard(str(own_files), protects=False)
    with pytest.raises(ToolError, match="belongs to corral"):
        tools.resolve(name, write=True)
    with pytest.raises(ToolError, match="belongs to corral"):
        tools.resolve(name)
    assert guard.refusal([name], "write") == f"it belongs to corral: {name}"
    assert guard.refusal([name], "read") == f"it belongs to corral: {name}"
    assert guard.refusal(["other.txt"], "write") is None


def test_a_workspace_in_corrals_state_is_the_agents_own() -> None:
    inside = paths.home() / "workspaces" / "one"
    inside.mkdir(parents=True)
    assert PathGuard(str(inside)).refusal(["file.txt"], "write") is None
    assert Workspace(inside).resolve("file.txt", write=True) == inside / "file.txt"


def test_corrals_own_processes_know_the_files_that_the_user_chose(
    own_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "lists_own_files.py").write_text(
        "from pathlib import Path\n"
        "from corral._system import paths\n"
        "def main():\n"
        f"    Path({str(seen)!r}).write_text(' '.join(paths.own_files()))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    daemon.start("lists_own_files", lock=tmp_path / "lock", log=tmp_path / "log")
    wait_until(lambda: seen.exists() and seen.read_text() != "", "the daemon's list")
    assert str(own_files / "results.jsonl") in seen.read_text().split()


def test_links_that_an_agent_made_in_its_home_are_not_followed(
    workspace: Path, tmp_path: Path
) -> None:
    run = prepare("gemini-acp", scripted_options(workspace))
    record = store.create("gemini-acp", str(workspace))
    launch = Launch(argv=(), env={}, stdin=b"", files={"a/b/settings.json": ORIGINAL})
    outside = tmp_path / "outside"
    (outside / "b").mkdir(parents=True)
    record.home.mkdir(parents=True)
    (record.home / "a").symlink_to(outside)
    store.write_private_home(launch, run, record)
    assert [*(outside / "b").iterdir()] == []
    assert (record.home / "a/b/settings.json").read_text() == ORIGINAL
    record.close(keep=False)
