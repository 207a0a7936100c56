"""``corral run --schema`` and ``--result``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.pipeline_command import corral
from support.scripted_agent import PROGRAM

CORRAL = str(Path(sys.executable).with_name("corral"))
SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
}

REVIEW = (
    "--schema",
    json.dumps(
        {
            "type": "object",
            "$defs": {
                "finding": {"properties": {"severity": {"enum": ["low", "high"]}}},
                "unused": {"properties": {"other": {}}},
            },
            "properties": {
                "findings": {"type": "array", "items": {"$ref": "#/$defs/finding"}},
                "ok": {"type": "boolean"},
            },
        }
    ),
)


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
        (("--fail-on", "count=3"), "--fail-on needs --schema"),
        (("--fail-on", "count", "--schema", "{}"), "it must be FIELD=VALUE"),
        (("--fail-on", "count=3", "--schema", "{}"), "it has: none"),
        (("--fail-on", "severty=high", *REVIEW), "no such field; it has: findings, ok, severity"),
        (("--fail-on", "other=1", *REVIEW), "no such field"),
        (("--fail-on", "severity=low,hihg", *REVIEW), 'expected one of "low", "high", got the'),
        (("--fail-on", "ok=False", *REVIEW), "ok: expected true or false"),
        (("--fail-on", "findings=high", *REVIEW), "findings: expected a list"),
        (("--fail-on", "ok=false", "--schema", '{"type": "strin"}'), "the schema cannot be used"),
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


@pytest.mark.parametrize(
    ("condition", "code"), [("severity=high", 13), ("severity=low", 0), ("ok=false", 13)]
)
def test_a_field_that_is_below_a_reference_can_fail_the_run(
    workspace: Path, condition: str, code: int
) -> None:
    answer = saying('{"ok": false, "findings": [{"severity": "high"}]}')
    done = run(answer, *REVIEW, "--fail-on", condition, cwd=workspace)
    assert done.returncode == code, done.stderr


def test_the_last_event_has_text_and_output(workspace: Path) -> None:
    words = ("--json", "--schema", json.dumps(SCHEMA))
    done = run(saying('Here: {"count": 3}'), *words, cwd=workspace)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["type"], last["status"]) == ("done", "success")
    assert (last["text"], last["output"]) == ('Here: {"count": 3}', {"count": 3})


def test_the_last_event_without_a_schema_has_the_text(workspace: Path) -> None:
    done = run("init\ntext Hello \ntext there\nresult", "--json", cwd=workspace)
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["text"] == "Hello there"
    assert "output" not in last


@pytest.mark.parametrize(
    ("condition", "code"),
    [("count=3", 13), ("count=1,3.0", 13), ("count=4", 0)],
)
@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["output", "events"])
def test_a_value_of_the_output_can_fail_the_run(
    workspace: Path, condition: str, code: int, as_json: tuple[str, ...]
) -> None:
    words = (*as_json, "--schema", json.dumps(SCHEMA), "--fail-on", condition)
    done = run(saying('{"count": 3}'), *words, cwd=workspace)
    assert done.returncode == code, done.stderr
    assert ("the answer has" in done.stderr) == (code == 13)


def test_a_file_to_which_the_output_is_redirected_is_not_a_changed_file(workspace: Path) -> None:
    orders = "init\nwrite made.txt\ntext hello\nresult"
    agent = ("--agent", "gemini-cli", "--program", str(PROGRAM))
    with (workspace / "out.jsonl").open("wb") as out, (workspace / "err.txt").open("wb") as err:
        subprocess.run(
            [CORRAL, "run", *agent, "--json", orders],
            cwd=workspace,
            stdout=out,
            stderr=err,
            check=True,
            timeout=60,
        )
    done = json.loads((workspace / "out.jsonl").read_text().splitlines()[-1])
    assert [Path(file["path"]).name for file in done["files"]] == ["made.txt"]
