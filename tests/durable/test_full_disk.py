"""A disk that is full while a run is under way: it ends with an error, and goes on later.

No file may grow beyond a limit here (RLIMIT_FSIZE), which every user can set: to SQLite this is
a disk that takes no more.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from corral.durable.agent_host.client import RESERVED, HostFiles, StoredOutcome
from corral.durable.dbos import database
from corral.pipelines.scheduler.outcome import Outcome

CORRAL = str(Path(sys.executable).with_name("corral"))
LIMITED = (
    "import os, resource, sys; room = int(sys.argv[1]);"
    " resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY));"
    " os.execv(sys.argv[2], sys.argv[2:])"
)
NODES = "\n".join(
    f"n{i} [shape=parallelogram, tool_command=\"head -c 30000 /dev/zero | tr '\\\\0' {i % 10}\"];"
    for i in range(12)
)
PIPELINE = f"""digraph g {{ start [shape=Mdiamond]; done [shape=Msquare];
{NODES}
start -> {" -> ".join(f"n{i}" for i in range(12))} -> done }}"""


@pytest.fixture
def made_db(tmp_path: Path) -> Path:
    """An empty one: to make it takes more room than there is later."""
    path = tmp_path / "runs.db"
    database.prepare(database.find(str(path)))
    return path


def limited(*words: str, cwd: Path, room: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(room), CORRAL, *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


def told_of_the_disk(stderr: str, db: Path) -> None:
    assert f"the database {db} cannot be written: " in stderr
    assert "Free some disk space" in stderr
    assert "Traceback" not in stderr
    assert "sqlalchemy" not in stderr


def test_a_run_ends_with_an_error_and_is_resumed_later(workspace: Path, made_db: Path) -> None:
    db = made_db
    (workspace / "p.dot").write_text(PIPELINE)
    room = db.stat().st_size + 60_000
    done = limited("pipeline", "run", "p.dot", "--db", str(db), cwd=workspace, room=room)
    assert done.returncode == 1, done.stderr
    told_of_the_disk(done.stderr, db)
    (line,) = [line for line in done.stderr.splitlines() if "then: corral pipeline resume" in line]
    words = line.partition("then: corral ")[2].split()
    finished = done.stderr.count("✓")
    assert finished < 12
    again = subprocess.run(
        [CORRAL, *words, "--json"], cwd=workspace, capture_output=True, text=True, timeout=100
    )
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout.splitlines()[-1])
    assert (result["status"], len(result["completed"])) == ("success", 14)


def test_a_batch_ends_with_an_error_and_goes_on_later(workspace: Path, made_db: Path) -> None:
    db = made_db
    tasks = ({"id": f"t{i}", "text": str(i % 10) * 3_000} for i in range(60))
    (workspace / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    words = ("batch", "tasks.jsonl", "--prompt", "Say {{text}}", "--simulate", "--db", str(db),
             "--output", "out.jsonl")  # fmt: skip
    done = limited(*words, cwd=workspace, room=db.stat().st_size + 60_000)
    assert done.returncode == 1, done.stderr
    told_of_the_disk(done.stderr, db)
    assert "then run the same command again: corral batch tasks.jsonl" in done.stderr
    again = subprocess.run([CORRAL, *words], cwd=workspace, capture_output=True, timeout=100)
    assert again.returncode == 0, again.stderr
    lines = [json.loads(line) for line in (workspace / "out.jsonl").read_text().splitlines()]
    assert sorted(line["id"] for line in lines) == sorted(f"t{i}" for i in range(60))


def test_a_node_whose_result_cannot_be_written_fails_and_names_the_folder(
    workspace: Path, tmp_path: Path
) -> None:
    """The command takes its host the right to write more than 1,500 bytes to a file."""
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


def test_a_result_that_cannot_be_written_leaves_a_failure_in_the_reserved_room(
    tmp_path: Path,
) -> None:
    place = HostFiles(tmp_path)
    for name in ("cut", "lost"):
        place.job(name).mkdir(parents=True)
        place.reserve(name)
        assert (place.job(name) / "reserve").stat().st_blocks * 512 >= RESERVED
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500, limits[1]))
    try:
        place.write_result("cut", StoredOutcome(outcome=Outcome(notes="x" * 5_000)))
        place.write_result("lost", StoredOutcome(outcome=Outcome(notes="x" * (RESERVED + 1))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for name in ("cut", "lost"):
        kept = place.result(name)
        assert kept is not None
        assert kept.outcome is not None
        reason = f"the result cannot be written to {place.job(name)}: File too large"
        assert kept.outcome.failure_reason.startswith(reason)
        assert [each.name for each in place.job(name).iterdir()] == ["result.json"]
