"""``corral workflow``: run, resume, runs, show, answer, fork; and bad input."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.pipeline_command import CORRAL, corral

pytestmark = pytest.mark.whole_program

HEAD = """
import corral
from corral.workflows import Flow

"""
ASKS = (
    HEAD
    + """
@corral.workflow
async def asks(flow: Flow, name: str = "x", count: int = 1) -> dict[str, object]:
    first = await flow.command(f"echo {name} >> log; echo {name}", name="first")
    reply = await flow.ask("Go on?", ["yes", "no"])
    await flow.command("echo second >> log", name="second", check=True)
    return {"name": first.stdout.strip(), "reply": reply, "count": count}
"""
)


def workflow(cwd: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``corral workflow`` with a database in the folder."""
    done = corral("workflow", *words, "--db", "runs.db", cwd=cwd)
    assert done.returncode == code, (words, done.returncode, done.stderr)
    return done


def runs(cwd: Path, *words: str) -> str:
    """Run ``corral runs`` with the same database."""
    done = corral("runs", *words, "--db", "runs.db", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def verb(cwd: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a verb of ``corral runs`` with the same database."""
    done = corral("runs", *words, "--db", "runs.db", cwd=cwd)
    assert done.returncode == code, (words, done.returncode, done.stderr)
    return done


def in_memory(cwd: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = corral("workflow", "run", *words, "--no-durable", cwd=cwd)
    assert done.returncode == code, (words, done.returncode, done.stderr)
    return done


@pytest.fixture
def folder(workspace: Path) -> Path:
    (workspace / "flow.py").write_text(ASKS)
    return workspace


PRINTS = (
    HEAD
    + """
print("imported")


@corral.workflow
async def prints(flow: Flow) -> str:
    print("before")
    done = await flow.command("echo x", name="one")
    print("after")
    return done.stdout
"""
)


def test_with_json_what_the_program_prints_goes_to_stderr(workspace: Path) -> None:
    (workspace / "flow.py").write_text(PRINTS)
    done = in_memory(workspace, "flow.py", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "success"
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert [line for line in ("imported", "before", "after") if line in done.stderr.split()] == [
        "imported", "before", "after",
    ]  # fmt: skip
    assert in_memory(workspace, "flow.py").stdout.split() == ["imported", "before", "after", "x"]


@pytest.mark.deep
def test_a_run_waits_is_shown_answered_resumed_and_forked(folder: Path) -> None:
    started = workflow(folder, "run", "flow.py", "--arg", "name=Ada", "--run-id", "r", code=10)
    assert "corral runs answer r" in started.stderr
    (listed,) = json.loads(runs(folder, "list", "--json"))
    assert (listed["id"], listed["kind"], listed["needs"]) == ("r", "workflow", 1)
    assert "Go on?" in runs(folder, "show", "r")
    verb(folder, "answer", "r", "yes")
    # The questions of the plan, without running anything.
    plan = json.loads(verb(folder, "resume", "r", "--dry-run", "--json").stdout)
    assert (plan["is_new_run"], plan["repeated"]) == (False, [])
    done = verb(folder, "resume", "r", "-q")
    assert json.loads(done.stdout) == {"name": "Ada", "reply": "yes", "count": 1}
    assert (folder / "log").read_text() == "Ada\nsecond\n"
    forked = verb(folder, "fork", "r", "--from", "second", "-q")
    assert json.loads(forked.stdout) == json.loads(done.stdout)
    assert (folder / "log").read_text() == "Ada\nsecond\nsecond\n"


def test_show_has_the_result_and_a_failed_run_says_how_it_goes_on(workspace: Path) -> None:
    body = "@corral.workflow\nasync def one(flow: Flow) -> str:\n    return 'the result'"
    (workspace / "flow.py").write_text(HEAD + body)
    workflow(workspace, "run", "flow.py", "--run-id", "good", "-q")
    assert "result     the result\n" in runs(workspace, "show", "good")
    head, row = runs(workspace, "list").splitlines()
    assert head.split()[-2:] == ["title", "project"]
    assert row.split()[-2] == "one"
    (workspace / "flow.py").write_text(
        HEAD + body.replace("return 'the result'", "assert not flow")
    )
    failed = workflow(workspace, "run", "flow.py", "--run-id", "bad", code=1)
    assert "to continue: corral runs resume bad --db runs.db" in failed.stderr


@pytest.mark.deep
def test_after_an_edit_resume_says_what_it_repeats(folder: Path) -> None:
    workflow(folder, "run", "flow.py", "--run-id", "r", "--auto-approve", "-q")
    file = folder / "flow.py"
    file.write_text(file.read_text().replace("echo second", "echo other"))
    shown = verb(folder, "resume", "r", "--dry-run").stderr
    assert "first: kept" in shown
    assert "second: repeated" in shown
    assert "depends on their results" not in shown
    assert (folder / "log").read_text() == "x\nsecond\n"
    verb(folder, "resume", "r", "-q")
    assert (folder / "log").read_text() == "x\nsecond\nother\n"
    assert json.loads(runs(folder, "show", "r", "--json"))["run"]["tries"] == 2
    shown = verb(folder, "resume", "r", "--dry-run").stderr
    assert shown.startswith("r has ended: nothing would be repeated")


@pytest.mark.deep
def test_resume_raises_the_limits_of_the_run(folder: Path) -> None:
    workflow(folder, "run", "flow.py", "--run-id", "r", "--max-calls", "3", code=10)
    both = verb(folder, "resume", "r", "-q", "--json", code=2)
    assert "--json and --quiet" in both.stderr
    verb(folder, "resume", "r", "-q", "--max-calls", "7", code=10)
    shown = json.loads(runs(folder, "show", "r", "--json"))
    assert shown["content"]["budget"]["max_calls"] == 7


@pytest.mark.deep
def test_a_run_with_a_scripted_model_goes_on_with_another_server(workspace: Path) -> None:
    (workspace / "fake.toml").write_text('[[turn]]\ntext = "Hi."\nrepeat = "forever"\n')
    (workspace / "flow.py").write_text(
        HEAD + "@corral.workflow\nasync def two(flow: Flow) -> str:\n"
        "    first = await flow.generate('gemini:gemini-2.5-flash', 'Greet')\n"
        "    await flow.ask('Again?', ['yes', 'no'])\n"
        "    return first + await flow.generate('gemini:gemini-2.5-flash', 'Greet again')\n"
    )
    fake = ("--fake", "fake.toml")
    refused = workflow(workspace, "run", "flow.py", "--queue", "default", *fake, code=2)
    assert "for this command only" in refused.stderr
    waits = workflow(workspace, "run", "flow.py", "--run-id", "r", *fake, code=10)
    assert "then: corral runs resume r --db runs.db --fake fake.toml\n" in waits.stderr
    verb(workspace, "answer", "r", "yes")
    assert verb(workspace, "resume", "r", "-q", *fake).stdout == "Hi.Hi.\n"


@pytest.mark.deep
def test_arguments_are_typed(folder: Path) -> None:
    given = ("flow.py", "--auto-approve", "-q", "--arg", "count=3", "--arg", 'name:="B"')
    done = in_memory(folder, *given)
    assert json.loads(done.stdout) == {"name": "B", "reply": "yes", "count": 3}
    done = in_memory(folder, "flow.py", "--arg", "count=many", code=2)
    assert "count" in done.stderr
    done = in_memory(folder, "flow.py", "--arg", f"count={10**309}", code=2)
    assert "the argument 'count' of asks is not JSON: it is a number over 1.8e308" in done.stderr
    done = in_memory(folder, "flow.py", "--arg", "wrong=1", code=2)
    assert "wrong" in done.stderr


@pytest.mark.parametrize(
    ("body", "words", "code", "error"),
    [
        ("import nothing_like_it", ["bad.py"], 2, "nothing_like_it"),
        ("def broken(:", ["bad.py"], 2, "bad.py:5"),
        ("x = 1", ["bad.py"], 2, "no workflow"),
        (None, ["missing.py"], 2, "missing.py"),
        (
            "@corral.workflow\nasync def one(flow: Flow) -> object:\n    return object()",
            ["bad.py"],
            1,
            "the result of one",
        ),
        (
            "@corral.workflow\nasync def one(flow: Flow) -> str:\n    return 'a'\n"
            "@corral.workflow\nasync def two(flow: Flow) -> str:\n    return 'b'",
            ["bad.py"],
            2,
            "two",
        ),
        (
            "@corral.workflow\nasync def one(flow: Flow, files: list[str]) -> None: ...",
            ["bad.py", "--arg", "files=a.txt"],
            2,
            "For example: --arg 'files=[",
        ),
        (
            "@corral.workflow\nasync def one(flow: Flow) -> str:\n    return 'a'\n"
            "corral.workflows.run_sync(one)",
            ["bad.py"],
            2,
            "bad.py:8: a run is started while bad.py is imported",
        ),
        ("\0", ["bad.py"], 2, "is not Python: source code"),
    ],
)
def test_bad_files_get_one_clear_error(
    workspace: Path, body: str | None, words: list[str], code: int, error: str
) -> None:
    if body is not None:
        (workspace / "bad.py").write_text(HEAD + body)
    done = in_memory(workspace, *words, code=code)
    assert error in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.deep
def test_bad_resumes_lose_nothing(folder: Path) -> None:
    workflow(folder, "run", "flow.py", "--run-id", "r", code=10)
    done = workflow(folder, "run", "flow.py", "--run-id", "r", code=2)
    assert "already exists" in done.stderr
    file = folder / "flow.py"
    file.write_text(ASKS.replace("flow: Flow, ", "flow: Flow, size: int, "))
    assert "size" in verb(folder, "resume", "r", code=2).stderr
    file.write_text("def broken(:")
    assert "flow.py:1" in verb(folder, "resume", "r", code=2).stderr
    assert "nope" in verb(folder, "resume", "nope", code=4).stderr
    # A step that was removed: its result is not used, and the others are kept.
    file.write_text(
        ASKS.replace('name="first")', 'name="first")\n    ').replace(
            '    await flow.command("echo second >> log", name="second", check=True)\n', ""
        )
    )
    verb(folder, "answer", "r", "no")
    done = verb(folder, "resume", "r", "-q")
    assert json.loads(done.stdout)["reply"] == "no"
    assert (folder / "log").read_text() == "x\n"


@pytest.mark.deep
def test_events_on_a_full_disk_end_with_the_command_that_continues(folder: Path) -> None:
    words = ["run", "flow.py", "--run-id", "r", "--json", "--auto-approve", "--db", "runs.db"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [CORRAL, "workflow", *words], cwd=folder, stdout=full, stderr=subprocess.PIPE,
            text=True, timeout=100,
        )  # fmt: skip
    assert done.returncode == 1
    *_, error, hint = done.stderr.splitlines()
    assert error == "corral: the output cannot be written: No space left on device"
    assert hint == "  then: corral runs resume r --db runs.db"
    verb(folder, "resume", "r", code=10)
