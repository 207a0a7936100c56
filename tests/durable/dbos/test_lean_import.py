"""The import of the library without what corral does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from corral.durable.dbos import lean_import
lean_import.load()
left_out = ("psycopg", "yaml", "sqlalchemy.orm", "sqlalchemy.ext.asyncio")
assert not [name for name in left_out if name in sys.modules]

import dbos._context, dbos._datasource, dbos._queue, dbos._utils
assert not isinstance(1, dbos._context.Session)
assert not [name for name in left_out if name in sys.modules]

import sqlalchemy
engine = sqlalchemy.create_engine("sqlite://")
session = dbos._context.Session(engine)
from sqlalchemy.orm import Session, sessionmaker
assert type(session) is Session
assert isinstance(session, dbos._context.Session)
assert isinstance(sessionmaker(), dbos._datasource.SyncSessionmaker)

errors = dbos._queue.errors.LockNotAvailable, dbos._utils.psycopg.errors.ConnectionTimeout
import psycopg
assert errors == (psycopg.errors.LockNotAvailable, psycopg.errors.ConnectionTimeout)
print("ok")
"""


@pytest.mark.seconds
def test_what_was_left_out_is_loaded_when_it_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "ok\n", done.stderr
