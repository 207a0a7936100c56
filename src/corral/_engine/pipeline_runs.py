"""``corral.pipelines.run``, ``resume`` and ``fork``: execute a pipeline, or continue a run of one.

Runs are durable by default: what has finished is never run twice, whatever crashes. In memory
(``durable=False``) only the run directory is left, and no engine is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from corral._core.spending import BudgetLimits
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
from corral._engine.run_result import PipelineResult, raise_if_failed
from corral._engine.start_run import RunRequest, execute
from corral._pipelines import loader
from corral._pipelines.execution.interviewers import Interviewer
from corral._pipelines.graph import Graph
from corral._pipelines.linter.finding import Rule
from corral._pipelines.run_limits import with_limits
from corral._pipelines.scheduler.outcome import not_json
from corral._pipelines.scheduler.state import without_internal_keys
from corral._pipelines.simulation import Script, SimulateMode
from corral._pipelines.transforms import Transform
from corral._system import fs
from corral._system.threads import short_traceback_async, sync_twin
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs
from corral.values import Json

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._sessions.permissions import Asker

Pipeline: TypeAlias = str | os.PathLike[str] | Graph
"""A file, its text, or a loaded graph."""


@short_traceback_async
async def run(  # noqa: PLR0913
    pipeline: Pipeline,
    *,
    goal: str | None = None,
    values: Mapping[str, Json] | None = None,
    agent: str | None = None,
    model: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    repository: str | os.PathLike[str] | None = None,
    commit: str | None = None,
    artifacts: str = "",
    run_id: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    simulate: SimulateMode = False,
    script: Script | None = None,
    interviewer: Interviewer | None = None,
    ask: Asker | None = None,
    on_event: OnEvent | None = None,
    on_start: OnStart | None = None,
    durable: bool = True,
    db: str | None = None,
    queue: str | None = None,
    imports: Sequence[str] = (),
    source: str = "",
    transforms: Iterable[Transform] = (),
    rules: Iterable[Rule] = (),
    check: bool = False,
    task_max_cost: float | None = None,
    task_max_total_tokens: int | None = None,
    task_max_calls: int | None = None,
    budget: Budget | None = None,
    options: RunKwargs | None = None,
) -> PipelineResult:
    """Run a pipeline (a file, its text, or a graph) to its end, or until it waits for people.

    ``goal``, ``values``: the goal and the values of the pipeline. ``agent``, ``model``: defaults of
    its nodes. ``cwd``: where agents and commands work. ``repository`` (a directory, a bare
    repository or a URL): the run works in its own worktree, at ``commit``, and its changes
    become a branch there (``result.branch``). ``artifacts``: a URL of any fsspec file system, to
    which the run's ``artifacts/`` are uploaded. ``run_id``: the id of the run, a new one (letters,
    digits, ``.``, ``_`` and ``-``). ``run_dir``: the run directory. ``simulate``: no
    agent is started; ``"all"``: no command runs, no request is sent and no file is used either, and
    gates take their default or first choice. ``script`` (an object or a JSON file, see
    ``pipelines.simulation``) says what the visits of nodes give then. ``interviewer`` answers human
    gates; without it a durable run that reaches one returns as ``waiting``. ``ask`` answers
    permission requests of agents, only in memory.
    ``on_event`` is called with each event, ``on_start`` with the run's id and directory.
    ``durable``, ``db``: whether and in which database the run is stored. ``queue``: the workers of
    this queue execute the run. ``imports``: modules that register node kinds. ``source``: the
    pipeline's file, if a text or a graph is given. ``transforms``, ``rules``: additional transforms
    and lint rules. ``options``: options of ``corral.run`` for every agent; their ``max_cost``,
    ``max_total_tokens`` and ``max_calls`` limit all model calls of the run together, like the
    attributes of the graph (the smaller one holds), ``task_max_cost``, ``task_max_total_tokens``
    and ``task_max_calls`` those of each node. ``budget`` is a ``Budget`` that other runs share;
    only in memory.

    Errors in the call or the pipeline are raised before anything is spent. With ``check`` any
    result but a success raises ``ProcessFailed``.

    ::

        result = await pipelines.run("review.dot", goal="Review this project")
        print(result.status, result.text)
    """
    given = dict(values or {})

    def make_graph(workspace: Path | None) -> Graph:
        return prepare(
            pipeline,
            values=given,
            goal=goal,
            model=model,
            workspace=workspace,
            transforms=transforms,
            rules=rules,
        )

    request = RunRequest(
        values=given,
        goal=goal,
        agent=agent,
        model=model,
        cwd=cwd,
        repository=repository,
        commit=commit,
        artifacts=artifacts,
        run_id=run_id,
        run_dir=run_dir,
        simulate=simulate,
        script=script,
        ask=ask,
        follow=FollowOptions(db=db, interviewer=interviewer, on_event=on_event, on_start=on_start),
        durable=durable,
        queue=queue,
        imports=imports,
        source=source_path(pipeline, source),
        of_task=BudgetLimits(
            max_cost=task_max_cost,
            max_total_tokens=task_max_total_tokens,
            max_calls=task_max_calls,
        ),
        budget=budget,
        options=options,
    )
    result = await execute(request, make_graph)
    if check:
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
