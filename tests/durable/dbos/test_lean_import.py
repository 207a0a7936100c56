"""The import of the library without what corral does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from corral.durable.dbos import lean_import
lean_import.load()
left_out = (
    "psycopg",
    "yaml",
    "croniter",
    "dateutil",
    "sqlalchemy.orm",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.dialects.postgresql",
)
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

assert dbos._utils.quote_identifier('a"b') == '"a""b"'
assert dbos._scheduler.croniter.is_valid("* * * * *")
import datetime, dbos._serialization
assert dbos._serialization.isoparse("2026-01-31") == datetime.datetime(2026, 1, 31)
print("ok")
"""

OTHER_VERSION = """
import sys
from corral.durable.dbos import lean_import
assert lean_import.VERSIONS.keys() == {"dbos", "sqlalchemy"}
lean_import.VERSIONS[sys.argv[1]] = sys.argv[2]
lean_import.load()
print("dbos" in sys.modules, "sqlalchemy.orm" in sys.modules)
"""

FILE = """
import sys
from corral.durable.dbos import lean_import
lean_import.load()
from corral.durable.dbos import database
from corral.durable.dbos.client import Client, Submission
from pathlib import Path
path = Path(sys.argv[1])
found = database.Database(f"sqlite:///{path}", path)
database.prepare(found)
client = Client(found.url)
client.ensure_queue("q")
client.submit(Submission(name="run", id="one", queue="q", payload={}, labels={"a": "b"}))
assert client.list_workflows()[0].labels == {"a": "b"}
client.close()
assert "sqlalchemy.dialects.sqlite" in sys.modules
assert "sqlalchemy.dialects.postgresql" not in sys.modules
print("ok")
"""

EXPRESSIONS = """
import sys
if sys.argv[1] == "lean":
    from corral.durable.dbos import lean_import
    lean_import.load()
    from sqlalchemy.sql.annotation import annotated_classes
    assert len(annotated_classes) < 20  # there are more than 100 when all are prepared
import dbos, importlib, inspect, sqlalchemy, warnings
from dbos._schemas.system_database import SystemSchema
from importlib.metadata import version
from sqlalchemy.util import compat, langhelpers

assert version("sqlalchemy") == importlib.metadata.version("sqlalchemy") == sqlalchemy.__version__
assert compat.importlib_metadata_get("console_scripts")
table = SystemSchema.workflow_status
status = table.c.status
for element in (status, table, status == "x", sqlalchemy.func.count(), table.alias("t")):
    annotated = element._annotate({"a": 1})
    print(type(annotated).__name__, annotated, annotated._annotations["a"])
query = sqlalchemy.select(table.c.status).where(table.c.name.in_(["a", "b"])).order_by(table.c.name)
query = query.limit(2).distinct().with_for_update()
print(query, query._generate_cache_key().key == query.limit(2)._generate_cache_key().key)
print(inspect.signature(sqlalchemy.Select.limit), sqlalchemy.Select.limit.__doc__)
print([name for name in dir(sqlalchemy.Select) if not name.startswith("__")])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    query.froms
print([str(each.message) for each in caught])
print(langhelpers.walk_subclasses(sqlalchemy.ColumnElement).__class__.__name__)
"""

STATEMENTS = """
import sys
if sys.argv[1] == "lean":
    from corral.durable.dbos import lean_import
    lean_import.load()
import dbos, sqlalchemy
from dbos._schemas.system_database import SystemSchema
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable
for dialect in (postgresql.psycopg.dialect(), sqlite.dialect()):
    for table in SystemSchema.metadata_obj.sorted_tables:
        print(CreateTable(table).compile(dialect=dialect))
        print(sqlalchemy.insert(table).compile(dialect=dialect))
"""


def _output(program: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=120
    )
    assert not done.stderr
    return done.stdout


@pytest.mark.seconds
def test_what_was_left_out_is_loaded_when_it_is_used() -> None:
    assert _output(PROGRAM) == "ok\n"


@pytest.mark.seconds
def test_a_database_file_needs_nothing_of_postgres(tmp_path: Path) -> None:
    assert _output(FILE, str(tmp_path / "x.db")) == "ok\n"


@pytest.mark.seconds
def test_the_statements_for_a_server_are_the_same() -> None:
    expected = _output(STATEMENTS, "complete")
    assert "JSONB" in expected
    assert _output(STATEMENTS, "lean") == expected


@pytest.mark.seconds
def test_expressions_are_the_same() -> None:
    assert _output(EXPRESSIONS, "lean") == _output(EXPRESSIONS, "complete")


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("package", "version", "is_complete"),
    [("sqlalchemy", "2.1", False), ("sqlalchemy", "2.2", True), ("dbos", "3.4", True)],
)
def test_other_versions_are_imported_completely(
    package: str, version: str, is_complete: bool
) -> None:
    assert _output(OTHER_VERSION, package, version) == f"True {is_complete}\n"
