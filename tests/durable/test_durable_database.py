"""A database that will not do is named for what it is, before anything is spent."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from support.durable_processes import wait_until

from corral.durable.dbos import client, database
from corral.errors import ConfigError, CorralError, StorageFailed


def test_by_default_it_is_a_file_of_corrals_own(tmp_path: Path) -> None:
    found = database.find()
    assert found.path == tmp_path / "corral-home" / "engine.db"
    database.prepare(found)
    assert found.path is not None
    assert found.path.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(found.path) as opened:
        assert opened.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    opened.close()


def test_the_environment_names_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_server_has_several_spellings(given: str, url: str) -> None:
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
def test_what_cannot_be_kept_is_refused(given: str) -> None:
    with pytest.raises(ConfigError):
        database.find(given)


def prepared(path: Path) -> database.Database:
    found = database.find(str(path))
    database.prepare(found)
    return found


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no database at all" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        prepared(tmp_path / "x")
    assert (tmp_path / "x").read_bytes().startswith(b"no database at all")


def test_somebody_elses_database(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x") as opened:
        opened.execute("CREATE TABLE theirs (a)")
    opened.close()
    with pytest.raises(ConfigError, match="another program"):
        prepared(tmp_path / "x")


@pytest.mark.parametrize("path", ["/proc/nowhere/x.db", "/dev/null/x.db"])
def test_a_place_that_cannot_be_written(path: str) -> None:
    with pytest.raises(StorageFailed, match="cannot be opened"):
        prepared(Path(path))


def test_a_place_that_cannot_even_be_looked_at(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="cannot be opened: File name too long"):
        database.is_there(database.find(str(tmp_path / ("x" * 300))))


HAS_LITTLE_ROOM = """
import resource, sys
from corral.durable.dbos import database
from corral.errors import StorageFailed

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    database.prepare(database.find(sys.argv[1]))
except StorageFailed as error:
    print(error.message)
"""


def test_one_that_a_full_disk_left_half_made_is_made_later(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    argv = [sys.executable, "-c", HAS_LITTLE_ROOM, str(path)]
    told = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.startswith(f"the database {path}: disk"), told.stderr
    with client.connect(prepared(path)) as opened:
        assert opened.list_workflows() == []
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(at.name for at in tmp_path.glob("x.db*")) == ["x.db", "x.db.executors"]


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="cannot be opened"):
        prepared(tmp_path)


def test_a_newer_protocol_and_an_older_one(tmp_path: Path) -> None:
    found = prepared(tmp_path / "x")
    with sqlite3.connect(tmp_path / "x") as opened:
        opened.execute(
            "INSERT INTO application_versions (version_id, version_name, version_timestamp,"
            " created_at) VALUES ('a', '99', 1, 1)"
        )
    with pytest.raises(ConfigError, match="newer corral"):
        database.prepare(found)
    with opened:
        opened.execute("DELETE FROM application_versions")
        opened.execute(
            "INSERT INTO workflow_status (workflow_uuid, status, name, application_version,"
            " created_at, updated_at) VALUES ('w', 'PENDING', 'corral.run', '0', 1, 1)"
        )
    opened.close()
    with pytest.raises(ConfigError, match="older corral"):
        database.prepare(found)


MAKES = """
import sys, time
from pathlib import Path
import dbos
from corral.durable.dbos import client, database

here = database.find(sys.argv[1])
Path(sys.argv[2]).touch()
while not Path("go").exists():
    time.sleep(0.001)
database.prepare(here)
with client.connect(here) as opened:
    opened.list_workflows()
"""


def test_many_who_find_it_new_at_once_all_find_it_made(tmp_path: Path) -> None:
    def one(number: int) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", MAKES, "new.db", f"ready{number}"]
        return subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.PIPE, text=True)

    makers = [one(number) for number in range(6)]
    wait_until(lambda: len([*tmp_path.glob("ready*")]) == 6, "all to be ready")
    (tmp_path / "go").touch()
    said = [maker.communicate(timeout=60)[1] for maker in makers]
    assert [maker.returncode for maker in makers] == [0] * 6, "".join(said)


def test_a_server_that_is_away() -> None:
    with pytest.raises(StorageFailed, match="cannot be reached") as told:
        database.prepare(database.find("postgresql://u:secret@127.0.0.1:1/db"))
    assert "secret" not in str(told.value)
    assert told.value.retryable


def test_a_server_without_the_database_gets_one(postgres: str) -> None:
    url = postgres.replace("/postgres?", "/not_yet?")
    database.prepare(database.find(url))
    database.prepare(database.find(url))


def test_without_the_engine_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    with pytest.raises(CorralError) as told:
        database.require()
    assert "pip install 'corral[engine]'" in (told.value.hint or "")
    assert "--no-durable" in (told.value.hint or "")


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (sqlite3.OperationalError("database or disk is full"), "Free some disk space"),
        (OSError("the server went away\nand more"), "x.db: the server went away$"),
    ],
)
def test_what_a_database_will_not_do_is_told_in_our_words(
    cause: Exception, said: str, tmp_path: Path
) -> None:
    there = database.find(str(tmp_path / "x.db"))
    with pytest.raises(StorageFailed, match=said), database.storage_errors(there):
        raise OperationalError("INSERT", {}, cause)
    with pytest.raises(KeyError), database.storage_errors(there):
        raise KeyError


@pytest.mark.parametrize(("free", "said"), [(0, "the disk is full"), (1 << 30, "disk I/O error")])
def test_an_input_output_error_on_a_full_disk_says_that_it_is_full(
    free: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So SQLite reports that it cannot make the index of its log."""
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    there = database.find(str(tmp_path / "x.db"))
    with pytest.raises(StorageFailed, match=said) as told, database.storage_errors(there):
        raise OperationalError("INSERT", {}, sqlite3.OperationalError("disk I/O error"))
    assert told.value.hint == ("Free some disk space." if free == 0 else None)
