"""``corral.pipelines.run`` and its kin: a pipeline from its file to its end.

Durable unless told otherwise: what is done is never done twice, whatever dies meanwhile.
In memory (``durable=False``) nothing but the run folder is left, and no engine is needed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from corral.agents.registry import DEFAULT_AGENT
from corral.durable import follow, open_questions, query, service
from corral.durable import fork as durable_fork
from corral.durable.dbos import adapter
from corral.durable.prepare_run import (
    Pipeline,
    as_json,
    folder_of,
    graph_now,
    place_of,
    prepare,
    source_of,
)
from corral.durable.result import PipelineResult, ended, waiting
from corral.durable.worker import executor
from corral.durable.workspace import artifacts as workspace_artifacts
from corral.durable.workspace import run_worktree
from corral.errors import ConfigError, CorralError, ProcessFailed, StorageFailed
from corral.events import Json
from corral.options import RunKwargs
from corral.pipelines import loader
from corral.pipelines.events import RunEvent
from corral.pipelines.execution import memory_runner, preflight
from corral.pipelines.execution.interviewers import Interviewer
from corral.pipelines.execution.resources import NodeResources
from corral.pipelines.graph import Graph
from corral.pipelines.linter.finding import Rule
from corral.pipelines.scheduler.commands import Answer
from corral.pipelines.transforms import Transform

if TYPE_CHECKING:
    from corral.sessions.permissions import Asker

P = ParamSpec("P")
T = TypeVar("T")

OnEvent: TypeAlias = Callable[[RunEvent], None]
OnStart: TypeAlias = Callable[[str, Path], None]
"""Told the run's id and its folder."""


async def run(
    pipeline: Pipeline,
    *,
    goal: str | None = None,
    values: Mapping[str, Json] | None = None,
    agent: str | None = None,
    model: str | None = None,
    workspace: str | os.PathLike[str] | None = None,
    repository: str | os.PathLike[str] | None = None,
    commit: str | None = None,
    artifacts: str = "",
    run_dir: str | os.PathLike[str] | None = None,
    simulate: bool = False,
    people: Interviewer | None = None,
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
    options: RunKwargs | None = None,
) -> PipelineResult:
    """Run a pipeline (a file, a text, a graph) to its end, or to where it waits for people.

    ``people`` answers the gates; without anybody a durable run that comes to one returns as
    ``waiting``. ``queue`` leaves the work to the workers of that queue. ``options`` are those
    of ``corral.run``, for every agent in it; ``ask`` answers their questions, in memory only.
    ``repository`` (a folder, a bare repository or a URL): it works in a worktree of its own, at
    ``commit``; its work becomes a branch there, the result's ``branch``. What its nodes leave
    in the run's ``artifacts/`` is put to the URL ``artifacts``: any file system of fsspec's.
    ``on_start`` is told the run's id and folder. With ``check`` anything but a success is
    raised. What is wrong with the call or the pipeline is raised in any case, before anything
    is spent.
    """
    _check_places(workspace, repository, commit, artifacts, durable=durable)
    place = place_of(workspace)
    graph = prepare(
        pipeline,
        values=values,
        goal=goal,
        model=model,
        workspace=place if repository is None else None,
        transforms=transforms,
        rules=rules,
    )
    desk = NodeResources(
        simulate=simulate, agent=agent or DEFAULT_AGENT, model=model, options=options, ask=ask
    )
    if queue is None and repository is None:
        preflight.check(graph, desk, place, values or {})
    name = new_id(graph.name)
    folder = folder_of(name, run_dir)
    if durable:
        if ask is not None:
            raise ConfigError("ask= answers only where the run is in memory: durable=False")
        adapter.require()
        tree = None
        if repository is not None:
            tree = await asyncio.to_thread(run_worktree.choose, name, repository, commit)
        async with engine():
            async with _turn(), run_worktree.reserved(tree, stays=queue is None):
                if tree is not None:
                    place = run_worktree.workspace_folder(tree)
                    loader.check(graph, place)
                    if queue is None:
                        preflight.check(graph, desk, place, values or {})
                await service.start(
                    graph,
                    run_id=name,
                    folder=folder,
                    workspace=place,
                    db=db,
                    queue=queue,
                    values=values,
                    simulate=simulate,
                    agent=agent or "",
                    model=model or "",
                    options=as_json(options or {}),
                    imports=imports,
                    source=source_of(pipeline, source),
                    goal=goal or "",
                    tree=tree,
                    artefacts=artifacts,
                )
            watched = follow.RunFollower(name, db=db, people=people, on_event=on_event)
            result = await _seen_through(watched, folder, on_start)
    else:
        if on_start is not None:
            on_start(name, folder)
        async with desk:
            came = await memory_runner.run(
                graph,
                desk=desk,
                people=people,
                folder=folder,
                workspace=place,
                values=values,
                run_id=name,
                on_event=on_event,
            )
        result = ended(name, came, folder)
    if check and not result.ok:
        raise ProcessFailed(f"the run {result.run} ended as {result.status}: {result.reason}")
    return result


def _check_places(
    workspace: object, repository: object, commit: object, artifacts: str, *, durable: bool
) -> None:
    if commit is not None and repository is None:
        raise ConfigError("a commit of which repository?", hint="Give --repository too.")
    if repository is not None and workspace is not None:
        raise ConfigError(
            "a workspace and a repository both given",
            hint="A run works in the workspace as it is, or in a worktree of the repository.",
        )
    if not durable and (repository is not None or artifacts):
        raise ConfigError(
            "a repository, or a place for artifacts, is for durable runs",
            hint="Leave out --no-durable (durable=False).",
        )
    if artifacts:
        workspace_artifacts.check(artifacts)


def _blocking(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        from corral.sessions.api import blocking

        return blocking(function(*args, **kwargs))

    return call


run_sync = _blocking(run)
"""``run`` for code that is not async, with the same arguments; it also works inside a running
event loop, as in a notebook."""


async def resume(
    run: str,
    *,
    accept_changed_graph: bool = False,
    db: str | None = None,
    people: Interviewer | None = None,
    on_event: OnEvent | None = None,
    on_start: OnStart | None = None,
) -> PipelineResult:
    """Go on with a run that was left, in this process, and see it through; what is done is
    not done again. A run that some worker is at, or that has ended, is only looked at.

    Where the pipeline's file has changed since the run began, that is refused; with
    ``accept_changed_graph`` a new run goes on with the new one, from all that is finished.
    """
    shown = await query.show(run, db=db)
    graph, folder, name = shown.graph, Path(shown.folder), run
    told = max((event.seq for event in shown.events), default=0)
    now = None if shown.closed else graph_now(shown)
    async with engine():
        if now is None or durable_fork.same(now, graph):
            if shown.closed is None:
                async with _turn():
                    await service.resume(run, db=db)
        else:
            if not accept_changed_graph:
                source = shown.begun.setting.source
                raise ConfigError(
                    f"the pipeline of {run} has changed since it began: {source}",
                    hint="--accept-changed-graph (accept_changed_graph=True) continues with the"
                    " current file, as a new run that keeps what is finished.",
                )
            graph, name, told = now, new_id(now.name), 0
            folder = folder.with_name(name)
            async with _turn():
                await durable_fork.go_on_changed(
                    run, now, folder=folder, accept_changed_graph=True, db=db, run_id=name
                )
        watched = follow.RunFollower(name, db=db, people=people, on_event=on_event, told=told)
        return await _seen_through(watched, folder, on_start)


async def fork(
    run: str,
    node: str,
    *,
    graph: Graph | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    db: str | None = None,
    queue: str | None = None,
    people: Interviewer | None = None,
    on_event: OnEvent | None = None,
    on_start: OnStart | None = None,
) -> PipelineResult:
    """Run again from this node on, as a run of its own: what was done before it counts as
    done. With the pipeline's file as it is now, unless a graph is given."""
    shown = await query.show(run, db=db)
    now = graph or graph_now(shown) or shown.graph
    if node not in now.nodes:
        raise ConfigError(f"the pipeline has no node {node!r}")
    name = new_id(now.name)
    folder = folder_of(name, run_dir)
    async with engine():
        async with _turn():
            await durable_fork.fork(
                run, node, folder=folder, graph=now, db=db, queue=queue, run_id=name
            )
        watched = follow.RunFollower(name, db=db, people=people, on_event=on_event)
        return await _seen_through(watched, folder, on_start)


async def answer(
    run: str,
    said: Answer | str,
    *,
    gate: str | None = None,
    by: str = "",
    db: str | None = None,
) -> None:
    """Answer what the run asks; ``gate`` says which, by its node or the question's id;
    what a pipeline within it asks counts too. Raises
    ``ConfigError`` where nothing such is asked, or the answer is none of the choices."""
    found = await query.show(run, db=db)
    if found.closed is not None:
        raise service.NotAsked(f"{run} has ended already: {found.closed.status}")
    words = said if isinstance(said, Answer) else Answer(value=said)
    await open_questions.answer(run, words, gate=gate, by=by, db=db)


async def cancel(run: str, *, reason: str = "", db: str | None = None) -> None:
    """End a run and whatever it has at work; one that has ended is left as it is. Raises
    ``ConfigError`` where there is none."""
    await query.show(run, db=db)
    await service.cancel(run, reason=reason, db=db)


async def runs(*, limit: int | None = 50, db: str | None = None) -> list[query.Overview]:
    """The runs of a database, the newest first."""
    return await query.list_runs(db=db, limit=limit)


async def show(run: str, *, db: str | None = None) -> query.Shown:
    """Where a run stands. Raises ``ConfigError`` where there is none."""
    return await query.show(run, db=db)


def new_id(name: str) -> str:
    """``review-20260131-142501-3f9a``"""
    return service.new_id(name)


async def _seen_through(
    watched: follow.RunFollower, folder: Path, on_start: OnStart | None
) -> PipelineResult:
    if on_start is not None:
        on_start(watched.run, folder)
    closed = await watched.run_to_end()
    if closed is not None:
        return ended(watched.run, closed, folder)
    asked = await open_questions.questions(watched.run, db=watched.db)
    return waiting(await query.show(watched.run, db=watched.db), asked)


_in_use = 0
"""Runs of this process that use its engine; the last one ends it."""
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def _turn() -> asyncio.Lock:
    """One begins or ends the engine at a time: it is one for the process. A lock belongs to the
    loop in which somebody first waited for it."""
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())


@asynccontextmanager
async def engine() -> AsyncGenerator[None]:
    """While this lasts, the engine of this process is not ended. Raises ``StorageFailed`` where
    it fails: its disk is full, say. What it ran can be resumed."""
    global _in_use  # noqa: PLW0603
    _in_use += 1
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    asked = task.cancelling() if task is not None else 0
    failure: CorralError | None = None

    def end() -> None:
        if task is not None and inside:
            task.cancel()

    def failed(error: CorralError) -> None:
        nonlocal failure
        failure = error
        loop.call_soon_threadsafe(end)

    inside = True
    try:
        with executor.watched(failed):
            yield
    except BaseException as error:
        inside = False
        if failure is None or isinstance(error, StorageFailed):
            raise
        is_ours = task is None or not isinstance(error, asyncio.CancelledError)
        if not is_ours and task is not None and task.uncancel() > asked:
            raise  # somebody else wants it to end too
        raise failure from None
    finally:
        inside = False
        _in_use -= 1
        await asyncio.shield(_ended_where_unused())


async def _ended_where_unused() -> None:
    async with _turn():
        if not _in_use:
            await asyncio.to_thread(service.close)
