"""The database that runs are stored in: a file in corral's home by default, or a Postgres server.

Problems with it are reported here, as corral's own errors, before anything is spent. Whoever can
write to it decides what the workers do, so only the owner may read or write a database file.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from corral.durable.dbos import adapter
from corral.durable.dbos.sql import CONNECT
from corral.errors import ConfigError, StorageFailed
from corral.system import file_lock, fs, paths

_SECRET = re.compile(r"(?i)((?:^|&)(?:ssl)?password=)[^&]*")


def harmless(url: str) -> str:
    """The URL without its password."""
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}:***@{host}" if colon else f"{user}{at}{host}"
    return parts._replace(netloc=netloc, query=_SECRET.sub(r"\1***", parts.query)).geturl()


@dataclass(frozen=True)
class Database:
    url: str
    path: Path | None
    """The file; None for a server."""

    @property
    def shown(self) -> str:
        """For messages: without its password."""
        return str(self.path) if self.path else harmless(self.url)


def locks_of(path: Path) -> Path:
    """The directory of the lease files of a database file."""
    return path.with_name(path.name + ".executors")


def find(given: str | None = None) -> Database:
    """The given database, else ``CORRAL_DB``, else a file in corral's home."""
    text = given or os.environ.get("CORRAL_DB") or str(paths.home() / "engine.db")
    scheme = text.partition("://")[0] if "://" in text else ""
    if scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        return Database("postgresql" + text[len(scheme) :], None)
    if scheme == "sqlite":
        path = unquote(text.removeprefix("sqlite:///"))
    elif scheme == "":
        path = text
    else:
        raise ConfigError(
            f"{scheme} databases are not supported",
            hint="Use a file, sqlite:///file or postgresql://user@host/name.",
        )
    if path in ("", ":memory:") or text.rstrip("/") == "sqlite:":
        raise ConfigError(
            "a database in memory is not durable", hint="Choose a file, or use --no-durable."
        )
    whole = Path(path).expanduser().absolute()
    return Database(f"sqlite:///{whole}", whole)


def prepare(database: Database) -> None:
    """Check that it is corral's, writable and of this protocol; create it if it is new. Blocking.
    Raises ``StorageFailed`` or ``ConfigError``."""
    adapter.require()
    if database.path is not None:
        _prepare_file(database, database.path)
    else:
        _prepare_server(database)


def is_there(database: Database) -> bool:
    """Whether it exists; then it is prepared. Blocking."""
    try:
        if database.path is not None and not database.path.exists():
            return False
    except OSError as error:
        raise _shut(database.path, error) from error
    prepare(database)
    return True


def _prepare_file(database: Database, path: Path) -> None:
    try:
        if not path.parent.exists():
            paths.make_dir(path.parent)
        # Created before the library does: it would make the file readable by everybody.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
        locks_of(path).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _shut(path, error) from error
    # If several processes find it new, one creates it and the others wait.
    with file_lock.exclusive(locks_of(path) / ".made"):
        _look_into(database, path)


def _shut(path: Path | None, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"the database {path} cannot be opened: {error.strerror or error}",
        hint="Choose another with --db or CORRAL_DB.",
        phase="config",
    )


def _look_into(database: Database, path: Path) -> None:
    try:
        with closing(sqlite3.connect(path, timeout=30)) as opened:
            # WAL is a property of the file: a writer does not block readers.
            opened.execute("PRAGMA journal_mode=WAL")
            opened.execute("BEGIN IMMEDIATE")
            opened.rollback()
            tables = {row[0] for row in opened.execute("SELECT name FROM sqlite_master")}
            ours = "dbos_migrations" in tables
            made = "application_versions" in tables
            versions = _rows(opened, "application_versions") if made else []
            left = _left(opened, "workflow_status") if made else {}
    except sqlite3.Error as error:
        raise _explain(database, error) from error
    if tables and not ours:
        raise ConfigError(
            f"{path} is a database of another program",
            hint="Choose another file with --db or CORRAL_DB.",
        )
    _check_protocol(database, versions, left)
    if not made:
        _make(database, path)
    elif not versions:
        adapter.migrate(database.url)


def _make(database: Database, path: Path) -> None:
    """Create all tables or none: tables that a full disk or a kill left incomplete cannot be
    completed later. The file that it replaces holds no run."""
    new = path.with_name(path.name + ".new")
    try:
        for old in (new, *path.parent.glob(f"{glob.escape(new.name)}-*")):
            old.unlink(missing_ok=True)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT, 0o600))
        with storage_errors(database):
            adapter.migrate(f"sqlite:///{new}")
        with closing(sqlite3.connect(new)) as opened:
            opened.execute("PRAGMA journal_mode=WAL")
        fs.move_into_place(new, path)
    except sqlite3.Error as error:
        raise _explain(database, error) from error
    except OSError as error:
        raise _shut(path, error) from error


@contextmanager
def storage_errors(database: Database) -> Generator[None]:
    """Turns errors of the database (full, not reachable, read-only) into ``StorageFailed`` or
    ``ConfigError``."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", None)  # as SQLAlchemy has it
        if isinstance(cause, sqlite3.Error):
            raise _explain(database, cause) from error
        if cause is not None:
            raise StorageFailed(
                f"the database {database.shown}: {_first_line(cause)}", retryable=True
            ) from error
        raise


def _explain(database: Database, error: sqlite3.Error) -> StorageFailed | ConfigError:
    text = str(error)
    if "not a database" in text or "malformed" in text:
        return ConfigError(
            f"{database.shown} is not a database, or is damaged",
            hint="Choose another file with --db or CORRAL_DB.",
        )
    hints = {
        "readonly": "It is read-only: check its owner and mode.",
        "locked": "Another program has locked it for 30 seconds.",
        "disk is full": "Free some disk space.",
    }
    hint = next((words for part, words in hints.items() if part in text), None)
    if "disk I/O error" in text and _is_full(database):  # SQLite could not create its index file
        text, hint = "the disk is full", hints["disk is full"]
    return StorageFailed(f"the database {database.shown}: {text}", hint=hint, phase="config")


def _is_full(database: Database) -> bool:
    if database.path is None:
        return False
    with suppress(OSError):
        return shutil.disk_usage(database.path.parent).free < 64 * 1024
    return False


def _prepare_server(database: Database) -> None:
    import psycopg

    versions: list[str] = []
    left: dict[str, int] = {}
    try:
        with psycopg.connect(database.url, connect_timeout=CONNECT) as server:
            known = server.execute("SELECT to_regclass('dbos.application_versions')").fetchone()
            if known and known[0]:
                versions = _rows(server, "dbos.application_versions")
                left = _left(server, "dbos.workflow_status")
            if _flag(server, "SHOW transaction_read_only"):
                raise StorageFailed(
                    f"the database {database.shown} is read-only",
                    hint="Is it a standby?",
                    phase="config",
                )
    except psycopg.OperationalError as error:
        name = unquote(urlsplit(database.url).path.lstrip("/"))
        if f'database "{name}" does not exist' not in str(error):
            raise StorageFailed(
                f"the database {database.shown} cannot be reached: {_first_line(error)}",
                hint="Is the server up, and are host, user and password right?",
                phase="config",
                retryable=True,
            ) from error
    except psycopg.Error as error:
        raise StorageFailed(
            f"the database {database.shown}: {_first_line(error)}", phase="config"
        ) from error
    _check_protocol(database, versions, left)
    if not versions:
        try:
            adapter.migrate(database.url)
        except Exception as error:
            raise StorageFailed(
                f"the tables of {database.shown} cannot be created: {_first_line(error)}",
                hint="Run corral once as the owner of the database.",
                phase="config",
            ) from error


def _flag(server: Any, statement: str) -> bool:
    row = server.execute(statement).fetchone()
    return bool(row) and row[0] == "on"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _rows(opened: Any, table: str) -> list[str]:
    return [str(row[0]) for row in opened.execute(f"SELECT version_name FROM {table}").fetchall()]


def _left(opened: Any, table: str) -> dict[str, int]:
    """Protocol -> number of its workflows that have not ended."""
    marks = ", ".join(f"'{state}'" for state in adapter.OPEN)
    rows = opened.execute(
        f"SELECT application_version, count(*) FROM {table}"
        f" WHERE status IN ({marks}) AND application_version IS NOT NULL GROUP BY 1"
    ).fetchall()
    return {str(name): int(count) for name, count in rows}


def _check_protocol(database: Database, versions: list[str], left: dict[str, int]) -> None:
    ours = adapter.PROTOCOL
    newest = max((int(name) for name in versions if name.isdecimal()), default=ours)
    if newest > ours:
        raise ConfigError(
            f"{database.shown} was written by a newer corral (protocol {newest}, ours is {ours})",
            hint="Update corral, or choose another database with --db.",
        )
    behind = sum(count for name, count in left.items() if name != str(ours))
    if behind:
        raise ConfigError(
            f"{behind} tasks in {database.shown} were started by an older corral and would not end",
            hint="Let that version finish them, or choose another database with --db.",
        )
