"""What earlier versions of corral stored is read, continued, or refused in one line.

The archives were made by the code of earlier commits (``make.py``). Databases of format 1 are shown
as far as they can be read, and never continued.
"""

from __future__ import annotations

import hashlib
import shlex
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from support.command_in_process import run_in_process
from support.durable_processes import wait_until
from support.scripted_agent import GOOD

import corral
from corral import events
from corral._core import stored_formats
from corral._sessions import store
from corral._system.cassette import format
from corral.testing import ModelServer, Turn

pytestmark = pytest.mark.whole_program

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))
PLACE = "/tmp/corral-earlier-version"
"""Where ``make.py`` ran."""
UNREADABLE = "20261115-2324-80fd693b"
"""Its runs have other fields than those of today."""


class Stored:
    """The content of an archive, in corral's home of this test."""

    def __init__(self, archive: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        self.name = archive.name.partition(".")[0]
        self.home, self.work = folder / "home", folder / "work"
        self.database = self.home / "engine.db"
        self.monkeypatch = monkeypatch
        for meta in self.home.glob("sessions/*/meta.json"):
            meta.write_text(meta.read_text().replace(PLACE, str(folder)))
        with closing(sqlite3.connect(self.database)) as database, database:
            moved = "UPDATE workflow_input SET inputs = replace(inputs, ?, ?)"
            database.execute(moved, (PLACE, str(folder)))
        monkeypatch.setenv("CORRAL_HOME", str(self.home))
        monkeypatch.chdir(self.work)

    def rows(self, name: str) -> dict[str, tuple[str, int]]:
        """Id → state and format of the workflows with this name."""
        select = "SELECT workflow_uuid, status, application_version FROM workflow_status"
        with closing(sqlite3.connect(self.database)) as opened:
            found = opened.execute(f"{select} WHERE name = ?", (name,)).fetchall()
        return {
            str(id): (str(status), stored_formats.journal_format(version))
            for id, status, version in found
        }

    @property
    def is_continued(self) -> bool:
        return {format for _, format in self.rows("corral.run").values()} == {OURS}

    def digest(self) -> dict[str, str]:
        """Of all that is stored. What SQLite needs while a database is open is not."""
        return {
            str(path.relative_to(self.home)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.home.rglob("*"))
            if path.is_file() and not path.name.endswith(("-wal", "-shm", ".index.sqlite"))
        }

    def run(self, words: str) -> tuple[int, str]:
        done = run_in_process(words, self.monkeypatch)
        return done.returncode, done.stdout + done.stderr

    def is_refused(self, words: str) -> bool:
        """Whether the command says in one line that the format is another one, and nothing else
        happens. It may succeed."""
        before = self.digest()
        code, output = self.run(words)
        if code == 0:
            return False
        assert code == 2, output
        (line,) = output.strip().splitlines()
        other_format = f"is stored in format 1, and this corral uses format {OURS}"
        assert other_format in line or "was stored by an earlier corral" in line
        assert self.digest() == before
        return True


OURS = stored_formats.JOURNAL


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def stored(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Stored:
    return Stored(request.param, tmp_path / "stored", monkeypatch)


def test_archives_of_five_earlier_versions_are_stored() -> None:
    assert len(ARCHIVES) >= 5


def test_sessions_are_shown_and_continued(stored: Stored) -> None:
    sessions = store.all_sessions()
    assert sorted(each.meta.agent for each in sessions) == ["corral", "gemini-cli"]
    for session in sessions:
        lines = (session.folder / store.EVENTS).read_bytes().splitlines()
        assert len(list(session.events())) == len(lines)
        assert not any(isinstance(event, events.Unknown) for event in session.events())
        code, output = stored.run(f"runs show {session.meta.id}")
        assert code == 0, output
        assert "hello" in output
    (ours,) = (each.meta.id for each in sessions if each.meta.agent == "corral")
    with ModelServer([Turn(text="again", repeat="forever")]) as server:
        env = {**server.env, "GEMINI_API_KEY": "scripted-key-0123456789"}
        result = corral.run_sync(prompt="Once more", resume=ours, cwd=stored.work, env=env)
        (request,) = server.requests
    assert result.text == "again"
    assert {"Say hello", "hello", "Once more"} <= {*request.texts}
    assert store.find(ours).meta.format == stored_formats.SESSION


@pytest.mark.deep_but_first
def test_the_recording_is_read_and_replayed(stored: Stored) -> None:
    """A run that starts the agent in another way differs from its recording."""
    path = stored.work / "recording.jsonl"
    env = {"GEMINI_API_KEY": "scripted-key-0123456789"}
    result = corral.run_sync("gemini-cli", GOOD, replay=path, cwd=stored.work, env=env)
    assert result.text == "hello" or (result.error and result.error.code == "replay_mismatch")
    (take,) = format.read(path)
    assert b"hello" in b"".join(
        entry.data
        for entry in take.entries
        if isinstance(entry, format.DataEntry) and entry.dir == "out"
    )


def test_the_file_of_results_is_continued(stored: Stored) -> None:
    results = stored.work / "results.jsonl"
    before = results.read_bytes()
    batch = "batch tasks.jsonl --prompt 'Say {{id}}' --simulate --no-durable"
    code, output = stored.run(f"{batch} --output results.jsonl")
    assert code == 0, output
    assert "2 of them earlier" in output
    assert results.read_bytes() == before


@pytest.mark.deep_but_first
def test_runs_and_batches_are_shown_or_refused(stored: Stored) -> None:
    """Those of an earlier format are in another file, which the lists name."""
    db = "" if stored.is_continued else f" --db {stored.database}"
    code, output = stored.run("runs list")
    assert code == 0, output
    assert ("--db" in output) == bool(db)
    code, output = stored.run(f"runs list{db}")
    assert code == 0, output
    runs = stored.rows("corral.run")
    for run in runs:
        assert run in output
        assert stored.is_refused(f"runs show {run}{db}") == (stored.name == UNREADABLE)
    for batch in stored.rows("corral.batch"):
        if batch in output:
            assert stored.is_refused(f"runs show {batch}{db}")
            if db:
                assert stored.is_refused(f"runs show {batch}")


BATCH = "batch tasks.jsonl --prompt 'Say {{id}}' --simulate --name queued --output new.jsonl"


@pytest.mark.deep
def test_runs_and_batches_are_continued_or_refused(stored: Stored) -> None:
    if stored.is_continued:
        check_continued(stored)
        return
    for run, (state, _) in stored.rows("corral.run").items():
        if state == "ENQUEUED":
            assert stored.is_refused(f"runs resume {run}")
            assert stored.is_refused(f"runs fork {run} --from greet")
    assert stored.is_refused(BATCH)


@pytest.mark.parametrize("stored", [ARCHIVES[0]], indirect=True, ids=["the first"])
@pytest.mark.deep
def test_the_file_of_an_earlier_format_gets_no_new_runs(stored: Stored) -> None:
    """Its corral refuses open runs of this format beside its own."""
    before = stored.rows("corral.run")
    graph = "digraph fresh { s [shape=Mdiamond]; e [shape=Msquare]; s -> e }"
    (stored.work / "new.dot").write_text(graph)
    assert start("pipeline run new.dot").wait(60) == 0
    assert stored.rows("corral.run") == before
    code, output = stored.run("runs list")
    assert code == 0
    assert "fresh" in output


def test_no_command_is_printed_that_would_be_refused(stored: Stored) -> None:
    if stored.is_continued or stored.name == UNREADABLE:
        return
    for run in stored.rows("corral.run"):
        if run.startswith("gate"):
            code, output = stored.run(f"runs show {run} --db {stored.database}")
            assert code == 0, output
            assert "? " in output
            assert "corral pipeline" not in output
            assert "use the corral that wrote it" in output


def start(words: str) -> subprocess.Popen[bytes]:
    """A command in its own process: an engine that is started twice in a test would log to a stream
    that is closed."""
    main = "from corral._cli.main import main; main()"
    return subprocess.Popen([sys.executable, "-c", main, *shlex.split(words)])


def check_continued(stored: Stored) -> None:
    def states() -> set[str]:
        rows = {**stored.rows("corral.run"), **stored.rows("corral.node")}
        return {state for state, _ in rows.values()}

    if "hello-asks" in stored.rows("corral.run"):
        log = stored.work / "begun"
        assert sorted(log.read_text().split()) == ["1", "1", "2", "2", "slow", "slow"]
        code, output = stored.run("runs answer hello-asks yes")
        assert code == 0, output
        assert start("runs resume hello-asks").wait(60) == 0
        assert start("runs resume hello-killed --auto-approve").wait(60) == 0
        # Only the step that was interrupted runs again.
        assert log.read_text().count("slow") == 3
        assert log.read_text().count("1") == 2
    (gate,) = (run for run in stored.rows("corral.run") if run.startswith("gate"))
    code, output = stored.run(f"runs answer {gate} Yes")
    assert code == 0, output
    assert start(f"runs resume {gate}").wait(60) == 0
    worker = start("worker --queue later")
    try:
        wait_until(lambda: states() == {"SUCCESS"}, "the worker to take all that was queued")
    finally:
        worker.terminate()
        worker.wait(60)
    assert stored.is_refused(BATCH)
