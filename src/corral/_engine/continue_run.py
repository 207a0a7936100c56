"""Continue a run of a pipeline or a workflow: the run itself, or a new run that takes over results.

Theory of operation
-------------------
A run that has not ended goes on where its journal ends: its workflow is taken over. One that has
failed or was cancelled, or that goes on with another file or other options, gets a *try*: a new
workflow (``RUN#2``) with the id, the folder and the budget of the run. It starts with the results
that the try before recorded: if its scheduler returns a command whose result is known, the known
result is used and nothing runs. A fork is the same with an id, folder and budget of its own; the
other run is not changed.

``pipeline_runs`` and ``workflow_runs`` decide how a run goes on (``Continuation``), and
``continue_run`` does it.

Two processes that resume one run: a try is submitted under its id, which only one of them can do;
a workflow is taken over only from an executor that is dead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral._core.lookup import try_id
from corral._core.spending import Raise, Spent
from corral._engine import process_engine, query, service
from corral._engine.dbos.client import DatabaseClient, with_client
from corral._engine.dbos.database import Database, find
from corral._engine.follow_run import FollowOptions, follow_to_end, send_notification
from corral._engine.payloads import (
    COMMIT,
    PipelineOutput,
    RunInput,
    answer_key,
    spent_on,
    unpack,
)
from corral._engine.query import Replay
from corral._engine.run_result import PipelineResult
from corral._engine.start_run import run_folder
from corral._pipelines.execution.simulated_nodes import interviewer_of
from corral._pipelines.graph import Graph
from corral._pipelines.run_limits import run_limits, with_limits
from corral._pipelines.scheduler.commands import Answered, Ended, Expired, Message
from corral._workflows.program_turn import StoredProgram
from corral.errors import ConfigError
from corral.values import Json

STOPPING = 60.0
"""Seconds that an executor gets to end a try that another one replaces."""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What is different when a run goes on."""

    limits: dict[str, float] = {}
    """Limits of the run, which are raised to these."""
    options: dict[str, Json] = {}
    """Options of its agents."""
    accept_changed: bool = False
    """Whether a pipeline goes on with its file as it is now."""

    def need_try(self, shown: query.RunDetails) -> bool:
        """Whether a run that has not ended cannot go on with them as it is."""
        return (
            bool(self.options)
            or not self.limits.keys() <= run_limits(_graph(shown)).as_dict().keys()
        )


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """A new try of a run, or a new run that continues another."""

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
    """None: the run itself goes on, or has succeeded."""
    changes: Changes = field(default_factory=Changes)

    @property
    def graph(self) -> Graph:
        """Of the run that goes on."""
        return self.run.run_input.graph if self.new is None else self.new.graph


async def continue_run(
    found: Continuation,
    follow: FollowOptions,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    queue: str | None = None,
) -> PipelineResult:
    """Continue a run as planned, and follow it to its end. ``run_dir``: of a fork. ``queue``: of a
    fork or a new try. A run that another process executes is followed if its limits are raised;
    else this raises ``ConfigError``."""
    shown, new, db, limits = found.run, found.new, follow.db, found.changes.limits
    name, folder, reported = shown.id, Path(shown.folder), 0
    config = shown.run_input.config
    follow = dataclass_replace(
        follow, interviewer=interviewer_of(config.simulate, follow.interviewer)
    )
    async with process_engine.used(db):
        if new is not None and new.is_fork:
            name = service.new_id(new.graph.name)
            folder = run_folder(name, run_dir)
            await _begin(found, new, name, folder, db=db, queue=queue)
        elif new is not None:
            if shown.output is None:
                await service.check_not_elsewhere(name, db=db)
                await service.cancel(name, reason="it goes on in another try", db=db)
                await service.wait(name, db=db, timeout=STOPPING)
                answers = await pending_answers(new.replay, db)
                new = dataclass_replace(new, known={**new.known, **answers})
            await _begin(found, new, name, folder, db=db, queue=queue)
        else:
            reported = max((event.seq for event in shown.events), default=0)
            if shown.output is None:
                if limits:
                    await service.add_budget(name, Raise.of(limits), is_total=True, db=db)
                else:
                    await service.check_not_elsewhere(name, db=db)
                await service.resume(name, db=db, restarts_jobs=follow.restarts_jobs)
        result = await follow_to_end(name, folder, follow, reported=reported)
    if new is not None or shown.output is None:
        is_workflow = shown.run_input.program is not None
        await send_notification(
            config.options, result, shown.workspace, db, is_workflow=is_workflow
        )
    return result


async def _begin(
    found: Continuation,
    new: NewRun,
    name: str,
    folder: Path,
    *,
    db: str | None,
    queue: str | None,
) -> None:
    """Start the new run or try. Its worktree, if it has one, starts with what the other had saved
    before."""
    other, graph, changes = new.replay.run_input, new.graph, found.changes
    config, limits = other.config, dict(changes.limits)
    tries, spent, known = 1, Spent(), dict(new.known)
    workflow = name
    if new.is_fork:
        # Also what was raised since the other run began.
        limits = {**await asyncio.to_thread(_limits_now, find(db), other.run), **limits}
    else:
        tries = other.tries + 1
        workflow = try_id(name, tries)
        kept = {*known, *(new.program.known if new.program is not None else ())}
        spent = other.spent + spent_on(
            message.outcome
            for message in new.replay.messages
            if isinstance(message, Ended) and message.id not in kept
        )
        own = run_limits(_graph(found.run)).as_dict()
        raised = {key: limits.pop(key) for key in own.keys() & limits.keys()}
        if raised:
            await service.add_budget(name, Raise.of(raised), is_total=True, db=db)
        await asyncio.to_thread(_settle, find(db), other)
    if limits:
        graph = replace(graph, attrs={**graph.attrs, **limits})
        config = replace(config, limits={**config.limits, **limits})
    graph = with_limits(graph, config.limits)
    config = replace(config, options={**config.options, **changes.options})
    tree = config.tree
    worktree: AbstractAsyncContextManager[None] = nullcontext()
    if tree is not None:
        from corral._engine.workspace import run_worktree

        # The commit after the last known result, without what is run again.
        at = tree.start_commit or tree.commit
        for message in results_of(new.replay):
            if message.id in new.known and isinstance(message, Ended):
                at = str(message.outcome.context_updates.get(COMMIT, at))
        base, within = tree.commit, tree.within
        choose = run_worktree.choose
        tree = await asyncio.to_thread(choose, workflow, tree.repository, base, within=within)
        tree = replace(tree, start_commit=at)
        worktree = run_worktree.reserved(tree, stays=queue is None)
    config = replace(config, folder=str(folder), tree=tree)
    run_input = RunInput(
        run_id=workflow,
        graph=graph,
        config=config,
        values=other.values,
        known=known if new.program is None else {},
        forked_from=other.run if new.is_fork else other.forked_from,
        tries=tries,
        spent=spent,
        program=new.program,
    )
    async with worktree:
        await service.start(run_input, db=db, queue=queue, began=found.run.created)


def _graph(shown: query.RunDetails) -> Graph:
    """With the limits of the run."""
    return with_limits(shown.run_input.graph, shown.run_input.config.limits)


def _limits_now(database: Database, run: str) -> dict[str, float]:
    """The limits of a run, as they were raised. Blocking."""
    from corral._engine import limits

    state = limits.read_stores(database, [run]).get(run)
    return {} if state is None else state.limits.raised(state.raised).as_dict()


def _settle(database: Database, run_input: RunInput) -> None:
    """What an earlier try left reserved counts as spent. Blocking."""
    from corral._engine import limits

    for name in run_input.config.budgets:
        limits.settle_all(name, database)


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


def finished(replay: Replay, output: PipelineOutput) -> dict[str, Message]:
    """The results of a run that has ended that a new try keeps: all but the failures that ended
    it."""
    results = results_of(replay)
    # After how many messages the run went on with something.
    continued = {*replay.command_positions.values()}
    position = {id(message): number for number, message in enumerate(replay.messages, 1)}
    kept = [
        message
        for message in results
        if position.get(id(message)) in {None, *continued} or not _is_failure(message)
    ]
    received = [message for message in results if id(message) in position]
    if output.status == "fail" and len(kept) == len(results) and received:
        # It failed between two nodes, for example at a goal gate: what came last is repeated.
        last = next((each for each in reversed(received) if _is_failure(each)), received[-1])
        return known_before(replay, last.id.rpartition(".")[0])
    return {message.id: message for message in kept}


def _is_failure(message: Ended | Answered | Expired) -> bool:
    if isinstance(message, Ended):
        return not message.outcome.ok
    return isinstance(message, Expired) or message.answer.skipped


def results_of(replay: Replay) -> list[Ended | Answered | Expired]:
    """The results that a run has, in the order in which they came: first those that it took over,
    also those that it did not come to."""
    known = replay.run_input.known
    new = [each for each in replay.messages if known.get(getattr(each, "id", "")) is not each]
    return [e for e in (*known.values(), *new) if isinstance(e, Ended | Answered | Expired)]


def is_same_graph(one: Graph, other: Graph) -> bool:
    """Whether two graphs are equal, apart from positions in their files."""

    def meaning(graph: Graph) -> bytes:
        nodes = {key: (each.attrs, each.classes) for key, each in graph.nodes.items()}
        edges = [(each.source, each.target, each.attrs) for each in graph.edges]
        return msgspec.json.encode([graph.name, graph.attrs, nodes, edges], order="sorted")

    return meaning(one) == meaning(other)
