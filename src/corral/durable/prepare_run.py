"""Prepare a run: load and check its graph, choose its directories, encode its options."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

from corral.errors import ConfigError
from corral.options import RunKwargs
from corral.pipelines import loader
from corral.pipelines import loader as pipelines_loader
from corral.pipelines.graph import Graph
from corral.pipelines.json_values import not_json
from corral.pipelines.linter.finding import Rule
from corral.pipelines.transforms import Transform
from corral.system import paths
from corral.values import Json

if TYPE_CHECKING:
    from corral.durable.query import Shown

Pipeline: TypeAlias = str | os.PathLike[str] | Graph
"""A file, its text, or a loaded graph."""


def workspace_path(workspace: str | os.PathLike[str] | None) -> Path:
    """The directory in which agents and commands work. Raises ``ConfigError``."""
    place = Path(workspace or ".").absolute()
    if not place.is_dir():
        raise ConfigError(f"the workspace {str(place)!r} is not a directory")
    return place


def prepare(
    pipeline: Pipeline,
    *,
    values: Mapping[str, Json] | None = None,
    goal: str | None = None,
    model: str | None = None,
    workspace: Path | None,
    transforms: Iterable[Transform] = (),
    rules: Iterable[Rule] = (),
) -> Graph:
    """The graph to run: loaded, transformed and linted. With a workspace its child pipelines are
    found and linted too. Raises ``ConfigError``."""
    for key, value in {**(values or {}), "goal": goal}.items():
        if wrong := not_json(key) or not_json(value):
            raise ConfigError(f"the value {key!r} is not JSON: it {wrong}")
    if isinstance(pipeline, Graph):
        graph = pipeline  # its caller has loaded and checked it
    else:
        graph = loader.load(
            pipeline,
            values=values,
            goal=goal,
            model=model,
            transforms=transforms,
            rules=rules,
            workspace=workspace,
        )
        if not (isinstance(pipeline, str) and "{" in pipeline):
            graph = pipelines_loader.with_absolute_children(graph, Path(pipeline).parent)
    if workspace is not None:
        pipelines_loader.check(graph, workspace)
    return graph


def current_graph(shown: Shown) -> Graph | None:
    """The graph of the run's file as it is now; None if there is no file, or none any more."""
    config = shown.run_input.config
    if not config.source or not Path(config.source).is_file():
        return None
    return prepare(
        Path(config.source),
        values=shown.run_input.values,
        goal=config.goal or None,
        model=config.model or None,
        workspace=Path(config.workspace) if config.tree is None else None,
    )


def source_path(pipeline: Pipeline, source: str) -> str:
    if source or isinstance(pipeline, Graph) or (isinstance(pipeline, str) and "{" in pipeline):
        return source
    return str(Path(pipeline).absolute())


def run_folder(run: str, run_dir: str | os.PathLike[str] | None) -> Path:
    """The run directory: writable, and not that of another run. Raises ``ConfigError``."""
    place = paths.home() / "runs" if run_dir is None else Path(run_dir).absolute()
    try:
        paths.make_dir(place)
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "it is read-only")
        used = run_dir is not None and next(place.iterdir(), None) is not None
    except OSError as error:
        raise ConfigError(
            f"the run folder {place}: {error.strerror}",
            hint="Choose a writable one with --run-dir (run_dir=).",
        ) from error
    if used:
        raise ConfigError(f"the run folder {place} is not empty", hint="Choose another one.")
    return place / run if run_dir is None else place


def as_json(options: RunKwargs) -> dict[str, Json]:
    """The options as JSON, to store them with the run. Raises ``ConfigError``."""
    try:
        return cast("dict[str, Json]", msgspec.to_builtins(options, enc_hook=os.fspath))
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(f"a durable run cannot store this option: {error}") from error
