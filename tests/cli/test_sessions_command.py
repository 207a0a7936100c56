"""``corral sessions``: find, show and delete stored sessions."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from support.command_in_process import run_in_process
from support.pipeline_command import corral
from support.scripted_agent import PROGRAM as SCRIPTED

from corral._sessions import store
from corral._sessions.warm.names import StoredName, WarmFiles
from corral._system import fs, paths
from corral.events import Done, Event, Init, Text, ToolResult, ToolUse, Vendor
from corral.values import Usage


def stored(prompt: str, answer: str, *, agent: str = "gemini-cli", cwd: Path) -> str:
    record = store.create(agent, str(cwd))
    paths.make_dir(record.folder)
    record.meta.updated, record.meta.turns = time.time(), 1
    record.meta.title, record.meta.status = prompt, "success"
    events: list[Event] = [
        Init(model="gemini-3-pro"),
        Vendor("prompt", prompt),
        ToolUse(call_id="1", name="shell", title="ls -l"),
        ToolResult(call_id="1", status="success"),
        Text(delta=answer),
        Done(status="success", usage=Usage(input=12, output=3), duration_ms=1500),
    ]
    record.append_events(events)
    record.save()
    record.close(keep=True)
    return record.meta.id


@pytest.fixture
def ids(workspace: Path, tmp_path: Path) -> tuple[str, str]:
    return (
        stored("Fix the parser", "It was a comma.", cwd=workspace),
        stored("Write a poem", "Roses.", agent="codex-cli", cwd=tmp_path),
    )


def listed(*words: str, cwd: Path) -> list[str]:
    done = corral("runs", "list", "--json", *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return [each["id"] for each in json.loads(done.stdout)]


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        ("runs show last", 0, "run        {id}\nkind       session\nstate      success\n"),
        ("runs export last --format md", 0, "It was a comma."),
        ("runs usage --run last --by run", 0, "{id}"),
        ("runs watch", 2, "{id} is not running"),
        ("runs replay last --speed max --json", 0, "It was a comma."),
        ("runs answer last yes", 2, "{id} is not waiting for a text"),
        ("runs budget last 1", 2, "{id} has no budget"),
        ("runs cancel last", 2, "{id} has already ended"),
        ("compare diff last", 2, "last is the session {id}, not a comparison"),
        ("runs delete last", 0, "{id} deleted"),
    ],
)
def test_last_is_the_same_run_in_every_command(
    words: str,
    code: int,
    shown: str,
    workspace: Path,
    ids: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newest of this folder; there is a newer one in another."""
    monkeypatch.chdir(workspace)
    done = run_in_process(words, monkeypatch)
    assert done.returncode == code, done.stderr
    assert shown.format(id=ids[0], folder=workspace) in done.stdout + done.stderr
    assert ids[1] not in done.stdout + done.stderr


@pytest.mark.deep
def test_sessions_are_found_by_text_agent_folder_and_age(
    workspace: Path, ids: tuple[str, str]
) -> None:
    first, second = ids
    assert listed(cwd=workspace) == [second, first]
    assert listed("--text", "a COMMA", cwd=workspace) == [first]
    assert listed("--agent", "codex-cli", cwd=workspace) == [second]
    assert listed("--project", ".", cwd=workspace) == [first]
    assert listed("--since", "1h30m", "--limit", "1", cwd=workspace) == [second]
    assert listed("--since", "2999-01-01", cwd=workspace) == []


def test_a_session_is_shown_turn_by_turn(workspace: Path, ids: tuple[str, str]) -> None:
    shown = corral("runs", "show", ids[0], cwd=workspace).stdout
    for part in (
        "> Fix the parser",
        "✓ ls -l",
        "It was a comma.",
        "success · gemini-3-pro · 1.5 s · 12 tokens in, 3 out",
    ):
        assert part in shown
    (turn,) = json.loads(corral("runs", "show", ids[0], "--json", cwd=workspace).stdout)["content"]
    assert turn["prompt"] == "Fix the parser"


@pytest.mark.deep
def test_the_changes_of_files_are_shown_if_they_are_stored(workspace: Path) -> None:
    done = corral(
        *("run", "--agent", "gemini-cli", "--program", str(SCRIPTED), "--env", "GEMINI_API_KEY"),
        "init\nsh echo after > notes.txt\ntext Done.\nresult",
        cwd=workspace,
        env={"GEMINI_API_KEY": "scripted-key-0123456789"},
    )
    assert done.returncode == 0, done.stderr
    assert "+after" not in corral("runs", "show", "last", cwd=workspace).stdout
    shown = corral("runs", "show", "last", "--diff", cwd=workspace).stdout
    assert "--- /dev/null\n+++ b/notes.txt\n@@ -0,0 +1,1 @@\n+after\n" in shown
    exported = corral("runs", "export", "last", "--diff", "--format", "md", cwd=workspace)
    assert "```diff\n--- /dev/null" in exported.stdout
    (workspace / "notes.txt").write_text("later\n")
    (turn,) = json.loads(corral("runs", "show", "last", "--diff", "--json", cwd=workspace).stdout)[
        "content"
    ]
    assert (turn["number"], "+after" in turn["diff"]) == (1, True)


def test_the_newest_session_with_a_text_is_shown(workspace: Path, ids: tuple[str, str]) -> None:
    assert "Fix the parser" in corral("runs", "show", "--text", "comma", cwd=workspace).stdout
    none = corral("runs", "show", "--text", "nothing like it", cwd=workspace)
    assert (none.returncode, "no run contains" in none.stderr) == (4, True)
    for words in ((), ("last", "--text", "comma")):
        assert corral("runs", "show", *words, cwd=workspace).returncode == 2


def test_the_beginning_of_an_id_is_enough_if_it_is_unique(
    workspace: Path, ids: tuple[str, str]
) -> None:
    random_part = ids[0].rpartition("-")[2]
    shown = corral("runs", "show", random_part[:5], cwd=workspace)
    assert "Fix the parser" in shown.stdout, shown.stderr
    refused = corral("runs", "show", "2", cwd=workspace)
    assert refused.returncode == 2
    assert "2 runs are called '2' or begin so: " in refused.stderr


def test_deleted_sessions_are_gone(workspace: Path, ids: tuple[str, str]) -> None:
    done = corral("runs", "delete", ids[0], cwd=workspace)
    assert done.stdout == f"{ids[0]} deleted\n"
    assert listed(cwd=workspace) == [ids[1]]
    unknown = corral("runs", "delete", ids[1], "nothing", cwd=workspace)
    assert unknown.returncode == 4
    assert listed(cwd=workspace) == [ids[1]]  # nothing was deleted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("stop",), "give the name of a session, or --all"),
        (("stop", "fix"), "no session of this folder is called 'fix'"),
    ],
)
def test_a_mistake_is_explained(workspace: Path, words: tuple[str, ...], message: str) -> None:
    done = corral("sessions", *words, cwd=workspace)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_name_is_forgotten_on_request(workspace: Path, ids: tuple[str, str]) -> None:
    files = WarmFiles.of("fix", str(workspace))
    paths.make_dir(files.folder)
    name = StoredName(name="fix", cwd=str(workspace), agent="gemini-cli", session=ids[0])
    fs.write_atomically(files.meta, msgspec.json.encode(name))
    assert "name       fix\n" in corral("runs", "show", ids[0], cwd=workspace).stdout
    stopped = corral("sessions", "stop", "fix", cwd=workspace)
    assert "was not running" in stopped.stdout
    done: subprocess.CompletedProcess[str] = corral(
        "sessions", "stop", "fix", "--forget", cwd=workspace
    )
    assert "is forgotten" in done.stdout
    assert not files.meta.exists()
