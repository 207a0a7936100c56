"""Loads a pipeline: parses, transforms and lints a file or a text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from corral.core.tracebacks import short_traceback
from corral.errors import ConfigError, CorralError
from corral.pipelines import node_kinds
from corral.pipelines.dot import parser
from corral.pipelines.graph import Graph, Node, Value, dotfile
from corral.pipelines.linter import engine
from corral.pipelines.linter.finding import Rule
from corral.pipelines.transforms import Transform
from corral.pipelines.transforms import apply as apply_transforms
from corral.values import Json

__all__ = ["load", "read", "with_prompt_files"]

PROMPT_FILE = re.compile(r"\s*@([^\s@]\S*)\s*")
"""A prompt that names a file: ``@plan.md`` and nothing else."""
MAX_PROMPT_FILE = 1024 * 1024
"""Bytes of a prompt file."""
CHILD_KEYS = ("dotfile", "pipeline", "path", "stack.child_dotfile")
"""Attributes that name the file of a child pipeline."""
MAX_DEPTH = 20
"""How deep pipelines may be nested: a deeper one probably includes itself."""


@short_traceback
def load(
    path_or_text: str | os.PathLike[str],
    *,
    values: Mapping[str, Json] | None = None,
    goal: str | None = None,
    model: str | None = None,
    transforms: Iterable[Transform] = (),
    rules: Iterable[Rule] = (),
    cwd: Path | None = None,
) -> Graph:
    """Load a pipeline from a file, or from a text that contains a ``{``. A prompt ``@file`` is read
    from the directory of the pipeline's file, else from ``cwd`` (by default the current
    directory). Raises ``DotError`` if the text cannot be parsed, ``LintError`` with the findings if
    the pipeline has errors, and ``ConfigError`` if there is no such file.

    ::

        graph = pipelines.load("review.dot", goal="Review this project")
    """
    folders = [Path(cwd or ".")]
    if not _is_text(path_or_text):
        folders.insert(0, Path(path_or_text).parent)
    graph = with_prompt_files(read(path_or_text), folders)
    graph = apply_transforms(graph, values=values, goal=goal, model=model, transforms=transforms)
    engine.raise_on_errors(engine.lint(graph, rules))
    return graph


def read(path_or_text: str | os.PathLike[str]) -> Graph:
    """The graph as written: without transforms and checks."""
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
    """Replace each prompt that names a file in one of these folders (``prompt="@plan.md"``) with
    its content. If the file does not exist there, the prompt stays, and the linter reports it."""
    roots = [folder.resolve() for folder in folders]
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        text = None
        if named := PROMPT_FILE.fullmatch(node.text("prompt")):
            texts = (_read_text(root, named[1]) for root in roots)
            text = next((text for text in texts if text is not None), None)
        nodes[name] = node if text is None else replace(node, attrs={**node.attrs, "prompt": text})
    return Graph(graph.name, graph.attrs, nodes, graph.edges)


def _read_text(folder: Path, name: str) -> str | None:
    """The content of this file in the folder; None if there is no such file, or it is too large."""
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            return None
        if path.stat().st_size > MAX_PROMPT_FILE:
            return None
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return None


def _is_text(pipeline: str | os.PathLike[str]) -> bool:
    return isinstance(pipeline, str) and "{" in pipeline


# Child pipelines.


def load_child(file: str, *, values: Mapping[str, Json], workspace: Path, depth: int) -> Graph:
    """The pipeline of a node, in a run that is nested in ``depth`` others. Raises
    ``ConfigError``."""
    if depth >= MAX_DEPTH:
        raise ConfigError(f"pipelines are nested more than {MAX_DEPTH} deep")
    path = workspace / file
    try:
        graph = load(path, values=values, cwd=workspace)
    except (CorralError, OSError) as error:
        raise ConfigError(f"{file}: {error}") from error
    return with_absolute_children(graph, path.parent)


def with_absolute_children(graph: Graph, folder: Path) -> Graph:
    """Replace the path of every child pipeline in this folder with an absolute one."""
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        nodes[name] = node
        if node.kind in node_kinds.CHILD_KINDS:
            new = {
                key: _absolute(node.attrs[key], folder) for key in CHILD_KEYS if key in node.attrs
            }
            nodes[name] = replace(node, attrs={**node.attrs, **new})
    key = CHILD_KEYS[-1]
    attrs = dict(graph.attrs)
    if key in attrs:
        attrs[key] = _absolute(attrs[key], folder)
    return Graph(graph.name, attrs, nodes, graph.edges)


def check(graph: Graph, workspace: Path, depth: int = 1) -> None:
    """Check that every child pipeline can be loaded. A child whose name has a placeholder is not
    checked. Raises ``ConfigError`` with the node's name."""
    for node, file in children(graph):
        if "{{" in file:
            continue
        path = workspace / file
        if depth > MAX_DEPTH:
            raise ConfigError(f"{node.id}: {file} includes itself again and again")
        try:
            child = with_absolute_children(load(path, cwd=workspace), path.parent)
        except ConfigError as error:
            raise ConfigError(
                f"the pipeline of node {node.id!r}: {error.message}", hint=error.hint
            ) from error
        check(child, workspace, depth + 1)


def children(graph: Graph) -> Iterator[tuple[Node, str]]:
    """Each node that runs another pipeline, with its file."""
    for node in graph.of_kind(*node_kinds.CHILD_KINDS):
        if file := dotfile(graph, node):
            yield node, file


def _absolute(value: Value, folder: Path) -> Value:
    path = folder / str(value)
    return str(path.absolute()) if value and path.is_file() else value
