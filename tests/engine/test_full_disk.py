"""A disk that becomes full during a run: the run fails with an error, and can be continued.

The size of files is limited here (RLIMIT_FSIZE), which every user can set: for SQLite this looks
like a full disk.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy.exc

from corral._engine.agent_host.client import RESERVED, HostFiles, StoredOutcome
from corral._engine.dbos import client, database
from corral._pipelines.scheduler.outcome import Outcome
from corral.errors import StorageFailed

pytestmark = pytest.mark.whole_program

CORRAL = str(Path(sys.executable).with_name("corral"))
LIMITED = (
    "import os, resource, sys; space = int(sys.argv[1]);"
    " resource.setrlimit(resource.RLIMIT_FSIZE, (space, resource.RLIM_INFINITY));"
    " os.execv(sys.argv[2], sys.argv[2:])"
)
NODES = "\n".join(
    f"n{i} [shape=parallelogram, tool_command=\"head -c 30000 /dev/zero | tr '\\\\0' {i % 10}\"];"
    for i in range(12)
)
PIPELINE = f"""digraph g {{ start [shape=Mdiamond]; done [shape=Msquare];
{NODES}
start -> {" -> ".join(f"n{i}" for i in range(12))} -> done }}"""
WORKFLOW = """
import corral
from corral.workflows import Flow


@corral.workflow
async def steps(flow: Flow) -> None:
    for n in range(12):
        await flow.command(f"echo {n} >> begun; head -c 30000 /dev/zero | tr '\\\\0' {n % 10}")
"""


@pytest.fixture
def empty_db(tmp_path: Path) -> Path:
    """An empty database: its creation needs more space than the tests allow later."""
    path = tmp_path / "runs.db"
    database.prepare(database.find(str(path)))
    return path


def limited(*words: str, cwd: Path, space: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(space), CORRAL, *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


def check_message(stderr: str, db: Path) -> None:
    assert f"the database {db} cannot be written: " in stderr
    assert "Free some disk space" in stderr
    assert "Traceback" not in stderr
    assert "sqlalchemy" not in stderr


@pytest.mark.deep
def test_a_run_on_a_full_disk_fails_and_can_be_resumed(workspace: Path, empty_db: Path) -> None:
    db = empty_db
    (workspace / "p.dot").write_text(PIPELINE)
    space = db.stat().st_size + 60_000
    done = limited("pipeline", "run", "p.dot", "--db", str(db), cwd=workspace, space=space)
    assert done.returncode == 1, done.stderr
    check_message(done.stderr, db)
    (line,) = [line for line in done.stderr.splitlines() if "then: corral runs resume" in line]
    words = line.partition("then: corral ")[2].split()
    finished = done.stderr.count("✓")
    assert finished < 12
    second = subprocess.run(
        [CORRAL, *words, "--json"], cwd=workspace, capture_output=True, text=True, timeout=100
    )
    assert second.returncode == 0, second.stderr
    result = json.loads(second.stdout.splitlines()[-1])
    assert (result["status"], len(result["completed"])) == ("success", 14)


@pytest.mark.deep
def test_a_workflow_whose_turns_cannot_be_recorded_fails_and_can_be_resumed(
    workspace: Path, empty_db: Path
) -> None:
    """Its steps run in its process (``--simulate``): their results are in the record of a turn."""
    db = empty_db
    (workspace / "w.py").write_text(WORKFLOW)
    words = ("workflow", "run", "w.py", "--simulate", "--db", str(db))
    done = limited(*words, cwd=workspace, space=db.stat().st_size + 60_000)
    assert done.returncode == 1, done.stderr
    check_message(done.stderr, db)
    (line,) = [line for line in done.stderr.splitlines() if "then: corral runs resume" in line]
    finished = done.stderr.count("✓")
    assert finished < 12
    resume = line.partition("then: corral ")[2].split()
    second = subprocess.run(
        [CORRAL, *resume, "--json"], cwd=workspace, capture_output=True, text=True, timeout=100
    )
    assert second.returncode == 0, second.stderr
    result = json.loads(second.stdout.splitlines()[-1])
    assert (result["status"], len(result["completed"])) == ("success", 12)
    numbers = (workspace / "begun").read_text().split()
    assert [*map(int, numbers[:finished])] == [*range(finished)]
    assert len(numbers) <= 13  # only the step that was not recorded ran again


@pytest.mark.deep
def test_a_batch_on_a_full_disk_fails_and_can_be_continued(workspace: Path, empty_db: Path) -> None:
    db = empty_db
    tasks = ({"id": f"t{i}", "text": str(i % 10) * 3_000} for i in range(60))
    (workspace / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    words = ("batch", "tasks.jsonl", "--prompt", "Say {{text}}", "--simulate", "--db", str(db),
             "--output", "out.jsonl")  # fmt: skip
    done = limited(*words, cwd=workspace, space=db.stat().st_size + 60_000)
    assert done.returncode == 1, done.stderr
    check_message(done.stderr, db)
    assert "then run the same command again: corral batch tasks.jsonl" in done.stderr
    second = subprocess.run([CORRAL, *words], cwd=workspace, capture_output=True, timeout=100)
    assert second.returncode == 0, second.stderr
    lines = [json.loads(line) for line in (workspace / "out.jsonl").read_text().splitlines()]
    assert sorted(line["id"] for line in lines) == sorted(f"t{i}" for i in range(60))


@pytest.mark.deep
def test_a_node_whose_output_cannot_be_written_fails(workspace: Path, tmp_path: Path) -> None:
    """The command limits the files of its host to 1,500 bytes."""
    command = "prlimit --pid $PPID --fsize=1500; head -c 5000 /dev/zero | tr '\\\\0' x"
    (workspace / "p.dot").write_text(
        f'''digraph g {{ start [shape=Mdiamond]; done [shape=Msquare];
        a [shape=parallelogram, tool_command="{command}"]; start -> a -> done }}'''
    )
    done = subprocess.run(
        [CORRAL, "pipeline", "run", "p.dot", "--db", str(tmp_path / "runs.db")],
        cwd=workspace,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr
    assert "tool_output.txt: File too large" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_result_that_cannot_be_written_becomes_a_failure_in_the_reserved_space(
    tmp_path: Path,
) -> None:
    files = HostFiles(tmp_path)
    for name in ("cut", "lost"):
        files.job(name).mkdir(parents=True)
        files.reserve(name)
        assert (files.job(name) / "reserve").stat().st_blocks * 512 >= RESERVED
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500, limits[1]))
    try:
        files.write_result("cut", StoredOutcome(outcome=Outcome(notes="x" * 5_000)))
        files.write_result("lost", StoredOutcome(outcome=Outcome(notes="x" * (RESERVED + 1))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for name in ("cut", "lost"):
        stored = files.result(name)
        assert stored is not None
        assert stored.outcome is not None
        reason = f"the result cannot be written to {files.job(name)}: File too large"
        assert stored.outcome.failure_reason.startswith(reason)
        assert [each.name for each in files.job(name).iterdir()] == ["result.json"]


async def test_a_call_that_finds_a_full_disk_gets_an_error_of_corral(empty_db: Path) -> None:
    def fill(_client: client.DatabaseClient) -> None:
        full = sqlite3.OperationalError("database or disk is full")
        raise sqlalchemy.exc.OperationalError("INSERT", {}, full)

    with pytest.raises(StorageFailed, match="disk is full"):
        await client.with_client(database.find(str(empty_db)), fill)
