"""Continue a run of a pipeline or a workflow: the run itself, or a new run that takes over results.

The new run starts with the results that the other one recorded, which is not changed. If its
scheduler returns a command whose result is known, the known result is used and nothing runs.

``pipeline_runs`` and ``workflow_runs`` decide how a run goes on (``Continuation``), and
``continue_run`` does it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral._core.spending import Raise
from corral._engine import process_engine, query, service
from corral._engine.dbos.client import DatabaseClient, with_client
from corral._engine.dbos.database import find
from corral._engine.follow_run import FollowOptions, follow_to_end, send_notification
from corral._engine.payloads import COMMIT, RunInput, answer_key, unpack
from corral._engine.query import Replay
from corral._engine.run_result import PipelineResult
from corral._engine.start_run import run_folder
from corral._pipelines.execution.simulated_nodes import interviewer_of
from corral._pipelines.graph import Graph
from corral._pipelines.run_limits import with_limits
from corral._pipelines.scheduler.commands import Answered, Ended, Expired, Message
from corral._workflows.program_turn import StoredProgram
from corral.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """A new run that continues another."""

    replay: Replay
    """The history of the other run."""
    known: Mapping[str, Message]
    """The results of the other run that it takes over, by id."""
    graph: Graph
    program: StoredProgram | None = None
    """Of a workflow: it has the known results of its steps itself."""
    is_fork: bool = False
    """Whether the other run stays as it is. Else it is cancelled if it has not ended, and answers
    that were sent to it are taken over."""


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """How a run goes on."""

    run: query.RunDetails
    new: NewRun | None = None
    """None: the run itself goes on."""

    @property
    def graph(self) -> Graph:
        """Of the run that goes on."""
        return self.run.run_input.graph if self.new is None else self.new.graph


async def continue_run(
    found: Continuation,
    follow: FollowOptions,
    *,
    limits: Mapping[str, float] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    queue: str | None = None,
) -> PipelineResult:
    """Continue a run as planned, and follow it to its end. ``limits`` of the run are raised to
    these; a new run has these, and counts from zero. ``run_dir``, ``queue``: of a new run."""
    shown, new, db = found.run, found.new, follow.db
    name, folder, reported = shown.id, Path(shown.folder), 0
    config = shown.run_input.config
    follow = dataclass_replace(
        follow, interviewer=interviewer_of(config.simulate, follow.interviewer)
    )
    async with process_engine.used(db):
        if new is not None:
            name = service.new_id(new.graph.name)
            folder = run_folder(name, run_dir)
            if shown.output is None and not new.is_fork:
                await service.cancel(shown.id, reason=f"{name} continues it", db=db)
                answers = await pending_answers(new.replay, db)
                new = dataclass_replace(new, known={**new.known, **answers})
            await _begin(new, name, folder, limits=limits, db=db, queue=queue)
        else:
            reported = max((event.seq for event in shown.events), default=0)
            if limits:
                await service.add_budget(name, Raise.of(limits), is_total=True, db=db)
            if shown.output is None:
                await service.resume(name, db=db, restarts_jobs=follow.restarts_jobs)
        result = await follow_to_end(name, folder, follow, reported=reported)
    if new is not None or shown.output is None:
        is_workflow = shown.run_input.program is not None
        await send_notification(
            config.options, result, shown.workspace, db, is_workflow=is_workflow
        )
    return result


async def _begin(
    new: NewRun,
    name: str,
    folder: Path,
    *,
    limits: Mapping[str, float] | None,
    db: str | None,
    queue: str | None,
) -> None:
    """Start the run. Its worktree, if it has one, starts with what the other had saved before."""
    other, graph = new.replay.run_input, new.graph
    config = other.config
    if limits:
        graph = replace(graph, attrs={**graph.attrs, **limits})
        config = replace(config, limits={**config.limits, **limits})
    graph = with_limits(graph, config.limits)
    tree = config.tree
    worktree: AbstractAsyncContextManager[None] = nullcontext()
    if tree is not None:
        from corral._engine.workspace import run_worktree

        # The commit after the last known result, without what is run again.
        at = tree.commit
        for message in results_of(new.replay):
            if message.id in new.known and isinstance(message, Ended):
                at = str(message.outcome.context_updates.get(COMMIT, at))
        base, within = tree.commit, tree.within
        choose = run_worktree.choose
        tree = await asyncio.to_thread(choose, name, tree.repository, base, within=within)
        tree = replace(tree, start_commit=at)
        worktree = run_worktree.reserved(tree, stays=queue is None)
    config = replace(config, folder=str(folder), tree=tree)
    run_input = RunInput(
        run_id=name,
        graph=graph,
        config=config,
        values=other.values,
        known=dict(new.known) if new.program is None else {},
        forked_from=other.run_id,
        program=new.program,
    )
    async with worktree:
        continues = "" if new.is_fork else other.run_id
        await service.start(run_input, db=db, queue=queue, continues=continues)


async def read_replay(run: str, db: str | None) -> Replay:
    def read(client: DatabaseClient) -> Replay:
        row, replay = query.replay_run(client, run)
        row.check_format()
        return replay

    return await with_client(find(db), read)


async def pending_answers(replay: Replay, db: str | None) -> dict[str, Message]:
    """Answers that were sent and that the run has not received."""
    run = replay.run_input.run_id

    def read(client: DatabaseClient) -> dict[str, Message]:
        found: dict[str, Message] = {}
        for question in replay.questions:
            message = client.find_message(run, answer_key(question.id))
            if message is not None:
                found[question.id] = unpack(message, Answered)
        return found

    return await with_client(find(db), read)


def known_before(replay: Replay, node: str) -> dict[str, Message]:
    """The results of everything before the last visit of this node. Raises ``ConfigError`` if the
    node was not visited."""
    visits = [key for key in replay.command_positions if key.rpartition(".")[0] == node]
    passed_positions = [key for key in replay.passed_positions if key.rpartition(".")[0] == node]
    if passed_positions and not visits:
        before = set([*replay.command_positions][: replay.passed_positions[passed_positions[-1]]])
        return {message.id: message for message in results_of(replay) if message.id in before}
    if not visits:
        names = sorted(
            {
                key.rpartition(".")[0]
                for key in (*replay.command_positions, *replay.passed_positions)
            }
        )
        raise ConfigError(f"{node!r} was not visited", hint=f"Visited: {', '.join(names)}.")
    chosen = max(visits, key=lambda key: replay.command_positions[key])
    position = replay.command_positions[chosen]
    return {
        message.id: message
        for message in results_of(replay)
        if message.id != chosen
        and replay.command_positions.get(message.id, position + 1) <= position
    }


def results_of(replay: Replay) -> list[Ended | Answered | Expired]:
    return [each for each in replay.messages if isinstance(each, Ended | Answered | Expired)]


def is_same_graph(one: Graph, other: Graph) -> bool:
    """Whether two graphs are equal, apart from positions in their files."""

    def meaning(graph: Graph) -> bytes:
        nodes = {key: (each.attrs, each.classes) for key, each in graph.nodes.items()}
        edges = [(each.source, each.target, each.attrs) for each in graph.edges]
        return msgspec.json.encode([graph.name, graph.attrs, nodes, edges], order="sorted")

    return meaning(one) == meaning(other)
