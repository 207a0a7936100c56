"""Start a run of a pipeline or a workflow, durable or in memory, and follow it to its end.

Errors in the call are raised before anything is spent, started or written.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from corral._engine import process_engine, service
from corral._engine.dbos import database
from corral._engine.follow_run import FollowOptions, follow_to_end, send_notification
from corral._engine.memory_runner import MemoryRun
from corral._engine.payloads import RunConfig, RunInput
from corral._engine.run_options import (
    PipelineKwargs,
    WorkflowKwargs,
    as_json,
    options_of_agents,
    with_active_span,
    workspace_path,
)
from corral._engine.run_result import PipelineResult, result_from_output
from corral._engine.workspace import artifacts as workspace_artifacts
from corral._pipelines import loader, node_kinds, simulation
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.execution.run_dir import MANIFEST
from corral._pipelines.execution.simulated_nodes import interviewer_of
from corral._pipelines.graph import Graph
from corral._pipelines.run_limits import take_limits, with_limits
from corral._pipelines.scheduler.merge import needs_repository
from corral._publishing import published
from corral._system import config, fs, paths
from corral._workflows.program_turn import StoredProgram
from corral.errors import ConfigError
from corral.values import Json, slug

if TYPE_CHECKING:
    from corral._workflows.definition import Workflow
    from corral._workflows.program import Program


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run of a pipeline or a workflow that is to be executed."""

    options: PipelineKwargs
    follow: FollowOptions
    source: str = ""
    """Its file."""
    program: StoredProgram | None = None
    """Of a workflow."""
    workflow: Workflow[..., object] | None = None
    """The workflow of the program, for a run in memory."""

    @property
    def durable(self) -> bool:
        return self.options.get("durable", True)

    def check(self) -> None:
        """Raises ``ConfigError`` for arguments that contradict each other."""
        given = self.options
        repository, artifacts = given.get("repository"), given.get("artifacts")
        if given.get("commit") is not None and repository is None:
            raise ConfigError(
                "commit needs a repository", hint="Use --repository (repository=) too."
            )
        if repository is not None and given.get("cwd") is not None:
            raise ConfigError(
                "cwd and repository cannot be combined",
                hint="A run works in the folder cwd itself, or in a worktree of the repository.",
            )
        if self.durable and any(given.get(name) is not None for name in ("ask", "budget")):
            raise ConfigError("ask= and budget= work only for runs in memory: durable=False")
        if not self.durable and (repository is not None or artifacts):
            raise ConfigError(
                "repository and artifacts need a durable run",
                hint="Remove --no-durable (durable=False).",
            )
        if artifacts:
            workspace_artifacts.check(artifacts)
        run_id = given.get("run_id")
        is_name = run_id is None or slug(run_id, limit=100, allowed="._") == run_id
        if not is_name or run_id == "last":
            raise ConfigError(
                f"{run_id!r} cannot be the id of a run",
                hint="It has letters, digits, '.', '_' and '-', at most 100, and a letter or digit"
                " first. last is the newest run.",
            )


def follow_of(options: WorkflowKwargs) -> FollowOptions:
    """How a run with these options is followed."""
    return FollowOptions(
        db=options.get("db"),
        interviewer=options.get("interviewer"),
        on_event=options.get("on_event"),
        on_start=options.get("on_start"),
    )


async def execute(
    request: RunRequest, make_graph: Callable[[Path | None], Graph]
) -> PipelineResult:
    """Execute the run to its end, or until it waits for people. ``make_graph`` gets the workspace,
    if it exists already. Errors are raised before anything is spent."""
    request.check()
    given, goal = request.options, request.options.get("goal")
    repository, queue = given.get("repository"), given.get("queue")
    values = dict(given.get("values") or {})
    place = workspace_path(given.get("cwd"))
    graph = make_graph(place if repository is None else None)
    options = with_active_span(options_of_agents(given))
    model = options.pop("model", None)
    options.pop("cwd", None)
    limits = take_limits(options, given.get("task") or {})
    graph = with_limits(graph, limits)
    agent = given.get("agent") or config.default_agent()
    simulated = simulation.build(given.get("simulate", False), given.get("script"), graph)
    follow = request.follow
    follow = dataclass_replace(follow, interviewer=interviewer_of(simulated, follow.interviewer))
    resources = NodeResources(
        simulate=simulated, agent=agent, model=model, options=options, ask=given.get("ask")
    )
    if repository is None:
        if queue is None:
            _preflight(graph, resources, place, values)
        if needs_repository(graph):
            from corral._engine.workspace import branch_worktrees

            await asyncio.to_thread(branch_worktrees.check, graph, place, resources.simulate)
    name = given.get("run_id") or service.new_id(graph.name)
    folder = run_folder(name, given.get("run_dir"))
    if request.durable:
        database.require(or_in_memory=True)
        stored = RunConfig(
            folder=str(folder),
            workspace=str(place),
            simulate=simulated,
            agent=agent,
            model=model or "",
            options=as_json(options),
            imports=tuple(given.get("imports") or ()),
            source=request.source,
            goal=goal or "",
            limits=limits,
            artifacts_url=given.get("artifacts") or "",
        )
        if repository is not None:
            from corral._engine.workspace import branch_worktrees, run_worktree

            tree = await asyncio.to_thread(
                run_worktree.choose, name, repository, given.get("commit")
            )
            if not resources.simulate:
                merging = [*graph.of_kind(node_kinds.MERGE.name)]
                await asyncio.to_thread(branch_worktrees.check_merges, merging, tree)
            stored = replace(stored, tree=tree, workspace=tree.within)
        run_input = RunInput(
            run_id=name,
            graph=graph,
            config=stored,
            values=values,
            program=request.program,
        )
        async with process_engine.used(follow.db):
            await _start(run_input, resources, db=follow.db, queue=queue)
            result = await follow_to_end(name, folder, follow)
    else:
        follow.started(name, folder)
        memory_run = MemoryRun(
            graph,
            resources=resources,
            interviewer=follow.interviewer,
            folder=folder,
            workspace=place,
            run_id=name,
            values=values,
            on_event=follow.on_event,
            budget=given.get("budget"),
            program=await _memory_program(request, name),
        )
        async with resources:
            with published(
                "pipeline",
                name,
                title=graph.goal or graph.name,
                cwd=str(place),
                folder=str(folder),
                cancel=memory_run.cancel,
                budget=memory_run,
            ):
                result = result_from_output(name, await memory_run.drive(), folder)
    is_workflow = request.program is not None
    await send_notification(options, result, str(place), follow.db, is_workflow=is_workflow)
    return result


def _preflight(
    graph: Graph, resources: NodeResources, workspace: Path, values: Mapping[str, Json]
) -> None:
    """Checks of a run whose nodes run on this machine. Raises what they would fail with."""
    if not resources.simulate:
        from corral._pipelines.execution import preflight

        preflight.check(graph, resources, workspace, values)


async def _memory_program(request: RunRequest, run_id: str) -> Program | None:
    if request.program is None or request.workflow is None:
        return None
    from corral._workflows.program import Program

    args, writes = request.program.args, request.program.writes
    return Program(request.workflow, args, run_id=run_id, writes=writes)


async def _start(
    run_input: RunInput, resources: NodeResources, *, db: str | None, queue: str | None
) -> None:
    """Start a durable run. A run with a worktree is checked there, as soon as it exists."""
    tree = run_input.config.tree
    if tree is None:
        await service.start(run_input, db=db, queue=queue)
        return
    from corral._engine.workspace import run_worktree

    async with run_worktree.reserved(tree, stays=queue is None):
        place = run_worktree.workspace_folder(tree)
        loader.check(run_input.graph, place)
        if queue is None:
            _preflight(run_input.graph, resources, place, run_input.values)
        await service.start(run_input, db=db, queue=queue)


def run_folder(run: str, run_dir: str | os.PathLike[str] | None) -> Path:
    """The run directory: writable, and not that of another run. Raises ``ConfigError``."""
    place = paths.home() / "runs" if run_dir is None else Path(run_dir).absolute()
    try:
        paths.make_dir(place)
        if not paths.is_writable(place):
            raise PermissionError(errno.EACCES, "it is read-only")
        used = run_dir is not None and bool(fs.list_names(place))
    except OSError as error:
        raise ConfigError(
            f"the run folder {place}: {error.strerror}",
            hint="Choose a writable one with --run-dir (run_dir=).",
        ) from error
    if used:
        raise ConfigError(f"the run folder {place} is not empty", hint="Choose another one.")
    if run_dir is None and fs.exists(place / run / MANIFEST):
        raise ConfigError(
            f"the run {run!r} already exists", hint="Choose another id, or resume it."
        )
    return place / run if run_dir is None else place
