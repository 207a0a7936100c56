"""Loads a pipeline: a file or a text, parsed, transformed and linted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from corral.errors import ConfigError
from corral.pipelines import node_kinds, transforms
from corral.pipelines.dot import parser
from corral.pipelines.graph import Graph, Node, Value, dotfile
from corral.pipelines.linter import engine
from corral.pipelines.linter.finding import Rule
from corral.values import Json

__all__ = ["load", "read", "with_prompt_files"]

PROMPT_FILE = re.compile(r"\s*@([^\s@]\S*)\s*")
"""A prompt that is a file: ``@plan.md``, and nothing else."""
LARGEST_PROMPT = 1024 * 1024
"""Bytes of a prompt file."""


def load(
    path_or_text: str | os.PathLike[str],
    *,
    values: Mapping[str, Json] | None = None,
    goal: str | None = None,
    model: str | None = None,
    transforms: Iterable[transforms.Transform] = (),
    rules: Iterable[Rule] = (),
    workspace: Path | None = None,
) -> Graph:
    """The graph of a file, or of a text that holds a ``{``. A prompt ``@file`` is read beside the
    pipeline's file, else in the workspace (the current folder unless given). Raises ``DotError``
    where it cannot be read, ``LintError`` with the findings where it must not run, and
    ``ConfigError`` where there is no such file."""
    places = [Path(workspace or ".")]
    if not _is_text(path_or_text):
        places.insert(0, Path(path_or_text).parent)
    graph = with_prompt_files(read(path_or_text), places)
    graph = _applied(graph, values, goal, model, transforms)
    engine.raise_on_errors(engine.lint(graph, rules))
    return graph


def read(path_or_text: str | os.PathLike[str]) -> Graph:
    """The graph as it is written; nothing is filled in, nothing is checked."""
    if _is_text(path_or_text):
        return parser.parse(str(path_or_text))
    path = Path(path_or_text)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"cannot read the pipeline {str(path)!r}: {reason}",
            hint="A pipeline is a file, or a text `digraph name { … }`.",
        ) from error
    return parser.parse(parser.decode(data, str(path)), str(path))


def with_prompt_files(graph: Graph, folders: Iterable[Path]) -> Graph:
    """With the text of each prompt that names a file (``prompt="@plan.md"``) of one of these
    folders. A file that is not there, or lies outside them, is left for lint to report."""
    places = [folder.resolve() for folder in folders]
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        text = None
        if named := PROMPT_FILE.fullmatch(node.text("prompt")):
            text = next(
                (t for place in places if (t := _text_in(place, named[1])) is not None), None
            )
        nodes[name] = node if text is None else replace(node, attrs={**node.attrs, "prompt": text})
    return Graph(graph.name, graph.attrs, nodes, graph.edges)


def _text_in(folder: Path, name: str) -> str | None:
    """What is in this file of the folder; None where there is none that can be read."""
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            return None
        if path.stat().st_size > LARGEST_PROMPT:
            return None
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return None


def _is_text(pipeline: str | os.PathLike[str]) -> bool:
    return isinstance(pipeline, str) and "{" in pipeline


def _applied(
    graph: Graph,
    values: Mapping[str, Json] | None,
    goal: str | None,
    model: str | None,
    own: Iterable[transforms.Transform],
) -> Graph:
    return transforms.apply(graph, values=values, goal=goal, model=model, transforms=own)


KEYS = ("dotfile", "pipeline", "path", "stack.child_dotfile")
DEEPEST = 20
"""Pipelines in pipelines: more is one that includes itself."""


def with_absolute_children(graph: Graph, folder: Path) -> Graph:
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
            child = with_absolute_children(load(path, workspace=workspace), path.parent)
        except ConfigError as error:
            raise ConfigError(
                f"the pipeline of node {node.id!r}: {error.message}", hint=error.hint
            ) from error
        check(child, workspace, depth + 1)


def children(graph: Graph) -> Iterator[tuple[Node, str]]:
    """Each node that runs another pipeline, and its file."""
    for node in graph.of_kind(*node_kinds.CHILD_KINDS):
        if file := dotfile(graph, node):
            yield node, file


def _placed(node: Node, folder: Path) -> Node:
    if node.kind not in node_kinds.CHILD_KINDS or not any(key in node.attrs for key in KEYS):
        return node
    attrs = {
        key: _whole(value, folder) if key in KEYS else value for key, value in node.attrs.items()
    }
    return replace(node, attrs=attrs)


def _whole(value: Value, folder: Path) -> Value:
    there = folder / str(value)
    return str(there.absolute()) if value and there.is_file() else value
