"""``corral.pipelines.run``, ``resume`` and ``fork``: execute a run, or follow it to its end.

Runs are durable by default: what has finished is never run twice, whatever crashes. In memory
(``durable=False``) only the run directory is left, and no engine is needed.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeAlias, cast

import msgspec
from msgspec.structs import asdict, replace

from corral._core.display import Card, Displayed, count, short_traceback, spent
from corral._core.spending import BudgetLimits, Raise
from corral._engine import fork as durable_fork
from corral._engine import open_questions, process_engine, query, service
from corral._engine.dbos import database
from corral._engine.memory_runner import MemoryRun
from corral._engine.payloads import PipelineOutput, RunConfig, RunInput
from corral._engine.worker import executor
from corral._engine.workspace import artifacts as workspace_artifacts
from corral._pipelines import loader, node_kinds, simulation
from corral._pipelines.events import RunEvent
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.execution.interviewers import Interviewer
from corral._pipelines.execution.run_dir import MANIFEST, file_name
from corral._pipelines.execution.simulated_nodes import interviewer_of
from corral._pipelines.graph import Graph
from corral._pipelines.linter.finding import Rule
from corral._pipelines.run_limits import take_limits, with_limits
from corral._pipelines.scheduler.commands import Question
from corral._pipelines.scheduler.merge import needs_repository
from corral._pipelines.scheduler.outcome import RESULT, Outcome, not_json
from corral._pipelines.simulation import Script, SimulateMode
from corral._pipelines.transforms import Transform
from corral._protocol.schema import schema_of
from corral._system import config, fs, paths
from corral._system.threads import short_traceback_async, sync_twin
from corral._workflows.program_turn import StoredProgram
from corral.errors import ConfigError, ProcessFailed
from corral.run_kwargs import AgentKwargs, RunKwargs
from corral.values import (
    Cost,
    Json,
    JsonObject,
    Output,
    Usage,
    ValueT,
    as_object,
    as_text,
    as_texts,
    is_sequence,
    slug,
)

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._sessions.permissions import Asker
    from corral._workflows.definition import Workflow
    from corral._workflows.program import RunningProgram

OnEvent: TypeAlias = Callable[[RunEvent], None]
OnStart: TypeAlias = Callable[[str, Path], None]
"""Called with the id and the directory of the run."""


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
        interviewer=interviewer,
        ask=ask,
        on_event=on_event,
        on_start=on_start,
        durable=durable,
        db=db,
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
    if check and not result.ok:
        raise ProcessFailed(f"the run {result.run} ended as {result.status}: {result.reason}")
    return result


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run of a pipeline or a workflow that is to be executed: see the arguments of ``run``."""

    of_task: BudgetLimits = field(default_factory=BudgetLimits)
    """What each node or step may use."""
    values: dict[str, Json] = field(default_factory=dict[str, Json])
    goal: str | None = None
    agent: str | None = None
    model: str | None = None
    cwd: str | os.PathLike[str] | None = None
    repository: str | os.PathLike[str] | None = None
    commit: str | None = None
    artifacts: str = ""
    run_id: str | None = None
    run_dir: str | os.PathLike[str] | None = None
    simulate: SimulateMode = False
    script: Script | None = None
    interviewer: Interviewer | None = None
    ask: Asker | None = None
    on_event: OnEvent | None = None
    on_start: OnStart | None = None
    durable: bool = True
    db: str | None = None
    queue: str | None = None
    imports: Sequence[str] = ()
    source: str = ""
    budget: Budget | None = None
    options: RunKwargs | None = None
    program: StoredProgram | None = None
    """Of a workflow."""
    workflow: Workflow[..., object] | None = None
    """The workflow of the program, for a run in memory."""

    def check(self) -> None:
        """Raises ``ConfigError`` for arguments that contradict each other."""
        if self.commit is not None and self.repository is None:
            raise ConfigError(
                "commit needs a repository", hint="Use --repository (repository=) too."
            )
        if self.repository is not None and self.cwd is not None:
            raise ConfigError(
                "cwd and repository cannot be combined",
                hint="A run works in the folder cwd itself, or in a worktree of the repository.",
            )
        if self.durable and (self.ask is not None or self.budget is not None):
            raise ConfigError("ask= and budget= work only for runs in memory: durable=False")
        if not self.durable and (self.repository is not None or self.artifacts):
            raise ConfigError(
                "repository and artifacts need a durable run",
                hint="Remove --no-durable (durable=False).",
            )
        if self.artifacts:
            workspace_artifacts.check(self.artifacts)


async def execute(
    request: RunRequest, make_graph: Callable[[Path | None], Graph]
) -> PipelineResult:
    """Execute the run to its end, or until it waits for people. ``make_graph`` gets the workspace,
    if it exists already. Errors are raised before anything is spent."""
    request.check()
    place = workspace_path(request.cwd)
    graph = make_graph(place if request.repository is None else None)
    options = with_active_span({} if request.options is None else request.options.copy())
    limits = take_limits(options, request.of_task)
    graph = with_limits(graph, limits)
    agent = request.agent or config.default_agent()
    simulated = simulation.build(request.simulate, request.script, graph)
    interviewer = interviewer_of(simulated, request.interviewer)
    resources = NodeResources(
        simulate=simulated, agent=agent, model=request.model, options=options, ask=request.ask
    )
    if request.repository is None:
        await _check_in(graph, resources, place, request.values, is_here=request.queue is None)
    if request.run_id is not None and slug(request.run_id, limit=100, allowed="._") != (
        request.run_id
    ):
        raise ConfigError(
            f"{request.run_id!r} cannot be the id of a run",
            hint="It has letters, digits, '.', '_' and '-', at most 100.",
        )
    name = request.run_id or service.new_id(graph.name)
    folder = run_folder(name, request.run_dir)
    if request.durable:
        database.require()
        stored = RunConfig(
            folder=str(folder),
            workspace=str(place),
            simulate=simulated,
            agent=agent,
            model=request.model or "",
            options=as_json(options),
            imports=tuple(request.imports),
            source=request.source,
            goal=request.goal or "",
            limits=limits,
            artifacts_url=request.artifacts,
        )
        if request.repository is not None:
            from corral._engine.workspace import branch_worktrees, run_worktree

            tree = await asyncio.to_thread(
                run_worktree.choose, name, request.repository, request.commit
            )
            if not resources.simulate:
                merging = [*graph.of_kind(node_kinds.MERGE.name)]
                await asyncio.to_thread(branch_worktrees.check_merges, merging, tree)
            stored = replace(stored, tree=tree, workspace=tree.within)
        run_input = RunInput(
            run_id=name,
            graph=graph,
            config=stored,
            values=request.values,
            program=request.program,
        )
        async with process_engine.used(request.db):
            await _start(run_input, resources, db=request.db, queue=request.queue)
            follower = service.RunFollower(
                name, db=request.db, interviewer=interviewer, on_event=request.on_event
            )
            result = await follow_to_end(follower, folder, request.on_start)
    else:
        if request.on_start is not None:
            request.on_start(name, folder)
        started = MemoryRun(
            graph,
            resources=resources,
            interviewer=interviewer,
            folder=folder,
            workspace=place,
            run_id=name,
            values=request.values,
            on_event=request.on_event,
            budget=request.budget,
            program=await _memory_program(request, name),
        )
        async with resources:
            result = await _run_in_memory(started, place, folder)
    is_workflow = request.program is not None
    await _notify(options, result, str(place), request.db, is_workflow=is_workflow)
    return result


async def _check_in(
    graph: Graph,
    resources: NodeResources,
    place: Path,
    values: Mapping[str, Json],
    *,
    is_here: bool,
) -> None:
    """Checks of a run that works in a folder; ``is_here``: its nodes run on this machine. Raises
    what its nodes would fail with."""
    if is_here and not resources.simulate:
        from corral._pipelines.execution import preflight

        preflight.check(graph, resources, place, values)
    if needs_repository(graph):
        from corral._engine.workspace import branch_worktrees

        await asyncio.to_thread(branch_worktrees.check, graph, place, resources.simulate)


async def _memory_program(request: RunRequest, run_id: str) -> RunningProgram | None:
    if request.program is None or request.workflow is None:
        return None
    from corral._workflows.drafted import find_bounds

    if find_bounds(request.program.text) is not None:
        from corral._workflows.sandboxed_program import load_any_program

        return await load_any_program(request.program, run_id)
    from corral._workflows.program import Program

    args, writes = request.program.args, request.program.writes
    return Program(request.workflow, args, run_id=run_id, writes=writes)


def with_active_span(options: RunKwargs) -> RunKwargs:
    """The options, which name the caller's active span if spans are sent: the nodes and tasks may
    run in other processes."""
    if options.get("otel") is not None:
        from corral._telemetry import trace_context

        options["env"] = trace_context.with_parent(options.get("env") or {})
    return options


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
        if queue is None and not resources.simulate:
            from corral._pipelines.execution import preflight

            preflight.check(run_input.graph, resources, place, run_input.values)
        await service.start(run_input, db=db, queue=queue)


async def _run_in_memory(run: MemoryRun, workspace: Path, folder: Path) -> PipelineResult:
    with executor.published(
        "pipeline",
        run.run_id,
        title=run.graph.goal or run.graph.name,
        cwd=str(workspace),
        folder=str(folder),
        cancel=run.cancel,
        budget=run,
    ):
        return result_from_output(run.run_id, await run.drive(), folder)


async def _notify(
    options: Mapping[str, object] | None,
    result: PipelineResult,
    cwd: str,
    db: str | None,
    *,
    is_workflow: bool,
) -> None:
    """Send the message of ``notify``, if it is wanted: the questions that the run waits for, or its
    end."""
    target, on = (options or {}).get("notify"), (options or {}).get("notify_on")
    if not isinstance(target, str):
        return
    from corral._publishing import notify

    shown = None if db is None else database.find(db).shown
    facts = notify.RunFacts(kind="pipeline", id=result.run, cwd=cwd, db=shown)
    messages = [
        notify.asked_message(
            facts,
            "question",
            notify.Asked(
                request_id=question.id,
                text=question.text,
                choices=tuple(choice.key for choice in question.choices),
                deadline=question.deadline,
            ),
        )
        for question in result.questions
    ]
    if result.status != "waiting":
        ended = notify.RunEnd(
            status=result.status,
            text=text_of(result, is_workflow=is_workflow),
            error=result.reason if result.status != "success" else "",
            cost_usd=result.cost_usd or None,
            tokens=result.tokens or None,
        )
        messages = [notify.end_message(facts, ended)]
    await notify.send_messages(target, on, messages)


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

    ::

        result = await pipelines.resume("review-20260131-142501-3f9a")
    """
    return await resume_shown(
        await query.show(run, db=db),
        accept_changed_graph=accept_changed_graph,
        db=db,
        interviewer=interviewer,
        on_event=on_event,
        on_start=on_start,
    )


async def resume_shown(
    shown: query.RunDetails,
    *,
    accept_changed_graph: bool,
    limits: Mapping[str, float] | None = None,
    db: str | None = None,
    interviewer: Interviewer | None = None,
    on_event: OnEvent | None = None,
    on_start: OnStart | None = None,
) -> PipelineResult:
    """``resume`` for a run that was read already. Its ``limits`` are raised to these."""
    check_is_pipeline(shown)
    now = None if shown.output else current_graph(shown)
    new: NewRun | None = None
    if now is not None and not durable_fork.is_same_graph(now, shown.graph):
        if not accept_changed_graph:
            source = shown.run_input.config.source
            raise ConfigError(
                f"the pipeline of {shown.id} has changed since it started: {source}",
                hint="--accept-changed-graph (accept_changed_graph=True) continues with the"
                " current file, as a new run that keeps what is finished.",
            )
        new = NewRun(
            name=service.new_id(now.name),
            begin=partial(durable_fork.continue_with_graph, shown.id, now, db=db, limits=limits),
        )
    return await continue_run(
        shown,
        new,
        limits=limits,
        db=db,
        interviewer=interviewer,
        on_event=on_event,
        on_start=on_start,
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
    shown = await query.show(run, db=db)
    check_is_pipeline(shown)
    now = graph or current_graph(shown) or shown.graph
    if node not in now.nodes:
        raise ConfigError(
            f"the pipeline has no node {node!r}", hint=f"Nodes: {', '.join([*now.nodes][:20])}."
        )
    new = NewRun(
        name=service.new_id(now.name),
        run_dir=run_dir,
        begin=partial(durable_fork.fork, run, node, graph=now, db=db, queue=queue),
    )
    return await continue_run(
        shown, new, db=db, interviewer=interviewer, on_event=on_event, on_start=on_start
    )


run_sync: Final = sync_twin(run)
resume_sync: Final = sync_twin(resume)
fork_sync: Final = sync_twin(fork)


def check_is_pipeline(shown: query.RunDetails) -> None:
    """Raises ``ConfigError`` for a run of a workflow."""
    if shown.run_input.program is not None:
        raise ConfigError(
            f"{shown.id} is a run of a workflow",
            hint="Use `corral workflow resume` and `corral workflow fork` (corral.workflows).",
        )


class NewRun(NamedTuple):
    """A new run that continues another."""

    name: str
    begin: Begin
    """Starts it."""
    run_dir: str | os.PathLike[str] | None = None


class Begin(Protocol):
    """Starts a run with this id and directory."""

    async def __call__(self, *, run_id: str, folder: Path) -> object: ...


async def continue_run(
    shown: query.RunDetails,
    new: NewRun | None,
    *,
    limits: Mapping[str, float] | None = None,
    db: str | None = None,
    interviewer: Interviewer | None = None,
    on_event: OnEvent | None = None,
    on_start: OnStart | None = None,
) -> PipelineResult:
    """Continue a run of a pipeline or a workflow, or start the ``new`` run that continues it, and
    follow it to its end. The ``limits`` of a run that is continued are raised to these."""
    name, folder = shown.id, Path(shown.folder)
    reported = max((event.seq for event in shown.events), default=0)
    config = shown.run_input.config
    async with process_engine.used(db):
        if new is not None:
            name, reported = new.name, 0
            folder = run_folder(name, new.run_dir)
            await new.begin(run_id=name, folder=folder)
        else:
            if limits:
                await service.add_budget(name, Raise.of(limits), is_total=True, db=db)
            if shown.output is None:
                await service.resume(name, db=db)
        follower = service.RunFollower(
            name,
            db=db,
            interviewer=interviewer_of(config.simulate, interviewer),
            on_event=on_event,
            reported=reported,
        )
        result = await follow_to_end(follower, folder, on_start)
    if new is not None or shown.output is None:
        is_workflow = shown.run_input.program is not None
        await _notify(config.options, result, shown.workspace, db, is_workflow=is_workflow)
    return result


async def follow_to_end(
    watched: service.RunFollower, folder: Path, on_start: OnStart | None
) -> PipelineResult:
    if on_start is not None:
        on_start(watched.run, folder)
    closed = await watched.run_to_end()
    if closed is not None:
        return result_from_output(watched.run, closed, folder)
    asked = await open_questions.questions(watched.run, db=watched.db)
    return waiting_result(await query.show(watched.run, db=watched.db), asked)


# Before a run: its graph, its directories, its options.


Pipeline: TypeAlias = str | os.PathLike[str] | Graph
"""A file, its text, or a loaded graph."""


def workspace_path(cwd: str | os.PathLike[str] | None) -> Path:
    """The directory in which agents and commands work. Raises ``ConfigError``."""
    place = Path(cwd or ".").absolute()
    if not fs.is_dir(place):
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


def as_json(options: AgentKwargs | None) -> dict[str, Json]:
    """The options as JSON, to store them with the run. Raises ``ConfigError``."""
    given: dict[str, object] = {**(options or {})}
    verify = given.get("verify") or ()
    if not all(isinstance(each, str) for each in (verify if is_sequence(verify) else (verify,))):
        raise ConfigError(
            "a durable run can be verified with commands only",
            hint="Give them as text: verify='pytest -q'.",
        )
    try:
        return as_object(msgspec.to_builtins(options or {}, enc_hook=os.fspath))
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(f"a durable run cannot store this option: {error}") from error


# After a run: its result.


class SavedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has saved at its end: fields of its result."""

    branch: str = ""
    """With ``repository``: the branch with the changes; empty if nothing was changed."""
    commit: str = ""
    files: list[str] = []
    """Files that were changed on the branch: the first 1,000."""
    branches: list[str] = []
    """Branches with work of parallel branches that was not merged."""
    artifacts: list[str] = []
    """With ``artifacts``: the names of the uploaded files."""
    warnings: list[str] = []
    """What could not be saved at the end, and where it is."""


class RunResult(Displayed, SavedWork, frozen=True, kw_only=True):
    """What the results of pipelines and workflows have in common."""

    run: str
    """The id of the run."""
    status: Literal["success", "fail", "cancelled", "waiting"]
    """``waiting``: the run waits for people, and there was no interviewer; it can be answered and
    resumed."""
    reason: str = ""
    outcomes: dict[str, Outcome] = {}
    questions: list[Question] = []
    """The open questions of a waiting run."""
    cost_usd: float = 0.0
    tokens: int = 0
    folder: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "success"

    def _card_of(self, parts: Iterable[str], text: str) -> Card:
        """What a Python prompt and a notebook show of the result, with the ``text`` of a
        success."""
        facts = (
            self.run,
            *parts,
            *count(len(self.questions), "open question"),
            *spent(Usage(input=self.tokens or None), Cost(usd=self.cost_usd or None)),
        )
        asked = "\n".join(question.text for question in self.questions)
        title = f"{type(self).__name__} {self.status}"
        return Card(title, facts, asked or (text if self.ok else self.reason))


class PipelineResult(RunResult, frozen=True, kw_only=True):
    """The result of a run.

    ::

        result = pipelines.run_sync("review.dot")
        if result.status == "waiting":
            print(result.run, [question.text for question in result.questions])
    """

    context: dict[str, Json] = {}
    completed: list[str] = []
    """Nodes, in the order in which they ended."""

    def _card(self) -> Card:
        parts = count(len(self.completed), "finished node")
        return self._card_of(parts, as_text(self.context.get("last_response")))

    @short_traceback
    def value(self, key: str, output: Output[ValueT] | None = None) -> ValueT:
        """The value of ``key`` in the context, such as ``review.output`` of a node ``review`` with
        an ``output_schema``. With ``output``, a type or a JSON Schema, it is a value of that type.

        ::

            result = pipelines.run_sync("review.dot")
            for problem in result.value("review.output", Review).problems:
                print(problem)

        Raises ``ConfigError`` if the run has no such value, and ``SchemaNotMet`` if it does not
        fit.
        """
        if key not in self.context:
            known = sorted(name for name in self.context if not name.startswith("internal."))
            raise ConfigError(
                f"the run {self.run} has no value {key!r}", hint=f"It has: {', '.join(known)}."
            )
        value = self.context[key]
        return cast("ValueT", value) if output is None else schema_of(output).typed_value(value)

    @property
    def text(self) -> str:
        """The last answer of an agent or a model; possibly shortened if the run directory is not on
        this machine."""
        for node in reversed(self.completed):
            try:
                return fs.read_text(Path(self.folder) / file_name(node) / "response.md")
            except (OSError, UnicodeDecodeError):
                continue
        return str(self.context.get("last_response", ""))


def text_of(result: PipelineResult, *, is_workflow: bool) -> str:
    """What a run that has ended shows: the last answer of a pipeline; what a workflow returned, as
    text or JSON."""
    if not is_workflow:
        return result.text
    value = result.context.get(RESULT)
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def result_from_output(name: str, output: PipelineOutput, folder: Path) -> PipelineResult:
    fields = asdict(output) | asdict(saved_work(output.saved))
    del fields["saved"]
    return PipelineResult(run=name, folder=str(folder), **fields)


def saved_work(saved: JsonObject) -> SavedWork:
    """The saved branch and artifacts of a run (``PipelineOutput.saved``)."""
    work, uploaded = as_object(saved.get("workspace")), saved.get("artifacts")
    warnings: list[str] = []
    if "error" in work:
        warnings.append(f"its work could not be saved: {work['error']}; see {work['folder']}")
    if isinstance(uploaded, str):
        warnings.append(uploaded)
    return SavedWork(
        branch=as_text(work.get("branch")),
        commit=as_text(work.get("commit")),
        files=as_texts(work.get("files")),
        branches=as_texts(saved.get("branches")),
        artifacts=as_texts(uploaded),
        warnings=warnings,
    )


def waiting_result(
    shown: query.RunDetails, questions: list[open_questions.RunQuestion]
) -> PipelineResult:
    """The result of a run that waits for people."""
    state = shown.state
    return PipelineResult(
        run=shown.id,
        status="waiting",
        reason="it waits for a person",
        context=state.context,
        completed=state.completed,
        outcomes=state.outcomes,
        questions=[each.question for each in questions],
        cost_usd=state.cost_usd,
        tokens=state.tokens,
        folder=shown.folder,
    )


def result_to_json(result: PipelineResult) -> dict[str, Json]:
    """As JSON. Each outcome has its status, which the encoder would omit for a success."""
    first: dict[str, Json] = {"run": result.run, "status": result.status}
    fields = as_object(msgspec.to_builtins(result))
    return {**first, **fields, "outcomes": outcomes(result.outcomes)}


def outcomes(found: dict[str, Outcome]) -> dict[str, Json]:
    return {
        node: {"status": outcome.status, **msgspec.to_builtins(outcome)}
        for node, outcome in found.items()
    }
