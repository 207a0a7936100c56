"""``corral.pipelines.run``: execute a pipeline; and how a run of one goes on.

Runs are durable by default: what has finished is never run twice, whatever crashes. In memory
(``durable=False``) only the run directory is left, and no engine is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias, Unpack

from corral._engine import query
from corral._engine.continue_run import (
    Changes,
    Continuation,
    NewRun,
    finished,
    is_same_graph,
    known_before,
    read_replay,
    results_of,
)
from corral._engine.run_options import PipelineKwargs, check_names
from corral._engine.run_result import PipelineResult, raise_if_failed
from corral._engine.start_run import RunRequest, execute, follow_of
from corral._pipelines import loader
from corral._pipelines.graph import Graph
from corral._pipelines.linter.finding import Rule
from corral._pipelines.run_limits import with_limits
from corral._pipelines.scheduler.commands import Message
from corral._pipelines.scheduler.outcome import not_json
from corral._pipelines.scheduler.state import without_internal_keys
from corral._pipelines.transforms import Transform
from corral._system import fs
from corral._system.threads import short_traceback_async, sync_twin
from corral.errors import ConfigError
from corral.values import Json

Pipeline: TypeAlias = str | os.PathLike[str] | Graph
"""A file, its text, or a loaded graph."""


@short_traceback_async
async def run(pipeline: Pipeline, **options: Unpack[PipelineKwargs]) -> PipelineResult:
    """Run a pipeline (a file, its text, or a graph) to its end, or until it waits for people; see
    ``PipelineKwargs`` and ``RunKwargs`` for the options. Those of agents are defaults of the nodes.

    Errors in the call or the pipeline are raised before anything is spent.

    ::

        result = await pipelines.run("review.dot", goal="Review this project")
        print(result.status, result.text)
    """
    check_names(options, PipelineKwargs)

    def make_graph(workspace: Path | None) -> Graph:
        return prepare(
            pipeline,
            values=options.get("values"),
            goal=options.get("goal"),
            model=options.get("model"),
            workspace=workspace,
            transforms=options.get("transforms", ()),
            rules=options.get("rules", ()),
        )

    source = source_path(pipeline, options.get("source", ""))
    request = RunRequest(options=options, follow=follow_of(options), source=source)
    result = await execute(request, make_graph)
    if options.get("check"):
        raise_if_failed(result)
    return result


run_sync: Final = sync_twin(run)


async def prepare_resume(shown: query.RunDetails, changes: Changes, db: str | None) -> Continuation:
    """How a run of a pipeline goes on. Nothing is changed. Raises ``ConfigError``."""
    if shown.output is not None and shown.output.ok:
        return Continuation(run=shown)
    now = current_graph(shown)
    has_changed = now is not None and not is_same_graph(now, shown.graph)
    if has_changed and not changes.accept_changed:
        raise ConfigError(
            f"the pipeline of {shown.id} has changed since it started:"
            f" {shown.run_input.config.source}",
            hint="With --accept-changed (accept_changed=True) it goes on with the current file, and"
            " keeps what is finished.",
        )
    if shown.output is None and not has_changed and not changes.need_try(shown):
        return Continuation(run=shown, changes=changes)
    replay = await read_replay(shown.id, db)
    if shown.output is None:
        known: Mapping[str, Message] = {each.id: each for each in results_of(replay)}
    else:
        known = finished(replay, shown.output)
    graph = now if has_changed and now is not None else shown.graph
    return Continuation(
        run=shown, new=NewRun(replay=replay, known=known, graph=graph), changes=changes
    )


async def prepare_fork(
    shown: query.RunDetails,
    node: str,
    changes: Changes,
    db: str | None,
    *,
    graph: Graph | None = None,
) -> Continuation:
    """How a fork of a run of a pipeline begins. Nothing is changed. Raises ``ConfigError``."""
    now = graph or current_graph(shown) or shown.graph
    if node not in now.nodes:
        raise ConfigError(
            f"the pipeline has no node {node!r}" if node else "a fork begins with a node",
            hint=f"Name one with --from: {', '.join([*now.nodes][:20])}.",
        )
    replay = await read_replay(shown.id, db)
    new = NewRun(replay=replay, known=known_before(replay, node), graph=now, is_fork=True)
    return Continuation(run=shown, new=new, changes=changes)


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
    if own := (values or {}).keys() - without_internal_keys(dict(values or {})):
        raise ConfigError(
            f"the value {min(own)!r} cannot be set: corral itself sets it during a run",
            hint="Give the value another name.",
        )
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
            cwd=workspace,
        )
        if not (isinstance(pipeline, str) and "{" in pipeline):
            graph = loader.with_absolute_children(graph, Path(pipeline).parent)
    if workspace is not None:
        loader.check(graph, workspace)
    return graph


def current_graph(shown: query.RunDetails) -> Graph | None:
    """The graph of the run's file as it is now; None if there is no file, or none any more."""
    config = shown.run_input.config
    if not config.source or not fs.is_file(Path(config.source)):
        return None
    graph = prepare(
        Path(config.source),
        values=shown.run_input.values,
        goal=config.goal or None,
        model=config.model or None,
        workspace=Path(config.workspace) if config.tree is None else None,
    )
    return with_limits(graph, config.limits)


def source_path(pipeline: Pipeline, source: str) -> str:
    if source or isinstance(pipeline, Graph) or (isinstance(pipeline, str) and "{" in pipeline):
        return source
    return str(Path(pipeline).absolute())
