"""corral changes no library: no replaced attributes, no code objects, no placeholder modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral

SOURCE = Path(corral.__file__).parent
CODE = {"CodeType", "FunctionType", "__code__", "co_code", "co_names"}


def patches(code: str) -> Iterator[str]:
    """Each statement of a module that changes a module or class of another program."""
    tree = ast.parse(code)
    foreign = set(_imported(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                changed = targets
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                changed = [target]
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[target, *_]):
                changed = [ast.Attribute(value=target, attr="any")]
            case ast.Call(func=ast.Attribute(value=target, attr="update" | "setdefault" | "pop")):
                changed = [target] if ast.unparse(target) == "sys.modules" else []
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                changed = []
                if name in CODE:
                    yield f"{getattr(node, 'lineno', '')}: {name}"
            case _:
                changed = []
        for target in changed:
            if isinstance(target, ast.Attribute | ast.Subscript) and _root(target) in foreign:
                yield f"{getattr(node, 'lineno', '')}: {ast.unparse(target)}"


def _imported(tree: ast.Module) -> Iterator[str]:
    """The names that come from other programs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if not f"{home}.{alias.name}".strip(".").startswith("corral"):
                    yield alias.asname or alias.name.partition(".")[0]


def _root(target: ast.expr) -> str:
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


ALLOWED = {"os.environ", "sys.argv", "sys.path", "sys.stdin", "sys.stderr",
           "warnings.showwarning", "sys.modules[name]"}  # fmt: skip
"""Their documentation says that a program may replace them; to ``sys.modules`` it may add a module
that it has made of a file (the recipe of ``importlib``)."""


@pytest.mark.spine
def test_corral_changes_no_library() -> None:
    found = {
        str(path.relative_to(SOURCE)): [
            line
            for line in patches(path.read_text("utf-8"))
            if not any(f": {name}" in line for name in ALLOWED)
        ]
        for path in SOURCE.rglob("*.py")
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import dbos\ndbos.DBOS.launch = None",
        "from dbos import DBOS\nsetattr(DBOS, 'launch', None)",
        "from dbos._queue import Queue\nQueue.wait: object = None",
        "import dbos\ndel dbos.DBOS",
        "import sys\nsys.modules['x'] = None",
        "import sys\nsys.modules.update({})",
        "from types import FunctionType",
        "def f(): pass\nf.__code__",
    ],
)
def test_every_form_of_a_change_is_detected(code: str) -> None:
    assert list(patches(code))


def test_own_names_may_be_changed() -> None:
    assert not list(patches("from corral import x\nx.y = 1\nself.z = 2\nsetattr(self, 'a', 1)"))
