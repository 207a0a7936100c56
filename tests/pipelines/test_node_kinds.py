"""Node kinds are records in ``corral._pipelines.node_kinds`` and in no second list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral._pipelines import node_kinds
from corral._pipelines.execution import handlers

SRC = Path(__file__).parents[2] / "src" / "corral"
AREAS = ("_pipelines", "_engine", "_cli", "_view", "_serving", "_export", "providers")
FILES = sorted(path for area in AREAS for path in (SRC / area).rglob("*.py"))
ALLOWED = (SRC / "_pipelines" / "node_kinds.py", SRC / "_view", SRC / "_cli" / "demo.py")
"""The module with the records; the view, whose items have kinds of other names; and the demo, whose
scripted model calls a tool with the name of a kind."""
NAMES = frozenset((*node_kinds.KINDS, *node_kinds.ALIASES))
DISTINCT = frozenset(
    name for name in node_kinds.KINDS if "." in name or "_" in name
) | {"codergen", "conditional"}  # fmt: skip
"""Names that mean nothing but a node kind. The others are common words (``tool``, ``start``):
they count where they are compared with a kind, or stand in a list with other kinds."""


def _docstrings(tree: ast.AST) -> set[int]:
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _names_in(node: ast.AST | None) -> list[str]:
    return [
        each.value
        for each in (ast.walk(node) if node is not None else ())
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value in NAMES
    ]


def _is_kind(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name == "kind"


def _listed(node: ast.AST) -> list[str]:
    """Kind names that are together in a list, set or tuple, or are keys of one dict."""
    elements: list[ast.expr | None] = []
    if isinstance(node, ast.List | ast.Set | ast.Tuple):
        elements = list(node.elts)
    elif isinstance(node, ast.Dict):
        elements = list(node.keys)
    found = [
        each.value
        for each in elements
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value in NAMES
    ]
    return found if len(found) > 1 else []


def _literals(text: str) -> Iterator[str]:
    """String literals of this source that name a node kind."""
    tree = ast.parse(text)
    docstrings = _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in DISTINCT and id(node) not in docstrings:
            yield f"{node.lineno}: {node.value}"
        elif isinstance(node, ast.Compare) and any(
            _is_kind(side) for side in (node.left, *node.comparators)
        ):
            yield from (f"{node.lineno}: {name}" for name in _names_in(node))
        elif isinstance(node, ast.Match) and _is_kind(node.subject):
            for case in node.cases:
                yield from (f"{case.pattern.lineno}: {name}" for name in _names_in(case.pattern))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "of_kind":
            yield from (f"{node.lineno}: {name}" for each in node.args for name in _names_in(each))
        else:
            yield from (f"{getattr(node, 'lineno', 0)}: {name}" for name in _listed(node))


@pytest.mark.parametrize(
    "text",
    [
        'x = "wait.human"',
        'x = node.kind == "tool"',
        'x = kind in ("start", other)',
        'x = list(graph.of_kind("exit"))',
        'match node.kind:\n    case "parallel":\n        pass',
        'KINDS = {"set", "switch"}',
        'SIGNS = {"start": 1, "exit": 2}',
    ],
)
def test_the_search_finds_a_kind_name(text: str) -> None:
    assert list(_literals(text))


@pytest.mark.deep
def test_kind_names_are_only_in_the_records() -> None:
    assert len(FILES) > 100
    found = [
        f"{path.relative_to(SRC)}:{literal}"
        for path in FILES
        if not any(path.is_relative_to(allowed) for allowed in ALLOWED)
        for literal in _literals(path.read_text("utf-8"))
    ]
    assert found == []


def test_every_built_in_kind_has_a_built_in_handler() -> None:
    for kind in node_kinds.KINDS.values():
        if kind.handler:
            assert handlers.is_built_in(handlers.find(kind.name)), kind.name


def test_names_shapes_and_aliases_are_unique() -> None:
    kinds = node_kinds.KINDS.values()
    shapes = [kind.shape for kind in kinds if kind.shape]
    names = [name for kind in kinds for name in (kind.name, *kind.aliases)]
    assert len(shapes) == len(set(shapes)) == len(node_kinds.SHAPES)
    assert len(names) == len(set(names))


def test_an_unknown_kind_has_the_default_record() -> None:
    assert node_kinds.find("my.step") == node_kinds.NodeKind(name="my.step", llm="optional")
    assert node_kinds.of_shape("cylinder") is node_kinds.CODERGEN
