"""The database that runs are stored in: a file in corral's home by default, or a Postgres server.

``prepare`` creates it or checks it, and reports problems as corral's own errors, before anything
is spent. ``open_engine`` connects to it with the settings that corral needs. The functions after
that read the library's tables directly, where the library has no call for it.

A user who can write to the database decides what the workers do, so only the owner may read or
write a database file. A row that is marked as a pickle is never decoded (``read_text``).
"""

from __future__ import annotations

import errno
import functools
import glob
import importlib
import importlib.util
import logging
import os
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Generator, MutableMapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from corral.engine.dbos.states import OPEN_STATES, to_library
from corral.errors import ConfigError, StorageFailed
from corral.system import clock, fs, paths

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine import ExceptionContext
    from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
    from sqlalchemy.pool import ConnectionPoolEntry

Select: TypeAlias = Callable[[str], Sequence[tuple[object, ...]]]
"""Runs a statement and returns all rows."""

PROTOCOL = 1
"""The version of the journal: raised only if this corral cannot continue runs of an older one."""
APPLICATION = "corral"
INSTALL = "pip install 'corral[engine]'"


class UnreadableRecord(ConfigError):
    """A record in the database is not as corral writes it: another program changed it, or it is
    damaged."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, hint="Another program changed it, or it is damaged. Others are not affected."
        )


@contextmanager
def reading(workflow_id: str) -> Generator[None]:
    """Within the block a record is decoded, or replayed, which has no other input: what fails there
    becomes ``UnreadableRecord``, and names the workflow."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, UnreadableRecord):
            reason = error.message
        raise UnreadableRecord(f"the record of {workflow_id!r} cannot be read: {reason}") from error


def is_installed() -> bool:
    """Whether the engine is installed."""
    return importlib.util.find_spec("dbos") is not None


def require() -> None:
    """Raises ``ConfigError`` if the engine is not installed."""
    if not is_installed():
        raise ConfigError(
            "durable runs need the engine, which is not installed",
            hint=f"{INSTALL}; or use --no-durable to run in memory.",
        )


def load() -> None:
    """Import the engine. Raises ``ConfigError`` if it is not installed. For commands: while garbage
    collection is off, as it is until a command starts to work, this takes a quarter less time."""
    require()
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
    file = Path(path).expanduser().absolute()
    paths.announce_database(file)
    return Database(f"sqlite:///{file}", file)


def prepare(database: Database) -> None:
    """Check that it is corral's, writable and of this protocol; create it if it is new. Blocking.
    Raises ``StorageFailed`` or ``ConfigError``."""
    require()
    with storage_errors(database):
        if database.path is not None:
            _prepare_file(database, database.path)
        else:
            from corral.engine.dbos import server_database

            server_database.prepare(database)
    # For those who look for runs, such as ``corral view``.
    if database.path == paths.home() / "engine.db":
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
            made = "application_versions" in tables

            def select(statement: str) -> list[tuple[object, ...]]:
                return opened.execute(statement).fetchall()

            versions = protocol_versions(select, "application_versions") if made else []
            left = count_open_workflows(select, "workflow_status") if made else {}
    except sqlite3.Error as error:
        raise _explain(database, error) from error
    if tables and not ours:
        raise ConfigError(
            f"{path} is a database of another program",
            hint="Choose another file with --db or CORRAL_DB.",
        )
    check_protocol(database, versions, left)
    if not made:
        _create_file(database, path)
    elif not versions:
        migrate(database.url)


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


@contextmanager
def storage_errors(database: Database) -> Generator[None]:
    """Turns errors of the database (full, not reachable, read-only) into ``StorageFailed`` or
    ``ConfigError``."""
    try:
        yield
    except Exception as error:
        # SQLAlchemy wraps the errors of its drivers.
        cause = error if isinstance(error, sqlite3.Error) else getattr(error, "orig", None)
        if isinstance(cause, sqlite3.Error):
            raise _explain(database, cause) from error
        if cause is not None:
            raise StorageFailed(
                f"the database {database.shown}: {first_line(cause)}", retryable=True
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
        "disk I/O error": "Free some disk space, or check the disk.",
        "unable to open": CANNOT_OPEN,
    }
    hint = next((text_of_hint for part, text_of_hint in hints.items() if part in text), None)
    if "disk I/O error" in text and _is_full(database):  # SQLite could not create its index file
        text, hint = "the disk is full", hints["disk is full"]
    what = " cannot be written" if "disk" in text else ""
    return StorageFailed(f"the database {database.shown}{what}: {text}", hint=hint, phase="config")


def _is_full(database: Database) -> bool:
    if database.path is None:
        return False
    with suppress(OSError):
        return shutil.disk_usage(database.path.parent).free < 64 * 1024
    return False


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def protocol_versions(select: Select, table: str) -> list[str]:
    """The protocols of all versions of corral that have used the database."""
    return [str(row[0]) for row in select(f"SELECT version_name FROM {table}")]


def count_open_workflows(select: Select, table: str) -> dict[str, int]:
    """Protocol -> number of its workflows that have not ended."""
    states = ", ".join(f"'{state}'" for state in to_library(OPEN_STATES))
    rows = select(
        f"SELECT application_version, count(*) FROM {table}"
        f" WHERE status IN ({states}) AND application_version IS NOT NULL GROUP BY 1"
    )
    return {str(name): int(str(count)) for name, count in rows}


def check_protocol(database: Database, versions: list[str], left: dict[str, int]) -> None:
    ours = PROTOCOL
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


def migrate(url: str) -> None:
    """Create or update the tables. Blocking."""
    require()
    from dbos import DBOS

    logging.getLogger("dbos").setLevel("ERROR")
    DBOS.migrate(url)


CANNOT_OPEN = "Is its folder there? Are there free descriptors (`ulimit -n`)?"

# Connections.

CONNECT = 5
"""Seconds until a server that does not answer counts as not reachable."""
_DISK_FULL = "53100"
"""The SQLSTATE of Postgres."""
_SUBSECONDS = (3, 42)
"""The version of SQLite that knows fractions of seconds."""
PATIENCE = 600
"""Seconds to wait for a connection that others use. A thousand runs that continue at once share
ten, and a run that waits in vain fails."""

UNUSABLE = ("disk is full", "disk I/O error", "unable to open database file")
"""SQLite's messages."""


def is_unusable(error: BaseException | None) -> bool:
    """Whether the database reports that it cannot be written, because its disk is full or fails; or
    not be opened, because this process has no free descriptor."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        return any(part in str(cause) for part in UNUSABLE)
    return getattr(cause, "sqlstate", None) == _DISK_FULL


def open_engine(
    url: str, connections: int, on_unusable: Callable[[BaseException], None] | None = None
) -> Engine:
    """An engine with at most ``connections`` connections. ``on_unusable`` is called, in any
    thread, when the database cannot be written or opened any more."""
    from sqlalchemy import event

    if on_unusable is None and url.startswith("sqlite:"):
        return _open_like_first(url, connections)
    engine = _create_engine(url, connections)
    if on_unusable is not None:

        def report_if_unusable(context: ExceptionContext) -> None:
            if is_unusable(context.original_exception):
                on_unusable(context.original_exception)

        event.listen(engine, "handle_error", report_if_unusable)
    return engine


def _create_engine(url: str, connections: int) -> Engine:
    import sqlalchemy as sa
    from sqlalchemy import event

    address = sa.make_url(url)
    if address.drivername != "sqlite":
        address = address.set(drivername="postgresql+psycopg")
    engine = sa.create_engine(
        address,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=PATIENCE,
        pool_pre_ping=True,
    )
    if address.drivername == "sqlite":
        event.listen(engine, "connect", _set_up_file)
        event.listen(engine, "before_cursor_execute", _begin)
    else:
        from corral.engine.dbos import server_database

        server_database.set_up(engine)
    return engine


_opening = threading.Lock()


def _open_like_first(url: str, connections: int) -> Engine:
    """An engine of a database file that has its own connections, but shares what all engines of the
    file would learn and compile: a process opens many, each for a few statements."""
    import sqlalchemy as sa
    from sqlalchemy import event

    with _opening:
        first, compiled = _first_engine(url, connections)
    options = {"compiled_cache": compiled}
    engine = sa.Engine(first.pool.recreate(), first.dialect, first.url, execution_options=options)
    event.listen(engine, "before_cursor_execute", _begin)
    return engine


@functools.lru_cache(maxsize=8)
def _first_engine(url: str, connections: int) -> tuple[Engine, MutableMapping[Any, Any]]:
    """An engine that was connected once, without connections; and a cache of statements."""
    from sqlalchemy.util import LRUCache

    engine = _create_engine(url, connections)
    try:
        engine.connect().close()
    finally:
        engine.dispose()
    return engine, LRUCache(500)


def close_engine(engine: Engine) -> None:
    """Close all connections, also one that a thread still uses because its caller was cancelled:
    the pool would otherwise take it back after this and keep it open."""
    from sqlalchemy import event

    event.listen(engine, "checkin", _close_returned)
    engine.dispose()


def _close_returned(_connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    record.invalidate()


def _set_up_file(connection: sqlite3.Connection, _record: ConnectionPoolEntry) -> None:
    """As the library does, but no text is the name of pickles."""
    connection.text_factory = read_text
    connection.isolation_level = "IMMEDIATE"
    connection.execute("PRAGMA busy_timeout=30000")
    connection.execute("PRAGMA foreign_keys=ON")
    if sqlite3.sqlite_version_info < _SUBSECONDS:
        connection.create_function("unixepoch", 1, _unixepoch)


PICKLE = b"py_pickle"
JSON = "portable_json"
"""What the library calls the format of corral's rows."""


def read_text(raw: bytes) -> str:
    """The text of a column. The library decodes each row in the format that the row names, and
    decoding a pickle executes its content. corral's rows are JSON, so a row that names that format
    is read as if it named JSON, and decoding it fails. No other text is the name of a format."""
    return JSON if raw == PICKLE else raw.decode()


def _unixepoch(modifier: str) -> float:
    """As newer versions of SQLite have it. From Python 3.12 on the library uses it, whatever the
    version of SQLite is, which then returns NULL."""
    if modifier != "subsec":
        raise ValueError(f"unixepoch({modifier!r}) is not available")
    return clock.now()


def _begin(connection: Connection, cursor: DBAPICursor, statement: str, *_other: object) -> None:
    """Start a write transaction before running workflows are counted. SQLite starts one only at
    the first write, so two processes that count at the same time would both take the last place of
    a limited queue."""
    if statement.startswith("SELECT count(") and not connection.connection.in_transaction:
        cursor.execute("BEGIN IMMEDIATE")
