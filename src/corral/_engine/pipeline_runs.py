"""``corral.pipelines.run``, ``resume`` and ``fork``: execute a pipeline, or continue a run of one.

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
    Continuation,
    NewRun,
    continue_run,
    is_same_graph,
    known_before,
    read_replay,
    results_of,
)
from corral._engine.follow_run import FollowOptions, OnEvent, OnStart
from corral._engine.run_options import PipelineKwargs, check_names
from corral._engine.run_result import PipelineResult, raise_if_failed
from corral._engine.start_run import RunRequest, execute, follow_of
from corral._pipelines import loader
from corral._pipelines.execution.interviewers import Interviewer
from corral._pipelines.graph import Graph
from corral._pipelines.linter.finding import Rule
from corral._pipelines.run_limits import with_limits
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


@short_traceback_async
async def resume(
    run: str,
    *,
    accept_changed_graph: bool = False,
    db: str | None = None,
    interviewer: Interviewer | None = None,
    on_event: OnEvent | None = None,
    on_start: OnStart | None = None,
) -> PipelineResult:
    """Continue an interrupted run in this process and follow it to its end; finished nodes are not
    run again. A run that a worker executes, or that has ended, is only followed.

    If the pipeline's file has changed since the run started, this raises ``ConfigError``; with
    ``accept_changed_graph`` a new run continues with the new graph, from all that has finished.
    For a run that was continued so, its newest continuation goes on; ``result.run`` is its id.

    ::

        result = await pipelines.resume("review-20260131-142501-3f9a")
    """
    found = await prepare_resume(run, accept_changed_graph=accept_changed_graph, db=db)
    return await continue_run(
        found,
        FollowOptions(db=db, interviewer=interviewer, on_event=on_event, on_start=on_start),
    )


@short_traceback_async
async def fork(  # noqa: PLR0913
    run: str,
    node: str,
    *,
    graph: Graph | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    db: str | None = None,
    queue: str | None = None,
    interviewer: Interviewer | None = None,
    on_event: OnEvent | None = None,
    on_start: OnStart | None = None,
) -> PipelineResult:
    """Start a new run that continues ``run`` from this node; earlier results are used. It uses
    the pipeline's file as it is now, unless a graph is given.

    ::

        result = await pipelines.fork("review-20260131-142501-3f9a", "implement")
    """
    return await continue_run(
        await prepare_fork(run, node, graph=graph, db=db),
        FollowOptions(db=db, interviewer=interviewer, on_event=on_event, on_start=on_start),
        run_dir=run_dir,
        queue=queue,
    )


run_sync: Final = sync_twin(run)
resume_sync: Final = sync_twin(resume)
fork_sync: Final = sync_twin(fork)


async def prepare_resume(
    run: str, *, accept_changed_graph: bool = False, db: str | None = None
) -> Continuation:
    """How ``resume`` continues a run. Nothing is changed. Raises ``ConfigError``."""
    shown = await query.show_newest(run, db=db)
    _check_pipeline(shown)
    now = None if shown.output else current_graph(shown)
    if now is None or is_same_graph(now, shown.graph):
        return Continuation(run=shown)
    if not accept_changed_graph:
        source = shown.run_input.config.source
        raise ConfigError(
            f"the pipeline of {shown.id} has changed since it started: {source}",
            hint="--accept-changed-graph (accept_changed_graph=True) continues with the"
            " current file, as a new run that keeps what is finished.",
        )
    replay = await read_replay(run, db)
    known = {each.id: each for each in results_of(replay)}
    return Continuation(run=shown, new=NewRun(replay=replay, known=known, graph=now))


async def prepare_fork(
    run: str, node: str, *, graph: Graph | None = None, db: str | None = None
) -> Continuation:
    """How ``fork`` continues a run. Nothing is changed. Raises ``ConfigError``."""
    shown = await query.show(run, db=db)
    _check_pipeline(shown)
    now = graph or current_graph(shown) or shown.graph
    if node not in now.nodes:
        raise ConfigError(
            f"the pipeline has no node {node!r}", hint=f"Nodes: {', '.join([*now.nodes][:20])}."
        )
    replay = await read_replay(run, db)
    known = known_before(replay, node)
    return Continuation(run=shown, new=NewRun(replay=replay, known=known, graph=now, is_fork=True))


def _check_pipeline(shown: query.RunDetails) -> None:
    """Raises ``ConfigError`` if the run is of a workflow."""
    if shown.run_input.program is not None:
        raise ConfigError(
            f"{shown.id} is a run of a workflow",
            hint="Use `corral workflow resume` and `corral workflow fork` (corral.workflows).",
        )


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
