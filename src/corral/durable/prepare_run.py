"""Before a run: its graph, its folder, what is kept with it. Everything wrong is said here."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

from corral.errors import ConfigError
from corral.events import Json
from corral.options import RunKwargs
from corral.pipelines import loader
from corral.pipelines import loader as pipelines_loader
from corral.pipelines.graph import Graph
from corral.pipelines.json_values import not_json
from corral.pipelines.linter.finding import Rule
from corral.pipelines.transforms import Transform
from corral.system import paths

if TYPE_CHECKING:
    from corral.durable.query import Shown

Pipeline: TypeAlias = str | os.PathLike[str] | Graph
"""A file, the text of one, or a graph that was loaded."""


def place_of(workspace: str | os.PathLike[str] | None) -> Path:
    """Where agents and commands work. Raises ``ConfigError``."""
    place = Path(workspace or ".").absolute()
    if not place.is_dir():
        raise ConfigError(f"the workspace {str(place)!r} is no folder")
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
    """The graph that would run: read, transformed, linted, its children found and linted; these
    not where there is no workspace yet. Raises ``ConfigError``."""
    for key, value in {**(values or {}), "goal": goal}.items():
        if wrong := not_json(key) or not_json(value):
            raise ConfigError(f"the value {key!r} is no JSON: it {wrong}")
    if isinstance(pipeline, Graph):
        graph = pipeline  # as it is: its maker has seen to it
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
            graph = pipelines_loader.beside(graph, Path(pipeline).parent)
    if workspace is not None:
        pipelines_loader.check(graph, workspace)
    return graph


def graph_now(shown: Shown) -> Graph | None:
    """The graph of the run's file as it is now; None where it is gone, or came from no file."""
    setting = shown.begun.setting
    if not setting.source or not Path(setting.source).is_file():
        return None
    return prepare(
        Path(setting.source),
        values=shown.begun.values,
        goal=setting.goal or None,
        model=setting.model or None,
        workspace=Path(setting.workspace) if setting.tree is None else None,
    )


def source_of(pipeline: Pipeline, source: str) -> str:
    if source or isinstance(pipeline, Graph) or (isinstance(pipeline, str) and "{" in pipeline):
        return source
    return str(Path(pipeline).absolute())


def folder_of(run: str, run_dir: str | os.PathLike[str] | None) -> Path:
    """Where the run's files go: it can be written. A folder of another run is not written over.
    Raises ``ConfigError``."""
    place = paths.home() / "runs" if run_dir is None else Path(run_dir).absolute()
    try:
        paths.make_dir(place)
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "it can only be read")
        used = run_dir is not None and next(place.iterdir(), None) is not None
    except OSError as error:
        raise ConfigError(
            f"the run folder {place}: {error.strerror}",
            hint="Name one that can be written, with --run-dir (run_dir=).",
        ) from error
    if used:
        raise ConfigError(f"the run folder {place} is not empty", hint="Name another, or none.")
    return place / run if run_dir is None else place


def as_json(options: RunKwargs) -> dict[str, Json]:
    """Options that can be kept with the run. Raises ``ConfigError`` for those that cannot."""
    try:
        return cast("dict[str, Json]", msgspec.to_builtins(options, enc_hook=os.fspath))
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(f"a durable run cannot keep this option: {error}") from error
