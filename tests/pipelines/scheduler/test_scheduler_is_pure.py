"""The scheduler is pure: nothing that it imports, directly or not, can do I/O."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
PACKAGE = "corral._pipelines.scheduler"
MODULES = sorted(
    f"{PACKAGE}.{path.stem}" for path in (SRC / "corral/_pipelines/scheduler").glob("[a-z]*.py")
)
LAZY_PACKAGES = ("corral", "corral.pipelines")
"""They load their public names on first use. The names are not what the scheduler imports; a
module of the scheduler that used one would import it from its own module."""
PURE = frozenset(
    (
        "__future__", "_thread", "collections", "collections.abc", "contextlib", "dataclasses",
        "decimal", "difflib", "enum", "errno", "functools", "hashlib", "itertools", "json", "math",
        "msgspec", "msgspec.structs", "operator", "re", "types", "typing", "typing_extensions",
        "unicodedata", "weakref",
    )
)  # fmt: skip
"""Modules from outside corral that the scheduler may import: they touch no machine."""
IMPURE = (
    "asyncio", "socket", "subprocess", "threading", "select", "selectors", "signal", "ssl",
    "multiprocessing", "concurrent", "tempfile", "shutil", "logging", "random", "sqlite3",
    "http", "urllib", "pathlib", "glob", "importlib.metadata", "corral._system",
    "corral._sessions", "corral._inference", "corral._engine", "corral._pipelines.execution",
    "corral._pipelines.nodes",
)  # fmt: skip


def _imports(tree: ast.AST, module: str) -> Iterator[str]:
    """Every module that this source may import, lazy imports included. Imports for the type
    checker only are left out."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for each in node.body
        for inner in ast.walk(each)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *filter(None, [base])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if _file(inner) is not None else base
        elif isinstance(node, ast.Call) and _called(node).endswith(("import_module", "__import__")):
            yield f"<dynamic import in {module}>"


def _called(node: ast.Call) -> str:
    """The last part of the name of the function."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


@functools.cache
def _read(path: Path, module: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the module imports, and the built-in functions with side effects that it calls."""
    tree = ast.parse(path.read_text("utf-8"))
    calls = tuple(
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("open", "exec", "eval", "input", "print")
    )
    return tuple(_imports(tree, module)), calls


def _file(module: str) -> Path | None:
    path = SRC.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def _impure(modules: list[str]) -> list[str]:
    """What these modules import, transitively, that is neither corral's own nor pure, with the
    module that imports it; and uses of ``open``."""
    todo, visited, found = list(modules), set[str](LAZY_PACKAGES), list[str]()
    while todo:
        module = todo.pop()
        path = _file(module)
        if module in visited or path is None:
            continue
        visited.add(module)
        imports, calls = _read(path, module)
        for name in imports:
            if name.split(".")[0] == "corral":
                todo.append(name)
                if any(name == bad or name.startswith(f"{bad}.") for bad in IMPURE):
                    found.append(f"{module} imports {name}")
            elif name not in PURE:
                found.append(f"{module} imports {name}")
        found += [f"{module} calls {name}" for name in calls]
    assert len(visited) > 15
    return sorted(set(found))


def test_nothing_that_the_scheduler_imports_can_do_io() -> None:
    assert _impure(MODULES) == []


@pytest.mark.deep
@pytest.mark.parametrize(
    "module", ["corral._pipelines.loader", "corral._pipelines.execution.attempt"]
)
def test_the_walk_over_imports_finds_modules_with_io(module: str) -> None:
    assert any(name.endswith(("imports os", "imports asyncio")) for name in _impure([module]))


def test_the_walk_over_imports_sees_lazy_and_dynamic_ones() -> None:
    lazy = "def f():\n    from corral._system import paths\n    import socket\n"
    assert list(_imports(ast.parse(lazy), "corral.x")) == ["corral._system.paths", "socket"]
    dynamic = "import importlib\nimportlib.import_module('socket')"
    assert "<dynamic import in corral.x>" in list(_imports(ast.parse(dynamic), "corral.x"))


def test_importing_the_scheduler_loads_no_module_with_io() -> None:
    code = (
        "import sys\nbefore = set(sys.modules)\n"
        + "".join(f"import {module}\n" for module in MODULES)
        + "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert f"{PACKAGE}.scheduler" in loaded
    bad = [
        name
        for name in loaded
        if any(name == impure or name.startswith(f"{impure}.") for impure in IMPURE)
    ]
    assert bad == []
