"""``corral run --schema`` and ``--result``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.pipeline_command import corral
from support.scripted_agent import PROGRAM

SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")


def run(orders: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    agent = ("--agent", "gemini-cli", "--program", str(PROGRAM))
    return corral("run", *agent, *words, orders, cwd=cwd)


def saying(text: str) -> str:
    return f"init\ntext {text}\nresult"


def test_an_answer_that_fits_the_schema_is_printed_as_json(workspace: Path) -> None:
    (workspace / "schema.json").write_text(json.dumps(SCHEMA))
    done = run(saying('```json {"count": 3} ```'), "--schema", "schema.json", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"count": 3}


def test_a_schema_may_be_written_on_the_command_line(workspace: Path) -> None:
    done = run(saying('{"count": 3}'), "--schema", json.dumps(SCHEMA), cwd=workspace)
    assert json.loads(done.stdout) == {"count": 3}


def test_an_answer_that_does_not_fit_is_an_error_without_output(workspace: Path) -> None:
    done = run(saying('{"count": "x"}'), "--schema", json.dumps(SCHEMA), cwd=workspace)
    assert done.returncode != 0  # the scripted program cannot answer the request to correct it
    assert done.stdout == ""


def test_the_result_has_status_text_output_files_usage_and_cost(workspace: Path) -> None:
    words = ("--result", "--schema", json.dumps(SCHEMA))
    done = run(saying('{"count": 3}'), *words, cwd=workspace)
    result = json.loads(done.stdout)
    assert list(result)[:8] == [
        *("status", "text", "output", "files", "usage", "cost", "error", "session"),
    ]
    assert (result["status"], result["output"]) == ("success", {"count": 3})
    assert result["agent"] == "gemini-cli"


def test_the_result_of_a_failure_is_printed_too(workspace: Path) -> None:
    done = run("init\nexit 3", "--result", cwd=workspace)
    result = json.loads(done.stdout)
    assert done.returncode != 0
    assert result["status"] != "success"
    assert result["error"]["message"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--schema", "missing.json"), "missing.json"),
        (("--schema", "{"), "--schema is not JSON"),
        (("--schema", "list.json"), "it must be an object"),
        (("--result", "--json"), "--json prints events"),
    ],
)
def test_a_mistake_is_explained_before_anything_runs(
    workspace: Path, words: tuple[str, ...], message: str
) -> None:
    (workspace / "list.json").write_text("[]")
    done = run("init\ntouch ran\nresult", *words, cwd=workspace)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (workspace / "ran").exists()
