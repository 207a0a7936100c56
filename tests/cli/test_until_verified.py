"""``--until-verified`` and ``--scenarios`` on the command line, also with a named session."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import scripted_acp
from support.pipeline_command import corral
from support.sandbox import needs_sandbox
from support.scripted_agent import PROGRAM
from support.verified_runs import FIX, PLAIN, make_project, orders

from corral.testing import ModelServer, Turn, call, say

MODEL = ("--agent", "gemini:gemini-2.5-flash", "--approve", "all")
CHECKS = ("--verify", "test -f a", "--verify", "echo no b; test -f b")


def script_of(*commands: str) -> list[Turn]:
    """Each round of the agent runs a command."""
    return [turn for command in commands for turn in (call("shell", command=command), say("done"))]


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    folder = tmp_path / "held-out"
    folder.mkdir()
    (folder / "CANARY.toml").write_text('class = "files"\ncommand = "test -f b"\n')
    return folder


def run(
    monkeypatch: pytest.MonkeyPatch, workspace: Path, commands: list[str], *words: str
) -> subprocess.CompletedProcess[str]:
    with ModelServer(script_of(*commands)) as server, monkeypatch.context() as patch:
        for name, value in server.env.items():
            patch.setenv(name, value)
        return corral("run", *MODEL, *words, "Do it", cwd=workspace)


def test_what_failed_is_sent_until_it_is_verified(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ("--sandbox", "off", *CHECKS, "--until-verified", "--require", "verified")
    receipt = tmp_path / "receipt.json"
    done = run(monkeypatch, workspace, ["touch a", "touch b"], *words, "--receipt", str(receipt))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done", "done"]
    assert "round 1: gaps\nscope    names: " in done.stderr
    assert "\ngap      echo no b; test -f b: the check did not pass" in done.stderr
    assert done.stderr.splitlines().count("verified") == 1
    assert done.stderr.count(" · gemini:") == 1  # the second round begins as the first
    assert json.loads(receipt.read_text())["verdict"] == "verified"


def test_the_rounds_are_limited_and_the_best_state_is_kept(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = ["touch a", "rm a", "touch never"]
    words = ("--sandbox", "off", *CHECKS, "--until-verified", "--rounds", "1", "--result")
    done = run(monkeypatch, workspace, commands, *words)
    result = json.loads(done.stdout)
    assert done.returncode == 8
    assert (result["rounds"], result["kept_round"]) == (2, 1)
    assert [Path(file["path"]).name for file in result["files"]] == ["a"]
    assert [path.name for path in workspace.iterdir()] == ["a"]


@needs_sandbox
def test_of_scenarios_counts_are_printed_and_sent(
    workspace: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--scenarios", str(held_out), "--until-verified", "--require", "verified", "--json")
    done = run(monkeypatch, workspace, ["touch a", "touch b"], *words)
    assert done.returncode == 0, done.stderr
    assert "0 of 1 held-out scenarios are satisfied" in done.stderr
    assert "CANARY" not in done.stdout + done.stderr
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()].count("done") == 2


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        (["--until-verified"], "--until-verified needs --verify or --scenarios"),
        (["--verify", "true", "--rounds", "3"], "--rounds needs --until-verified"),
        (["--scenarios", "nowhere"], "nowhere"),
        (["--scenarios", "."], "contains no scenarios"),
    ],
)
def test_bad_input_is_one_error_before_anything_starts(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected_text: str
) -> None:
    done = run(monkeypatch, workspace, ["touch started"], *words)
    assert done.returncode == 2
    assert expected_text in done.stderr
    assert not (workspace / "started").exists()


@needs_sandbox
@pytest.mark.deep
def test_a_batch_runs_scenarios_for_each_task(
    tmp_path: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")
    project = tmp_path / "project"
    make_project(project)
    (held_out / "CANARY.toml").write_text(f'class = "sums"\ncommand = "{PLAIN}"\n')
    tasks = [{"id": "honest", "task": orders(FIX)}, {"id": "liar", "task": orders("")}]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    agent = ("--agent", "gemini-cli", "--program", str(PROGRAM), "--approve", "edits")
    words = (
        "--worktree",
        "--no-durable",
        "--no-strict",
        "--scenarios",
        str(held_out),
        "--require",
        "verified",
    )
    done = corral("batch", "../tasks.jsonl", *agent, *words, cwd=project)
    rows = {row["id"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 14, done.stdout + done.stderr
    assert rows["honest"]["verdict"] == "verified"
    assert rows["liar"]["verdict"] == "gaps"
    assert "0 of 1 held-out scenarios" in rows["liar"]["gaps"][0]
    assert "CANARY" not in done.stdout + done.stderr


@pytest.fixture
def session(workspace: Path) -> Iterator[Path]:
    """A workspace in which the named sessions are stopped at the end."""
    yield workspace
    corral("sessions", "stop", "--all", cwd=workspace)


def prompt(cwd: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    agent = scripted_acp.agent("--loads")
    words = ("--session", "fix", "--agent", agent, "--approve", "edits", *words)
    return corral("run", *words, "--sandbox", "off", text, cwd=cwd)


@pytest.mark.deep
def test_each_prompt_of_a_named_session_is_verified(session: Path, tmp_path: Path) -> None:
    checks = ("--verify", "test -f a", "--require", "verified")
    (session / "keep").touch()
    receipt = tmp_path / "receipt.json"
    done = prompt(session, "text hi", *checks, "--receipt", str(receipt))
    assert done.returncode == 14, done.stderr
    assert "the verdict is gaps, and verified is required" in done.stderr
    assert json.loads(receipt.read_text())["verdict"] == "gaps"
    done = prompt(session, "touch a\ntext hi", *checks)
    assert done.returncode == 0, done.stderr
    done = prompt(session, "text hi", "--verify", "true")
    assert done.returncode == 2
    assert "was started with another verify" in done.stderr
    assert "corral sessions stop fix" in done.stderr


@pytest.mark.deep
def test_a_prompt_to_a_named_session_is_repeated_until_it_is_verified(session: Path) -> None:
    orders = "echo touch a; echo text hi; test -f a"  # its output is the next prompt
    done = prompt(session, "text hi", "--verify", orders, "--until-verified", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["hi", "hi"]
    assert done.stderr.splitlines().count("verified") == 1
