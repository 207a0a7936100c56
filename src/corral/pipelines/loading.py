"""A file or a text → a graph that may run: parsed, transformed, found fit by lint."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from corral.errors import ConfigError
from corral.events import Json
from corral.pipelines import dot, linting, transforms
from corral.pipelines.findings import Rule
from corral.pipelines.graph import Graph

__all__ = ["load", "read"]


def load(
    path_or_text: str | os.PathLike[str],
    *,
    values: Mapping[str, Json] | None = None,
    goal: str | None = None,
    model: str | None = None,
    transforms: Iterable[transforms.Transform] = (),
    rules: Iterable[Rule] = (),
) -> Graph:
    """The graph of a file, or of a text that holds a ``{``. Raises ``DotError`` where it cannot
    be read, ``LintError`` with the findings where it must not run, and ``ConfigError``
    where there is no such file."""
    graph = _applied(read(path_or_text), values, goal, model, transforms)
    linting.refuse(linting.lint(graph, rules))
    return graph


def read(path_or_text: str | os.PathLike[str]) -> Graph:
    """The graph as it is written; nothing is filled in, nothing is checked."""
    if isinstance(path_or_text, str) and "{" in path_or_text:
        return dot.parse(path_or_text)
    path = Path(path_or_text)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"cannot read the pipeline {str(path)!r}: {reason}",
            hint="A pipeline is a file, or a text `digraph name { … }`.",
        ) from error
    return dot.parse(dot.decode(data, str(path)), str(path))


def _applied(
    graph: Graph,
    values: Mapping[str, Json] | None,
    goal: str | None,
    model: str | None,
    own: Iterable[transforms.Transform],
) -> Graph:
    return transforms.apply(graph, values=values, goal=goal, model=model, transforms=own)
