"""Leases: whether an executor lives, as the system itself knows it.

One lock for each executor, held for as long as it lives and let go by the operating system
or the database when it dies, however it dies. No heartbeat, no clock. Whoever can take an
executor's lock knows that it is gone, and may put its work back on the queues while he
holds it: so nobody else does the same at the same time.

On a server it needs a connection of its own, straight to Postgres: a pool of connections
between (pgbouncer in transaction mode) would hold the lock for everybody.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from corral.durable.dbos import adapter
from corral.durable.dbos.database import Database, locks_of
from corral.durable.dbos.sql import CONNECT
from corral.system import descriptors

if TYPE_CHECKING:
    import psycopg


class Leases(Protocol):
    @property
    def is_certain(self) -> bool:
        """Whether a lease that can be taken means a death for sure: a lost connection may be
        one that is made again in a moment."""
        ...

    def hold(self, executor: str) -> None:
        """From now on this executor counts as alive. Raises where it cannot be."""
        ...

    def claim(self, executor: str) -> contextlib.AbstractContextManager[bool]:
        """Whether it is gone; while the block lasts nobody else can claim it."""
        ...

    def check(self) -> bool:
        """Whether what we hold is still ours. Tries to get back what was lost."""
        ...

    def busy(self) -> set[str]:
        """The executors whose work is under way, as the database has it."""
        ...

    def release(self) -> None:
        """For good."""
        ...


def open_leases(database: Database) -> Leases:
    if database.path is not None:
        return FileLeases(database.path, locks_of(database.path))
    return ServerLeases(database.url)


class FileLeases:
    """A lock on a file for each executor: for one machine, like the database beside it."""

    is_certain = True

    def __init__(self, database: Path, folder: Path) -> None:
        self._database, self._folder = database, folder
        self._held: tuple[Path, int] | None = None

    def hold(self, executor: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._folder / executor
        self._held = file, descriptors.lock_file(file)

    @contextlib.contextmanager
    def claim(self, executor: str) -> Generator[bool]:
        file = self._folder / executor
        try:
            fd = descriptors.lock_file(file)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            # An id is never used again, so nobody waits for this file.
            file.unlink(missing_ok=True)
            os.close(fd)

    def check(self) -> bool:
        return self._held is not None

    def busy(self) -> set[str]:
        with contextlib.closing(sqlite3.connect(self._database, timeout=30)) as opened:
            return _names(opened.execute(adapter.EXECUTORS.format(schema="")).fetchall())

    def release(self) -> None:
        if self._held is not None:
            file, fd = self._held
            self._held = None
            file.unlink(missing_ok=True)
            os.close(fd)


class ServerLeases:
    """An advisory lock of a session for each executor: for many machines."""

    is_certain = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None
        self._executor: str | None = None
        self._released = False
        self._one_at_a_time = threading.RLock()

    def hold(self, executor: str) -> None:
        with self._one_at_a_time:
            self._executor = executor
            if not self.check():
                raise RuntimeError(f"somebody else holds the lease of {executor}")

    @contextlib.contextmanager
    def claim(self, executor: str) -> Generator[bool]:
        with self._one_at_a_time:
            if executor == self._executor:
                # A session may take its own lock again: that says nothing.
                yield False
                return
            taken = self._ask("SELECT pg_try_advisory_lock(%s)", executor)
            try:
                yield taken
            finally:
                if taken:
                    self._ask("SELECT pg_advisory_unlock(%s)", executor)

    def check(self) -> bool:
        import psycopg

        with self._one_at_a_time:
            if self._connection is not None:
                with contextlib.suppress(psycopg.Error):
                    self._connection.execute("SELECT 1")
                    return True
                self._forget()
            if self._executor is None:
                return False
            with contextlib.suppress(psycopg.Error):
                return self._ask("SELECT pg_try_advisory_lock(%s)", self._executor)
            self._forget()
            return False

    def busy(self) -> set[str]:
        with self._one_at_a_time:
            rows = self._open().execute(adapter.EXECUTORS.format(schema="dbos.").encode())
            return _names(rows.fetchall())

    def release(self) -> None:
        with self._one_at_a_time:
            self._executor = None
            self._released = True
            self._forget()

    def _ask(self, statement: str, executor: str) -> bool:
        row = self._open().execute(statement.encode(), (_number(executor),)).fetchone()
        return bool(row and row[0])

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            import psycopg

            if self._released:  # by whoever waited for a look at the others, in vain
                raise RuntimeError("the lease was released")
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT,
                application_name="corral lease",
                # A machine that vanishes says no goodbye: both sides have to notice.
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                options="-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2"
                " -c tcp_keepalives_count=3 -c idle_session_timeout=0",
            )
        return self._connection

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _names(rows: list[Any]) -> set[str]:
    return {str(row[0]) for row in rows if row[0]}


def _number(executor: str) -> int:
    digest = hashlib.blake2b(f"corral {executor}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
