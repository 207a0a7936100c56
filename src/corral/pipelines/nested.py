"""Pipelines inside pipelines: where their files are, and whether they may run.

A child's file is looked for beside the pipeline that names it, then in the workspace.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from corral.errors import ConfigError
from corral.pipelines import loading
from corral.pipelines.children import dotfile
from corral.pipelines.graph import Graph, Node, Value

KINDS = ("include", "stack.manager_loop")
KEYS = ("dotfile", "pipeline", "path", "stack.child_dotfile")
DEEPEST = 20
"""Pipelines in pipelines: more is one that includes itself."""


def beside(graph: Graph, folder: Path) -> Graph:
    """With the whole path of every child that lies in this folder."""
    nodes = {name: _placed(node, folder) for name, node in graph.nodes.items()}
    key = KEYS[-1]
    attrs = dict(graph.attrs)
    if key in attrs:
        attrs[key] = _whole(attrs[key], folder)
    return Graph(graph.name, attrs, nodes, graph.edges)


def check(graph: Graph, workspace: Path, depth: int = 1) -> None:
    """That every child can be read and may run. Raises ``ConfigError`` with the node's name.
    One whose name the run must fill in is not looked at."""
    for node, file in children(graph):
        if "{{" in file:
            continue
        path = workspace / file
        if depth > DEEPEST:
            raise ConfigError(f"{node.id}: {file} includes itself, over and over")
        try:
            child = beside(loading.load(path, workspace=workspace), path.parent)
        except ConfigError as error:
            raise ConfigError(
                f"the pipeline of node {node.id!r}: {error.message}", hint=error.hint
            ) from error
        check(child, workspace, depth + 1)


def children(graph: Graph) -> Iterator[tuple[Node, str]]:
    """Each node that runs another pipeline, and its file."""
    for node in graph.of_kind(*KINDS):
        if file := dotfile(graph, node):
            yield node, file


def _placed(node: Node, folder: Path) -> Node:
    if node.kind not in KINDS or not any(key in node.attrs for key in KEYS):
        return node
    attrs = {
        key: _whole(value, folder) if key in KEYS else value for key, value in node.attrs.items()
    }
    return replace(node, attrs=attrs)


def _whole(value: Value, folder: Path) -> Value:
    there = folder / str(value)
    return str(there.absolute()) if value and there.is_file() else value
