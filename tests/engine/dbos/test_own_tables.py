"""The rate limits in the database of the runs: a file or a Postgres server."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from corral._engine.dbos import own_tables
from corral._engine.dbos.database import Database, find, prepare
from corral._metering.rate_limits import LimitState
from corral.errors import StorageFailed

NOW = time.time() + 24 * 3600
"""A time that the complete test run does not reach."""


@pytest.fixture
def database(db: str) -> Database:
    found = find(db)
    prepare(found)
    return found


def test_limits_are_stored_until_they_end(database: Database) -> None:
    assert own_tables.exchange_limits(database, {}) == {}
    met = {
        "a": LimitState(NOW + 500, "the secret of the service", is_spent=True),
        "b": LimitState(NOW + 600, "slow down", is_known=False),
        "past": LimitState(time.time() - 1, "over"),
    }
    found = own_tables.exchange_limits(database, met)
    assert found == own_tables.exchange_limits(database, {})
    assert found == {
        "a": LimitState(NOW + 500, own_tables.LIMIT_MESSAGE, is_spent=True),
        "b": LimitState(NOW + 600, own_tables.LIMIT_MESSAGE, is_known=False),
    }


def test_only_a_limit_that_ends_later_replaces_another(database: Database) -> None:
    def store(until: float) -> float:
        return own_tables.exchange_limits(database, {"a": LimitState(until, "")})["a"].until

    assert store(NOW + 500) == NOW + 500
    assert store(NOW + 400) == NOW + 500
    assert store(NOW + 600) == NOW + 600


def test_a_file_that_is_gone_is_not_created(tmp_path: Path) -> None:
    file = tmp_path / "gone.db"
    with pytest.raises(StorageFailed, match=r"gone\.db cannot be used"):
        own_tables.exchange_limits(
            Database(f"sqlite:///{file}", file), {"a": LimitState(NOW + 9, "")}
        )
    assert not file.exists()


def test_the_connection_to_a_server_is_closed_at_the_end_of_the_process(new_postgres: str) -> None:
    program = """
import sys
from corral._engine.dbos import own_tables
from corral._engine.dbos.database import find, prepare
found = find(sys.argv[1])
prepare(found)
print(own_tables.exchange_limits(found, {}))
"""
    words = [sys.executable, "-W", "always::ResourceWarning", "-c", program, new_postgres]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("{}\n", "")
