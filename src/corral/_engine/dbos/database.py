"""The database that runs are stored in: a file in corral's home by default, or a Postgres server.

``prepare`` creates it or checks it, and reports problems as corral's own errors, before anything
is spent. ``connections`` connects to it with the settings that corral needs.

A user who can write to the database decides what the workers do, so only the owner may read or
write a database file.
"""

from __future__ import annotations

import errno
import glob
import importlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from corral._core import stored_formats
from corral._core.stored_formats import JOURNAL
from corral._engine.dbos import private_calls
from corral._engine.dbos.connections import CONNECT
from corral._engine.dbos.private_calls import SCHEMA
from corral._system import fs, paths
from corral.errors import ConfigError, FormatUnsupported, StorageFailed
from corral.values import Json

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

    ServerConnection: TypeAlias = psycopg.Connection[TupleRow]

Select: TypeAlias = Callable[[str], Sequence[tuple[object, ...]]]
"""Runs a statement and returns all rows."""

APPLICATION = "corral"
INSTALL = "pip install 'corral[engine]'"


State: TypeAlias = Literal[
    "delayed", "queued", "running", "succeeded", "failed", "cancelled", "dead_letter"
]
"""``delayed``: it is queued at a recorded time. ``failed``: the engine failed; the failure of a run
or node is an output. ``dead_letter``: its executors died too often while they ran it."""
OPEN_STATES: tuple[State, ...] = ("delayed", "queued", "running")
"""States of workflows that have not ended."""
ENDED_STATES: tuple[State, ...] = ("succeeded", "failed", "cancelled", "dead_letter")

_OF_LIBRARY: dict[str, State] = {
    "DELAYED": "delayed",
    "ENQUEUED": "queued",
    "PENDING": "running",
    "SUCCESS": "succeeded",
    "ERROR": "failed",
    "CANCELLED": "cancelled",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "dead_letter",
}


def from_library(status: object) -> State:
    """What is no state of the library counts as a failure: another program wrote it."""
    return _OF_LIBRARY.get(str(status), "failed")


def to_library(states: Sequence[State]) -> list[str]:
    return [status for status, state in _OF_LIBRARY.items() if state in states]


class WorkflowSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow to enqueue."""

    name: str
    id: str
    queue: str
    payload: dict[str, Json]
    labels: dict[str, Json] = {}


class UnreadableRecord(ConfigError):
    """A record in the database is not as corral writes it: another program changed it, or it is
    damaged."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, hint="Another program changed it, or it is damaged. Others are not affected."
        )


@contextmanager
def reading(workflow_id: str, format: int = JOURNAL) -> Generator[None]:
    """Within the block a record is decoded, or replayed, which has no other input: what fails there
    becomes ``UnreadableRecord``, and names the workflow. If it is of another format, it becomes
    ``FormatUnsupported``: an older one is read as far as that is possible."""
    stored_formats.check(repr(workflow_id), format, JOURNAL)
    try:
        yield
    except Exception as error:
        if format != JOURNAL:
            raise stored_formats.unsupported(repr(workflow_id), format, JOURNAL) from error
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, UnreadableRecord):
            reason = error.message
        raise UnreadableRecord(f"the record of {workflow_id!r} cannot be read: {reason}") from error


def is_installed() -> bool:
    """Whether the engine is installed."""
    return importlib.util.find_spec("dbos") is not None


def require(*, or_in_memory: bool = False) -> None:
    """Raises ``ConfigError`` if the engine is not installed. ``or_in_memory``: what the caller
    starts can run without it."""
    if not is_installed():
        memory = "; or run in memory, with --no-durable (durable=False)." if or_in_memory else ""
        raise ConfigError(
            "durable runs need the engine, which is not installed", hint=f"{INSTALL}{memory}"
        )


def load(*, or_in_memory: bool = False) -> None:
    """Import the engine. Raises ``ConfigError`` if it is not installed. For commands: while garbage
    collection is off, as it is until a command starts to work, this takes a quarter less time."""
    require(or_in_memory=or_in_memory)
    importlib.import_module("dbos")


_SECRET = re.compile(r"(?i)((?:^|&)(?:ssl)?password=)[^&]*")


def without_password(url: str) -> str:
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


class Database(msgspec.Struct, frozen=True):
    url: str
    path: Path | None
    """The file; None for a server."""

    @property
    def shown(self) -> str:
        """For messages: without its password."""
        return str(self.path) if self.path else without_password(self.url)


def locks_of(path: Path) -> Path:
    """The directory of the lease files of a database file."""
    return path.with_name(path.name + ".executors")


def default_file() -> Path:
    """The file in corral's home that runs are stored in. Each format has its own: a corral of an
    earlier format would refuse its own runs beside open ones of this format."""
    file = paths.home() / "engine.db"
    own = file.with_name(f"engine-{JOURNAL}.db")
    return own if own.exists() or private_calls.read_formats(file) - {JOURNAL} else file


def other_default_files() -> list[Path]:
    """The files in corral's home that corrals of other formats store their runs in."""
    own = default_file()
    return sorted(file for file in paths.home().glob("engine*.db") if file != own)


def check_not_elsewhere(database: Database, what: str, workflow_id: str) -> None:
    """Raises ``FormatUnsupported`` if the workflow is not in the default file of this format, which
    ``database`` is, but in that of another one. Blocking."""
    if database.path != default_file():
        return
    for file in other_default_files():
        format = private_calls.read_format(file, workflow_id)
        if format is not None and format != JOURNAL:
            raise stored_formats.unsupported(what, format, JOURNAL, f"; --db {file} shows it here")
        if format is not None:
            option = f"--db {shlex.quote(str(file))}"
            raise ConfigError(f"{what} is in another database", hint=f"Name it: {option}")


def find(given: str | None = None) -> Database:
    """The given database, else ``CORRAL_DB``, else a file in corral's home."""
    text = given or os.environ.get("CORRAL_DB") or str(default_file())
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
    file = Path(path).expanduser().absolute()
    paths.announce_database(file)
    return Database(f"sqlite:///{file}", file)


def prepare(database: Database) -> None:
    """Check that it is corral's and writable; create it if it is new, and update tables of an older
    version. Its runs may be of several formats: ``WorkflowInfo.format``. Blocking. Raises
    ``StorageFailed`` or ``ConfigError``."""
    require()
    with storage_errors(database):
        if database.path is not None:
            _prepare_file(database, database.path)
        else:
            _prepare_server(database)
    # For those who look for runs, such as ``corral view``.
    if database.path == default_file():
        return
    known = remembered()
    if database.shown not in known:
        with suppress(OSError):  # a list for convenience: nothing depends on it
            newest = [database.shown, *known][:MOST_REMEMBERED]
            paths.write_private(paths.home() / "databases.json", msgspec.json.encode(newest))


MOST_REMEMBERED = 50


def remembered() -> list[str]:
    """Databases outside corral's home that were used lately, the newest first; a server without
    its password (``***``)."""
    found = fs.read_small(paths.home() / "databases.json", 1 << 20)
    try:
        return msgspec.json.decode(found or b"[]", type=list[str])
    except msgspec.MsgspecError:
        return []


def is_there(database: Database) -> bool:
    """Whether it exists; then it is prepared. Blocking."""
    try:
        if database.path is not None and not database.path.exists():
            return False
    except OSError as error:
        raise _cannot_open(database.path, error) from error
    prepare(database)
    return True


def _prepare_file(database: Database, path: Path) -> None:
    try:
        if not path.parent.exists():
            paths.make_dir(path.parent)
        # Created before the library does: it would make the file readable by all users. A file that
        # exists is not opened: closing it would drop the locks that SQLite holds on it for other
        # threads of this process, and another process would then remove the log that they use.
        if not path.exists():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        elif path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        path.chmod(0o600)
        locks_of(path).mkdir(mode=0o700, exist_ok=True)
        # If several processes find it new, one creates it and the others wait.
        with fs.exclusive_lock(locks_of(path) / ".made"):
            _check_file(database, path)
    except OSError as error:
        raise _cannot_open(path, error) from error


def _cannot_open(path: Path | None, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"the database {path} cannot be opened: {error.strerror or error}",
        hint="Choose another with --db or CORRAL_DB.",
        phase="config",
    )


def _check_file(database: Database, path: Path) -> None:
    try:
        with closing(sqlite3.connect(path, timeout=30)) as opened:
            # WAL is a property of the file: a writer does not block readers.
            opened.execute("PRAGMA journal_mode=WAL")
            opened.execute("BEGIN IMMEDIATE")
            opened.rollback()
            tables = {row[0] for row in opened.execute("SELECT name FROM sqlite_master")}
            ours = "dbos_migrations" in tables
            schema = (
                _schema_version(lambda text: opened.execute(text).fetchall(), "") if ours else 0
            )
            holds_runs = "application_versions" in tables or (
                "workflow_status" in tables
                and opened.execute("SELECT 1 FROM workflow_status").fetchone() is not None
            )
    except sqlite3.Error as error:
        raise _explain(database, error) from error
    if tables and not ours:
        raise ConfigError(
            f"{path} is a database of another program",
            hint="Choose another file with --db or CORRAL_DB.",
        )
    if schema < SCHEMA and holds_runs:
        _update_file(database, path, schema)
    elif schema < SCHEMA:
        _create_file(database, path)


def _update_file(database: Database, path: Path, schema: int) -> None:
    """Update the tables. A copy is updated first: tables that another program changed, or that an
    update left incomplete, stay as they are."""
    copy = path.with_name(path.name + ".new")
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        migrate(f"sqlite:///{copy}")
    except Exception as error:
        raise _tables_unsupported(database, schema, error) from error
    finally:
        for name in (copy, *path.parent.glob(f"{glob.escape(copy.name)}-*")):
            name.unlink(missing_ok=True)
    migrate(database.url)


def _tables_unsupported(database: Database, schema: int, error: Exception) -> FormatUnsupported:
    return FormatUnsupported(
        f"the tables of {database.shown} have version {schema}, this corral needs version {SCHEMA},"
        f" and they cannot be updated ({_first_line(error)}): choose another database with --db"
    )


def _create_file(database: Database, path: Path) -> None:
    """Create all tables or none: tables that a full disk or a kill left incomplete cannot be
    completed later. The file that it replaces holds no run."""
    new = path.with_name(path.name + ".new")
    try:
        for old in (new, *path.parent.glob(f"{glob.escape(new.name)}-*")):
            old.unlink(missing_ok=True)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT, 0o600))
        with storage_errors(database):
            migrate(f"sqlite:///{new}")
        with closing(sqlite3.connect(new)) as opened:
            opened.execute("PRAGMA journal_mode=WAL")
        fs.move_into_place(new, path)
    except sqlite3.Error as error:
        raise _explain(database, error) from error
    except OSError as error:
        raise _cannot_open(path, error) from error


def _prepare_server(database: Database) -> None:
    """Check that the server can be reached and written, and create the tables if they are missing.
    Blocking. Raises ``StorageFailed`` or ``ConfigError``."""
    import psycopg

    schema = 0
    try:
        with psycopg.connect(database.url, connect_timeout=CONNECT) as server:

            def select(statement: str) -> list[TupleRow]:
                return server.execute(statement.encode()).fetchall()

            check_pooler(database, server)
            ((table,),) = select("SELECT to_regclass('dbos.dbos_migrations')")
            if table:
                schema = _schema_version(select, "dbos.")
            ((is_read_only,),) = select("SHOW transaction_read_only")
            if is_read_only == "on":
                raise StorageFailed(
                    f"the database {database.shown} is read-only",
                    hint="Is it a standby?",
                    phase="config",
                )
    except psycopg.OperationalError as error:
        if not _is_missing(database, error):
            raise _unreachable(database, error) from error
    except psycopg.Error as error:
        raise StorageFailed(
            f"the database {database.shown}: {_first_line(error)}", phase="config"
        ) from error
    if schema < SCHEMA:
        try:
            migrate(database.url)
        except Exception as error:
            cause = getattr(error, "orig", None) or error
            is_lost = isinstance(cause, psycopg.OperationalError)
            if is_lost and not _is_missing(database, cause):
                raise _unreachable(database, cause) from error
            if schema:
                raise _tables_unsupported(database, schema, error) from error
            raise StorageFailed(
                f"the tables of {database.shown} cannot be created: {_first_line(error)}",
                hint="Run corral once as the owner of the database.",
                phase="config",
            ) from error


def _is_missing(database: Database, error: Exception) -> bool:
    """Whether the server was reached and has no such database."""
    name = unquote(urlsplit(database.url).path.lstrip("/"))
    return f'database "{name}" does not exist' in str(error)


def _unreachable(database: Database, error: Exception) -> StorageFailed:
    return StorageFailed(
        f"the database {database.shown} cannot be reached: {_first_line(error)}",
        hint=CANNOT_REACH,
        phase="config",
        retryable=True,
    )


POOLER_ROUNDS = 20
"""How often two clients are compared. A pooler gives the connection that was released last to the
next client, so that the first round finds it, unless others use the pooler at the same moment."""


def check_pooler(database: Database, first: ServerConnection) -> None:
    """Raises ``ConfigError`` if a connection pooler such as pgbouncer shares connections. ``first``
    is in no transaction.

    A pooler in session mode gives each client its own connection to the server and is fine. In
    transaction mode clients share connections: a lease, which is a lock of a connection, would then
    be held for all of them, and the work of an executor that is alive would be run a second
    time."""
    import psycopg

    if _backend(first) == first.info.backend_pid:
        return  # the server itself: a pooler has numbers of its own for its clients
    with psycopg.connect(database.url, connect_timeout=CONNECT) as second:
        if any(_is_shared(first, second) for _ in range(POOLER_ROUNDS)):
            raise ConfigError(
                f"{database.shown} is a connection pooler in transaction mode, where locks are not"
                " held by one client",
                hint="Connect to Postgres directly, or set the pooler to session mode.",
            )


def _is_shared(first: ServerConnection, second: ServerConnection) -> bool:
    before = _backend(first)
    during = _backend(second, end=False)
    after = _backend(first)
    second.rollback()
    return len({before, during, after}) != 2 or before != after


def _backend(connection: ServerConnection, *, end: bool = True) -> int:
    """The process of the server that runs the statements of a transaction."""
    ((number,),) = connection.execute(b"SELECT pg_backend_pid()").fetchall()
    if end:
        connection.rollback()
    return int(number)


@contextmanager
def storage_errors(database: Database) -> Generator[None]:
    """Turns errors of the database (full, not reachable, read-only) into ``StorageFailed`` or
    ``ConfigError``."""
    try:
        yield
    except Exception as error:
        # SQLAlchemy wraps the errors of its drivers.
        cause = getattr(error, "orig", None) or error
        if isinstance(cause, sqlite3.Error):
            raise _explain(database, cause) from error
        if cause is not error or _is_of_server(error):
            # Without a state of SQL the server has not answered.
            is_away = _is_of_server(cause) and not getattr(cause, "sqlstate", None)
            raise StorageFailed(
                f"the database {database.shown}: {_first_line(cause)}",
                hint=CANNOT_REACH if is_away else None,
                retryable=True,
            ) from error
        raise


def _is_of_server(error: Exception) -> bool:
    """Whether the driver of servers raised it, or SQLAlchemy, which had no connection."""
    return type(error).__module__.partition(".")[0] in ("psycopg", "sqlalchemy")


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
        "disk I/O error": "Free some disk space, or check the disk.",
        "unable to open": CANNOT_OPEN,
    }
    hint = next((text_of_hint for part, text_of_hint in hints.items() if part in text), None)
    if "disk I/O error" in text and database.path is not None:
        with suppress(OSError):
            if shutil.disk_usage(database.path.parent).free < 64 * 1024:
                # SQLite could not create its index file.
                text, hint = "the disk is full", hints["disk is full"]
    what = " cannot be written" if "disk" in text else ""
    return StorageFailed(f"the database {database.shown}{what}: {text}", hint=hint, phase="config")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _schema_version(select: Select, prefix: str) -> int:
    """The version of the library's tables; 0 if none was recorded."""
    rows = select(f"SELECT version FROM {prefix}dbos_migrations")
    return int(str(rows[0][0])) if rows else 0


def migrate(url: str) -> None:
    """Create or update the tables. Blocking."""
    require()
    from dbos import DBOS

    logging.getLogger("dbos").setLevel("ERROR")
    DBOS.migrate(url)


CANNOT_REACH = "Is the server up, and are host, user and password right?"
CANNOT_OPEN = "Is its folder there? Are there free descriptors (`ulimit -n`)?"
