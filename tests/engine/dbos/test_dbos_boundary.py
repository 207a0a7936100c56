"""Only ``corral._engine.dbos`` knows the DBOS library, its types, tables and database."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import corral
from corral._engine.dbos import database

SOURCE = Path(corral.__file__).parent
PACKAGE = "corral._engine.dbos"
TABLES = re.compile(r"\b(workflow_status|operation_outputs|workflow_events|application_versions)\b")
STATES = {
    "DELAYED",
    "ENQUEUED",
    "PENDING",
    "SUCCESS",
    "ERROR",
    "CANCELLED",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED",
}


def mentions(code: str) -> Iterator[str]:
    """Each string, identifier and imported module that names the library or its tables."""
    if "dbos" not in code.lower() and not TABLES.search(code):
        return
    for node in ast.walk(ast.parse(code)):
        for word in _words(node):
            is_ours = word == PACKAGE or word.startswith(PACKAGE + ".")
            if not is_ours and ("dbos" in word.lower() or TABLES.search(word)):
                yield f"line {getattr(node, 'lineno', '?')}: {word[:60]}"


def _words(node: ast.AST) -> list[str]:
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ImportFrom(module=module):
            return [module or ""]
        case ast.alias(name=name, asname=alias):
            return [name, alias or ""]
        case ast.keyword(arg=name):
            return [name or ""]
        case _:
            return []


def states_in_text(code: str) -> list[str]:
    """The states of the library that a module has as texts."""
    if not any(state in code for state in STATES):
        return []
    nodes = ast.walk(ast.parse(code))
    return [
        f"line {node.lineno}: {node.value}"
        for node in nodes
        if isinstance(node, ast.Constant) and node.value in STATES
    ]


def test_states_have_corrals_own_names_outside_of_the_package() -> None:
    named = {
        str(path.relative_to(SOURCE)): states_in_text(path.read_text("utf-8"))
        for path in SOURCE.rglob("*.py")
        if path.parent != SOURCE / "_engine" / "dbos"
    }
    # The status of a call, as the API of Gemini has it, and of a step of Antigravity.
    others = {
        "_models/errors.py",
        "_agents/antigravity/bridge.py",
        "_testing/model_server/gemini.py",
    }
    assert {path for path, lines in named.items() if lines} == others
    assert states_in_text("match row.state:\n    case 'PENDING': pass")


def test_every_state_of_the_library_has_a_name() -> None:
    from dbos import WorkflowStatusString

    assert {each.value for each in WorkflowStatusString} == STATES
    words = {database.from_library(each) for each in STATES}
    assert words == {*database.OPEN_STATES, *database.ENDED_STATES}
    assert database.to_library(["queued", "dead_letter"]) == [
        "ENQUEUED",
        "MAX_RECOVERY_ATTEMPTS_EXCEEDED",
    ]


def test_only_one_package_names_the_library_or_its_tables() -> None:
    found = {
        str(path.relative_to(SOURCE)): list(mentions(path.read_text("utf-8")))
        for path in SOURCE.rglob("*.py")
        if path.parent != SOURCE / "_engine" / "dbos"
    }
    assert {path: words for path, words in found.items() if words} == {}


def test_every_form_of_mentioning_the_library_is_detected() -> None:
    for code in (
        "import dbos",
        "from dbos import x",
        "from dbos._sys_db import x",
        "from corral._engine import dbos",
        "from corral._engine.dbos import client as dbos_client",
        "x: 'DBOSClient'",
        "def dbos_call(): pass",
        "f(dbos=1)",
        "'SELECT 1 FROM workflow_status'",
    ):
        assert list(mentions(code)), code
    assert not list(mentions("from corral._engine.dbos import client"))
    assert not list(
        mentions("import importlib; importlib.import_module('corral._engine.dbos.database')")
    )
