"""Leases: whether an executor is alive, as the operating system or the database knows it.

Each executor holds one lock while it lives. The operating system or the database releases it
when the executor dies in any way, so that no heartbeat and no clock are needed. A process that can
take an executor's lock knows that the executor is dead. It puts the executor's work back on the
queues while it holds the lock, so that no other process does the same at the same time.

On a server a lease needs its own connection to Postgres; a connection pooler that shares
connections is refused (``database``).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from corral._engine.dbos.connections import CONNECT
from corral._engine.dbos.database import Database, locks_of
from corral._engine.dbos.private_calls import select_busy_executors
from corral._system import fs

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

SESSION = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "idle_session_timeout": "0",
}
"""Settings of the connection of a lease on the server."""

_FILE_NAME = re.compile(r"[\w-][\w.-]{0,199}", re.ASCII)
"""The ids of executors, as ``worker.executor`` makes them."""
_held_here: set[str] = set()
"""Executors of this process."""
taking_over: contextlib.AbstractContextManager[bool] = threading.RLock()
"""Held while this process takes over the work of a dead executor: it holds that executor's lease
then, which must not look like an executor that is alive."""


class ExecutorLiveness:
    """Which executors are alive; each is checked once. ``close`` it.

    A lease may be held for a moment by a process that takes over a dead executor's work. Where a
    decision depends on the answer (``is_strict``), the lease is checked several times."""

    def __init__(self, database: Database, *, is_strict: bool = False) -> None:
        self._pauses = (0.0, 0.1, 0.3, 0.6) if is_strict else (0.0,)
        self._leases = open_leases(database)
        self._known = dict.fromkeys(_held_here, True)

    def is_alive(self, executor: str | None) -> bool:
        if not executor:
            return False
        if executor not in self._known:
            for pause in self._pauses:
                time.sleep(pause)
                with taking_over, self._leases.claim(executor) as is_dead:
                    self._known[executor] = not is_dead
                if is_dead:
                    break
        return self._known[executor]

    def is_elsewhere(self, executor: str) -> bool:
        """Whether another process is this executor, and alive."""
        return executor not in _held_here and self.is_alive(executor)

    def close(self) -> None:
        self._leases.release()


def open_leases(database: Database) -> Leases:
    if database.path is not None:
        return FileLeases(database.path, locks_of(database.path))
    return ServerLeases(database.url)


class FileLeases:
    """A file lock for each executor: for one machine, like the database file next to it."""

    is_certain = True
    """Whether a lease that can be taken proves a death. On a server it does not: a lost connection
    may be opened again in a moment."""

    def __init__(self, database: Path, folder: Path) -> None:
        self._database, self._folder = database, folder
        self._lock: tuple[Path, int] | None = None

    def hold(self, executor: str) -> None:
        """From now on this executor counts as alive. Raises if its lock is taken."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._folder / executor
        self._lock = file, fs.lock_file(file)
        _held_here.add(executor)

    @contextlib.contextmanager
    def claim(self, executor: str) -> Generator[bool]:
        """Whether the executor is dead; no other process can claim it within the block."""
        if not _FILE_NAME.fullmatch(executor):
            # No executor has such an id. As a path it could name any file, which is deleted below.
            yield True
            return
        file = self._folder / executor
        try:
            fd = fs.lock_file(file)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            # Ids are never reused, so no process waits for this file.
            file.unlink(missing_ok=True)
            os.close(fd)

    def check(self) -> bool:
        """Whether the held lease is still ours. Tries to get it back if it was lost."""
        return self._lock is not None

    def busy(self) -> set[str]:
        """The executors that run workflows, according to the database."""
        with contextlib.closing(sqlite3.connect(self._database, timeout=30)) as opened:
            return _names(opened.execute(select_busy_executors(is_file=True)).fetchall())

    def wait(self, seconds: float) -> bool:
        """Wait that long. Returns False, at once, if the lease may be lost."""
        time.sleep(seconds)
        return True

    def release(self) -> None:
        """Release the lease for good."""
        if self._lock is not None:
            file, fd = self._lock
            self._lock = None
            _held_here.discard(file.name)
            file.unlink(missing_ok=True)
            os.close(fd)


class ServerLeases:
    """A Postgres advisory lock for each executor, held by a session: for many machines."""

    is_certain = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[TupleRow] | None = None
        self._executor: str | None = None
        self._released = False
        self._lock = threading.RLock()

    def hold(self, executor: str) -> None:
        with self._lock:
            if not self._run("SELECT pg_try_advisory_lock(%s)", executor):
                raise RuntimeError(f"another process holds the lease of {executor}")
            self._executor = executor
            _held_here.add(executor)

    @contextlib.contextmanager
    def claim(self, executor: str) -> Generator[bool]:
        with self._lock:
            if executor == self._executor:
                # A session can take its own lock twice, so that would prove nothing.
                yield False
                return
            taken = self._run("SELECT pg_try_advisory_lock(%s)", executor)
            try:
                yield taken
            finally:
                if taken:
                    self._run("SELECT pg_advisory_unlock(%s)", executor)

    def check(self) -> bool:
        import psycopg

        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(psycopg.Error):
                    self._connection.execute("SELECT 1")
                    return True
                self._disconnect()
            if self._executor is None:
                return False
            with contextlib.suppress(psycopg.Error):
                return self._run("SELECT pg_try_advisory_lock(%s)", self._executor)
            self._disconnect()
            return False

    def busy(self) -> set[str]:
        with self._lock:
            rows = self._open().execute(select_busy_executors(is_file=False).encode())
            return _names(rows.fetchall())

    def wait(self, seconds: float) -> bool:
        import psycopg

        # Only ``check`` may open it again: a new connection does not hold the lease.
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                # There are no notifications; but a connection that the server closes ends the wait.
                for _ in connection.notifies(timeout=seconds):
                    pass
                return True
        time.sleep(seconds)
        return False

    def release(self) -> None:
        with self._lock:
            _held_here.discard(self._executor or "")
            self._executor = None
            self._released = True
            self._disconnect()

    def _run(self, statement: str, executor: str) -> bool:
        digest = hashlib.blake2b(f"corral {executor}".encode(), digest_size=8).digest()
        lock = int.from_bytes(digest, signed=True)
        row = self._open().execute(statement.encode(), (lock,)).fetchone()
        return bool(row and row[0])

    def _open(self) -> psycopg.Connection[TupleRow]:
        if self._connection is None:
            import psycopg

            if self._released:  # the executor was closed while its sweep was still running
                raise RuntimeError("the lease was released")
            opened = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT,
                application_name="corral lease",
                # A machine that loses its network closes no connection: both sides must notice.
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
            )
            try:
                # As statements: a pooler refuses them in the options of a connection.
                for setting, value in SESSION.items():
                    opened.execute(b"SELECT set_config(%s, %s, false)", (setting, value))
            except psycopg.Error:
                opened.close()
                raise
            self._connection = opened
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


Leases: TypeAlias = FileLeases | ServerLeases
"""Their methods are documented in ``FileLeases``."""


def _names(rows: Sequence[tuple[object, ...]]) -> set[str]:
    return {str(row[0]) for row in rows if row[0]}
