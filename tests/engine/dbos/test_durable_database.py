"""The database is chosen, created and checked; problems are reported before anything is spent."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.exc import OperationalError
from support.durable_processes import wait_until

from corral._engine.dbos import client, connections, database
from corral._engine.dbos.private_calls import SCHEMA
from corral.errors import ConfigError, CorralError, FormatUnsupported, StorageFailed


def test_the_default_is_a_private_file_in_corrals_home(tmp_path: Path) -> None:
    found = database.find()
    assert found.path == tmp_path / "corral-home" / "engine.db"
    database.prepare(found)
    assert found.path is not None
    assert found.path.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(found.path) as opened:
        assert opened.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    opened.close()


def test_an_environment_variable_selects_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_DB", f"sqlite:///{tmp_path}/x.db")
    assert database.find().path == tmp_path / "x.db"
    assert database.find("y.db").path == Path.cwd() / "y.db"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("postgres://u:p@h/db", "postgresql://u:p@h/db"),
        ("postgresql+psycopg://h/db", "postgresql://h/db"),
        ("postgresql://h/db", "postgresql://h/db"),
    ],
)
def test_several_url_schemes_mean_postgres(given: str, url: str) -> None:
    assert database.find(given).url == url


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://me:secret@host/db",
        "postgresql://me:a@secret@host/db",
        "postgresql://me@host/db?password=secret",
        "postgresql://me@host/db?a=1&sslpassword=secret",
    ],
)
def test_a_password_is_not_shown(given: str) -> None:
    assert "secret" not in database.find(given).shown


@pytest.mark.parametrize("given", ["mysql://h/db", "sqlite://", "sqlite:///:memory:", ":memory:"])
def test_databases_that_are_not_durable_are_refused(given: str) -> None:
    with pytest.raises(ConfigError):
        database.find(given)


def prepared(path: Path) -> database.Database:
    found = database.find(str(path))
    database.prepare(found)
    return found


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no database at all" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        prepared(tmp_path / "x")
    assert (tmp_path / "x").read_bytes().startswith(b"no database at all")


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x") as opened:
        opened.execute("CREATE TABLE theirs (a)")
    opened.close()
    with pytest.raises(ConfigError, match="another program"):
        prepared(tmp_path / "x")


@pytest.mark.parametrize("path", ["/proc/nowhere/x.db", "/dev/null/x.db"])
def test_a_path_that_cannot_be_created_is_reported(path: str) -> None:
    with pytest.raises(StorageFailed, match="cannot be opened"):
        prepared(Path(path))


def test_a_path_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="cannot be opened: File name too long"):
        database.is_there(database.find(str(tmp_path / ("x" * 300))))


WITH_LITTLE_SPACE = """
import resource, sys
from corral._engine.dbos import database
from corral.errors import StorageFailed

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    database.prepare(database.find(sys.argv[1]))
except StorageFailed as error:
    print(error.message)
"""


@pytest.mark.deep
def test_a_database_that_a_full_disk_left_incomplete_is_created_later(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    argv = [sys.executable, "-c", WITH_LITTLE_SPACE, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(f"the database {path} cannot be written: disk"), done.stderr
    with client.connect(prepared(path)) as opened:
        assert opened.list_workflows() == []
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(at.name for at in tmp_path.glob("x.db*")) == ["x.db", "x.db.executors"]


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="cannot be opened"):
        prepared(tmp_path)


BEFORE_LAST = SCHEMA - 1
UNDO_LAST = "ALTER TABLE workflow_status DROP COLUMN creator_xid"
"""What undoes the last migration of the library in a database file."""


@pytest.mark.parametrize("is_undone", [True, False])
def test_an_interrupted_update_of_tables_is_completed_or_refused_in_one_line(
    tmp_path: Path, is_undone: bool
) -> None:
    """If the change was made and not recorded, the library cannot make it a second time."""
    path = tmp_path / "x"
    found = prepared(path)
    with client.connect(found) as opened:
        submission = database.WorkflowSubmission(name="n", id="kept", queue="q", payload={})
        opened.submit(submission)
    with closing(sqlite3.connect(path)) as changed, changed:
        changed.execute("UPDATE dbos_migrations SET version = ?", (BEFORE_LAST,))
        if is_undone:
            changed.execute(UNDO_LAST)
    before = path.read_bytes()
    if is_undone:
        database.prepare(found)
    else:
        with pytest.raises(FormatUnsupported) as raised:
            database.prepare(found)
        numbers = f"have version {BEFORE_LAST}, this corral needs version {SCHEMA}"
        assert numbers in str(raised.value)
        assert "\n" not in str(raised.value)
        assert path.read_bytes() == before
    assert sorted(at.name for at in tmp_path.glob("x.new*")) == []
    with client.connect(found) as opened:
        assert [row.id for row in opened.list_workflows()] == ["kept"]


def test_an_interrupted_update_of_tables_on_a_server_is_completed(new_postgres: str) -> None:
    import psycopg

    with psycopg.connect(new_postgres) as server:
        server.execute(b"UPDATE dbos.dbos_migrations SET version = %s", (BEFORE_LAST,))
        server.execute(b"ALTER TABLE dbos.workflow_status DROP COLUMN creator_xid")
    database.prepare(database.find(new_postgres))
    with psycopg.connect(new_postgres) as server:
        ((version,),) = server.execute(b"SELECT version FROM dbos.dbos_migrations").fetchall()
        server.execute(b"SELECT creator_xid FROM dbos.workflow_status")
    assert version >= SCHEMA


CREATES = """
import sys, time
from pathlib import Path
import dbos
from corral._engine.dbos import client, database

here = database.find(sys.argv[1])
Path(sys.argv[2]).touch()
while not Path("go").exists():
    time.sleep(0.001)
database.prepare(here)
with client.connect(here) as opened:
    opened.list_workflows()
"""


@pytest.mark.deep
def test_processes_that_create_it_at_the_same_time_all_succeed(tmp_path: Path) -> None:
    def one(number: int) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", CREATES, "new.db", f"ready{number}"]
        return subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.PIPE, text=True)

    creators = [one(number) for number in range(4)]
    wait_until(lambda: len([*tmp_path.glob("ready*")]) == 4, "all to be ready")
    (tmp_path / "go").touch()
    errors = [creator.communicate(timeout=60)[1] for creator in creators]
    assert [creator.returncode for creator in creators] == [0] * 4, "".join(errors)


def test_an_unreachable_server_is_reported_without_the_password() -> None:
    with pytest.raises(StorageFailed, match="cannot be reached") as raised:
        database.prepare(database.find("postgresql://u:secret@127.0.0.1:1/db"))
    assert "secret" not in str(raised.value)
    assert raised.value.retryable


def test_a_missing_database_is_created_on_the_server(postgres: str) -> None:
    url = postgres.replace("/postgres?", "/not_yet?")
    database.prepare(database.find(url))
    database.prepare(database.find(url))


def test_a_missing_library_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    with pytest.raises(CorralError) as raised:
        database.require()
    assert raised.value.hint == "pip install 'corral[engine]'"
    with pytest.raises(CorralError, match="engine") as raised:
        database.load(or_in_memory=True)
    assert "--no-durable" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (sqlite3.OperationalError("database or disk is full"), "Free some disk space"),
        (OSError("the server went away\nand more"), "x.db: the server went away$"),
    ],
)
def test_database_errors_become_storage_errors(
    cause: Exception, message: str, tmp_path: Path
) -> None:
    target = database.find(str(tmp_path / "x.db"))
    with pytest.raises(StorageFailed, match=message), database.storage_errors(target):
        raise OperationalError("INSERT", {}, cause)
    with pytest.raises(KeyError), database.storage_errors(target):
        raise KeyError


@pytest.mark.parametrize(
    ("free", "message"), [(0, "the disk is full"), (1 << 30, "disk I/O error")]
)
def test_an_io_error_on_a_full_disk_is_reported_as_full_disk(
    free: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite reports it if it cannot create the index of its log."""
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    target = database.find(str(tmp_path / "x.db"))
    with pytest.raises(StorageFailed, match=message) as raised, database.storage_errors(target):
        raise OperationalError("INSERT", {}, sqlite3.OperationalError("disk I/O error"))
    check = ", or check the disk" if free else ""
    assert raised.value.hint == f"Free some disk space{check}."
    assert "x.db cannot be written: " in raised.value.message


def test_a_database_that_is_checked_again_keeps_the_locks_of_this_process(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops the locks that this process has on it. Another process
    would then take itself for the last one, and remove the log of the open connection."""
    found = prepared(tmp_path / "x")
    # What SQLite does when a connection closes: an exclusive lock says that it is the last one.
    close_as_last = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b');"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)"
    )
    argv = [sys.executable, "-c", close_as_last, str(found.path)]
    with closing(sqlite3.connect(tmp_path / "x")) as opened:
        opened.execute("SELECT * FROM application_versions").fetchall()
        assert subprocess.run(argv, capture_output=True, check=False).returncode != 0
        database.prepare(found)
        assert subprocess.run(argv, capture_output=True, check=False).returncode != 0


def test_engines_of_a_file_share_no_connection(tmp_path: Path) -> None:
    found = database.find(str(tmp_path / "x.db"))
    database.prepare(found)
    first, second = (connections.open_engine(found.url, 2) for _ in range(2))
    query = sqlalchemy.text("SELECT 1")
    with first.connect() as one, second.connect() as two:
        assert one.connection.dbapi_connection is not two.connection.dbapi_connection
        assert one.execute(query).scalar() == 1
    connections.close_engine(first)
    with second.connect() as two:
        assert two.execute(query).scalar() == 1
        assert two.connection.isolation_level == "IMMEDIATE"
    connections.close_engine(second)
