"""``corral compare``: a scripted program and the built-in agent, with the same prompt."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_command import corral
from support.repositories import git, repository
from support.scripted_agent import GOOD, PROGRAM

from corral.testing import ModelServer, Request, Turn, say

__all__ = ["repository"]

MODEL = "gemini:gemini-2.5-flash"
AGENTS = ("--agent", "gemini-cli", "--agent", MODEL)


def answer(_: Request) -> Turn:
    return say("hi from the model")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    config = tmp_path / "corral.toml"
    config.write_text(f'[agents.gemini-cli]\nprogram = "{PROGRAM}"\n')
    monkeypatch.setenv("CORRAL_CONFIG", str(config))
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")
    with ModelServer(answer) as running:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", running.url)
        yield running


def compare(*words: str, cwd: Path, prompt: str = GOOD) -> subprocess.CompletedProcess[str]:
    return corral("compare", *words, "-", cwd=cwd, stdin=prompt)


@pytest.mark.usefixtures("server")
def test_every_answer_is_printed_and_a_table_compares_them(workspace: Path) -> None:
    done = compare(*AGENTS, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "## gemini-cli (gemini-2.5-flash)\n\nhello\n" in done.stdout
    assert f"## {MODEL}" in done.stdout
    assert "hi from the model" in done.stdout
    rows = [line.split()[:2] for line in done.stderr.splitlines()]
    assert rows == [["agent", "status"], ["gemini-cli", "success"], [MODEL, "success"]]
    assert compare(*AGENTS, "--quiet", cwd=workspace).stderr == ""


@pytest.mark.usefixtures("server")
def test_json_has_one_result_per_agent_and_the_code_of_the_first_failure(workspace: Path) -> None:
    done = compare(*AGENTS, "--json", cwd=workspace, prompt="exit 53")
    found = {each["agent"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert found[MODEL]["text"] == "hi from the model"
    assert found[MODEL]["status"] == "success"
    assert found["gemini-cli"]["error"]["code"] == "turn_limit"
    assert done.returncode == 8


@pytest.mark.usefixtures("server")
def test_each_agent_works_in_its_own_worktree(repository: Path) -> None:
    script = "init\nwrite file\ntext done\nresult"
    done = compare(
        *AGENTS, "--approve", "edits", "--worktree", "--json", cwd=repository, prompt=script
    )
    found = {each["agent"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, done.stderr
    branch = found["gemini-cli"]["branch"]
    assert git(repository, "show", f"{branch}:file").strip() == "written"
    assert found[MODEL]["branch"] is None
    assert (repository / "file").read_text() == "one\n"
    assert git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--agent", "gemini-cli"), 2, "compare needs two or more different agents"),
        (("--agent", "gemini-cli", "--agent", "gemini-cli"), 2, "different agents"),
        (("--agent", "gemini-cli", "--agent", "gemni"), 2, "no agent is called 'gemni'"),
        ((*AGENTS, "--approve", "edits"), 2, "Add --worktree"),
        ((*AGENTS, "--worktree"), 2, "needs a git repository"),
        (("--agent", "gemini-cli", "--agent", "openai:gpt-5.5"), 6, "no API key for OpenAI"),
    ],
)
def test_bad_input_is_an_error_before_anything_starts(
    words: tuple[str, ...], code: int, message: str, workspace: Path, server: ModelServer
) -> None:
    done = compare(*words, cwd=workspace)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert not server.requests
