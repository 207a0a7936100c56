"""What corral uses of the library beyond its documentation is listed, and is what it was."""

from __future__ import annotations

import ast
import hashlib
import inspect
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import corral
from corral._engine.dbos.private_calls import PRIVATE_USES, SCHEMA, VERSIONS

PACKAGE = Path(corral.__file__).parent / "_engine" / "dbos"
KNOWN = {
    "_dbos.DBOS._recover_pending_workflows": "0c94d17fa1bcb61d",
    "_migration.get_migration_versions": "8d0e2e51859429ae",
    "_migration.get_sqlite_migration_versions": "567fae788a987732",
    "_recovery._recover_workflow": "ebfc6ed4df454172",
    "_recovery.recover_pending_workflows": "9f2a97ad0756a741",
    "_serialization.DefaultSerializer": "ae38ad15e95918c0",
    "_serialization.deserialize_args": "37e5c7a87a9729a5",
    "_serialization.deserialize_exception": "31e35f62f0d4f9e2",
    "_serialization.deserialize_value": "f22490354f07510b",
    "_sys_db.SystemDatabase._send_bulk_txn": "dd72e19825f6c28a",
    "_sys_db.SystemDatabase.reenqueue_for_recovery": "ac0bc1c45d8c36e4",
    "_sys_db.SystemDatabase.start_queued_workflows": "f8d6ba4ec0b52137",
    "_sys_db.SystemDatabase.transition_delayed_workflows": "ce37aab1bfcb9409",
    "table application_versions": "cdab9757670d5632",
    "table notifications": "f4dfc92c07e10456",
    "table workflow_status": "afbac38c82c23337",
}
"""The digest of each part of the library that corral depends on. If one has changed, read the new
version, and the reason in ``PRIVATE_USES``, before you change it here."""
EARLIER = {
    "3.3": {
        "_recovery._recover_workflow": "aca8ee2da71de2cf",
        "_sys_db.SystemDatabase._send_bulk_txn": "cb863f371d151ab5",
        "_sys_db.SystemDatabase.reenqueue_for_recovery": "aad4cf5572c4d60c",
        "_sys_db.SystemDatabase.start_queued_workflows": "8dcbf2b192c47021",
        "_sys_db.SystemDatabase.transition_delayed_workflows": "f98c5e1376a200ab",
    }
}
"""What was different in an earlier version that corral works with, too."""
CHANGED = "the library has changed what a private use depends on"


def digest(name: str) -> str:
    """Of the source of a function or class of the library, or of the columns of a table."""
    if name.startswith("table "):
        table = getattr(import_module("dbos._schemas.system_database").SystemSchema, name[6:])
        columns = [(each.name, str(each.type), each.nullable) for each in table.columns]
        return _short(repr(columns))
    module, _, path = name.partition(".")
    part: object = import_module(f"dbos.{module}")
    for attribute in path.split("."):
        part = getattr(part, attribute)
    assert callable(part)
    return _short(inspect.getsource(part))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_what_private_uses_depend_on_has_not_changed() -> None:
    minor = version("dbos").rpartition(".")[0]
    assert minor in VERSIONS
    names = sorted({name for use in PRIVATE_USES for name in use.depends_on})
    assert {name: digest(name) for name in names} == KNOWN | EARLIER.get(minor, {}), CHANGED
    migrations = import_module("dbos._migration")
    assert len(migrations.sqlite_migrations) >= SCHEMA
    assert len(migrations.get_dbos_migrations("dbos", True, False)) >= SCHEMA


def private_names(code: str) -> set[str]:
    """The private modules and attributes of the library that a module uses."""
    tree = ast.parse(code)
    names: set[str] = set()
    imported: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=aliases) if _is_library(module):
                imported |= {alias.asname or alias.name for alias in aliases}
                parts = [*module.split("."), *(alias.name for alias in aliases)]
                names |= {part for part in parts if part.startswith("_")}
            case ast.Import(names=aliases):
                for alias in aliases:
                    if _is_library(alias.name):
                        imported.add(alias.asname or "dbos")
                        names |= {part for part in alias.name.split(".") if part.startswith("_")}
            case _:
                pass
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            root: ast.expr = node.value
            while isinstance(root, ast.Attribute | ast.Call):
                root = root.value if isinstance(root, ast.Attribute) else root.func
            if isinstance(root, ast.Name) and root.id in imported:
                names.add(node.attr)
    return names


def _is_library(module: str) -> bool:
    return module == "dbos" or module.startswith("dbos.")


def test_only_one_module_uses_private_names_of_the_library() -> None:
    modules = {path.stem: path.read_text("utf-8") for path in PACKAGE.glob("*.py")}
    used = {module: private_names(code) for module, code in modules.items()}
    assert {module: names for module, names in used.items() if names} == {
        "private_calls": {"_recover_pending_workflows"}
    }
    # Private attributes of objects, which only a type checker finds, would need this comment.
    ignored = {module for module, code in modules.items() if "reportPrivateUsage" in code}
    assert ignored == {"private_calls"}


@pytest.mark.parametrize(
    "code",
    [
        "from dbos._sys_db import SystemDatabase",
        "from dbos import _core",
        "import dbos._queue",
        "from dbos import DBOS\nDBOS(config={})._sys_db.engine",
        "import dbos as library\nlibrary.DBOS._registry",
    ],
)
def test_every_form_of_a_private_name_is_detected(code: str) -> None:
    assert private_names(code)


def test_every_private_use_says_where_it_is() -> None:
    for use in PRIVATE_USES:
        for place in use.where:
            module, _, name = place.partition(".")
            found = import_module(f"corral._engine.dbos.{module}")
            assert not name or callable(getattr(found, name))
        assert use.reason
        assert use.unnecessary_if
